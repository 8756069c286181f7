"""Windows: within one episode, each transition once an epoch, rightly aligned, resumable to the bit."""

import dataclasses
import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.corpus import Columns, window_batches
from worldmodel.corpus.epochs import Cuts, stateless_hash
from worldmodel.corpus.windows import WindowSource
from worldmodel.trajectory import Trajectory


def counter_columns(lengths: list[int]) -> Columns:
    """Observation `(episode, t)`; action `t` is `1000 * episode + t`; reward `t` is the action plus .5."""
    trajectories = []
    for index, steps in enumerate(lengths):
        actions = 1000 * index + np.arange(steps)
        observations = np.stack([np.full(steps + 1, index), np.arange(steps + 1)], 1).astype(np.float32)
        rewards = (actions + 0.5).astype(np.float32)
        trajectories.append(Trajectory(observations, actions, rewards, index % 2 == 0, False, info={"id": str(index)}))
    return Columns.from_trajectories(trajectories)


GOLDEN = [3002, 3000, 3, 8, 1000, 2001]


def take(iterator, count: int) -> list[dict[str, np.ndarray]]:
    return [next(iterator) for _ in range(count)]


def windows_of(batches: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    return [{k: v[i] for k, v in batch.items()} for batch in batches for i in range(len(batch["mask"]))]


LENGTHS = st.lists(st.integers(1, 23), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 11), st.integers(1, 13), st.integers(0, 2**40))
def test_an_epoch_holds_every_transition_once_and_windows_stay_inside(lengths, length, batch_size, seed):
    columns = counter_columns(lengths)
    source = WindowSource(columns, length=length, batch_size=batch_size, seed=seed)
    epochs = 3
    cuts = Cuts(columns.lengths, length=length, seed=seed)
    ends = np.cumsum([cuts.count(epoch) for epoch in range(epochs)])
    batches = [source[i] for i in range(-(-int(ends[-1]) // batch_size))]
    windows = windows_of(batches)
    want = sorted(columns.actions.tolist())
    for epoch in range(epochs):
        mine = windows[0 if epoch == 0 else ends[epoch - 1] : ends[epoch]]
        assert sorted(int(a) for w in mine for a in w["actions"][w["mask"] == 1]) == want
    for window in windows:
        real = int(window["mask"].sum())
        assert real >= 1
        np.testing.assert_array_equal(window["mask"], (np.arange(length) < real).astype(np.float32))
        episode, first = window["observations"][0].astype(int)
        # Row t holds a_t and r_t of o_t -> o_{t+1}.
        np.testing.assert_array_equal(window["observations"][:, 0], episode)
        np.testing.assert_array_equal(window["observations"][: real + 1, 1], first + np.arange(real + 1))
        np.testing.assert_array_equal(window["actions"][:real], 1000 * episode + first + np.arange(real))
        np.testing.assert_array_equal(window["rewards"][:real], window["actions"][:real] + np.float32(0.5))
        before = np.float32(1000 * episode + first - 0.5) if first else np.float32(np.nan)
        np.testing.assert_array_equal(window["last_reward"], before)
        ends_here = (first + np.arange(length) == lengths[episode] - 1) & (np.arange(length) < real)
        np.testing.assert_array_equal(window["terminated"], ends_here & (episode % 2 == 0))
        # Padding repeats the last real row, and pays nothing.
        np.testing.assert_array_equal(window["observations"][real:, 1], first + real)
        np.testing.assert_array_equal(window["actions"][real:], window["actions"][real - 1])
        assert not window["rewards"][real:].any()


def test_shapes_and_dtypes():
    batch = next(window_batches(counter_columns([7, 3, 11]), length=5, batch_size=13, seed=0))
    assert {k: (v.shape, str(v.dtype)) for k, v in batch.items()} == {
        "observations": ((13, 6, 2), "float32"),
        "actions": ((13, 5), "int64"),
        "rewards": ((13, 5), "float32"),
        "terminated": ((13, 5), "bool"),
        "mask": ((13, 5), "float32"),
        "last_reward": ((13,), "float32"),
        "context": ((13,), "object"),
    }


def test_cuts_fall_everywhere():
    source = WindowSource(counter_columns([40]), length=8, batch_size=1, seed=3)
    starts = {int(source[i]["observations"][0, 0, 1]) % 8 for i in range(400)}
    assert starts == set(range(8)), "every phase occurs, so that every transition is seen at every place of a window"


def test_order_changes_from_epoch_to_epoch():
    source = WindowSource(counter_columns([1] * 50), length=4, batch_size=50, seed=0)
    first, second = source[0]["actions"][:, 0], source[1]["actions"][:, 0]
    assert sorted(first) == sorted(second)
    assert (first != second).any()


def test_same_seed_same_bits_other_seed_other_order():
    columns = counter_columns([9, 14, 2, 30])
    a, b, c = (take(window_batches(columns, length=5, batch_size=3, seed=s), 9) for s in (7, 7, 8))
    for one, two in zip(a, b, strict=True):
        for name in one:
            assert one[name].tobytes() == two[name].tobytes()
    assert any((one["actions"] != other["actions"]).any() for one, other in zip(a, c, strict=True))


@pytest.mark.parametrize("steps_before", [0, 1, 5, 17])
def test_saved_position_resumes_to_the_bit(steps_before):
    columns = counter_columns([9, 14, 2, 30])
    iterator = window_batches(columns, length=5, batch_size=3, seed=7)
    take(iterator, steps_before)
    state = json.loads(json.dumps(iterator.get_state()))
    want = take(iterator, 6)
    fresh = window_batches(columns, length=5, batch_size=3, seed=7)
    fresh.set_state(state)
    for one, two in zip(want, take(fresh, 6), strict=True):
        for name in one:
            assert one[name].tobytes() == two[name].tobytes()


def test_random_access_far_ahead_equals_walking_there():
    columns = counter_columns([9, 14, 2])
    walked = WindowSource(columns, length=5, batch_size=7, seed=1)
    for i in range(500):
        want = walked[i]
    got = WindowSource(columns, length=5, batch_size=7, seed=1)[499]
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def test_hash_is_fixed():
    # SplitMix64's published first output for state 0: the chain must not change with a release, or resumes would.
    from worldmodel.corpus.epochs import _mix

    assert int(_mix(np.zeros(1, np.uint64))[0]) == 0xE220A8397B1DCDAF
    np.testing.assert_array_equal(stateless_hash(3, 5, 1, 10)[:4], stateless_hash(3, 5, 1, 4))
    assert len({tuple(stateless_hash(s, e, p, 3)) for s in range(3) for e in range(3) for p in range(3)}) == 27


def test_a_batch_costs_milliseconds_and_not_one_call_per_window():
    rng = np.random.default_rng(0)
    trajectories = [
        Trajectory(
            rng.normal(size=(steps + 1, 4)).astype(np.float32),
            rng.integers(0, 2, steps),
            np.ones(steps, np.float32),
            True,
            False,
        )
        for steps in rng.integers(10, 200, 300)
    ]
    iterator = window_batches(Columns.from_trajectories(trajectories), length=32, batch_size=256, seed=0)
    take(iterator, 3)
    samples = []
    for _ in range(150):
        start = time.process_time()  # of this process alone: others may keep the machine busy
        next(iterator)
        samples.append(time.process_time() - start)
    assert np.median(samples) < 0.02


@pytest.mark.parametrize(("length", "batch_size", "name"), [(0, 1, "length"), (1, 0, "batch_size")])
def test_bad_sizes(length, batch_size, name):
    with pytest.raises(ValueError, match=f"^{name} of windows is 0; at least 1 is needed$"):
        window_batches(counter_columns([3]), length=length, batch_size=batch_size, seed=0)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_shards_share_the_stream_out(count):
    arguments = {"length": 5, "batch_size": 3, "seed": 7}
    columns = counter_columns([9, 14, 2, 30])
    whole = take(window_batches(columns, **arguments), 4 * count)
    for index in range(count):
        mine = take(window_batches(columns, **arguments, shard=(index, count)), 4)
        for got, want in zip(mine, whole[index::count], strict=True):
            np.testing.assert_array_equal(got["actions"], want["actions"])


def test_a_shard_resumes_to_the_bit():
    arguments = {"length": 5, "batch_size": 3, "seed": 7, "shard": (1, 3)}
    iterator = window_batches(counter_columns([9, 14, 2, 30]), **arguments)
    take(iterator, 4)
    fresh = window_batches(counter_columns([9, 14, 2, 30]), **arguments)
    fresh.set_state(json.loads(json.dumps(iterator.get_state())))
    np.testing.assert_array_equal(next(fresh)["observations"], next(iterator)["observations"])


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0)])
def test_a_shard_that_is_none(shard):
    with pytest.raises(ValueError, match=rf"^shard {shard[0]} of {shard[1]} is none"):
        window_batches(counter_columns([3]), length=1, batch_size=1, seed=0, shard=shard)


