"""Every space survives the disk bit for bit, plain TFDS reads it too, and nothing is read that is not asked for."""

import dataclasses
import io
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from worldmodel.corpus import Columns, open_corpus, window_batches, write_corpus
from worldmodel.corpus.manifest import checksum_of, size_of
from worldmodel.corpus.store import Recent, Records, StoredEpisodes
from worldmodel.corpus.windows import WindowSource
from worldmodel.images import EncodedImages
from worldmodel.spaces import box, column_list, columns_of, map_columns
from worldmodel.trajectory import Spec, Trajectory

IMAGE = box((9, 11, 3), "uint8")
TEXT = {"type": "Text", "max_length": None}
NESTED = {
    "type": "Dict",
    "spaces": {
        "camera": {"type": "Dict", "spaces": {"wrist": IMAGE, "depth": box((8, 8, 1), "uint8")}},
        "pose": {"type": "Tuple", "spaces": [box((2,), "float64"), {"type": "Discrete", "n": 5, "start": -2}]},
        "instruction": TEXT,
        "switches": {"type": "MultiBinary", "shape": [2, 3]},
        "half": box((), "float16"),
        "nothing": box((0,), "float32"),
        "id64": box((2,), "uint64"),
        "flag": {"type": "Box", "shape": [1], "dtype": "bool", "low": [0], "high": [1]},
    },
}
ACTION = {
    "type": "Tuple",
    "spaces": [{"type": "MultiDiscrete", "nvec": [[3, 400]], "start": [[1, -7]]}, TEXT, box((2,), "float32", 3.0, 4.0)],
}
SPEC = Spec(NESTED, ACTION, env_id="Nested-v0")


def jpeg(rng: np.random.Generator) -> bytes:
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (9, 11, 3), np.uint8)).save(file, "JPEG")
    return file.getvalue()


def texts(values: list[str]) -> np.ndarray:
    column = np.empty(len(values), np.object_)
    column[:] = values
    return column


def nested_episode(index: int, steps: int) -> Trajectory:
    rng = np.random.default_rng(index)
    rows = steps + 1
    words = ["", "pick up\0 the cup\0", "Größe ∞ 🤖", "a\n" * 50]
    observations = {
        "camera": {
            "wrist": EncodedImages([jpeg(rng) for _ in range(rows)], (9, 11, 3)),
            "depth": rng.integers(0, 256, (rows, 8, 8, 1), np.uint8),
        },
        "pose": (rng.normal(size=(rows, 2)), rng.integers(-2, 3, rows)),
        "instruction": texts([words[(index + i) % 4] for i in range(rows)]),
        "switches": rng.integers(0, 2, (rows, 2, 3), np.int8),
        "half": rng.normal(size=rows).astype(np.float16),
        "nothing": np.zeros((rows, 0), np.float32),
        "id64": rng.integers(2**63, 2**64, (rows, 2), np.uint64),
        "flag": rng.integers(0, 2, (rows, 1)).astype(np.bool_),
    }
    actions = (
        np.stack([rng.integers(1, 4, steps), rng.integers(-7, 393, steps)], 1)[:, None],
        texts([words[i % 4] for i in range(steps)]),
        rng.uniform(3, 4, (steps, 2)).astype(np.float32),
    )
    return Trajectory(
        observations,
        actions,
        None if index == 1 else rng.normal(size=steps).astype(np.float32),
        index % 2 == 0,
        False,
        action_log_prob=rng.normal(size=steps).astype(np.float32) if index == 2 else None,
        context={"goal": ["a", {"b": None}], "mass": 1.5} if index else "plain text",
        info={"id": f"n/{index}", "policy": "p" if index else None, "duration": [0.1] * steps, "task": f"t{index % 2}"},
    )


EPISODES = [nested_episode(i, 3 + i) for i in range(4)]


def assert_same_columns(ours, theirs):
    assert len(column_list(ours)) == len(column_list(theirs))

    def same(got, want):
        if isinstance(want, EncodedImages):
            assert isinstance(got, EncodedImages)
            assert list(got.encoded) == list(want.encoded)
            return
        got = np.asarray(got)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.tolist() == want.tolist() if want.dtype == object else got.tobytes() == want.tobytes()

    map_columns(same, ours, theirs)


