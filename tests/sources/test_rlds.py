import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpora import real_log
from tests.fixtures import make_rlds as written
from tests.sources.case import FIXTURES
from worldmodel.corpus import open_corpus, write_corpus
from worldmodel.images import EncodedImages
from worldmodel.sources import read, recognise, rlds, tfrecord
from worldmodel.spaces import box, column_list, map_columns
from worldmodel.trajectory import Spec, Trajectory

REACH, ARM, KITCHEN = (FIXTURES / "rlds" / name / "1.0.0" for name in ("reach", "arm", "kitchen"))


def copied(folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(folder, tmp_path / folder.parent.name / folder.name))


def edited(folder: pathlib.Path, change) -> None:
    file = folder / "dataset_info.json"
    info = json.loads(file.read_text())
    change(info)
    file.write_text(json.dumps(info))


# What plain TFDS reads, step by step.


@pytest.mark.parametrize("folder", [REACH, ARM, KITCHEN], ids=lambda folder: folder.parent.name)
def test_columns_are_what_tfds_reads_step_by_step(folder):
    import tensorflow_datasets as tfds

    builder: Any = tfds.builder_from_directory(str(folder))
    source = read(f"rlds:{folder}", split="train")
    if folder == REACH:
        plain = list(builder.as_data_source("train"))
    else:
        shard = folder / f"{folder.parent.name}-train.tfrecord-00000-of-00001"
        plain = [builder.info.features.deserialize_example_np(record) for record in tfrecord.records(shard)]
    episodes = list(source)
    assert len(plain) == len(episodes) > 1
    for example, episode in zip(plain, episodes, strict=True):
        steps = list(example["steps"])
        assert len(steps) == len(episode) + 1
        for t, step in enumerate(steps):
            _assert_row(episode.observations, step["observation"], t)
            if t < len(episode):
                _assert_row(episode.actions, step["action"], t)
                assert episode.rewards is not None
                assert episode.rewards[t] == np.float32(step["reward"])
        assert episode.terminated == bool(steps[-1]["is_terminal"])


def _assert_row(values: Any, step: Any, t: int) -> None:
    if isinstance(values, dict):
        for key, part in values.items():
            _assert_row(part, step[key], t)
        return
    expected = step.decode() if isinstance(step, bytes) else step
    np.testing.assert_array_equal(values[t], expected)


# Files.


def test_an_instruction_goes_where_it_is_asked():
    context = next(iter(read(f"rlds:{KITCHEN}")))
    assert context.context == "put the pot on the stove"
    source = read(f"rlds:{KITCHEN}", instruction="observation")
    assert source.spec.observation_space["spaces"]["language_instruction"] == {"type": "Text", "max_length": None}
    episode = next(iter(source)).validate(source.spec)
    assert episode.context is None
    assert episode.observations["language_instruction"].tolist() == ["put the pot on the stove"] * 5


def test_images_stay_encoded_and_sizes_left_open_are_found():
    source = read(f"rlds:{KITCHEN}")
    images = next(iter(source)).observations["image"]
    assert isinstance(images, EncodedImages)
    assert images.shape == (5, 10, 12, 3)
    np.testing.assert_array_equal(images, written.kitchen()["train"][0]["steps"]["observation"]["image"])


def test_folders_above_the_version_are_enough(tmp_path):
    folder = copied(ARM, tmp_path)
    assert recognise(str(folder)) == recognise(str(folder.parent)) == recognise(str(tmp_path)) == "rlds"
    assert len(list(read(str(folder.parent)))) == 3
    shutil.copytree(folder, folder.parent / "1.0.1")
    with pytest.raises(ValueError, match=r"arm: holds 2 datasets; name one: .*arm/1\.0\.0, .*arm/1\.0\.1"):
        read(f"rlds:{folder.parent}")


def test_places_without_a_dataset(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        read(f"rlds:{tmp_path / 'nowhere'}")
    with pytest.raises(FileNotFoundError, match=r"holds no TFDS dataset; that is a folder with dataset_info\.json"):
        read(f"rlds:{tmp_path}")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ValueError, match=r"a\.txt: is a file; name the folder"):
        read(f"rlds:{tmp_path / 'a.txt'}")
    assert not rlds.recognise(tmp_path)
    assert not rlds.recognise(tmp_path / "a.txt")
    assert not rlds.recognise(tmp_path / "nowhere")


