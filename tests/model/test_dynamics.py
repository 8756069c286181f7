"""The step model behind the protocol: cached equals full, batched equals alone, scored equals sampled."""

import dataclasses
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.model.worlds import earlier
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import PARTS, step_model

WINDOW = 5
ROWS = 8
# What does not touch the head of observations is shown in one world, to save compilation.
in_one_world = pytest.mark.parametrize("world", ["box"], indirect=True)


class Compiled(NamedTuple):
    """The methods of a dynamics, each compiled once for all tests of a world."""

    dynamics: StepDynamics
    initial: Any
    advance: Any
    observe: Any
    score: Any
    predict: Any


@pytest.fixture(scope="module")
def default(world):
    return compiled(StepDynamics(world.config, world.codec))


@cache
def compiled(dynamics):
    advance = partial(dynamics.advance, uncertainty=True)
    methods = (dynamics.initial, advance, dynamics.observe, dynamics.score, dynamics.predict)
    return Compiled(dynamics, *map(jax.jit, methods))


def keys(seed, count=ROWS):
    return jax.random.split(jax.random.key(seed), count)


def logged(world, t):
    """Action, next observation, reward and termination of every row at step `t`."""
    return at(world.action, np.s_[:, t]), at(world.obs, np.s_[:, t + 1]), world.reward[:, t], world.terminated[:, t]


def at(columns, where):
    """`column[where]` of every column."""
    return jax.tree.map(lambda column: column[where], columns)


def absorbed(world, start_at, observe, steps=WINDOW + 2):
    """The state of all rows after `steps` logged transitions."""
    state, _ = start_at(world.params, keys(3), at(world.obs, np.s_[:, 0]))
    for t in range(steps):
        state = observe(world.params, state, *logged(world, t))
    return state


@pytest.fixture(scope="module")
def state(world, default):
    return absorbed(world, default.dynamics.start_at, default.observe)


@pytest.fixture(scope="module")
def action(world):
    return at(world.action, np.s_[:, WINDOW + 2])


def assert_close(got, want, tolerance=1e-5, context=""):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        if a.dtype == np.uint8:  # a level of a picture lies now and then on the edge between two
            apart = np.abs(np.asarray(a, np.int32) - np.asarray(b, np.int32))
            assert apart.max() <= 1, context
            assert apart.mean() < 1e-3, context
        else:
            np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance, err_msg=context)


def assert_same_bits(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b)


def test_observing_a_history_equals_the_sequence_though_rows_reset_at_different_times(world, default):
    dynamics, length, resets = default.dynamics, 3 * WINDOW, np.array([0, 1, WINDOW, 7, 11, 13, 2, 3])

    @jax.jit
    def cached(obs, action, reward, terminated):
        def body(state, now):
            t, before, action, after, reward, terminated = now
            fresh, _ = dynamics.start_at(world.params, keys(1), before)
            state = dynamics.replace_rows(t == resets, fresh, state)
            h, _ = dynamics._trunk(world.params, state, action)
            nats = dynamics.score(world.params, state, action, after, reward, terminated)
            predicted = dynamics.predict(world.params, state, action)
            return dynamics.observe(world.params, state, action, after, reward, terminated), (h, nats, predicted)

        start, _ = dynamics.start_at(world.params, keys(2), at(obs, 0))
        steps = jnp.arange(len(reward))
        logs = (steps, at(obs, np.s_[:-1]), action, at(obs, np.s_[1:]), reward, terminated)
        return jax.lax.scan(body, start, logs)[1]

    logs = (world.obs, world.action, world.reward, world.terminated)
    hidden, nats, predicted = cached(*jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), logs))

    @jax.jit
    def full(params, before, action, after, reward, terminated):
        model = step_model(world.config, world.codec, params)
        first = jnp.full((ROWS, 1), world.codec.reward.mean, jnp.float32)
        h = model.sequence(model.inputs(before, action, jnp.concatenate([first, reward[:, :-1]], axis=1)))
        seen = earlier(world, before)
        nats = model.log_prob(h, before, after, reward, terminated.astype(jnp.float32), seen)
        return h, nats, model.mean(h, before, seen)

    rows, times = np.arange(ROWS)[:, None], resets[:, None] + np.arange(length)
    pieces = (
        at(world.obs, (rows, times)),
        at(world.action, (rows, times)),
        at(world.obs, (rows, times + 1)),
        world.reward[rows, times],
        world.terminated[rows, times],
    )
    for m in range(world.config.members):
        own = jax.tree.map(lambda leaf, m=m: leaf[m], world.params["members"])
        want, want_nats, want_mean = full(own, *pieces)
        got = np.asarray(hidden)[times, m, rows]
        for age in (1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW):
            assert_close(got[:, age - 1], want[:, age - 1], context=f"member {m}, step {age}")
        assert_close(got, want)
        # A level of a predicted picture that lies between two is rounded here and there, and the reward given it.
        rounding = 1e-2 if world.codec.looks_back else 1e-5
        assert_close(jax.tree.map(lambda x, m=m: np.asarray(x)[times, m, rows], predicted), want_mean, rounding)
        # A narrow mixture magnifies the last bits of what it is given.
        assert_close(np.asarray(nats)[times, m, rows], want_nats, 1e-3)