def assert_same(got: Trajectory, want: Trajectory):
    assert_same_columns(got.observations, want.observations)
    assert_same_columns(got.actions, want.actions)
    for name in ("rewards", "action_log_prob"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
    assert (got.terminated, got.truncated, got.context) == (want.terminated, want.truncated, want.context)
    assert dict(got.info) == dict(want.info)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("nested") / "c"
    write_corpus(path, SPEC, EPISODES[:3], provenance={})
    return write_corpus(path, SPEC, EPISODES[3:], provenance={}, append=True)


def test_nested_spaces_survive(corpus):
    for got, want in zip(corpus, EPISODES, strict=True):
        assert_same(got, want)


def test_jpeg_stays_jpeg_and_raw_images_become_png(corpus):
    camera = next(iter(corpus)).observations["camera"]
    assert list(camera["wrist"].encoded) == list(EPISODES[0].observations["camera"]["wrist"].encoded)
    assert isinstance(camera["depth"], EncodedImages)
    assert all(data.startswith(b"\x89PNG") for data in camera["depth"].encoded)


def test_plain_tfds_reads_the_same_step_by_step(corpus):
    import tensorflow_datasets as tfds

    folders = [str(corpus.path / "parts" / part.name) for part in corpus.manifest.parts]
    source = tfds.builder_from_directories(folders).as_data_source(split="train")
    assert len(source) == 4
    for example, want in zip(source, EPISODES, strict=True):
        steps = list(example["steps"])
        assert len(steps) == len(want) + 1
        for path, space, column in columns_of(NESTED, want.observations):
            check_steps([value(step["observation"], path) for step in steps], space, column)
        for path, space, column in columns_of(ACTION, want.actions):
            check_steps([value(step["action"], path) for step in steps[:-1]], space, column)
        np.testing.assert_array_equal([step["is_last"] for step in steps], np.arange(len(steps)) == len(want))
        assert steps[-1]["is_terminal"] == want.terminated
        assert example["episode_metadata"]["id"].decode() == want.info["id"]
        assert json.loads(example["episode_metadata"]["context"]) == want.context
        # The padding action lies in the space: 0 is outside of [3, 4] and of 1..3.
        last = steps[-1]["action"]
        assert last["2"].tolist() == [3.0, 3.0]
        assert last["0"].tolist() == [[1, -7]]


def value(step, path):
    for key in path.split("/"):
        step = step[key]
    return step


def check_steps(got, space, column):
    if space["type"] == "Text":
        assert [text.decode() for text in got] == column.tolist()
    else:
        want = np.asarray(column)
        np.testing.assert_array_equal(np.array(got, want.dtype), want)


def test_what_is_written_is_what_tfds_itself_would_write(corpus):
    from tensorflow_datasets.proto import tf_example_pb2

    from worldmodel.corpus.rlds import EpisodeCoder

    coder, want = EpisodeCoder(SPEC), EPISODES[2]
    record = coder.encode(want, where="here")
    steps = []
    for row in range(len(want) + 1):
        ends = row == len(want)

        def pick(column, row=row):
            return column.encoded[row] if isinstance(column, EncodedImages) else np.asarray(column)[row]

        pose = map_columns(pick, want.observations["pose"])
        observation = {**map_columns(pick, want.observations), "pose": {"0": pose[0], "1": pose[1]}}
        observation["camera"]["depth"] = io.BytesIO(coder.decode(record).observations["camera"]["depth"].encoded[row])
        action = (
            [pick(column) for column in want.actions] if not ends else [np.array([[1, -7]]), "", np.float32([3, 3])]
        )
        steps.append(
            {
                "observation": observation,
                "action": {str(i): part for i, part in enumerate(action)},
                "reward": np.float32(0 if ends else want.rewards[row]),
                "discount": np.float32(0 if row >= len(want) - 1 else 1),
                "is_first": row == 0,
                "is_last": ends,
                "is_terminal": ends,
                "action_log_prob": np.float32(0 if ends else want.action_log_prob[row]),
            }
        )
    metadata = {"id": "n/2", "source": "", "policy": "p", "seed": -1, "terminated": True, "truncated": False}
    metadata |= {"has_rewards": True, "context": json.dumps(want.context), "info": json.dumps(dict(want.info))}
    theirs = coder.features.serialize_example({"steps": steps, "episode_metadata": metadata})
    parse = tf_example_pb2.Example.FromString
    assert parse(record) == parse(theirs)


LEAVES = st.one_of(
    st.builds(
        lambda shape, dtype: {"type": "Box", "shape": shape, "dtype": dtype, "low": None, "high": None},
        st.lists(st.integers(0, 3), max_size=3),
        st.sampled_from(["float32", "float64", "float16", "uint8", "int16", "int32", "int64", "uint64"]),
    ),
    st.builds(lambda n, start: {"type": "Discrete", "n": n, "start": start}, st.integers(1, 2**62), st.integers(-9, 9)),
    st.builds(
        lambda nvec: {"type": "MultiDiscrete", "nvec": nvec, "start": [0] * len(nvec)},
        st.lists(st.integers(1, 300), min_size=1, max_size=3),
    ),
    st.just({"type": "MultiBinary", "shape": [3]}),
    st.just(TEXT),
    st.just(IMAGE),
)
KEYS = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=4)
SPACES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.dictionaries(KEYS, parts, min_size=1, max_size=3).map(lambda d: {"type": "Dict", "spaces": d}),
        st.lists(parts, min_size=1, max_size=3).map(lambda p: {"type": "Tuple", "spaces": p}),
    ),
    max_leaves=5,
)