def test_a_million_windows_never_span_two_episodes():
    rng = np.random.default_rng(0)
    columns = counter_columns(rng.integers(1, 90, 400).tolist())
    source = WindowSource(columns, length=16, batch_size=50_000, seed=5)
    for index in range(20):
        batch = source[index]
        episode, step = batch["observations"][..., 0].astype(int), batch["observations"][..., 1].astype(int)
        assert (episode == episode[:, :1]).all()
        real = batch["mask"] == 1
        assert (np.diff(step, axis=1)[real] == 1).all()
        assert (step[:, :-1] < columns.lengths[episode[:, :-1]])[real].all()
        assert (batch["actions"] == 1000 * episode[:, :-1] + step[:, :-1])[real].all()


def test_nested_columns_are_cut_alike():
    flat = counter_columns([7, 3, 11])
    nested = dataclasses.replace(
        flat,
        observations={"a": flat.observations, "b": (flat.observations[:, 1],)},
        actions=(flat.actions, {"c": flat.actions * 2}),
    )
    arguments = {"length": 4, "batch_size": 6, "seed": 2}
    for want, got in zip(
        take(window_batches(flat, **arguments), 5), take(window_batches(nested, **arguments), 5), strict=True
    ):
        np.testing.assert_array_equal(got["observations"]["a"], want["observations"])
        np.testing.assert_array_equal(got["observations"]["b"][0], want["observations"][..., 1])
        np.testing.assert_array_equal(got["actions"][1]["c"], 2 * want["actions"])


def test_the_order_is_fixed():
    # A run that resumes after an upgrade must find the windows it would have had.
    batch = WindowSource(counter_columns([9, 14, 2, 30]), length=5, batch_size=6, seed=7)[1]
    assert batch["actions"][:, 0].tolist() == GOLDEN
