"""Arrays in npz files: whichever way the ends are marked, and whatever is wrong with the file."""

from __future__ import annotations

import io
import itertools
import os
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.corpora import real_log
from worldmodel.sources import npz_members, read

LENGTHS = (3, 1, 4)
STEPS = sum(LENGTHS)
BOUNDS = list(itertools.pairwise([0, *np.cumsum(LENGTHS).tolist()]))


def saved(folder: Path, name: str = "log.npz", **arrays: Any) -> Path:
    np.savez_compressed(folder / name, **arrays)
    return folder / name


def log(episodes: int = 3) -> dict[str, np.ndarray]:
    """One more observation for each episode; all values differ."""
    rows = STEPS + episodes
    return {
        "obs": np.arange(2.0 * rows).reshape(rows, 2),
        "acts": np.arange(STEPS) + 0.5,
        "rews": np.arange(STEPS),
    }


def error_of(path: Path, **options: Any) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        list(read(f"npz:{path}", **options))
    assert str(path) in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


# --- Real files -------------------------------------------------------------------------------------------------------


def test_imitation_cartpole():
    source = read(str(real_log("imitation/cartpole_final.npz")))
    episodes = list(source)
    lengths = np.array([len(e) for e in episodes])
    assert (len(lengths), lengths.sum(), lengths.min(), lengths.max()) == (57, 26_964, 393, 500)
    # As it is stored: what is flagged as a terminal is, though 15 episodes ended at the limit.
    assert all(e.terminated and not e.truncated for e in episodes)
    assert (lengths == 500).sum() == 15
    assert source.spec.action_space == {"type": "Discrete", "n": 2, "start": 0}
    assert source.provenance["left_out"] == ["infos: holds pickled objects; nothing is unpickled"]
    assert sum(e.total_reward for e in episodes) == 26_964
    # The textbook dynamics bind o_t, a_t and o_{t+1}: positions move by 0.02 s of velocity.
    for e in episodes:
        e.validate(source.spec)
        np.testing.assert_allclose(np.diff(e.observations[:, 0]), 0.02 * e.observations[:-1, 1], atol=1e-6)
        pushed = np.diff(e.observations[:, 1]) > 0
        assert (pushed == (e.actions == 1)).mean() > 0.99


def test_imitation_pendulum():
    episodes = list(read(str(real_log("imitation/pendulum_final.npz"))))
    assert [len(e) for e in episodes] == [200] * 56
    assert all(e.terminated and not e.truncated for e in episodes)
    assert episodes[-1].info["id"] == "pendulum_final-000055"


@pytest.mark.parametrize(("name", "episodes", "steps"), [("cartpole", 300, 20_935), ("hopper", 1_200, 60_000)])
def test_reference_logs(name: str, episodes: int, steps: int):
    path = real_log(f"reference_logs/{name}.npz")
    source = read(str(path))
    found = list(source)
    assert (len(found), sum(len(e) for e in found)) == (episodes, steps)
    with np.load(path, allow_pickle=False) as arrays:
        assert [e.terminated for e in found] == arrays["terminated"].tolist()
        assert [e.truncated for e in found] == arrays["truncated"].tolist()
        np.testing.assert_array_equal([e.observations[-1] for e in found], arrays["final_observations"])
        np.testing.assert_array_equal(np.concatenate([e.observations[:-1] for e in found]), arrays["observations"])
        np.testing.assert_array_equal(np.concatenate([e.actions for e in found]), arrays["actions"])
    assert source.provenance["left_out"] == ["held_out_episodes: has no place in a trajectory"]


# --- Where episodes end -----------------------------------------------------------------------------------------------

ENDS = np.cumsum(LENGTHS) - 1
MARKS = {
    "indices": {"indices": ENDS[:-1] + 1},
    "lengths": {"lengths": np.array(LENGTHS)},
    "episode": {"episode": np.repeat([4, 2, 9], LENGTHS)},
    "named episodes": {"episode_ids": np.repeat(["b", "a", "c"], LENGTHS)},
    "starts": {"episode_starts": np.array([0, 3, 4])},
    "starts but the first": {"episode_starts": np.array([3, 4], np.uint8)},
    "flags of starts": {"is_first": np.isin(np.arange(STEPS), [0, 3, 4])},
    "flags of ends": {
        "terminated": np.isin(np.arange(STEPS), ENDS[:1]),
        "timeouts": np.isin(np.arange(STEPS), ENDS[1:]),
    },
    "a column of flags": {"terminals": np.isin(np.arange(STEPS), ENDS)[:, None].astype(np.float32)},
}