def sample(space, rows: int, rng: np.random.Generator):
    kind = space["type"]
    if kind == "Dict":
        return {name: sample(part, rows, rng) for name, part in space["spaces"].items()}
    if kind == "Tuple":
        return tuple(sample(part, rows, rng) for part in space["spaces"])
    if kind == "Text":
        return texts([chr(rng.integers(0x20, 0xD7FF)) * int(rng.integers(0, 4)) for _ in range(rows)])
    if kind == "Discrete":
        return rng.integers(space["start"], space["start"] + space["n"], rows)
    if kind == "MultiDiscrete":
        return rng.integers(0, space["nvec"], (rows, len(space["nvec"])))
    if kind == "MultiBinary":
        return rng.integers(0, 2, (rows, 3), np.int8)
    dtype, shape = np.dtype(space["dtype"]), (rows, *space["shape"])
    if dtype.kind == "f":
        return rng.normal(size=shape).astype(dtype)
    # A float64 cannot say the largest 64-bit integers, so samples stay below.
    high = min(np.iinfo(dtype).max, 2**53)
    return rng.integers(max(np.iinfo(dtype).min, -(2**53)), high, shape).astype(dtype)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SPACES, SPACES, st.integers(0, 2**32))
def test_any_space_round_trips(observation, action, seed):
    from worldmodel.corpus.rlds import EpisodeCoder

    rng = np.random.default_rng(seed)
    coder = EpisodeCoder(Spec(observation, action))
    want = Trajectory(sample(observation, 4, rng), sample(action, 3, rng), None, False, True, info={"id": "x"})
    got = coder.decode(coder.encode(want.validate(Spec(observation, action)), where="here"))
    decoded = map_columns(lambda c: np.asarray(c) if isinstance(c, EncodedImages) else c, got.observations)
    assert_same_columns(decoded, want.observations)
    assert_same_columns(
        map_columns(lambda c: np.asarray(c) if isinstance(c, EncodedImages) else c, got.actions), want.actions
    )


def test_texts_that_are_no_unicode_survive():
    from worldmodel.corpus.rlds import EpisodeCoder

    coder = EpisodeCoder(Spec(TEXT, TEXT))
    cut = texts(["half an emoji \ud83d", "x"])
    got = coder.decode(coder.encode(Trajectory(cut, cut[:1], None, False, False, info={"id": "x"}), where="here"))
    assert got.observations.tolist() == cut.tolist()


