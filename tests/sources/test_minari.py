from __future__ import annotations

import gc
import io
import json
import pathlib
import shutil
import tracemalloc
from collections.abc import Callable
from typing import Any

import h5py
import minari
import numpy as np
import pyarrow
import pyarrow.ipc
import pytest
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from PIL import Image

from tests.fixtures import make_minari
from tests.sources.case import FIXTURES
from worldmodel.images import EncodedImages
from worldmodel.sources import minari as reader
from worldmodel.sources import minari_storage, minari_tables, read
from worldmodel.spaces import columns_of, space_to_json
from worldmodel.trajectory import Trajectory

FOLDER = FIXTURES / "minari"
KINDS = ("hdf5", "arrow", "parquet")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")


@pytest.fixture
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Minari's local root, empty."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def write(name: str, episodes: list[dict[str, Any]], observation_space: Any, **options: Any) -> pathlib.Path:
    """A dataset of one number as action; each episode gives its observations, and flags where they are not usual."""
    buffers = []
    for episode in episodes:
        steps = len(episode["rewards"])
        usual = {
            "actions": np.zeros((steps, 1), np.float32),
            "terminations": np.zeros(steps, bool),
            "truncations": np.arange(steps) == steps - 1,
        }
        buffers.append(EpisodeBuffer(**(usual | episode)))
    space = spaces.Box(-1, 1, (1,), np.float32)
    minari.create_dataset_from_buffers(
        name, buffers, observation_space=observation_space, action_space=space, **options
    )
    return reader._data_folder(name)


def box_episodes(count: int, steps: int = 4) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"observations": rng.normal(size=(steps + 1, 2)).astype(np.float32), "rewards": rng.normal(size=steps)}
        for _ in range(count)
    ]


BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def assert_as_minari(source: Any, dataset: minari.MinariDataset) -> None:
    """Every episode is what Minari's own reader gives."""
    spec = source.spec
    for ours, theirs in zip(source, dataset.iterate_episodes(), strict=True):
        assert ours.info["id"] == f"{dataset.id}/{theirs.id}"
        for space, left, right in (
            (spec.observation_space, ours.observations, theirs.observations),
            (spec.action_space, ours.actions, theirs.actions),
        ):
            pairs = zip(columns_of(space, left), columns_of(space, right), strict=True)
            for (path, leaf, column), (_, _, other) in pairs:
                values = np.asarray(other, object) if leaf["type"] == "Text" else np.asarray(other)
                np.testing.assert_array_equal(np.asarray(column), values, err_msg=path, strict=True)
        np.testing.assert_array_equal(ours.rewards, theirs.rewards.astype(np.float32))
        assert ours.terminated == theirs.terminations[-1]
        assert ours.truncated == (theirs.truncations[-1] and not theirs.terminations[-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("jpeg", [True, False])
def test_every_space_is_read_as_minari_reads_it(root: pathlib.Path, kind: str, jpeg: bool):
    name = f"made-up/{kind}-v0"
    make_minari.write_made_up(name, kind, 2, images=True, jpeg=jpeg)
    source = read(f"minari:{name}")  # by its id below the root
    assert_as_minari(source, minari.load_dataset(name))
    assert source.spec.observation_space == space_to_json(make_minari.OBSERVATIONS, "observation")
    assert source.spec.action_space == space_to_json(make_minari.ACTIONS, "action")
    for trajectory in source:
        trajectory.validate(source.spec)
        assert isinstance(trajectory.observations["camera"], EncodedImages) == jpeg


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "image_space", [spaces.Box(0, 255, (40, 32), np.uint8), spaces.Box(0, 255, (32, 32, 3), np.uint8)]
)
def test_noisy_images_have_lengths_of_their_own(root: pathlib.Path, kind: str, image_space: Any):
    rng = np.random.default_rng(1)
    frames = rng.integers(0, 256, (4, *image_space.shape), np.uint8)
    write("noise-v0", [{"observations": frames, "rewards": np.zeros(3)}], image_space, data_format=kind)
    source = read("minari:noise-v0")
    assert_as_minari(source, minari.load_dataset("noise-v0"))
    (trajectory,) = source
    column = trajectory.observations
    if len(image_space.shape) == 3:  # as Minari encoded it, not once more
        file = io.BytesIO()
        Image.fromarray(frames[2]).save(file, "JPEG")
        assert column.encoded[2] == file.getvalue() and len({len(data) for data in column.encoded}) > 1
    else:
        assert column.dtype == np.uint8 and column.shape == (4, 40, 32)


def test_a_dataset_is_found_by_folder_data_folder_and_id(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(FOLDER))
    folder = FOLDER / "cartpole" / "arrow-v0"
    sources = [read(str(folder)), read(str(folder / "data")), read("minari:cartpole/arrow-v0")]
    assert {tuple(t.info["id"] for t in source) for source in sources} == {
        ("cartpole/arrow-v0/0", "cartpole/arrow-v0/1")
    }
    with pytest.raises(FileNotFoundError, match=r"cartpole/arow-v0: .* no id below .*did you mean 'cartpole/arrow-v0'"):
        read("minari:cartpole/arow-v0")
    assert not reader.recognise(FOLDER) and not reader.recognise(folder / "data" / "metadata.json")


def test_several_files_and_links_between_them_are_one_dataset(root: pathlib.Path):
    folder = write("parts-v0", box_episodes(5), BOX)
    whole = list(read("minari:parts-v0"))
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        with (
            h5py.File(folder / "main_data_1.hdf5", "w") as second,
            h5py.File(folder / "additional_data_0.hdf5", "w") as third,
        ):
            for number in (3, 4):
                file.move(f"episode_{number}", f"moved_{number}")
                file.copy(f"moved_{number}", second, name=f"episode_{number}")
                del file[f"moved_{number}"]
            file.copy("episode_1", third, name="episode_0")
        del file["episode_1"]
        file["episode_1"] = h5py.ExternalLink("additional_data_0.hdf5", "/episode_0")
    source = read("minari:parts-v0")
    assert [pathlib.Path(name).name for name in source.provenance["files"]] == ["main_data.hdf5", "main_data_1.hdf5"]
    for ours, before in zip(source, whole, strict=True):
        assert ours.info == before.info
        np.testing.assert_array_equal(ours.observations, before.observations)


def test_metadata_of_minari_04_is_in_the_file(root: pathlib.Path):
    folder = write("old-v0", box_episodes(2), BOX)
    metadata = json.loads((folder / "metadata.json").read_text())
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file.attrs.update({k: v for k, v in metadata.items() if isinstance(v, (str, int)) and k != "data_format"})
    new = list(read("minari:old-v0"))
    (folder / "metadata.json").unlink()
    for ours, before in zip(read("minari:old-v0"), new, strict=True):
        assert ours.info == before.info
        np.testing.assert_array_equal(ours.observations, before.observations)


def test_only_as_many_episodes_as_the_metadata_counts(root: pathlib.Path):
    folder = write("more-v0", box_episodes(3), BOX)
    _edit(folder / "metadata.json", total_episodes=2)
    source = read("minari:more-v0")
    assert source.provenance["left_out"] == ["1 episodes beyond the 2 that the dataset's metadata counts"]
    assert len(list(source)) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_with_faults_is_read_as_it_is(root: pathlib.Path, kind: str):
    (episode,) = box_episodes(1)
    episode["observations"] = episode["observations"][:-1]  # T of them, as some loggers wrote
    episode["observations"][1, 0] = np.nan
    write("faulty-v0", [episode], BOX, data_format=kind)
    (trajectory,) = read("minari:faulty-v0")
    assert len(trajectory.observations) == 4 == len(trajectory) and np.isnan(trajectory.observations[1, 0])
    with pytest.raises(ValueError, match="4 observations for 4 actions; 5 are needed"):
        trajectory.validate()


def test_an_end_inside_an_episode_is_refused(root: pathlib.Path):
    episodes = [*box_episodes(1), {**box_episodes(1)[0], "terminations": np.array([False, True, False, False])}]
    write("inside-v0", episodes, BOX)
    with pytest.raises(
        ValueError, match=r"episode 1: terminations is true at step 1 of 4; an episode ends at its last"
    ):
        list(read("minari:inside-v0"))


# --- Faults -----------------------------------------------------------------------------------------------------------


def _edit(path: pathlib.Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _json(**changes: Any) -> Callable[[pathlib.Path], None]:
    return lambda folder: _edit(folder / "metadata.json", **changes)


def _hdf5(change: Callable[[h5py.File], Any]) -> Callable[[pathlib.Path], None]:
    def apply(folder: pathlib.Path) -> None:
        with h5py.File(folder / "main_data.hdf5", "a") as file:
            change(file)

    return apply


def _move(file: h5py.File) -> None:
    file.move("episode_0", "episode_7")


def _point(file: h5py.File) -> None:
    del file["episode_1"]
    file["episode_1"] = h5py.ExternalLink("../../secret.hdf5", "/x")


def _texts(file: h5py.File) -> None:
    for name in ("observations", "rewards"):
        del file[f"episode_0/{name}"]
        file.create_dataset(f"episode_0/{name}", data=[b"\xff"] * 4, dtype=h5py.string_dtype())


def _drop(name: str) -> Callable[[h5py.File], Any]:
    return lambda file: file.__delitem__(name)


BOX_JSON = '{"type": "Box", "shape": [2], "dtype": "float32", "low": [0], "high": [1, 1]}'
HDF5_FAULTS = {
    "json": (lambda f: (f / "metadata.json").write_text("{"), r"metadata\.json: is not JSON"),
    "list": (lambda f: (f / "metadata.json").write_text("[1]"), r"metadata\.json: holds a list; an object is needed"),
    "format": (_json(data_format="hdf4"), r"has data_format 'hdf4' \(did you mean 'hdf5'\?\); read are hdf5, arrow"),
    "count": (_json(total_episodes="all"), r"has total_episodes 'all'; a whole number is needed"),
    "missing": (_json(total_episodes=5), r"holds 2 episodes; its metadata counts 5"),
    "no space": (_json(action_space=None), r"has no action_space; without it"),
    "graph": (_json(action_space='{"type": "Graph"}'), r"action_space that is none \(ValueError: 'Graph' is unknown\)"),
    "bounds": (
        _json(observation_space=BOX_JSON),
        r"observation_space that is none \(ValueError: bounds of shapes \(1,\)",
    ),
    "n": (
        _json(action_space='{"type": "Discrete", "n": -1, "start": 0}'),
        r"action_space that is none \(AssertionError",
    ),
    "deep": (_json(action_space="[" * 10**5), r"its metadata, action_space: is not JSON"),
    "spec": (_json(env_spec="{}"), r"has an env_spec without an id"),
    "gap": (_hdf5(_move), r"main_data\.hdf5: holds episode_1, but no episode_0"),
    "no actions": (_hdf5(_drop("episode_1/actions")), r"main_data\.hdf5: has no array 'episode_1/actions'"),
    "no rewards": (_hdf5(_drop("episode_0/rewards")), r"main_data\.hdf5: has no array 'episode_0/rewards'"),
    "link": (_hdf5(_point), r"episode_1 is a link to '\.\./\.\./secret\.hdf5', out of its folder; it is not followed"),
    "text": (_hdf5(_texts), r"main_data\.hdf5: 'episode_0/observations', row 0 is not UTF-8"),
    "cut": (lambda f: _cut(f / "main_data.hdf5"), r"main_data\.hdf5: is damaged or of another format"),
}


def _cut(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _table(**changes: Any) -> Callable[[pathlib.Path], None]:
    def apply(folder: pathlib.Path) -> None:
        path = folder / "0" / "part-0.arrow"
        with pyarrow.OSFile(str(path)) as file:
            table = pyarrow.ipc.open_file(file).read_all()
        for name, column in changes.items():
            index = table.column_names.index(name)
            table = table.remove_column(index) if column is None else table.set_column(index, name, column)
        with pyarrow.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)

    return apply


ARROW_FAULTS = {
    "cut": (lambda f: _cut(f / "0" / "part-0.arrow"), r"part-0\.arrow: is damaged or of another format"),
    "no part": (lambda f: (f / "1" / "part-0.arrow").unlink(), r"1: holds no part-\*\.arrow of episode 1"),
    "no steps": (lambda f: (f / "1" / "metadata.json").unlink(), r"1/metadata\.json: no such file"),
    "steps": (
        lambda f: _edit(f / "0" / "metadata.json", total_steps=9),
        r"0: holds 5 rows; its metadata\.json counts 9",
    ),
    "no actions": (_table(actions=None), r"0: has no column 'actions'; it has observations, rewards"),
    "text": (_table(rewards=pyarrow.array(["a"] * 5)), r"0: rewards is string; numbers are needed"),
    "empty": (_table(rewards=pyarrow.array([1.0, None, 2.0, 3.0, 4.0])), r"0: rewards has 1 empty values"),
    "ragged": (
        _table(observations=pyarrow.array([[1.0], [2.0, 3.0], [], [], []])),
        r"observations is list<.*> with 3 numbers in 5 rows; a row has 2",
    ),
    "bytes": (
        _table(observations=pyarrow.array([b"a"] * 5)),
        r"observations holds bytes; a Box of shape \(2,\) is no image",
    ),
}


@pytest.mark.parametrize("fault", HDF5_FAULTS)
def test_a_fault_of_hdf5_is_one_clear_line(root: pathlib.Path, fault: str):
    _check_fault("hdf5", *HDF5_FAULTS[fault])


@pytest.mark.parametrize("fault", ARROW_FAULTS)
def test_a_fault_of_arrow_is_one_clear_line(root: pathlib.Path, fault: str):
    _check_fault("arrow", *ARROW_FAULTS[fault])


def _check_fault(kind: str, change: Callable[[pathlib.Path], Any], message: str) -> None:
    folder = write("fault-v0", box_episodes(2), BOX, data_format=kind)
    change(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        list(read("minari:fault-v0"))
    assert str(caught.value).startswith(str(folder)) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["hdf5", "arrow"])
def test_mutated_files_are_read_or_refused(tmp_path: pathlib.Path, kind: str):
    rng, lines = np.random.default_rng(0), []
    for case in range(40):
        folder = tmp_path / str(case)
        shutil.copytree(FOLDER / "made-up" / f"{kind}-v1", folder)
        path = folder / "data" / ("main_data.hdf5" if kind == "hdf5" else "0/part-0.arrow")
        data = np.frombuffer(path.read_bytes(), np.uint8).copy()
        where = rng.integers(0, len(data), int(rng.choice([1, 4, 30])))
        data[where] = rng.integers(0, 256, len(where))
        path.write_bytes(data.tobytes()[: int(rng.integers(1, len(data))) if case % 3 == 0 else None])
        try:
            assert all(isinstance(t, Trajectory) for t in read(f"minari:{folder}"))
        except ValueError as error:
            lines.append(str(error))
    assert 8 < len(lines) < 39
    assert not [line for line in lines if "\n" in line or str(tmp_path) not in line]


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_that_of_one_episode(root: pathlib.Path, kind: str):
    peaks = []
    for count in (3, 15):
        name = f"memory{count}-v0"
        write(name, box_episodes(count, steps=20_000), BOX, data_format=kind)
        source = read(f"minari:{name}")
        assert len(list(source)) == count  # what is imported and kept once
        gc.collect()
        before = pyarrow.total_allocated_bytes()
        tracemalloc.start()
        steps, held = 0, 0
        for trajectory in source:
            steps += len(trajectory)
            held = max(held, pyarrow.total_allocated_bytes() - before)
        peaks.append(tracemalloc.get_traced_memory()[1] + held)
        tracemalloc.stop()
        assert steps == 20_000 * count
    # Arrow reads ahead in threads of its own: a peak is not the same twice. All episodes would be five times as much.
    assert peaks[1] < 2.5 * peaks[0] < 6 * 2**20


def test_an_episode_too_large_is_not_read(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    from worldmodel.sources import hdf5

    for module in (hdf5, minari_tables, minari_storage):
        monkeypatch.setattr(module, "LONGEST_RECORD", 9_999)
    for kind, line in (("hdf5", "'episode_0/observations' holds"), ("arrow", "holds"), ("parquet", "holds")):
        write(f"large-{kind}-v0", box_episodes(1, steps=2_000), BOX, data_format=kind)
        with pytest.raises(ValueError, match=rf"{line} more than 9999 bytes .*; it is not read"):
            list(read(f"minari:large-{kind}-v0"))