def test_splits_are_chosen_by_name():
    every, val = read(f"rlds:{ARM}"), read(f"rlds:{ARM}", split="val")
    assert [e.info["split"] for e in every] == ["train", "train", "val"]
    assert [e.info["id"] for e in val] == ["arm-1.0.0-val-000000"]
    assert every.provenance["episodes"] == 3
    with pytest.raises(ValueError, match=r"split 'vall' is unknown \(did you mean 'val'\?\); known are train, val"):
        read(f"rlds:{ARM}", split="vall")


@pytest.mark.parametrize("name", ["instruction", "final_reward"])
def test_unknown_options_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} is 'contex'.*; allowed are"):
        read(f"rlds:{ARM}", **{name: "contex"})


def test_a_missing_file_of_a_split_leaves_the_others(tmp_path):
    folder = copied(ARM, tmp_path)
    (folder / "arm-val.tfrecord-00000-of-00001").unlink()
    source = read(f"rlds:{folder}")
    line = "split 'val': 1 of its 1 files are missing, the first is arm-val.tfrecord-00000-of-00001"
    assert source.provenance["left_out"][-1] == line
    assert len(list(source)) == 2
    with pytest.raises(FileNotFoundError, match=line):
        read(f"rlds:{folder}", split="val")
    (folder / "arm-train.tfrecord-00000-of-00001").unlink()
    with pytest.raises(FileNotFoundError, match=r"split 'train': .*; split 'val': "):
        read(f"rlds:{folder}")


def test_opening_reads_descriptions_only(tmp_path):
    folder = copied(ARM, tmp_path)
    (folder / "arm-train.tfrecord-00000-of-00001").write_bytes(b"no record")
    source = read(f"rlds:{folder}")
    with pytest.raises(ValueError, match=r"train\.tfrecord-00000-of-00001: record 0"):
        list(source)


@pytest.mark.parametrize(("folder", "held"), [(REACH, 3), (ARM, 2)], ids=["array_record", "tfrecord"])
@pytest.mark.parametrize("said", [1, 7])
def test_lengths_of_shards_that_are_wrong(tmp_path, folder, held, said):
    folder = copied(folder, tmp_path)
    edited(folder, lambda info: info["splits"][0].update(shardLengths=[str(said)]))
    found = "more" if held > said else held
    with pytest.raises(ValueError, match=rf"holds {found} episodes; dataset_info\.json says {said}"):
        list(read(f"rlds:{folder}", split="train"))


@pytest.mark.parametrize("size", [0, 100, 70_000])
def test_a_cut_array_record_is_one_line(tmp_path, size):
    folder = copied(REACH, tmp_path)
    shard = next(folder.glob("*array_record*"))
    shard.write_bytes(shard.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"reach-train\.array_record-00000-of-00001: ") as error:
        list(read(f"rlds:{folder}"))
    assert "\n" not in str(error.value)


def test_a_flipped_byte_in_an_array_record_is_one_line(tmp_path):
    folder = copied(REACH, tmp_path)
    shard = next(folder.glob("*array_record*"))
    data = bytearray(shard.read_bytes())
    place = int(np.flatnonzero(np.frombuffer(data[:65536], np.uint8))[-20])  # within the last record
    data[place] ^= 0x10
    shard.write_bytes(data)
    with pytest.raises(ValueError, match="is damaged or of another format") as error:
        list(read(f"rlds:{folder}"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("features.json", "{", r"features\.json: is not JSON"),
        ("dataset_info.json", "[" * 100_000, r"dataset_info\.json: is not JSON"),
        ("features.json", "{}", r"features\.json: is damaged or of another format"),
        ("dataset_info.json", '{"splits": 3}', r"is damaged or of another format"),
        ("features.json", '{"pythonClassName": "antigravity.Fly"}', "has a feature of class 'antigravity.Fly'; read"),
    ],
)
def test_damaged_descriptions_are_one_line(tmp_path, file, text, message):
    folder = copied(ARM, tmp_path)
    (folder / file).write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read(f"rlds:{folder}")
    assert "\n" not in str(error.value)