def test_complex_numbers_are_refused(tmp_path):
    spec = Spec({"type": "Dict", "spaces": {"z": {**box((2,), "float32"), "dtype": "complex64"}}}, TEXT)
    with pytest.raises(ValueError, match=r"^observation 'z' has dtype complex64; a corpus keeps real numbers$"):
        write_corpus(tmp_path / "c", spec, [], provenance={})
    assert not (tmp_path / "c").exists()


def test_a_raw_image_of_floats_is_refused(tmp_path):
    spec = Spec(IMAGE, {"type": "Discrete", "n": 2, "start": 0})
    bad = Trajectory(np.zeros((2, 9, 11, 3)), np.array([0]), None, False, False, info={"id": "x"})
    with pytest.raises(ValueError, match=r"episode 0 \(x\): observation has dtype float64; the space has uint8"):
        write_corpus(tmp_path / "c", spec, [bad], provenance={})


# --- Random access ----------------------------------------------------------------------------------------------------


def test_episodes_are_read_by_number(corpus):
    stored = corpus.stored()
    assert (stored.episodes, stored.transitions) == (4, corpus.transitions)
    for place in (3, 0, -1, 2, 2):
        assert_same(stored[place], EPISODES[place])
    with pytest.raises(IndexError):
        stored[4]
    kept = corpus.stored(keep=corpus.index.returns > -np.inf)
    assert [episode.info["id"] for episode in kept] == ["n/0", "n/2", "n/3"]
    assert kept.has_rewards
    assert not stored.has_rewards
    with pytest.raises(ValueError, match=r"none of its 4 episode\(s\) is to be kept"):
        corpus.stored(keep=np.zeros(4, np.bool_))


def test_windows_from_disk_have_the_bits_of_windows_from_memory(corpus):
    stored, columns = corpus.stored(), Columns.from_trajectories(EPISODES)
    for length in (1, 2, 4, 9):
        ours = WindowSource(stored, length=length, batch_size=5, seed=3)
        theirs = WindowSource(columns, length=length, batch_size=5, seed=3)
        for index in range(6):
            one, two = ours[index], theirs[index]
            assert one.keys() == two.keys()
            assert_same_columns(one, two)


def test_reading_ahead_in_threads_changes_nothing(tmp_path):
    spec = Spec(box((3,), "float32"), {"type": "Discrete", "n": 99, "start": 0})
    rng = np.random.default_rng(0)
    episodes = [
        Trajectory(rng.normal(size=(n + 1, 3)).astype(np.float32), np.arange(n), np.ones(n, np.float32), True, False)
        for n in range(1, 60)
    ]
    corpus = write_corpus(tmp_path, spec, episodes, provenance={})
    arguments = {"length": 7, "batch_size": 16, "seed": 1}
    ours, theirs = (window_batches(each, **arguments) for each in (corpus.stored(), corpus.columns()))
    for _ in range(40):
        assert_same_columns(next(ours), next(theirs))
    state = json.loads(json.dumps(ours.get_state()))
    again = window_batches(corpus.stored(), **arguments)
    again.set_state(state)
    want = next(theirs)
    assert_same_columns(next(again), want)
    assert_same_columns(next(ours), want)


def test_images_are_decoded_only_in_the_window(corpus, monkeypatch):
    import worldmodel.images as images

    decoded = []
    real = images.decode
    monkeypatch.setattr(images, "decode", lambda data, size: decoded.append(data) or real(data, size))
    corpus = open_corpus(corpus.path)
    window = WindowSource(corpus.stored(), length=2, batch_size=1, seed=0)[0]
    assert window["observations"]["camera"]["wrist"].shape == (1, 3, 9, 11, 3)
    assert len(decoded) <= 2 * 3  # two cameras, three observations