def test_score_of_what_advance_sampled_is_its_log_prob(world, default, state, action):
    member, rows = np.asarray(state.member), np.arange(ROWS)
    assert set(member) == {0, 1}
    for seed in range(3):
        _, obs, reward, terminated, info = default.advance(world.params, state, action, keys(10 + seed))
        nats = np.asarray(default.score(world.params, state, action, obs, reward, terminated))
        assert nats.shape == (2, ROWS, len(PARTS))
        np.testing.assert_allclose(nats[member, rows], info["log_prob"], atol=1e-5, rtol=1e-5)
        assert np.abs(nats[1 - member, rows] - np.asarray(info["log_prob"])).min(axis=0).max() > 1e-3
        end = np.where(terminated, info["end_probability"], 1 - np.asarray(info["end_probability"]))
        np.testing.assert_allclose(np.exp(info["log_prob"][:, 2]), end, atol=1e-6)


def test_observing_what_advance_sampled_gives_its_state(world, default, state, action):
    after, obs, reward, terminated, _ = default.advance(world.params, state, action, keys(20))
    assert_same_bits(default.observe(world.params, state, action, obs, reward, terminated), after)
    assert_same_bits(after.observation, obs)
    np.testing.assert_array_equal(after.reward, reward)
    assert (np.asarray(after.cache[0].keys) != np.asarray(state.cache[0].keys)).any()


@pytest.mark.parametrize("world", ["box", "tree"], indirect=True)
def test_eight_rows_together_equal_eight_alone(world, default):
    def rollout(rows):
        """Three sampled steps of these rows, each with its own keys and actions."""
        key = jnp.stack([keys(30 + t) for t in range(4)])[:, rows]
        state, obs = default.initial(world.params, key[0])
        steps = []
        for t in range(3):
            state, *step = default.advance(world.params, state, at(world.action, np.s_[rows, t]), key[t + 1])
            steps.append(step)
        return obs, steps, (state.seen, state.observation, state.reward, state.member)

    together = rollout(np.arange(ROWS))
    assert len(np.unique(together[2][3])) > 1
    for b in range(ROWS):
        alone = rollout(np.array([b]))
        assert_close(alone, jax.tree.map(lambda x, b=b: x[b : b + 1], together), 1e-4, f"row {b}")
    assert_same_bits(rollout(np.arange(ROWS)), together)


@pytest.mark.parametrize("world", ["box", "tree"], indirect=True)
def test_grouped_layout_equals_the_default_one_for_the_same_members(world, default, action):
    grouped = StepDynamics(world.config, world.codec, grouped=True)
    dealt = absorbed(world, grouped.start_at, jax.jit(grouped.observe))
    assert dealt.member.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]

    def same_members(*arguments):
        state, obs = default.dynamics.start_at(*arguments)
        return state.replace(member=dealt.member), obs

    state = absorbed(world, same_members, default.observe)
    _, *want, info = default.advance(world.params, state, action, keys(41))
    after, *got, dealt_info = jax.jit(grouped.advance)(world.params, dealt, action, keys(41))
    assert_close(got, want)
    assert_close(dealt_info, {name: info[name] for name in dealt_info})
    assert after.member.tolist() == dealt.member.tolist()


def test_a_key_gives_the_same_bits(world, default, state, action):
    first = default.advance(world.params, state, action, keys(50))
    assert_same_bits(default.advance(world.params, state, action, keys(50)), first)
    other = default.advance(world.params, state, action, keys(51))
    assert np.abs(np.asarray(other[4]["log_prob"] - first[4]["log_prob"])).max() > 1e-3


@pytest.mark.parametrize("world", ["discrete"], indirect=True)  # fewer operations than the other
def test_compiled_equals_not_compiled(world, default, state, action):
    after, *step, info = default.advance(world.params, state, action, keys(50))
    eager_after, *eager_step, eager_info = default.dynamics.advance(world.params, state, action, keys(50))
    assert_close((after, step), (eager_after, eager_step), 1e-5)
    assert_close({name: info[name] for name in eager_info}, eager_info, 1e-5)


@in_one_world
def test_starts_come_from_the_logs_and_rows_are_keyed_alone(world, default):
    drawn, members = [], []
    for seed in range(13):
        state, obs = default.initial(world.params, keys(seed))
        drawn.append(np.asarray(obs))
        members.append(np.asarray(state.member))
    starts = np.asarray(world.params["starts"])
    match = (np.concatenate(drawn)[:, None] == starts).all(axis=-1)
    assert match.any(axis=1).all()
    assert match.any(axis=0).all()  # that one of eight starts is never drawn has probability 10^-5
    assert set(np.concatenate(members)) == {0, 1}
    assert not np.asarray(state.seen).any()
    other, other_obs = default.initial(world.params, keys(12)[::-1])
    np.testing.assert_array_equal(other_obs[::-1], obs)
    np.testing.assert_array_equal(other.member[::-1], state.member)