def test_other_file_formats_are_named(tmp_path):
    folder = copied(ARM, tmp_path)
    edited(folder, lambda info: info.update(fileFormat="riegeli"))
    with pytest.raises(ValueError, match="its files are riegeli; array_record and tfrecord are read"):
        read(f"rlds:{folder}")


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_mutated_files_are_read_or_refused_in_one_line(tmp_path_factory, data):
    folder = copied(data.draw(st.sampled_from([ARM, KITCHEN])), tmp_path_factory.mktemp("mutated"))
    file = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = bytearray(file.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3)):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content[: data.draw(st.sampled_from([None, len(content) // 2]))])
    said = str(folder)
    try:
        episodes = list(read(f"rlds:{folder}"))
    except (ValueError, FileNotFoundError) as error:
        said = str(error)
    else:
        assert all(isinstance(episode, Trajectory) for episode in episodes)
    assert str(folder) in said
    assert "\n" not in said


# Our own corpora, and the real thing.


def test_a_part_of_a_corpus_reads_as_the_corpus_does(tmp_path):
    rng = np.random.default_rng(0)
    spec = Spec(box((3,), "float64"), {"type": "Discrete", "n": 4, "start": 1})
    episodes = [
        Trajectory(
            observations=rng.normal(size=(n + 1, 3)),
            actions=rng.integers(1, 5, n),
            rewards=None if n == 4 else rng.normal(size=n).astype(np.float32),
            terminated=n == 2,
            truncated=n == 3,
            action_log_prob=rng.normal(size=n).astype(np.float32) if n == 2 else None,
            context={"gravity": float(n)},
            info={"id": f"e{n}", "policy": "random", "task": "lift", "duration": [0.5] * n},
        )
        for n in (2, 3, 4)
    ]
    write_corpus(tmp_path / "corpus", spec, episodes, provenance={"made": "here"})
    source = read(f"rlds:{tmp_path / 'corpus' / 'parts' / 'part-00000'}")
    assert source.spec.observation_space == spec.observation_space
    assert source.spec.action_space == box((), "int64")
    for ours, plain in zip(open_corpus(tmp_path / "corpus"), source, strict=True):
        map_columns(np.testing.assert_array_equal, ours.observations, plain.observations)
        for name in ("actions", "rewards", "action_log_prob"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(plain, name))
        for name in ("terminated", "truncated", "context", "info"):
            assert getattr(ours, name) == getattr(plain, name)


def test_a_part_of_a_corpus_keeps_texts_and_images_of_its_observations(tmp_path):
    rng = np.random.default_rng(0)
    texts = np.array(["go", "stop", "go on"], object)
    spaces = {"camera": box((8, 9, 3), "uint8"), "language_instruction": {"type": "Text", "max_length": None}}
    spec = Spec({"type": "Dict", "spaces": spaces}, box((2,), "float32"))
    images = rng.integers(0, 256, (3, 8, 9, 3)).astype(np.uint8)
    episode = Trajectory(
        observations={"camera": images, "language_instruction": texts},
        actions=rng.normal(size=(2, 2)).astype(np.float32),
        rewards=None,
        terminated=True,
        truncated=False,
        info={"id": "a"},
    )
    write_corpus(tmp_path / "corpus", spec, [episode], provenance={})
    source = read(f"rlds:{tmp_path / 'corpus' / 'parts' / 'part-00000'}")
    assert source.spec == spec
    (found,) = source
    np.testing.assert_array_equal(found.observations["camera"], images)
    assert isinstance(found.observations["camera"], EncodedImages)
    np.testing.assert_array_equal(found.observations["language_instruction"], texts)


def test_bridge_reads_though_its_val_file_is_missing():
    bridge = real_log("bridge_rlds/bridge_dataset")
    source = read(f"rlds:{bridge}")
    assert source.provenance["left_out"][-1].startswith("split 'val': 1 of its 1 files are missing")
    assert "steps/language_embedding: is computed from the instruction, which is read" in source.provenance["left_out"]
    episodes = [episode.validate(source.spec) for episode in source]
    assert len(episodes) == source.provenance["episodes"] == 25
    assert sum(map(len, episodes)) == 225
    assert {name for e in episodes for name in e.observations} == {"state", *(f"image_{i}" for i in range(4))}
    assert all(isinstance(e.context, str) for e in episodes)
    assert np.asarray(episodes[0].observations["image_0"][:2]).shape == (2, 64, 64, 3)
    assert len({e.info["id"] for e in episodes}) == 25
    with pytest.raises(FileNotFoundError, match="split 'val': 1 of its 1 files are missing"):
        read(f"rlds:{bridge}", split="val")


def test_reading_twice_gives_the_same():
    source = read(f"rlds:{ARM}")
    for one, two in zip(source, source, strict=True):
        for a, b in zip(column_list(one.observations), column_list(two.observations), strict=True):
            np.testing.assert_array_equal(a, b)
