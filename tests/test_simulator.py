"""The simulator over planted dynamics: time limits, ends, independent rows, branches."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from worldmodel.simulator import Rollout, SimState, Simulator, select_rows

ROWS = 5
PARAMS = {"pays": jnp.float32(0.5)}


@struct.dataclass
class Counts:
    """`count` int32 [B]; `end` int32 [B], the count that ends the row's episode."""

    count: jax.Array
    end: jax.Array


class Planted(NamedTuple):
    """Adds the action to the count, pays the count times a parameter, ends at each row's own count.

    The observation carries noise of the step's key in its second number.
    """

    longest: int = 11

    def initial(self, params, key, context=None):
        end = jax.vmap(lambda k: jax.random.randint(k, (), 3, self.longest))(key)
        state = Counts(jnp.zeros(key.shape[0], jnp.int32), end)
        return state, self._obs(state, key)

    def advance(self, params, state, action, key, *, uncertainty=False):
        after = state.replace(count=state.count + action)
        info = {"disagreement": after.count.astype(jnp.float32)} if uncertainty else {}
        reward = after.count.astype(jnp.float32) * params["pays"]
        return after, self._obs(after, key), reward, after.count >= after.end, info

    def observe(self, params, state, action, obs, reward, terminated):
        return state.replace(count=obs[:, 0].astype(jnp.int32))

    def score(self, params, state, action, obs, reward, terminated):
        right = obs[:, 0] == (state.count + action).astype(jnp.float32)
        return jnp.where(right, 0.0, -jnp.inf)[None, :, None]

    def _obs(self, state, key):
        noise = jax.vmap(jax.random.uniform)(key)
        return jnp.stack([state.count.astype(jnp.float32), noise], axis=-1)


def keys(seed, count=ROWS):
    return jax.random.split(jax.random.key(seed), count)


def ones(obs, key):
    return jnp.ones(len(obs), jnp.int32)


def randomly(obs, key):
    return jax.vmap(lambda k: jax.random.randint(k, (), 0, 3))(key)


def stepped(simulator, state, steps, action=1):
    step = jax.jit(simulator.step)
    seen = []
    for _ in range(steps):
        state, now = step(PARAMS, state, jnp.full(ROWS, action, jnp.int32))
        seen.append(now)
    return state, jax.tree.map(lambda *x: np.stack(x), *seen)


def test_time_limit_truncates_and_an_end_wins_over_it():
    simulator = Simulator(Planted(), max_episode_steps=5)
    state, _ = simulator.reset(PARAMS, keys(0))
    state = state.replace(dynamics=state.dynamics.replace(end=jnp.array([3, 4, 5, 6, 9])))
    _, seen = stepped(simulator, state, 7)
    assert not seen.truncated[:4].any()
    assert (seen.terminated.argmax(axis=0)[:4] + 1).tolist() == [3, 4, 5, 6]
    assert seen.terminated[4].tolist() == [True, True, True, False, False]
    assert seen.truncated[4].tolist() == [False, False, False, True, True]
    assert not (seen.terminated & seen.truncated).any()


def test_without_a_limit_nothing_is_truncated():
    simulator = Simulator(Planted(longest=1_000))
    state, _ = simulator.reset(PARAMS, keys(1))
    state = state.replace(dynamics=state.dynamics.replace(end=jnp.full(ROWS, 1_000)))
    state, seen = stepped(simulator, state, 23)
    assert not seen.truncated.any()
    assert not seen.terminated.any()
    assert state.steps.tolist() == [23] * ROWS


@pytest.fixture(scope="module")
def rollout():
    simulator = Simulator(Planted(), max_episode_steps=7)
    run = jax.jit(simulator.rollout, static_argnums=(1, 3))
    return jax.tree.map(np.asarray, run(PARAMS, ones, keys(2, 13), 10))


def test_rollout_is_one_episode_a_row(rollout):
    assert rollout.obs.shape == (11, 13, 2)
    assert rollout.action.shape == rollout.reward.shape == rollout.alive.shape == (10, 13)
    count = rollout.obs[..., 0]
    np.testing.assert_array_equal(count, np.broadcast_to(np.arange(11.0)[:, None], (11, 13)))
    ended = rollout.terminated | rollout.truncated
    length = ended.argmax(axis=0) + 1
    assert ended.any(axis=0).all()
    assert len(set(length)) > 2
    assert length.max() == 7
    np.testing.assert_array_equal(rollout.alive, np.arange(10)[:, None] < length)
    for row, steps in enumerate(length):
        last = rollout.terminated[steps - 1, row], rollout.truncated[steps - 1, row]
        assert last in {(True, False), (False, True)}
        assert last[0] or steps == 7


def test_returns_leave_out_what_comes_after_the_end(rollout):
    length = rollout.alive.sum(axis=0)
    nonsense = rollout._replace(reward=np.where(rollout.alive, rollout.reward, np.nan))
    for steps in (rollout, nonsense):
        returns = Rollout(*map(jnp.asarray, steps)).returns
        np.testing.assert_allclose(returns, 0.25 * length * (length + 1))