@pytest.mark.parametrize("marks", MARKS.values(), ids=MARKS)
def test_ends_may_be_marked_in_any_way(tmp_path: Path, marks: dict[str, np.ndarray]):
    arrays = log()
    found = list(read(str(saved(tmp_path, **arrays, **marks))))
    assert [len(e) for e in found] == list(LENGTHS)
    for i, (e, (a, b)) in enumerate(zip(found, BOUNDS, strict=True)):
        np.testing.assert_array_equal(e.observations, arrays["obs"][a + i : b + i + 1])
        np.testing.assert_array_equal(e.actions, arrays["acts"][a:b])
        np.testing.assert_array_equal(e.rewards, arrays["rews"][a:b])
    names = {"episode": ["000004", "000002", "000009"], "episode_ids": ["b", "a", "c"]}
    wanted = next((names[key] for key in marks if key in names), ["000000", "000001", "000002"])
    assert [e.info["id"] for e in found] == [f"log-{name}" for name in wanted]
    terminated = {"terminated": [True, False, False], "terminals": [True] * 3}
    assert [e.terminated for e in found] == next((terminated[k] for k in marks if k in terminated), [False] * 3)
    assert [e.truncated for e in found] == ([False, True, True] if "timeouts" in marks else [False] * 3)


def test_without_marks_a_file_is_one_episode(tmp_path: Path):
    (episode,) = read(str(saved(tmp_path, **log(1), terminated=np.array([True]))))
    assert len(episode) == STEPS
    assert episode.terminated


def test_an_end_within_a_marked_episode_ends_it(tmp_path: Path):
    flags = np.arange(STEPS) == 1
    found = list(read(str(saved(tmp_path, **log(4), episode=np.repeat([4, 2, 9], LENGTHS), terminated=flags))))
    assert [(e.info["id"], len(e), e.terminated) for e in found] == [
        ("log-000004.0", 2, True),
        ("log-000004.1", 1, False),
        ("log-000002", 1, False),
        ("log-000009", 4, False),
    ]


def test_done_beside_a_limit_is_terminal_where_no_limit_was(tmp_path: Path):
    at = np.arange(STEPS)
    path = saved(tmp_path, **log(), dones=np.isin(at, ENDS), truncated=at == ENDS[1])
    assert [(e.terminated, e.truncated) for e in read(str(path))] == [(True, False), (False, True), (True, False)]
    alone = read(str(saved(tmp_path, **log(), dones=np.isin(at, ENDS))))
    assert alone.provenance["left_out"] == [
        "dones: does not tell a terminal state from a limit; it is read as terminated"
    ]
    assert all(e.terminated for e in alone)


def test_a_log_without_the_last_observation_stays_as_it_is(tmp_path: Path):
    arrays = log() | {"obs": np.arange(2.0 * STEPS).reshape(STEPS, 2)}
    found = list(read(str(saved(tmp_path, **arrays, lengths=np.array(LENGTHS)))))
    assert [len(e.observations) for e in found] == list(LENGTHS)
    with pytest.raises(ValueError, match=r"3 observations for 3 actions; 4 are needed"):
        found[0].validate()


def test_an_empty_episode_and_nan_stay_as_they_are(tmp_path: Path):
    arrays = log(2)
    arrays["obs"][1] = np.nan
    found = list(read(str(saved(tmp_path, **arrays, indices=np.array([STEPS])))))
    assert [len(e) for e in found] == [STEPS, 0]
    assert [len(e.observations) for e in found] == [STEPS + 1, 1]
    assert np.isnan(found[0].observations[1]).all()


def test_a_reward_past_float32_is_infinite(tmp_path: Path):
    (episode,) = read(str(saved(tmp_path, **log(1) | {"rews": np.full(STEPS, -1e300)})))
    assert (episode.rewards == -np.inf).all()
    assert episode.rewards.dtype == np.float32


def test_a_gap_in_the_log_is_no_transition(tmp_path: Path):
    obs = np.array([[0.0], [1], [np.nan], [3], [10], [11]])
    after = np.array([[1.0], [np.nan], [3], [4], [11], [12]])  # NaN follows NaN; nothing leads from 4 to 10
    found = list(read(str(saved(tmp_path, obs=obs, next_obs=after, acts=np.zeros(6)))))
    assert [e.observations[:, 0].tolist() for e in found[1:]] == [[10, 11, 12]]
    np.testing.assert_array_equal(found[0].observations[:, 0], [0, 1, np.nan, 3, 4])
    assert [e.info["id"] for e in found] == ["log-000000.0", "log-000000.1"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6), extra=st.sampled_from(["row", "final", "next"]))