def test_only_the_needed_episodes_are_read(corpus, monkeypatch):
    asked = []
    stored = corpus.stored()
    real = stored._records.read
    monkeypatch.setattr(stored._records, "read", lambda episodes: asked.extend(episodes.tolist()) or real(episodes))
    columns, episode, first = stored.pieces(np.array([2, 2, 0]), np.array([0, 3, 1]), np.array([2, 2, 1]))
    assert sorted(asked) == [0, 2], "each once"
    assert columns.lengths.tolist() == [2, 3, 2], "with the transition before, where there is one"
    assert (episode.tolist(), first.tolist()) == ([0, 1, 2], [0, 1, 1])
    stored.pieces(np.array([2]), np.array([1]), np.array([1]))
    assert sorted(asked) == [0, 2], "what was decoded last is kept"


def test_recent_values_are_kept_up_to_their_weight():
    recent = Recent(10)
    for key in range(4):
        recent.put(key, str(key), 4)
    assert [recent.get(key) for key in range(4)] == [None, None, "2", "3"]
    recent.get(2)
    recent.put(9, "9", 4)
    assert recent.get(3) is None
    assert recent.get(2) == "2"
    recent.put(5, "too large", 99)
    assert recent.get(5) == "too large", "the value in use stays, however large"


def test_streaming_reads_a_few_records_at_a_time(tmp_path, monkeypatch):
    spec = Spec(box((3,), "float32"), {"type": "Discrete", "n": 2, "start": 0})

    def many():
        for _ in range(200):
            yield Trajectory(np.zeros((3, 3), np.float32), np.zeros(2, np.int64), None, True, False)

    corpus = write_corpus(tmp_path / "c", spec, many(), provenance={})
    asked = []
    real = Records.read
    monkeypatch.setattr(Records, "read", lambda self, episodes: asked.append(len(episodes)) or real(self, episodes))
    episodes = iter(corpus)
    next(episodes)
    assert asked == [64], "the rest is read when it is asked for"
    assert len(list(episodes)) == 199
    assert max(asked) == 64


# --- The former format ------------------------------------------------------------------------------------------------


def test_version_1_is_read_and_appended_to(tmp_path):
    spec = Spec(box((3,), "float32"), {"type": "Discrete", "n": 2, "start": 0})
    want = [
        Trajectory(
            np.full((3, 3), i, np.float32),
            np.array([0, 1]),
            np.ones(2, np.float32) * i,
            True,
            False,
            info={"id": f"e{i}", "policy": "p"},
        )
        for i in range(5)
    ]
    write_corpus(tmp_path, spec, want[:4], provenance={})
    make_version_1(tmp_path)
    corpus = open_corpus(tmp_path)
    for got, expected in zip(corpus, want, strict=False):
        assert_same(got, expected)
    assert corpus.index.returns.tolist() == [0, 2, 4, 6]
    with pytest.raises(ValueError, match="its id 'e1' is in the corpus already"):
        write_corpus(tmp_path, spec, want[1:2], provenance={}, append=True)
    longer = write_corpus(tmp_path, spec, want[4:], provenance={}, append=True)
    assert longer.index.ids() == [f"e{i}" for i in range(5)]


def test_version_1_with_images_is_refused(tmp_path):
    image = Trajectory(np.zeros((2, 9, 11, 3), np.uint8), np.array([0]), None, True, False)
    write_corpus(tmp_path, Spec(IMAGE, {"type": "Discrete", "n": 2, "start": 0}), [image], provenance={})
    make_version_1(tmp_path)
    with pytest.raises(ValueError, match="has images in format version 1, which is not read; write it anew"):
        open_corpus(tmp_path)


def make_version_1(path):
    folder = path / "parts" / "part-00000"
    (folder / "index.npz").unlink()
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["split_by"]
    manifest["version"] = 1
    manifest["parts"][0] |= {"bytes": size_of(folder), "checksum": checksum_of(folder)}
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_stored_is_made_of_plain_arrays(corpus):
    assert isinstance(corpus.stored("train"), StoredEpisodes)
    assert dataclasses.is_dataclass(corpus.index)
    with pytest.raises(ValueError, match="split 'test' is unknown"):
        corpus.stored("test")
