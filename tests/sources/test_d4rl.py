from __future__ import annotations

import dataclasses
import gzip
import math
import pathlib
import tracemalloc
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.case import FIXTURES
from worldmodel.sources import d4rl, read
from worldmodel.sources.hdf5 import plain_of
from worldmodel.trajectory import Trajectory

NEW = FIXTURES / "d4rl" / "cartpole-medium-v2.hdf5"
ENDS = "terminal", "timeout", "both"


def make(episodes: list[tuple[int, str | None]], *, next_observations: bool = True, seed: int = 0) -> dict[str, Any]:
    """Rows of episodes, each of some steps with an end; no two observations are near each other."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in (*d4rl.NEEDED, "rewards", "timeouts", "next")}
    for steps, end in episodes:
        observations = rng.uniform(-9, 9, (steps + 1, 3)).astype(np.float32)
        last = np.arange(steps) == steps - 1
        columns["observations"].append(observations[:-1])
        columns["next"].append(observations[1:])
        columns["actions"].append(rng.uniform(-1, 1, (steps, 2)).astype(np.float32))
        columns["rewards"].append(rng.normal(size=steps).astype(np.float32))
        columns["terminals"].append(last & (end in ("terminal", "both")))
        columns["timeouts"].append(last & (end in ("timeout", "both")))
    rows = {name: np.concatenate(parts) for name, parts in columns.items()}
    following = rows.pop("next")
    return rows | ({"next_observations": following} if next_observations else {})


def write(path: pathlib.Path, rows: dict[str, Any]) -> pathlib.Path:
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            file[name] = values
    return path


def transitions(source: Any) -> dict[int, tuple]:
    """Row in the file -> (observation, action, reward, next observation, terminated)."""
    found = {}
    for trajectory in source:
        start = int(trajectory.info["id"].rpartition("/")[2])
        for t in range(len(trajectory)):
            obs = trajectory.observations
            done = trajectory.terminated and t == len(trajectory) - 1
            found[start + t] = (obs[t], trajectory.actions[t], trajectory.rewards[t], obs[t + 1], done)
    return found


# --- What D4RL's loaders keep, from their definitions -----------------------------------------------------------------


def qlearning(rows: dict[str, Any]) -> dict[int, tuple]:
    """Each row but the last and those of timeouts, with the observation of the row after it."""
    obs = rows["observations"]
    kept = [i for i in range(len(obs) - 1) if not rows["timeouts"][i]]
    return {i: (obs[i], rows["actions"][i], rows["rewards"][i], obs[i + 1], rows["terminals"][i]) for i in kept}


def sequences(rows: dict[str, Any]) -> list[range]:
    """Rows of each episode, up to and with its terminal or timeout; rows after the last end belong to none."""
    stops = np.flatnonzero(rows["terminals"] | rows["timeouts"]) + 1
    return [range(a, b) for a, b in zip([0, *stops], stops, strict=False)]


LOGS = st.tuples(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from(ENDS)), min_size=1, max_size=6), st.integers(0, 4)
)


@settings(max_examples=25)
@given(log=LOGS, next_observations=st.booleans(), block=st.sampled_from([1, 100, 2**24]))
def test_both_of_d4rls_loaders_give_the_transitions_that_are_read(
    tmp_path_factory: pytest.TempPathFactory, log: Any, next_observations: bool, block: int
):
    episodes, unfinished = log
    rows = make([*episodes, *([(unfinished, None)] if unfinished else [])])
    true_next = rows["next_observations"]
    if not next_observations:
        del rows["next_observations"]
    path = write(tmp_path_factory.mktemp("d4rl") / "log.hdf5", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(d4rl, "BLOCK_BYTES", block)
        trajectories = list(read(f"d4rl:{path}"))
    ours = transitions(trajectories)

    for row, (obs, action, reward, following, done) in ours.items():
        np.testing.assert_array_equal(following, true_next[row])  # never the next episode's first
        np.testing.assert_array_equal(obs, rows["observations"][row])
        assert np.array_equal(action, rows["actions"][row]) and reward == rows["rewards"][row]
        assert done == rows["terminals"][row]
    ends = np.flatnonzero(rows["terminals"] | rows["timeouts"])
    lost = set() if next_observations else {*ends.tolist(), len(true_next) - 1}
    assert set(ours) == set(range(len(true_next))) - lost

    loader = qlearning(rows)
    for row in set(loader) & set(ours):
        same = [np.array_equal(a, b) for a, b in zip(ours[row], loader[row], strict=True)]
        assert same == [True, True, True, not rows["terminals"][row], True]
    # What the loader has beyond ours is the terminals' steps, and only where their next observation is not known.
    assert set(loader) - set(ours) == (
        set() if next_observations else set(np.flatnonzero(rows["terminals"])) & set(loader)
    )

    by_start = {int(t.info["id"].rpartition("/")[2]): t for t in trajectories}
    for episode in sequences(rows):
        steps = len(episode) - (not next_observations)
        if steps == 0:
            assert episode.start not in by_start
            continue
        trajectory = by_start[episode.start]
        assert len(trajectory) == steps
        np.testing.assert_array_equal(trajectory.observations[: len(episode)], rows["observations"][episode])
        np.testing.assert_array_equal(trajectory.actions, rows["actions"][episode][:steps])
        assert trajectory.terminated == (next_observations and rows["terminals"][episode[-1]])
        both = rows["terminals"][episode[-1]]
        assert trajectory.truncated == (next_observations and rows["timeouts"][episode[-1]] and not both)


def test_an_episode_ends_where_the_next_observation_is_not_the_next_row(tmp_path: pathlib.Path):
    rows = make([(4, None), (3, "terminal"), (2, None)])
    found = list(read(f"d4rl:{write(tmp_path / 'a.hdf5', rows)}"))
    assert [(len(t), t.terminated, t.truncated) for t in found] == [
        (4, False, False),
        (3, True, False),
        (2, False, False),
    ]
    assert [t.info["id"] for t in found] == ["a/0", "a/4", "a/7"]


def test_rounding_is_no_jump_and_neither_is_a_fault_in_both_columns(tmp_path: pathlib.Path):
    rows = make([(6, "timeout")])
    rows["next_observations"] = rows["next_observations"] * np.float32(1 + 1e-6)
    rows["observations"][3], rows["next_observations"][2] = np.nan, np.nan
    (trajectory,) = read(f"d4rl:{write(tmp_path / 'a.hdf5', rows)}")
    assert len(trajectory) == 6 and np.isnan(trajectory.observations[3]).all()  # the lint's to find


@pytest.mark.parametrize("block", [1, 2**24])
def test_without_timeouts_every_episode_has_the_limits_length(
    tmp_path: pathlib.Path, block: int, monkeypatch: pytest.MonkeyPatch
):
    rows = make([(5, None), (5, None), (3, "terminal"), (5, None), (2, None)])
    del rows["timeouts"]
    monkeypatch.setattr(d4rl, "BLOCK_BYTES", block)
    found = list(read(f"d4rl:{write(tmp_path / 'a.hdf5', rows)}", max_episode_steps=5))
    assert [(len(t), t.terminated, t.truncated) for t in found] == [
        (5, False, True),
        (5, False, True),
        (3, True, False),
        (5, False, True),
        (2, False, False),
    ]


def test_what_cannot_be_known_is_said(tmp_path: pathlib.Path):
    rows = make([(5, None), (4, "terminal")], next_observations=False)
    del rows["timeouts"], rows["rewards"]
    source = read(f"d4rl:{write(tmp_path / 'a.hdf5', rows)}")
    assert source.provenance["left_out"] == [
        "the last step of each episode, and with it the episode's end: the file has no next_observations, "
        "so what that step led to is not known",
        "ends by a time limit: the file has no timeouts, so episodes may be glued together; give max_episode_steps",
        "rewards: the file has none",
    ]
    (trajectory,) = source  # glued, as said
    assert len(trajectory) == 8 and trajectory.rewards is None and math.isnan(trajectory.total_reward)


def test_the_environment_gives_spaces_and_limit(tmp_path: pathlib.Path):
    rows = make([(7, None)])
    rows |= {"observations": np.zeros((7, 4), np.float64), "actions": np.array([0, 1] * 3 + [0])}
    del rows["next_observations"], rows["timeouts"]
    path = write(tmp_path / "a.hdf5", rows)
    source = read(f"d4rl:{path}", env_id="CartPole-v1")
    assert source.spec == source.spec.from_gymnasium(gymnasium.make("CartPole-v1"))
    (trajectory,) = source
    assert trajectory.observations.dtype == np.float32 and trajectory.validate(source.spec)
    with pytest.raises(
        ValueError, match=r"an action has shape \(\); 'Pendulum-v1' has a Box of shape \(1,\)|observation"
    ):
        read(f"d4rl:{path}", env_id="Pendulum-v1")
    with pytest.raises(ValueError, match=r"'Cartpole-v1' is not registered .*did you mean 'CartPole-v1'"):
        read(f"d4rl:{path}", env_id="Cartpole-v1")


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compressed_file_is_the_same(tmp_path: pathlib.Path, ending: str):
    packed = tmp_path / f"{NEW.name}{ending}"
    data = NEW.read_bytes()
    packed.write_bytes(gzip.compress(data) if ending == ".gz" else zstandard.compress(data))
    source = read(str(packed))
    plain = list(read(str(NEW)))
    assert source.spec == read(str(NEW)).spec
    for ours, theirs in zip(source, plain, strict=True):
        assert ours.info["id"] == theirs.info["id"]
        np.testing.assert_array_equal(ours.observations, theirs.observations)


def test_whole_numbers_are_counted(tmp_path: pathlib.Path):
    rows = make([(5, "timeout")])
    rows["actions"] = np.array([3, 0, 6, 1, 1], np.int32)
    spec = read(f"d4rl:{write(tmp_path / 'a.hdf5', rows)}").spec
    assert spec.action_space == {"type": "Discrete", "n": 7, "start": 0}
    rows["actions"] = np.array([[True, False], [False, True], [True, True], [False, False], [True, False]])
    source = read(f"d4rl:{write(tmp_path / 'b.hdf5', rows)}")
    assert source.spec.action_space == {"type": "MultiBinary", "shape": [2]}
    (trajectory,) = source
    assert trajectory.validate(source.spec).actions.dtype == np.int8


# --- Faults -----------------------------------------------------------------------------------------------------------


def _without(name: str) -> Any:
    def change(file: h5py.File) -> None:
        del file[name]

    return change


def _instead(name: str, values: Any, **options: Any) -> Any:
    def change(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, data=values, **options)

    return change


def _link(file: h5py.File) -> None:
    del file["rewards"]
    file["rewards"] = h5py.ExternalLink("/etc/passwd", "/x")


def _elsewhere(file: h5py.File) -> None:
    del file["rewards"]
    file.create_dataset("rewards", (25,), "f4", external=[("/etc/passwd", 0, 100)])


def _virtual(file: h5py.File) -> None:
    del file["rewards"]
    layout = h5py.VirtualLayout((25,), "f4")
    layout[:] = h5py.VirtualSource("/tmp/other.hdf5", "x", (25,))
    file.create_virtual_dataset("rewards", layout)


def _huge(file: h5py.File) -> None:
    for name in list(file):
        if isinstance(file[name], h5py.Dataset):
            shape, dtype = file[name].shape[1:], file[name].dtype
            del file[name]
            file.create_dataset(name, (10**12, *shape), dtype, chunks=(1024, *shape))
    del file["infos"]


def _group(file: h5py.File) -> None:
    del file["actions"]
    file.create_group("actions/arm")


def _references(file: h5py.File) -> None:
    del file["rewards"]
    file.create_dataset("rewards", data=[file["actions"].ref] * 25, dtype=h5py.ref_dtype)


FAULTS = {
    "no terminals": (_without("terminals"), r"has no 'terminals'; D4RL's layout has observations, actions, terminals"),
    "lengths": (_instead("rewards", np.zeros(9)), r"'rewards' has shape \(9,\); 'observations' has \(25, 4\)"),
    "text": (_instead("rewards", [b"a"] * 25), r"'rewards' holds object; numbers are needed"),
    "two rewards": (
        _instead("rewards", np.zeros((25, 2))),
        r"'rewards' has shape \(25, 2\); one number a row is needed",
    ),
    "other next": (_instead("next_observations", np.zeros((25, 3))), r"'next_observations' has shape \(25, 3\)"),
    "one value": (_instead("terminals", np.float32(1)), r"'terminals' has shape \(\)"),
    "group": (_group, r"'actions' is a group; an array is needed"),
    "link": (_link, r"'rewards' is a link to elsewhere \(ExternalLink\); it is not followed"),
    "elsewhere": (_elsewhere, r"'rewards' keeps its values outside the file; they are not read"),
    "virtual": (_virtual, r"'rewards' keeps its values outside the file; they are not read"),
    "huge": (_huge, r"declares \d+ bytes, 200 times the file; it is not read"),
    "references": (_references, r"'rewards' holds object; numbers, strings or bytes are needed"),
    "opaque": (_instead("rewards", np.zeros(25, "V8")), r"'rewards' holds \|V8; numbers, strings or bytes are needed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_clear_line(tmp_path: pathlib.Path, fault: str):
    change, message = FAULTS[fault]
    path = tmp_path / "a.hdf5"
    path.write_bytes(NEW.read_bytes())
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(ValueError, match=message) as caught:
        list(read(f"d4rl:{path}"))
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_no_file_and_no_hdf5(tmp_path: pathlib.Path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.hdf5"):
        read(f"d4rl:{tmp_path / 'nothing.hdf5'}")
    other = tmp_path / "a.hdf5"
    other.write_bytes(b"PK\3\4" * 9)
    assert not d4rl.recognise(other)
    with pytest.raises(ValueError, match=r"a\.hdf5: is not an HDF5 file"):
        read(f"d4rl:{other}")
    (tmp_path / "b.hdf5.gz").write_bytes(b"not gzip")
    assert not d4rl.recognise(tmp_path / "b.hdf5.gz") and not d4rl.recognise(tmp_path)
    with pytest.raises(ValueError, match=r"max_episode_steps is 0; at least 1 is needed"):
        read(f"d4rl:{NEW}", max_episode_steps=0)


def test_mutated_files_are_read_or_refused(tmp_path: pathlib.Path):
    data, rng = NEW.read_bytes(), np.random.default_rng(0)
    lines: list[str] = []
    for case in range(60):
        mutated = np.frombuffer(data, np.uint8).copy()
        where = rng.integers(0, len(data), int(rng.choice([1, 4, 30])))
        mutated[where] = rng.integers(0, 256, len(where))
        path = tmp_path / f"{case}.hdf5"
        path.write_bytes(mutated.tobytes()[: int(rng.integers(1, len(data))) if case % 3 == 0 else None])
        try:
            assert all(isinstance(t, Trajectory) for t in read(f"d4rl:{path}"))
        except ValueError as error:
            lines.append(str(error))
    assert 10 < len(lines) < 50
    assert not [line for line in lines if "\n" in line or "hdf5" not in line]


def test_memory_is_that_of_an_episode_and_a_block(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(d4rl, "BLOCK_BYTES", 2**16)
    peaks = []
    for episodes in (40, 400):
        path = write(tmp_path / f"{episodes}.hdf5", make([(500, "timeout")] * episodes))
        tracemalloc.start()
        total = sum(len(t) for t in read(f"d4rl:{path}"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert total == 500 * episodes
    assert path.stat().st_size > 7 * 2**20
    assert peaks[1] < 1.1 * peaks[0] < 2**20


def test_an_episode_without_end_is_not_read_whole(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(d4rl, "LONGEST_RECORD", 10_000)
    monkeypatch.setattr(d4rl, "BLOCK_BYTES", 1_000)
    path = write(tmp_path / "a.hdf5", make([(900, None)], next_observations=False))
    with pytest.raises(ValueError, match=r"a.hdf5: the episode from row 0 is larger than 10000 bytes"):
        list(read(f"d4rl:{path}"))


def test_a_source_is_read_again_the_same(tmp_path: pathlib.Path):
    source = read(f"d4rl:{NEW}")
    first, second = iter(source), iter(source)
    for left, right in zip(first, second, strict=True):
        assert dataclasses.asdict(left)["info"] == dataclasses.asdict(right)["info"]
        np.testing.assert_array_equal(left.observations, right.observations)


def test_long_doubles_in_attributes_become_plain_numbers():
    assert plain_of(np.array([1.5, 2.0], np.longdouble)) == [1.5, 2.0]
    assert plain_of(np.longdouble(3)) == 3.0
