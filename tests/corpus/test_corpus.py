"""The corpus on disk: bits survive, faults are one clear line, a killed writer changes nothing."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from worldmodel.corpus import Columns, open_corpus, split_of, write_corpus
from worldmodel.corpus.lock import only_writer
from worldmodel.trajectory import Spec, Trajectory

BOX = {"type": "Box", "shape": [3], "dtype": "float32", "low": [None] * 3, "high": [None] * 3}
SPEC = Spec(BOX, {"type": "Discrete", "n": 4, "start": -1}, env_id="Toy-v0", env_kwargs={"g": 9.8}, max_episode_steps=7)


def episode(index: int, steps: int, *, rewards: bool = True, policy: str = "random") -> Trajectory:
    rng = np.random.default_rng(index)
    return Trajectory(
        observations=rng.normal(size=(steps + 1, 3)).astype(np.float32),
        actions=rng.integers(-1, 3, steps),
        rewards=rng.normal(size=steps).astype(np.float32) if rewards else None,
        terminated=index % 3 == 0,
        truncated=index % 3 == 1,
        action_log_prob=rng.normal(size=steps).astype(np.float32) if index % 2 else None,
        context={"task": "north", "mass": 1.5} if index % 2 else None,
        info={"id": f"toy-{index}", "source": "test", "policy": policy, "seed": index, "note": [1, None]},
    )


def episodes(count: int = 5, first: int = 0) -> list[Trajectory]:
    return [episode(first + i, 1 + (first + i) % 4) for i in range(count)]


def assert_same(got: Trajectory, want: Trajectory) -> None:
    for name in ("observations", "actions", "rewards", "action_log_prob"):
        ours, theirs = getattr(got, name), getattr(want, name)
        if theirs is None:
            assert ours is None
        else:
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            assert ours.tobytes() == theirs.tobytes()
    assert (got.terminated, got.truncated, got.context) == (want.terminated, want.truncated, want.context)
    assert dict(got.info) == dict(want.info)


def test_round_trip_keeps_every_field(tmp_path):
    want = [*episodes(5), episode(7, 3, rewards=False)]
    corpus = write_corpus(tmp_path / "c", SPEC, iter(want), provenance={"made_by": "test"})
    assert (corpus.episodes, corpus.transitions) == (6, sum(len(e) for e in want))
    assert corpus.spec == SPEC
    assert corpus.provenance == {"made_by": "test"}
    got = list(corpus)
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        assert_same(ours, theirs)
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["manifest.json", "parts"]


FLOATS = st.sampled_from(["float32", "float64", "float16"])
WHOLE = st.sampled_from(["uint8", "int8", "int32", "int64", "uint16", "uint64"])


@st.composite
def boxes(draw):
    dtype = np.dtype(draw(st.one_of(FLOATS, WHOLE)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
    size = int(np.prod(shape))
    # Gymnasium's integer boxes have bounds; a float64 cannot say the largest 64-bit integer, so those stay open.
    bounded = dtype.kind in "iu" and dtype.itemsize < 8
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if bounded else (None, None)
    return {"type": "Box", "shape": list(shape), "dtype": str(dtype), "low": [low] * size, "high": [high] * size}


@st.composite
def discretes(draw):
    return {"type": "Discrete", "n": draw(st.integers(1, 2**40)), "start": draw(st.integers(-(2**40), 2**40))}


def values(draw, space, count):
    if space["type"] == "Discrete":
        whole = st.integers(space["start"], space["start"] + space["n"] - 1)
        return np.array(draw(st.lists(whole, min_size=count, max_size=count)), np.int64)
    dtype = np.dtype(space["dtype"])
    finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    return draw(hnp.arrays(dtype, (count, *space["shape"]), elements=hnp.from_dtype(dtype, **finite)))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_round_trip_is_bit_exact_over_spaces_and_dtypes(tmp_path_factory, data):
    spec = Spec(data.draw(st.one_of(boxes(), discretes())), data.draw(st.one_of(boxes(), discretes())))
    want = []
    for index in range(data.draw(st.integers(1, 3))):
        steps = data.draw(st.integers(1, 4))
        rewards = data.draw(
            hnp.arrays(np.float32, steps, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
        )
        end = data.draw(st.sampled_from([(True, False), (False, True), (False, False)]))
        observations = values(data.draw, spec.observation_space, steps + 1)
        actions = values(data.draw, spec.action_space, steps)
        want.append(Trajectory(observations, actions, rewards, *end, info={"id": str(index)}))
    corpus = write_corpus(tmp_path_factory.mktemp("c") / "c", spec, want, provenance={})
    for ours, theirs in zip(corpus, want, strict=True):
        assert_same(ours, theirs)


def test_append_adds_a_part_and_leaves_the_first_as_it_was(tmp_path):
    first = write_corpus(tmp_path, SPEC, episodes(3), provenance={"run": 1})
    before = {p: p.read_bytes() for p in (tmp_path / "parts").rglob("*") if p.is_file()}
    corpus = write_corpus(tmp_path, SPEC, episodes(2, first=3), provenance={"run": 2}, append=True)
    assert [e.info["id"] for e in corpus] == [f"toy-{i}" for i in range(5)]
    assert [p.provenance for p in corpus.manifest.parts] == [{"run": 1}, {"run": 2}]
    assert {p: p.read_bytes() for p in before} == before
    assert len(list(first)) == 3, "a corpus opened before the append reads what it was"


def test_append_begins_a_corpus_where_there_is_none(tmp_path):
    assert write_corpus(tmp_path / "new", SPEC, episodes(2), provenance={}, append=True).episodes == 2


def test_ids_are_given_where_missing(tmp_path):
    anonymous = [dataclasses.replace(e, info={"policy": "x"}) for e in episodes(2)]
    write_corpus(tmp_path, SPEC, anonymous, provenance={})
    corpus = write_corpus(tmp_path, SPEC, anonymous, provenance={}, append=True)
    ids = [e.info["id"] for e in corpus]
    assert ids == ["part-00000-000000", "part-00000-000001", "part-00001-000000", "part-00001-000001"]


def test_columns_lay_episodes_end_to_end(tmp_path):
    want = episodes(6)
    columns = write_corpus(tmp_path, SPEC, want, provenance={}).columns()
    direct = Columns.from_trajectories(want)
    for name in ("observations", "actions", "rewards", "terminated", "truncated", "lengths"):
        np.testing.assert_array_equal(getattr(columns, name), getattr(direct, name))
    assert columns.ids == direct.ids == tuple(f"toy-{i}" for i in range(6))
    assert columns.policies == ("random",) * 6
    assert columns.observations.shape == (len(columns) + 6, 3)
    for index, trajectory in enumerate(want):
        piece = columns.episode(index)
        np.testing.assert_array_equal(piece.observations, trajectory.observations)
        np.testing.assert_array_equal(piece.actions, trajectory.actions)
        assert (piece.terminated, piece.truncated) == (trajectory.terminated, trajectory.truncated)
        assert columns.returns[index] == pytest.approx(trajectory.total_reward, rel=1e-5)


def test_transitions_line_up():
    want = episodes(6)
    rows = Columns.from_trajectories(want).transitions()
    np.testing.assert_array_equal(rows.obs, np.concatenate([e.observations[:-1] for e in want]))
    np.testing.assert_array_equal(rows.next_obs, np.concatenate([e.observations[1:] for e in want]))
    np.testing.assert_array_equal(rows.episode, np.repeat(np.arange(6), [len(e) for e in want]))
    ends = np.concatenate([[False] * (len(e) - 1) + [e.terminated] for e in want])
    np.testing.assert_array_equal(rows.terminated, ends)


def test_columns_without_rewards_are_zeros_and_say_so(tmp_path):
    mixed = [episode(0, 2), episode(1, 3, rewards=False)]
    columns = write_corpus(tmp_path, SPEC, mixed, provenance={}).columns()
    assert not columns.has_rewards
    np.testing.assert_array_equal(columns.rewards[2:], np.zeros(3, np.float32))
    assert columns.episode(1).rewards is None


def test_splits_partition_the_corpus(tmp_path):
    corpus = write_corpus(tmp_path, SPEC, episodes(40), provenance={})
    train, held_out = corpus.columns("train"), corpus.columns("held_out")
    assert set(train.ids) | set(held_out.ids) == set(corpus.columns().ids)
    assert not set(train.ids) & set(held_out.ids)
    assert held_out.episodes == sum(split_of(name) == "held_out" for name in corpus.columns().ids) > 0


def test_plain_tfds_reads_what_we_read_without_tensorflow(tmp_path):
    want = episodes(4)
    corpus = write_corpus(tmp_path / "c", SPEC, want, provenance={})
    write_corpus(tmp_path / "c", SPEC, episodes(2, first=4), provenance={}, append=True)
    corpus = open_corpus(tmp_path / "c")
    program = textwrap.dedent("""
        import sys

        class Without:
            def __init__(self, finder):
                self.finder = finder

            def find_spec(self, name, path=None, target=None):
                return None if name.partition(".")[0] == "tensorflow" else self.finder.find_spec(name, path, target)

        sys.meta_path = [Without(finder) for finder in sys.meta_path]
        import numpy as np
        import tensorflow_datasets as tfds

        folders = sys.argv[2:]
        rows, meta = [], []
        for folder in folders:
            source = tfds.builder_from_directory(folder).as_data_source(split="train")
            for i in range(len(source)):
                example = source[i]
                meta.append([example["episode_metadata"][k] for k in ("id", "policy", "terminated", "truncated")])
                rows += list(example["steps"])
        joined = tfds.builder_from_directories(folders).as_data_source(split="train")
        assert len(joined) == len(meta)
        assert "tensorflow" not in sys.modules
        np.savez(sys.argv[1], meta=np.array(meta, str), **{k: np.array([r[k] for r in rows]) for k in rows[0]})
    """)
    out = tmp_path / "plain.npz"
    folders = [str(tmp_path / "c" / "parts" / part.name) for part in corpus.manifest.parts]
    subprocess.run([sys.executable, "-c", program, str(out), *folders], check=True, timeout=120)
    plain = np.load(out)
    columns = corpus.columns()
    np.testing.assert_array_equal(plain["observation"], columns.observations)
    last = plain["is_last"]
    assert last.sum() == plain["is_first"].sum() == 6
    np.testing.assert_array_equal(plain["action"][~last], columns.actions)
    np.testing.assert_array_equal(plain["reward"][~last], columns.rewards)
    np.testing.assert_array_equal(plain["is_terminal"][last], columns.terminated)
    assert not plain["is_terminal"][~last].any()
    np.testing.assert_array_equal(plain["discount"][~last], 1.0 - columns.terminated_rows)
    assert not plain["reward"][last].any()
    assert [row[0] for row in plain["meta"]] == list(columns.ids)


def damaged(tmp_path) -> pathlib.Path:
    write_corpus(tmp_path / "c", SPEC, episodes(3), provenance={})
    return tmp_path / "c"


def shard(path: pathlib.Path) -> pathlib.Path:
    return next((path / "parts" / "part-00000").glob("*.array_record*"))


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^corpus .*nowhere: no such folder$"):
        open_corpus(tmp_path / "nowhere")


def test_no_manifest(tmp_path):
    path = damaged(tmp_path)
    (path / "manifest.json").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"holds no manifest\.json; it is no corpus, or was not written to its end"
    ):
        open_corpus(path)


def test_missing_part(tmp_path):
    path = damaged(tmp_path)
    (path / "parts" / "part-00000").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"part-00000 is missing, though manifest\.json names it"):
        open_corpus(path)


def test_cut_file(tmp_path):
    path = damaged(tmp_path)
    file = shard(path)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"part-00000 holds \d+ bytes; manifest.json says \d+: a file was cut"):
        open_corpus(path)


def test_changed_file(tmp_path):
    path = damaged(tmp_path)
    file = shard(path)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"part-00000 differs from its checksum in manifest\.json"):
        list(open_corpus(path))


@pytest.mark.parametrize("field", ["episodes", "transitions"])
def test_wrong_count(tmp_path, field):
    path = damaged(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["parts"][0][field] += 1
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=rf"part-00000 holds \d+ {field}; the manifest says \d+"):
        open_corpus(path).columns()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "manifest.json is not JSON"),
        ("[]", "is not a manifest of format 'worldmodel-corpus'"),
        ('{"format": "worldmodel-corpus", "version": 3}', "has format version 3; this release reads versions 1 to 2"),
        ('{"format": "worldmodel-corpus", "version": 1}', "manifest.json is damaged"),
    ],
)
def test_bad_manifest(tmp_path, text, message):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        open_corpus(tmp_path)


def snapshot(path: pathlib.Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def other_spec() -> Spec:
    return Spec(BOX, {"type": "Discrete", "n": 5, "start": 0})


@pytest.mark.parametrize(
    ("spec", "new", "append", "message"),
    [
        (SPEC, episodes(1, 9), False, "holds a corpus already; append to it, or name another folder"),
        (other_spec(), episodes(1, 9), True, "its spec differs from that of the new episodes"),
        (SPEC, episodes(1), True, "its id 'toy-0' is in the corpus already"),
        (SPEC, [], True, "no episode to write; at least one is needed"),
        (SPEC, [episode(8, 2), episode(8, 2)], True, "episode 1: its id 'toy-8' is in the corpus already"),
        (
            SPEC,
            [
                episode(8, 2),
                Trajectory(np.zeros((2, 3), np.float32), np.array([9]), None, False, False, info={"id": "b"}),
            ],
            True,
            r"episode 1 \(b\): action at step 0 is 9, outside -1..2",
        ),
        (
            SPEC,
            [Trajectory(np.zeros((2, 3), np.float32), np.array([0]), None, False, False, info={"id": "b", "x": {1}})],
            True,
            r"episode 0 \(b\), info: is not plain JSON",
        ),
    ],
)
def test_refused_writes_leave_the_corpus_as_it_was(tmp_path, spec, new, append, message):
    path = damaged(tmp_path)
    before = snapshot(path)
    with pytest.raises(ValueError, match=message):
        write_corpus(path, spec, new, provenance={}, append=append)
    assert snapshot(path) == before


def test_float_observations_do_not_fit_an_integer_box(tmp_path):
    spec = Spec({**BOX, "dtype": "uint8"}, SPEC.action_space)
    with pytest.raises(ValueError, match=r"episode 0 \(toy-1\): observation has dtype float32; the space has uint8"):
        write_corpus(tmp_path / "c", spec, [episode(1, 2)], provenance={})


def test_provenance_must_be_json(tmp_path):
    with pytest.raises(ValueError, match="provenance is not plain JSON"):
        write_corpus(tmp_path / "c", SPEC, episodes(1), provenance={"x": object()})
    assert not (tmp_path / "c").exists()


def test_a_file_is_no_place_for_a_corpus(tmp_path):
    (tmp_path / "c").write_text("mine")
    with pytest.raises(ValueError, match="is a file; a folder is needed"):
        write_corpus(tmp_path / "c", SPEC, episodes(1), provenance={})
    assert (tmp_path / "c").read_text() == "mine"


def test_unknown_split(tmp_path):
    with pytest.raises(ValueError, match=r"split 'held-out' is unknown \(did you mean 'held_out'\?\); known are train"):
        open_corpus(damaged(tmp_path)).columns("held-out")


def test_a_single_episode_leaves_none_for_a_split(tmp_path):
    corpus = write_corpus(tmp_path, SPEC, [episode(1, 2)], provenance={})
    with pytest.raises(ValueError, match=r"1 episode\(s\) leave none for split 'held_out'"):
        corpus.columns("held_out")


def test_episodes_of_two_kinds_do_not_mix():
    odd = Trajectory(np.zeros((2, 4), np.float32), np.array([0]), None, False, False)
    with pytest.raises(ValueError, match=r"episodes differ in their observations: float32\[3\], float32\[4\]"):
        Columns.from_trajectories([episode(0, 2), odd])
    with pytest.raises(ValueError, match="no episode to lay out"):
        Columns.from_trajectories([])


def test_second_writer_is_told_who_is_there(tmp_path):
    path = damaged(tmp_path)
    with (
        only_writer(path),
        pytest.raises(ValueError, match=rf"another writer \(process {os.getpid()}\) is at work here"),
    ):
        write_corpus(path, SPEC, episodes(1, 9), provenance={}, append=True)
    assert write_corpus(path, SPEC, episodes(1, 9), provenance={}, append=True).episodes == 4


def test_lock_of_a_dead_writer_is_taken_over(tmp_path):
    path = damaged(tmp_path)
    (path / ".lock").write_text("4194303999\n")
    assert write_corpus(path, SPEC, episodes(1, 9), provenance={}, append=True).episodes == 4
    assert not (path / ".lock").exists()


def test_killed_writer_leaves_the_old_corpus_and_no_half_part(tmp_path):
    path = damaged(tmp_path)
    before = snapshot(path)
    program = textwrap.dedent("""
        import itertools, pathlib, sys, time
        sys.path.insert(0, sys.argv[2])
        from test_corpus import SPEC, episode
        from worldmodel.corpus import write_corpus

        def slowly():
            for i in itertools.count(100):
                if i == 120:
                    pathlib.Path(sys.argv[3]).touch()
                if i > 120:
                    time.sleep(0.05)
                yield episode(i, 3)

        write_corpus(sys.argv[1], SPEC, slowly(), provenance={}, append=True)
    """)
    flag = tmp_path / "midway"
    arguments = [sys.executable, "-c", program, str(path), str(pathlib.Path(__file__).parent), str(flag)]
    writer = subprocess.Popen(arguments)
    try:
        deadline = time.monotonic() + 60
        while not flag.exists():
            assert writer.poll() is None, "the writer ended by itself"
            assert time.monotonic() < deadline, "the writer never got midway"
            time.sleep(0.02)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    assert {k: v for k, v in snapshot(path).items() if k in before} == before
    corpus = open_corpus(path)
    assert [e.info["id"] for e in corpus] == ["toy-0", "toy-1", "toy-2"]
    assert [p.name for p in (path / "parts").glob("part-*")] == ["part-00000"]
    again = write_corpus(path, SPEC, episodes(2, first=200), provenance={}, append=True)
    assert again.episodes == 5
    assert sorted(p.name for p in (path / "parts").iterdir()) == ["part-00000", "part-00001"], "leftovers are cleared"