def test_every_transition_comes_back(tmp_path: Path, lengths: list[int], extra: str):
    steps, starts = sum(lengths), np.cumsum([0, *lengths])
    obs = np.arange(steps + len(lengths), dtype=np.float32)
    before = np.concatenate([np.arange(a, b) + i for i, (a, b) in enumerate(itertools.pairwise(starts))])
    arrays = {
        "row": {"observations": obs},
        "final": {"observations": obs[before], "final_observations": obs[starts[1:] + np.arange(len(lengths))]},
        "next": {"observations": obs[before], "next_observations": obs[before + 1]},
    }[extra]
    path = saved(tmp_path, **arrays, actions=np.arange(steps), lengths=np.array(lengths))
    found = list(read(str(path)))
    assert [len(e) for e in found] == lengths
    np.testing.assert_array_equal(np.concatenate([e.observations[:-1] for e in found]), obs[before])
    np.testing.assert_array_equal(np.concatenate([e.observations[1:] for e in found]), obs[before + 1])
    np.testing.assert_array_equal(np.concatenate([e.actions for e in found]), np.arange(steps))


# --- Faults -----------------------------------------------------------------------------------------------------------

FAULTS = {
    "no observations": (
        {"obs": None},
        r"has none of observations, .*; name its observations by the option observations=KEY",
    ),
    "no actions": ({"acts": None}, r"has none of actions, action, acts; .* it has indices, obs, rews$"),
    "rewards too long": ({"rews": np.zeros(9)}, r"'rews' \(rewards\) holds \[9\]; 8 rows are needed$"),
    "rewards of pairs": (
        {"rews": np.zeros((8, 2))},
        r"'rews' \(rewards\) holds float64 \[8, 2\]; one number a step is",
    ),
    "rewards of text": (
        {"rews": np.array(["a"] * 8)},
        r"'rews' \(rewards\) holds <U1 \[8\]; one number a step is needed$",
    ),
    "one observation": ({"obs": np.array(1.0)}, r"'obs' \(observations\) holds \[\]; 1 rows are needed$"),
    "rows between": ({"obs": np.zeros((10, 2))}, r"observations has 10 rows for 8 actions in 3 episodes; 8 .* or 11 "),
    "ends past the end": ({"indices": np.array([3, 9])}, r"'indices' \(indices\) holds no places in order .* 0\.\.8"),
    "ends out of order": ({"indices": np.array([4, 3])}, r"'indices' \(indices\) holds no places in order"),
    "ends below": ({"indices": np.array([-1, 3])}, r"'indices' \(indices\) holds no places in order"),
    "ends of reals": ({"indices": np.array([0.5, 3])}, r"'indices' \(indices\) holds float64 \[2\]; "),
    "lengths that wrap": (
        {"lengths": np.array([2**63 + 4, 2**63 + 4], np.uint64)},
        r"'lengths' \(lengths\) holds no pl",
    ),
    "an episode again": ({"episode": np.array([1, 1, 2, 2, 1, 1, 1, 1])}, r"begins 000001 again at step 4;"),
    "flags of no length": ({"terminal": np.ones(5)}, r"'terminal' \(terminated\) holds 5 rows; 3 \(an episode\) or 8"),
    "finals too few": (
        {"obs": np.zeros((8, 2)), "final_obs": np.zeros((2, 2))},
        r"final_observations holds 2 rows for 3",
    ),
    "finals of another shape": (
        {"final_obs": np.zeros((3, 5))},
        r"'final_obs' is float64 \[5\] a row; 'obs' of .* \[2\]$",
    ),
    "complex numbers": ({"obs": np.zeros((11, 2), complex)}, r"'obs' is complex128 \[2\] a row; no space holds it$"),
    "dates": ({"acts": np.zeros(8, "datetime64[s]")}, r"'acts' is datetime64\[s\] \[\] a row; no space holds it$"),
    "records": ({"acts": np.zeros(8, "i4,f4")}, r"'acts' is \[.*\] \[\] a row; no space holds it$"),
    "numbers past int64": ({"acts": np.full(8, 2**64 - 1, np.uint64)}, r"'acts' holds 18446744073709551615; whole num"),
}