def test_rollout_equals_stepping_by_hand():
    simulator = Simulator(Planted(longest=1_000))
    row_keys = keys(3)
    got = simulator.rollout(PARAMS, randomly, row_keys, 4)
    pairs = jax.vmap(jax.random.split)(row_keys)
    state, obs = simulator.reset(PARAMS, pairs[:, 0])
    policy_keys = jax.vmap(lambda k: jax.random.split(k, 4))(pairs[:, 1])
    for t in range(4):
        np.testing.assert_array_equal(got.obs[t], obs)
        action = randomly(obs, policy_keys[:, t])
        np.testing.assert_array_equal(got.action[t], action)
        state, step = simulator.step(PARAMS, state, action)
        obs = step.obs
        np.testing.assert_array_equal(got.reward[t], step.reward)
    np.testing.assert_array_equal(got.obs[4], obs)
    assert len(np.unique(got.action)) > 1


def test_rows_depend_on_their_own_key_alone():
    simulator = Simulator(Planted(), max_episode_steps=7)
    run = jax.jit(partial(simulator.rollout), static_argnums=(1, 3))
    row_keys = keys(4, 8)
    together = run(PARAMS, randomly, row_keys, 6)
    for row in range(8):
        alone = run(PARAMS, randomly, row_keys[row : row + 1], 6)
        for a, b in zip(alone, together, strict=True):
            np.testing.assert_array_equal(a[:, 0], b[:, row])
    noise = np.asarray(together.obs[..., 1])
    assert len(np.unique(noise)) == noise.size  # no key is used twice


def test_a_copied_state_branches():
    simulator = Simulator(Planted(longest=1_000), max_episode_steps=50)
    state, _ = simulator.reset(PARAMS, keys(5))
    state, _ = stepped(simulator, state, 3)
    saved = (
        np.asarray(jax.random.key_data(state.key)),
        jax.tree.map(np.asarray, state.dynamics),
        np.asarray(state.steps),
    )
    _, straight = stepped(simulator, state, 4)
    _, other = stepped(simulator, state, 4, action=2)
    restored = SimState(
        jax.tree.map(jnp.asarray, saved[1]), jax.random.wrap_key_data(jnp.asarray(saved[0])), jnp.asarray(saved[2])
    )
    _, again = stepped(simulator, restored, 4)
    for a, b in zip(jax.tree.leaves(straight), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (straight.obs[..., 0] != other.obs[..., 0]).all()
    np.testing.assert_array_equal(straight.obs[..., 1], other.obs[..., 1])  # the same luck on both branches


def test_reset_rows_starts_new_episodes_where_asked():
    simulator = Simulator(Planted(), max_episode_steps=50)
    state, _ = simulator.reset(PARAMS, keys(6))
    state, seen = stepped(simulator, state, 2)
    where = jnp.array([True, False, True, False, False])
    mixed, obs = jax.jit(simulator.reset_rows)(PARAMS, where, state, jnp.asarray(seen.obs[-1]))
    assert mixed.steps.tolist() == [0, 2, 0, 2, 2]
    assert mixed.dynamics.count.tolist() == [0, 2, 0, 2, 2]
    np.testing.assert_array_equal(obs[:, 0], [0, 2, 0, 2, 2])
    np.testing.assert_array_equal(np.asarray(obs)[~np.asarray(where)], seen.obs[-1][~np.asarray(where)])
    before, after = (np.asarray(jax.random.key_data(s.key)) for s in (state, mixed))
    assert (before != after).any(axis=1).tolist() == where.tolist()
    _, step = simulator.step(PARAMS, mixed, jnp.ones(ROWS, jnp.int32))
    _, unmixed = simulator.step(PARAMS, state, jnp.ones(ROWS, jnp.int32))
    np.testing.assert_array_equal(np.asarray(step.obs)[~where], np.asarray(unmixed.obs)[~where])
    assert (np.asarray(step.obs)[where, 1] != np.asarray(unmixed.obs)[where, 1]).all()


def test_uncertainty_reaches_the_dynamics():
    simulator = Simulator(Planted())
    state, _ = simulator.reset(PARAMS, keys(7))
    assert not simulator.step(PARAMS, state, jnp.ones(ROWS, jnp.int32))[1].info
    _, step = simulator.step(PARAMS, state, jnp.ones(ROWS, jnp.int32), uncertainty=True)
    assert step.info["disagreement"].tolist() == [1.0] * ROWS


def test_select_rows_of_any_leaf():
    where = jnp.array([True, False, True])
    new, old = {"a": jnp.ones((3, 2, 5)), "b": jnp.ones(3)}, {"a": jnp.zeros((3, 2, 5)), "b": jnp.zeros(3)}
    got = select_rows(where, new, old)
    assert got["b"].tolist() == [1.0, 0.0, 1.0]
    np.testing.assert_array_equal(got["a"], np.broadcast_to(np.array([1.0, 0.0, 1.0])[:, None, None], (3, 2, 5)))