@in_one_world
def test_replaced_rows_forget_and_others_go_on(world, default, state):
    fresh, _ = default.dynamics.start_at(world.params, keys(70), at(world.obs, np.s_[:, 20]))
    where = jnp.arange(ROWS) % 2 == 0
    mixed = default.dynamics.replace_rows(where, fresh, state)
    got, new, old = (np.asarray(default.score(world.params, s, *logged(world, 20))) for s in (mixed, fresh, state))
    np.testing.assert_allclose(got[:, ::2], new[:, ::2], atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(got[:, 1::2], old[:, 1::2])
    assert np.abs(new - old).max() > 1e-2


@in_one_world
def test_every_member_continues_every_episode(world, default, state, action):
    dynamics, spread = default.dynamics.for_each_member(state, 3)
    members = default.dynamics.members
    order = jnp.tile(jnp.repeat(jnp.arange(ROWS), 3), members)
    _, obs, reward, end, info = jax.jit(dynamics.advance)(world.params, spread, at(action, order), keys(90)[order])
    np.testing.assert_array_equal(info["member"], np.repeat(np.arange(members), ROWS * 3))
    for member in range(members):
        own = dataclasses.replace(state, member=jnp.full(ROWS, member, jnp.int32))
        _, wanted, pays, ends, _ = default.advance(world.params, own, action, keys(90))
        rows = slice(member * ROWS * 3, (member + 1) * ROWS * 3)
        np.testing.assert_allclose(obs[rows], np.repeat(wanted, 3, axis=0), atol=1e-4)
        np.testing.assert_allclose(reward[rows], np.repeat(pays, 3), atol=1e-4)
        np.testing.assert_array_equal(end[rows], np.repeat(ends, 3))


def spread_of_scene(codec, central):
    """A number and two pictures."""
    place = np.std(np.asarray(central["place"])[..., 0], axis=0) / codec.leaves[0].delta_scale[0]
    pairs = (central["camera"], central["depth"])
    apart = [np.mean((pair[0] != pair[1]).any(axis=-1), axis=(1, 2)) / 2 for pair in pairs]
    return np.sqrt((place**2 + apart[0] + apart[1]) / 3)


def test_disagreement_is_the_spread_of_the_members(world, default, state, action):
    info = default.advance(world.params, state, action, keys(80))[4]
    central = default.predict(world.params, state, action)[0]
    codec = world.codec.observation
    if world.codec.looks_back:
        want = spread_of_scene(codec, central)
    elif codec.kind == "tree":
        spread = np.std(np.asarray(codec.flatten(central))[..., : codec.numbers], axis=0)
        apart = np.mean(np.asarray(codec.index(at(central, 0)) != codec.index(at(central, 1))) / 2.0, axis=-1)
        parts = np.sum((spread / codec.leaves[0].delta_scale) ** 2, axis=-1) + codec.sites * apart
        want = np.sqrt(parts / (codec.numbers + codec.sites))
    elif codec.kind == "box":
        spread = np.std(central, axis=0) / np.array(codec.delta_scale)
        want = np.sqrt((spread**2).mean(axis=-1))
    else:
        want = np.std(np.asarray(codec.features(jnp.asarray(central))), axis=0).mean(axis=-1)
    assert info["disagreement"].shape == (ROWS,)
    np.testing.assert_allclose(info["disagreement"], want, atol=1e-4)
    assert (np.asarray(info["disagreement"]) > 0.01).any()
    clones = jax.tree.map(lambda leaf: jnp.stack([leaf[0], leaf[0]]), world.params["members"])
    fresh, _ = default.dynamics.start_at(world.params, keys(81), at(world.obs, np.s_[:, 0]))
    info = default.advance({**world.params, "members": clones}, fresh, action, keys(82))[4]
    np.testing.assert_allclose(info["disagreement"], 0.0, atol=1e-3)


@in_one_world
def test_refusals(world, default, action):
    grouped = StepDynamics(world.config, world.codec, grouped=True)
    with pytest.raises(ValueError, match=r"context has shape \(7, 2\); \(7, 0\) is needed"):
        default.dynamics.initial(world.params, keys(0, 7), context=np.zeros((7, 2)))
    with pytest.raises(ValueError, match="a batch that 2 members divide, not 7"):
        grouped.initial(world.params, keys(0, 7))
    state, _ = grouped.start_at(world.params, keys(0), world.obs[:, 0])
    with pytest.raises(ValueError, match="score needs every member"):
        grouped.score(world.params, state, *logged(world, 0))
    with pytest.raises(ValueError, match="predict needs every member"):
        grouped.predict(world.params, state, action)
    with pytest.raises(ValueError, match="uncertainty needs every member"):
        jax.eval_shape(lambda: jax.tree.leaves(grouped.advance(world.params, state, action, keys(1), uncertainty=True)))
