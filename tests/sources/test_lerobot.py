"""LeRobotDatasets: their ends, tasks and files, and whatever is wrong with them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fixtures.make_lerobot import LENGTHS, rows
from tests.sources.case import FIXTURES
from worldmodel.images import EncodedImages
from worldmodel.sources import lerobot_parquet, read
from worldmodel.sources.lerobot_meta import read_meta

FIRST = "data/chunk-000/episode_000000.parquet"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the dataset of version 2.1."""
    return Path(shutil.copytree(FIXTURES / "lerobot" / "v2.1", tmp_path / "v2.1"))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A copy of the dataset of version 3.0."""
    return Path(shutil.copytree(FIXTURES / "lerobot" / "v3.0", tmp_path / "v3.0"))


def edit_info(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "meta" / "info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def edit_table(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def replaced(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, column)


def error_of(folder: Path) -> str:
    with pytest.raises((ValueError, FileNotFoundError), match=r"^[^\n]+$") as caught:
        list(read(f"lerobot:{folder}"))
    assert str(folder) in str(caught.value)
    return str(caught.value)


# --- What is read -----------------------------------------------------------------------------------------------------


def ends_of(folder: Path) -> list[tuple[bool, bool]]:
    return [(e.terminated, e.truncated) for e in read(str(folder))]


def drop(folder: Path, *features: str) -> None:
    edit_info(folder, lambda info: [info["features"].pop(feature) for feature in features])


def test_success_ends_the_task_and_done_without_it_is_a_limit(old: Path):
    # Episode 0 is done with success at its last transition, 1 is done without, 2 ends at the row that has no outcome.
    assert ends_of(old) == [(True, False), (False, True), (False, False)]
    drop(old, "next.success")
    assert ends_of(old) == [(True, False), (True, False), (False, False)]
    drop(old, "next.done", "next.reward")
    assert ends_of(old) == [(False, False)] * 3
    assert all(e.rewards is None for e in read(str(old)))


def test_an_image_is_decoded_only_when_looked_at(old: Path):
    episode = next(iter(read(str(old))))
    column = episode.observations["images.wrist"]
    assert isinstance(column, EncodedImages)
    assert column.encoded[0].startswith(b"\x89PNG")
    np.testing.assert_array_equal(column[4], rows(0)["observation.images.wrist"][4])


@pytest.mark.parametrize("names", [["channels", "height", "width"], ["channel", "h", "w"], None])
def test_channels_may_come_first(old: Path, names: list[str] | None):
    edit_info(old, lambda i: i["features"]["observation.images.wrist"].update(shape=[3, 8, 11], names=names))
    source = read(str(old))
    assert source.spec.observation_space["spaces"]["images.wrist"]["shape"] == [8, 11, 3]
    for episode in source:
        episode.validate(source.spec)


def test_several_tasks_of_an_episode_are_lines(old: Path):
    edit_table(old / FIRST, lambda table: replaced(table, "task_index", pa.array([1, 1, 0, 0, 1])))
    episodes = list(read(str(old)))
    assert episodes[0].context == "open the drawer\npick up the cube"
    assert episodes[1].context == episodes[1].info["task"] == "open the drawer"


def test_without_tasks_there_is_no_context(old: Path):
    (old / "meta" / "tasks.jsonl").unlink()
    drop(old, "task_index")
    assert all(e.context is None and "task" not in e.info for e in read(str(old)))


def test_features_have_their_own_spaces(old: Path):
    def change(info: dict[str, Any]) -> None:
        features = info["features"]
        features["observation.words"] = {"dtype": "string", "shape": [1], "names": None}
        features["observation.button"] = features.pop("next.done")
        features["action.dial"] = features.pop("observation.gripper")
        features["observation.depth"] = {"dtype": "image", "shape": [16, 16, 2], "names": None}
        features["observation.when"] = {"dtype": "timestamp", "shape": [1], "names": None}
        features["observation.pair"] = {"dtype": "string", "shape": [2], "names": None}

    edit_info(old, change)
    for i, path in enumerate(sorted((old / "data").rglob("*.parquet"))):
        table = pq.read_table(path).append_column("observation.words", pa.array([f"w{t}" for t in range(LENGTHS[i])]))
        names = {"next.done": "observation.button", "observation.gripper": "action.dial"}
        pq.write_table(table.rename_columns([names.get(name, name) for name in table.column_names]), path)
    source = read(str(old))
    spaces = source.spec.observation_space["spaces"]
    assert spaces["words"] == {"type": "Text", "max_length": None}
    assert spaces["button"] == {"type": "MultiBinary", "shape": [1]}
    assert list(source.spec.action_space["spaces"]) == ["action", "dial"]
    episode = next(iter(source)).validate(source.spec)
    assert episode.observations["words"].tolist() == ["w0", "w1", "w2", "w3", "w4"]
    assert episode.observations["button"].dtype == np.int8
    np.testing.assert_array_equal(episode.actions["dial"], rows(0)["observation.gripper"][:-1])
    assert set(source.provenance["left_out"]) >= {
        "observation.depth: is no image of a shape [16, 16, 2]",
        "observation.when: has the dtype 'timestamp', which is not read",
        "observation.pair: holds [2] texts a row; one is read",
    }


def test_a_null_among_reals_is_nan(old: Path):
    edit_table(old / FIRST, lambda t: replaced(t, "next.reward", pa.array([1.0, None, 2.0, 3.0, 4.0], pa.float32())))
    rewards = next(iter(read(str(old)))).rewards
    np.testing.assert_array_equal(rewards, np.array([1.0, np.nan, 2.0, 3.0], np.float32))


def test_a_reward_past_float32_is_infinite(old: Path):
    edit_info(old, lambda info: info["features"]["next.reward"].update(dtype="float64"))
    edit_table(old / FIRST, lambda t: replaced(t, "next.reward", pa.array([1.0, 1e300, 2.0, 3.0, 4.0])))
    np.testing.assert_array_equal(next(iter(read(str(old)))).rewards, np.array([1, np.inf, 2, 3], np.float32))


def test_a_single_row_has_no_transition(old: Path):
    edit_table(old / FIRST, lambda table: table.slice(0, 1))
    path = old / "meta" / "episodes.jsonl"
    path.write_text(path.read_text().replace('"length": 5', '"length": 1'))
    episode = next(iter(read(str(old))))
    assert (len(episode), len(episode.observations["state"])) == (0, 1)


def test_licence_robot_and_rate_are_kept(old: Path):
    assert "licence" not in read(str(old)).provenance
    (old / "README.md").write_text("---\ntags:\n- x\nlicense: cc-by-4.0\n---\n# Title\n")
    provenance = read(str(old)).provenance
    assert {key: provenance[key] for key in ("licence", "robot", "fps", "episodes", "version")} == {
        "licence": "cc-by-4.0",
        "robot": "none",
        "fps": 10,
        "episodes": 3,
        "version": "v2.1",
    }


def test_batches_cut_episodes_nowhere(new: Path, monkeypatch: pytest.MonkeyPatch):
    expected = list(read(str(new)))
    for size in (1, 3, 5):
        monkeypatch.setattr(lerobot_parquet, "BATCH", size)
        for ours, wanted in zip(read(str(new)), expected, strict=True):
            np.testing.assert_array_equal(ours.observations, wanted.observations)
            np.testing.assert_array_equal(ours.actions, wanted.actions)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_file_is_opened_when_it_is_reached(version: str, old: Path, new: Path):
    folder = old if version == "v2.1" else new
    last = sorted((folder / "data").rglob("*.parquet"))[-1]
    last.write_bytes(last.read_bytes()[:1000])
    reading = iter(read(str(folder)))
    assert next(reading).info["id"] == "episode_000000"
    with pytest.raises(ValueError, match=rf"^{last}: is damaged or of another format"):
        list(reading)


def test_the_place_of_data_is_that_of_the_info(old: Path):
    edit_info(old, lambda info: info.update(data_path="d/{episode_index:04d}-{episode_chunk}.parquet"))
    (old / "d").mkdir()
    for i in range(3):
        (old / "data" / "chunk-000" / f"episode_{i:06d}.parquet").rename(old / "d" / f"{i:04d}-0.parquet")
    assert len(list(read(str(old)))) == 3
    assert read_meta(old).data_file(episode_chunk=2, episode_index=12345) == old / "d" / "12345-2.parquet"


# --- Faults -----------------------------------------------------------------------------------------------------------

INFOS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "version": (
        lambda i: i.update(codebase_version="v1.6"),
        r"codebase_version is 'v1\.6'; read are v2\.0, v2\.1, v3\.0$",
    ),
    "no features": (lambda i: i.pop("features"), r"info\.json: has no 'features'$"),
    "no action": (
        lambda i: i["features"].pop("action"),
        r"names no action that is read; features are observation\.state",
    ),
    "shape": (
        lambda i: i["features"]["action"].update(shape="2"),
        r"feature 'action' has the shape '2'; a list of sizes",
    ),
    "negative": (lambda i: i["features"]["action"].update(shape=[-2]), r"feature 'action' has the shape \[-2\]"),
    "slash": (lambda i: i["features"].update({"action.a/b": i["features"]["action"]}), r"action space has a key 'a/b'"),
    "no name": (lambda i: i["features"].update({"action.": i["features"]["action"]}), r"action space has a key ''"),
    "rewards": (
        lambda i: i["features"]["next.reward"].update(shape=[2]),
        r"feature 'next\.reward' is no single number",
    ),
    "more state": (
        lambda i: i["features"]["observation.state"].update(shape=[4]),
        r"episode 0: 'observation\.state' is fixed_size_list<.*>\[3\], not in every row of shape \[4\]$",
    ),
    "less axes": (
        lambda i: i["features"]["observation.touch"].update(shape=[2]),
        r"episode 0: 'observation\.touch' holds list<.*: double>; meta/info\.json says float64$",
    ),
    "more axes": (
        lambda i: i["features"]["observation.state"].update(shape=[3, 1]),
        r"episode 0: 'observation\.state' is fixed_size_list<.*>\[3\], not in every row of shape \[3, 1\]$",
    ),
    "whole numbers": (
        lambda i: i["features"]["observation.state"].update(dtype="int64"),
        r"episode 0: 'observation\.state' holds float; meta/info\.json says int64$",
    ),
    "no column": (
        lambda i: i["features"].update({"observation.new": i["features"]["action"]}),
        r"episode_000000\.parquet: lacks the column 'observation\.new'; it has observation\.state, ",
    ),
    "size of an image": (
        lambda i: i["features"]["action"].update(dtype="image", shape=[8, 8, 3]),
        r"episode 0: 'action' is fixed_size_list<.*>\[2\]; bytes of images are needed$",
    ),
    "chunks": (lambda i: i.update(chunks_size=0), r"chunks_size is 0; a number from 1 is needed$"),
    "outside": (lambda i: i.update(data_path="../{episode_index:06d}.parquet"), r"is no path inside the dataset$"),
    "absolute": (lambda i: i.update(data_path="/etc/{episode_index}"), r"is no path inside the dataset$"),
    "format": (lambda i: i.update(data_path="{episode_index:099999999d}"), r"is no path inside the dataset$"),
    "attribute": (lambda i: i.update(data_path="{episode_index.real}"), r"is no path inside the dataset$"),
    "unknown number": (lambda i: i.update(data_path="{file_index:03d}"), r"asks for 'file_index'$"),
}


@pytest.mark.parametrize(("change", "message"), INFOS.values(), ids=INFOS)
def test_a_fault_of_the_info_is_named(old: Path, change: Callable[[dict[str, Any]], Any], message: str):
    edit_info(old, change)
    found = error_of(old)
    assert re.search(message, found), found


TABLES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "rows": (lambda t: t.slice(0, 4), r"holds 4 rows; the dataset's list of episodes says 5$"),
    "another episode": (
        lambda t: replaced(t, "episode_index", pa.array([0, 0, 0, 8, 9])),
        r"episode 0: its rows are marked as of episode 0, 8, 9$",
    ),
    "no number": (
        lambda t: replaced(t, "episode_index", pa.array([0, 0, None, 0, 0])),
        r"episode 0: 'episode_index' holds int64, or nulls; whole numbers are needed$",
    ),
    "a task": (
        lambda t: replaced(t, "task_index", pa.array([0, 0, 7, 0, 0])),
        r"episode 0: task_index 7 is not among the 2 tasks in meta$",
    ),
    "ragged": (
        lambda t: replaced(t, "action", pa.array([[1.0, 2.0]] * 3 + [[1.0], [1.0, 2.0, 3.0]], pa.list_(pa.float32()))),
        r"episode 0: 'action' is list<.*: float>, not in every row of shape \[2\]$",
    ),
    "a null row": (
        lambda t: replaced(t, "action", pa.array([[1.0, 2.0]] * 4 + [None], pa.list_(pa.float32()))),
        r"episode 0: 'action' is list<.*: float>, not in every row of shape \[2\]$",
    ),
    "a null number": (
        lambda t: replaced(t, "observation.gripper", pa.array([1, 2, None, 3, 4])),
        r"episode 0: 'observation\.gripper' holds int64 with 1 nulls; meta/info\.json says int64$",
    ),
    "text": (
        lambda t: replaced(t, "next.reward", pa.array(list("abcde"))),
        r"episode 0: 'next\.reward' holds string; meta/info\.json says float32$",
    ),
}


@pytest.mark.parametrize(("change", "message"), TABLES.values(), ids=TABLES)
def test_a_fault_of_the_rows_is_named(old: Path, change: Callable[[pa.Table], pa.Table], message: str):
    edit_table(old / FIRST, change)
    found = error_of(old)
    assert re.search(message, found), found


def test_an_image_that_is_not_there_is_named(old: Path):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    column = pa.array([{"bytes": None, "path": "x.png"}] * 5, kind)
    edit_table(old / FIRST, lambda table: replaced(table, "observation.images.wrist", column))
    assert error_of(old).endswith("'observation.images.wrist' has 5 rows that name an image and do not hold it")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("meta/info.json", r": holds no meta/info\.json; it is no LeRobotDataset$"),
        ("meta/episodes.jsonl", r"meta/episodes\.jsonl: no such file; it lists the episodes$"),
        (FIRST, r"episode_000000\.parquet: no such file, though the dataset's meta names it$"),
    ],
)
def test_a_missing_file_is_named(old: Path, missing: str, message: str):
    (old / missing).unlink()
    assert re.search(message, error_of(old))


def test_a_missing_list_of_episodes_is_named(new: Path):
    next((new / "meta" / "episodes").rglob("*.parquet")).unlink()
    assert error_of(new).endswith("meta/episodes: holds no parquet file; it lists the episodes")
    shutil.rmtree(new / "meta" / "episodes")
    assert error_of(new).endswith("meta/episodes: no such folder; it lists the episodes")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"episodes\.jsonl: line 2: is not JSON"),
        ("[1]", r"episodes\.jsonl: line 2: episode_index is None; a number from 0 is needed$"),
        ('{"episode_index": 1, "length": -7}', r"episodes\.jsonl: line 2: length is -7; a number from 0 is needed$"),
        ('{"episode_index": "../1", "length": 7}', r"episodes\.jsonl: line 2: episode_index is \.\./1; a number"),
        (
            '{"episode_index": 5, "length": 7}',
            r"episode_000005\.parquet: no such file, though the dataset's meta names",
        ),
    ],
)
def test_a_fault_of_the_list_of_episodes_is_named(old: Path, line: str, message: str):
    path = old / "meta" / "episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, lines[2]]))
    assert re.search(message, error_of(old))


def test_rows_of_the_new_layout_are_those_of_its_list(new: Path):
    path = next((new / "meta" / "episodes").rglob("*.parquet"))
    edit_table(path, lambda table: replaced(table, "length", pa.array([5, 6, 5])))
    assert re.search(
        r"file-001\.parquet: episode 1: .* 1$|episode 2: its rows are marked as of episode 1, 2$", error_of(new)
    )


@pytest.mark.parametrize("line", ['{"task_index": 0}', '{"task": "x", "task_index": "0"}', "7"])
def test_a_task_without_text_or_number_is_named(old: Path, line: str):
    (old / "meta" / "tasks.jsonl").write_text(line)
    assert error_of(old) == f"{old / 'meta' / 'tasks.jsonl'}: {json.loads(line)} is no task with its task_index"


def test_a_bomb_is_refused(old: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lerobot_parquet, "FREE_BYTES", 1000)
    noise = pa.array([bytes(3_000_000)] * 5)  # one value of zeros, kept once, packed a thousandfold
    path = old / FIRST
    pq.write_table(replaced(pq.read_table(path), "observation.gripper", noise), path, compression="zstd")
    assert error_of(old) == f"{path}: grows more than 200-fold when decompressed; it is not read"