@pytest.mark.parametrize(("arrays", "message"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named(tmp_path: Path, arrays: dict[str, Any], message: str):
    merged = {"indices": ENDS[:-1] + 1, **log(), **arrays}
    if not arrays.keys().isdisjoint({"lengths", "episode"}):
        del merged["indices"]
    path = saved(tmp_path, **{key: value for key, value in merged.items() if value is not None})
    assert re.search(message, error_of(path))


def test_a_key_that_is_not_there_names_the_nearest(tmp_path: Path):
    found = error_of(saved(tmp_path, **log(1)), rewards="rew")
    assert found == "has no 'rew' for rewards (did you mean 'rews'?); it has obs, acts, rews"


def test_files_of_a_folder_are_alike(tmp_path: Path):
    saved(tmp_path, "a.npz", **log(1))
    path = saved(tmp_path, "b.npz", **log(1) | {"acts": np.arange(STEPS)})
    with pytest.raises(ValueError, match=rf"^{path}: 'acts' is int64 \[\] a row; 'acts' of .*a\.npz is float64 \[\]$"):
        read(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty: holds no npz file$"):
        read(f"npz:{tmp_path / 'empty'}")


def test_a_damaged_array_is_met_when_it_is_reached(tmp_path: Path):
    saved(tmp_path, "a.npz", **log(1))
    noise = np.random.default_rng(0).normal(size=(5001, 2))
    path = tmp_path / "b.npz"
    np.savez(path, obs=noise, acts=np.zeros(5000))
    data = path.read_bytes()
    place = data.index(noise[-1].tobytes())
    path.write_bytes(data[:place] + b"\xff" + data[place + 1 :])
    reading = iter(read(str(tmp_path)))
    assert next(reading).info["id"] == "a-000000"
    with pytest.raises(ValueError, match=rf"^{path}: 'obs': is damaged or of another format \(Bad CRC"):
        next(reading)


# --- Files made to do harm --------------------------------------------------------------------------------------------


class Touch:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("key", ["infos", "obs", "acts", "rews", "terminal", "indices", "episode"])
def test_a_pickle_never_runs(tmp_path: Path, key: str):
    trap = tmp_path / "trap"
    objects = np.empty(STEPS, object)
    objects[0] = Touch(trap)
    path = saved(tmp_path, **log(1) | {key: objects})
    if key in ("obs", "acts"):
        assert f"{key}: holds pickled objects; nothing is unpickled" in error_of(path)
    else:
        source = read(str(path))
        assert [len(e) for e in source] == [STEPS]
        assert source.provenance["left_out"] == [f"{key}: holds pickled objects; nothing is unpickled"]
    assert not trap.exists()
    with np.load(path, allow_pickle=True) as arrays:
        _ = arrays[key]
    assert trap.exists()  # the trap is one


def test_a_bomb_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = saved(tmp_path, **log(1), padding=np.zeros(10_000_000, np.int8))
    assert len(list(read(str(path)))) == 1  # below the bytes that are free
    monkeypatch.setattr(npz_members, "FREE_BYTES", 1_000_000)
    tracemalloc.start()
    assert error_of(path) == "grows more than 200-fold when decompressed; it is not read"
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def header(shape: str, dtype: str = "<f8") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n"


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (header("(1099511627776, 2)"), r"'obs' holds \d+ bytes; its header says float64 \[1099511627776, 2\], 175"),
        (header("(9, 2)") + bytes(8 * 18 + 8), r"'obs' holds \d+ bytes; its header says float64 \[9, 2\]"),
        (header("(-9, -2)") + bytes(8 * 18), r"'obs': is damaged or of another format \(shape \(-9, -2\)\)$"),
        (header("(9, 2)", "<q9"), r"'obs': is damaged"),
        (header("(" * 3000), r"'obs': is damaged"),
        (header("__import__('os').mkdir('trap')"), r"'obs': is damaged"),
        (b"\x93NUMPY\x09\x00" + bytes(100), r"'obs': is damaged or of another format \(npy version \(9, 0\); read are"),
        (b"\x93NUM", r"'obs': is damaged"),
        (b"", r"'obs': is damaged"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, member: bytes, message: str):
    path = tmp_path / "log.npz"
    actions = io.BytesIO()
    np.save(actions, np.zeros(8))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("acts.npy", actions.getvalue())
        file.writestr("obs.npy", member)
    assert re.search(message, error_of(path))


def test_a_zip_that_declares_more_than_it_holds_ends_early(tmp_path: Path):
    path = tmp_path / "log.npz"
    arrays = {"obs": header("(9, 2)") + bytes(16), "acts": header("(8,)") + bytes(64)}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in arrays.items():
            file.writestr(f"{name}.npy", data)
    size = len(arrays["obs"])
    data = bytearray(path.read_bytes())
    place = data.index(b"PK\x01\x02") + 20  # the sizes, packed and not, of the first member in the list of all
    assert struct.unpack_from("<II", data, place) == (size, size)
    struct.pack_into("<II", data, place, size, size + 128)
    path.write_bytes(data)
    assert error_of(path).startswith("'obs': is damaged or of another format (")


def test_memory_is_that_of_an_episode(tmp_path: Path):
    episodes, steps, width = 50, 200, 64
    path = tmp_path / "log.npz"
    obs = np.random.default_rng(0).normal(size=(episodes * (steps + 1), width))
    np.savez(path, obs=obs, acts=np.zeros(episodes * steps), lengths=np.full(episodes, steps))
    episode_bytes = obs.nbytes // episodes
    tracemalloc.start()
    total = sum(float(np.sum(e.observations)) for e in read(str(path)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == pytest.approx(obs.sum())
    assert peak < 8 * episode_bytes < obs.nbytes / 5


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "log.npz")
    with pytest.raises(ValueError, match="its format is not recognised"):
        read(str(tmp_path / "log.npz"))
