"""The step model: causal, factored as said, and drawing what it scores."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.model.worlds import earlier, make_world
from worldmodel.codec import fit_codec
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.heads import logistic_mixture_log_prob
from worldmodel.model.step import StepConfig, init_params, step_model
from worldmodel.model.transformer import TrunkConfig
from worldmodel.trajectory import Spec

WINDOW = 5
RECEPTIVE = 2 * (WINDOW - 1) + 1
in_one_world = pytest.mark.parametrize("world", ["box"], indirect=True)


@pytest.fixture(scope="module")
def model(world):
    return step_model(world.config, world.codec, jax.tree.map(lambda leaf: leaf[0], world.params["members"]))


@pytest.fixture(scope="module")
def everything(world, model):
    """All that the model says of a sequence, from raw values: h, nats, and the central prediction."""

    @jax.jit
    def run(obs, action, reward, terminated):
        first = jnp.full_like(reward[:, :1], world.codec.reward.mean)
        last_reward = jnp.concatenate([first, reward[:, :-1]], axis=1)
        before, after = at(obs, np.s_[:, :-1]), at(obs, np.s_[:, 1:])
        h = model.sequence(model.inputs(before, action, last_reward))
        seen = earlier(world, before)
        nats = model.log_prob(h, before, after, reward, terminated.astype(jnp.float32), seen)
        return h, nats, *model.mean(h, before, seen)

    return run


@pytest.fixture(scope="module")
def hidden(world, everything):
    """What the heads read at the last logged step of every row, float32 [B, H]."""
    return everything(world.obs, world.action, world.reward, world.terminated)[0][:, -1]


def at(columns, where):
    """`column[where]` of every column."""
    return jax.tree.map(lambda column: column[where], columns)


def seen_before(world):
    """What was seen before the last logged step, where the model looks back."""
    return at(world.obs, np.s_[:, -3]) if world.codec.looks_back else None


def differing(got, want):
    """Steps at which any bit of a row's output differs in any column, bool [T]."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return np.any(
        [(np.asarray(a) != np.asarray(b)).reshape(*a.shape[:2], -1).any(axis=(0, 2)) for a, b in pairs], axis=0
    )


def changed_at(world, step):
    """Observations and actions of which those at one step are others."""
    obs, action, codec = world.obs, world.action, world.codec
    if codec.observation.kind == "tree":

        def swap(column):
            return column.at[:, step].set(jnp.roll(column, 1, axis=0)[:, step])

        return jax.tree.map(swap, obs), jax.tree.map(swap, action)
    if codec.observation.kind == "box":
        other = jnp.roll(obs, 1, axis=0)[:, step]
        return obs.at[:, step].set(other), action.at[:, step].set((action[:, step] - 1) % 3 + 2)
    return (
        obs.at[:, step].set(jnp.clip(-obs[:, step] - 1, -3, 3)),
        action.at[:, step].set(action[:, step] / 2 + 0.1),
    )


def test_future_changes_no_bit_of_the_past_and_the_window_ends_where_said(world, everything):
    logs = (world.obs, world.action, world.reward, world.terminated)
    base = everything(*logs)
    step, steps = 11, world.reward.shape[1]
    assert steps > step + RECEPTIVE + 1
    other_obs, other_action = changed_at(world, step)
    changes = {
        "observation": (other_obs, *logs[1:]),
        "action": (logs[0], other_action, *logs[2:]),
        "reward": (*logs[:2], world.reward.at[:, step].add(5.0), logs[3]),
    }
    for what, changed in changes.items():
        h, nats, *central = everything(*changed)
        first = step + 1 if what == "reward" else step  # position t reads the reward of step t - 1
        differs = differing(h, base[0])
        assert not differs[:first].any(), what
        assert differs[first : first + RECEPTIVE].all(), what
        assert not differs[first + RECEPTIVE :].any(), what
        for got, want in zip(central, base[2:], strict=True):
            assert not differing(got, want)[:first].any(), what
        scored = differing(nats, base[1])
        # The observation at `step` is also what the step before led to, and the reward at `step` is scored there.
        assert not scored[: step - 1 if what == "observation" else step].any(), what
        assert scored[first], what
    last = everything(*logs[:3], ~world.terminated)
    np.testing.assert_array_equal(last[0], base[0])  # an end is predicted, never read
    assert differing(last[1], base[1]).all()


def test_parts_are_scored_each_given_the_ones_before(world, model, hidden):
    """Observation, then reward given it, then termination given both."""
    obs, after, reward = at(world.obs, np.s_[:, -2]), at(world.obs, np.s_[:, -1]), world.reward[:, -1]
    run = jax.jit(partial(model.log_prob, before=seen_before(world)))
    base = np.asarray(run(hidden, obs, after, reward, jnp.zeros(8)))
    assert base.shape == (8, 3)
    moved = jax.tree.map(lambda column: jnp.roll(column, 1, axis=0), after)
    elsewhere = np.asarray(run(hidden, obs, moved, reward, jnp.zeros(8)))
    assert (np.abs(elsewhere - base).max(axis=0) > 1e-3).all()
    paid = np.asarray(run(hidden, obs, after, reward + 2.0, jnp.zeros(8)))
    np.testing.assert_array_equal(paid[:, 0], base[:, 0])
    assert (np.abs(paid - base)[:, 1:].max(axis=0) > 1e-3).all()
    ended = np.asarray(run(hidden, obs, after, reward, jnp.ones(8)))
    np.testing.assert_array_equal(ended[:, :2], base[:, :2])
    np.testing.assert_allclose(np.exp(ended[:, 2]) + np.exp(base[:, 2]), 1.0, atol=1e-6)


def test_draw_scores_what_it_drew(world, model, hidden):
    codec = world.codec.observation
    count = {"box": 2 * 3, "discrete": 2, "tree": 2 * 2 + 1 + 4 + 5}[codec.kind] + 3
    if world.codec.looks_back:  # a number; 6x5 and 9x8 patches of 16 pixels
        count = 2 + (1 + 30 * 16) + (1 + 72 * 16 * 2) + 3
    assert world.codec.uniforms == count
    uniforms = jnp.asarray(np.random.default_rng(3).uniform(size=(8, count)), jnp.float32)
    obs = at(world.obs, np.s_[:, -2])
    draw = jax.jit(model.draw)(hidden, obs, uniforms, seen_before(world))
    ended = draw.terminated.astype(jnp.float32)
    nats = jax.jit(model.log_prob)(hidden, obs, draw.obs, draw.reward, ended, seen_before(world))
    np.testing.assert_allclose(nats, draw.log_prob, atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(draw.terminated, uniforms[:, -1] < draw.end_probability)
    for drawn, logged in zip(jax.tree.leaves(draw.obs), jax.tree.leaves(obs), strict=True):
        assert (drawn.dtype, drawn.shape) == (logged.dtype, logged.shape)


@in_one_world
def test_drawn_rewards_and_ends_follow_what_is_scored(world, model, hidden):
    """Given the drawn observation; false-alarm rate 10^-3 each."""
    count = 4001
    rng = np.random.default_rng(4)
    uniforms = rng.uniform(size=(count, world.codec.uniforms)).astype(np.float32)
    uniforms[:, :6] = 0.3  # one observation for all; reward and end vary
    h = jnp.broadcast_to(hidden[:1], (count, hidden.shape[1]))
    obs = jnp.broadcast_to(world.obs[:1, -2], (count, 3))
    draw = jax.jit(model.draw)(h, obs, jnp.asarray(uniforms))
    assert (np.asarray(draw.obs) == np.asarray(draw.obs[:1])).all()
    codec = world.codec.reward
    parameters = model.reward(model._led(h[:1], draw.obs[:1]))[0]
    grid = np.arange(-40_000, 40_001) * codec.bin
    cdf = np.cumsum(np.exp(np.asarray(logistic_mixture_log_prob(parameters, jnp.float32(grid), codec.bin), np.float64)))
    assert cdf[-1] == pytest.approx(1.0, abs=1e-3)
    drawn = np.asarray(codec.encode(draw.reward))
    assert stats.kstest(drawn, lambda x: np.interp(x, grid, cdf)).pvalue > 1e-3
    ends, rates = np.asarray(draw.terminated), np.asarray(draw.end_probability, np.float64)
    z = (ends.sum() - rates.sum()) / np.sqrt(np.sum(rates * (1 - rates)))
    assert 0 < ends.sum() < count
    assert abs(z) < stats.norm.isf(0.5e-3)


@in_one_world
def test_what_never_changes_is_copied_and_bounds_hold(world, model, hidden):
    """A constant reward, a constant dimension, and rows at the bounds of another."""
    rewards = dataclasses.replace(world.codec.reward, mean=0.3, constant=True)
    codec = dataclasses.replace(world.codec, reward=rewards)
    constant = step_model(world.config, codec, jax.tree.map(lambda leaf: leaf[0], world.params["members"]))
    obs = world.obs[:, -2].at[:, 1].set(jnp.float32([90.0, -90.0] * 4))
    rng = np.random.default_rng(5)
    draw = jax.jit(constant.draw)
    touched = 0
    for _ in range(5):
        drawn = draw(hidden, obs, jnp.asarray(rng.uniform(size=(8, world.codec.uniforms)), jnp.float32))
        np.testing.assert_array_equal(drawn.obs[:, 2], obs[:, 2])
        assert np.isfinite(drawn.obs).all()
        assert (np.abs(np.asarray(drawn.obs[:, 1])) <= 90.0).all()
        touched += int((np.abs(np.asarray(drawn.obs[:, 1])) == 90.0).sum())
        assert drawn.reward.tolist() == [np.float32(0.3)] * 8
        assert drawn.log_prob[:, 1].tolist() == [0.0] * 8
        assert np.isfinite(drawn.log_prob).all()
    assert 0 < touched < 40
    nats = model.observation_log_prob(hidden, obs, world.obs[:, -1])
    assert nats.shape == (8, 3)
    assert nats[:, 2].tolist() == [0.0] * 8


@in_one_world
def test_outliers_of_ten_thousand_deviations_are_scored_finitely(world, model, hidden):
    obs = world.obs[:, -2]
    far = obs + 1e4 * jnp.asarray(world.codec.observation.delta_scale, jnp.float32)
    reward = jnp.full(8, 1e4 * world.codec.reward.scale, jnp.float32)

    def total(h, after, reward):
        return model.log_prob(h, obs, after, reward, jnp.ones(8)).sum()

    nats, gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(hidden, far, reward)
    assert np.isfinite(nats)
    assert nats < -1e4
    for gradient in gradients:
        assert np.isfinite(gradient).all()


def test_integer_observations_are_drawn_as_integers():
    space = {"type": "Box", "shape": [2], "dtype": "uint8", "low": [0.0, 0.0], "high": [9.0, 9.0]}
    rng = np.random.default_rng(6)
    obs = rng.integers(0, 10, size=(51, 2)).astype(np.uint8)
    codec = fit_codec(
        Spec(space, {"type": "Discrete", "n": 2, "start": 0}),
        obs[:-1],
        obs[1:],
        rng.integers(0, 2, size=50),
        rng.normal(size=50).astype(np.float32),
        np.zeros(50, bool),
    )
    config = StepConfig(trunk=TrunkConfig(width=4, layers=1, heads=1, kv_heads=1, mlp=3, window=2), members=1)
    dynamics = StepDynamics(config, codec)
    params = {"members": init_params(config, codec, 0), "starts": obs}
    rows = jax.random.split(jax.random.key(0), 13)
    state, start = dynamics.initial(params, rows)
    assert start.dtype == jnp.uint8
    state, after, _, _, info = jax.jit(dynamics.advance)(params, state, jnp.zeros(13, jnp.int32), rows)
    assert after.dtype == jnp.uint8
    assert state.observation.dtype == jnp.uint8
    assert (np.asarray(after) <= 9).all()
    assert np.isfinite(info["log_prob"]).all()


@in_one_world
def test_members_start_apart_and_from_the_rate_of_ends(world, hidden):
    params = init_params(world.config, world.codec, 7)
    for leaf in jax.tree.leaves(params):
        assert leaf.shape[0] == world.config.members
        assert leaf.dtype == jnp.float32
    kernels = params["embed"]["kernel"]
    assert (np.asarray(kernels[0]) != np.asarray(kernels[1])).all()
    again, other = init_params(world.config, world.codec, 7), init_params(world.config, world.codec, 8)
    for same, leaf in zip(jax.tree.leaves(again), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(same, leaf)
    assert (np.asarray(other["embed"]["kernel"]) != np.asarray(kernels)).all()
    rare = dataclasses.replace(world.codec, end_rate=1e-5)
    fresh = init_params(world.config, rare, 7)
    model = step_model(world.config, rare, jax.tree.map(lambda leaf: leaf[0], fresh))
    odds = np.exp(np.asarray(jax.jit(model.end_logit)(hidden, world.obs[:, -1], world.reward[:, -1])))
    assert (odds < 3e-5).all()
    assert (odds > 3e-6).all()


@pytest.mark.parametrize("name", ["chain_hidden", "components", "head_hidden", "members"])
def test_impossible_sizes_are_refused(name):
    with pytest.raises(ValueError, match="chain_hidden, components, head_hidden and members must be at least 1"):
        StepConfig(**{name: 0})


def test_atoms_of_the_reward_are_drawn_exactly_and_others_are_scored_finitely():
    world = make_world("tree")
    params = jax.tree.map(lambda leaf: leaf[0], world.params["members"])
    model = step_model(world.config, world.codec, params)
    assert world.codec.reward.atoms == (-1.0, 0.0, 1.0)
    obs = at(world.obs, np.s_[:, 0])
    features = model.inputs(obs, at(world.action, np.s_[:, 0]), world.reward[:, 0])
    hidden = jnp.concatenate([jnp.zeros((8, world.config.trunk.width)), features], axis=-1)
    uniforms = jnp.asarray(np.random.default_rng(8).uniform(size=(8, 2)), jnp.float32)
    assert set(np.asarray(model.reward_sample(hidden, obs, uniforms)).tolist()) <= {-1.0, 0.0, 1.0}
    nats = [model.reward_log_prob(hidden, obs, jnp.full(8, value, jnp.float32)) for value in (-1.0, 0.0, 1.0, 0.5)]
    np.testing.assert_allclose(np.exp(nats[:3]).sum(axis=0), 1.0, atol=1e-5)
    assert (np.asarray(nats[3]) < np.log(1e-6)).all() and np.isfinite(nats[3]).all()
    mean = model.reward_mean(hidden, obs)
    np.testing.assert_allclose(mean, np.exp(nats[2]) - np.exp(nats[0]), atol=1e-5)


def test_sites_of_one_step_are_drawn_together_as_they_are_scored():
    """Frequencies of pairs of categories follow the joint likelihood; false-alarm rate 10^-3."""
    world = make_world("tree")
    model = step_model(world.config, world.codec, jax.tree.map(lambda leaf: leaf[0], world.params["members"]))
    codec, count = world.codec.observation, 4001
    obs = at(world.obs, np.s_[:1, 0])
    features = model.inputs(obs, at(world.action, np.s_[:1, 0]), world.reward[:1, 0])
    hidden = jnp.concatenate([jnp.zeros((1, world.config.trunk.width)), features], axis=-1)
    uniforms = np.random.default_rng(9).uniform(size=(count, codec.uniforms)).astype(np.float32)
    uniforms[:, :4] = 0.3  # the same numbers for all
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape[1:])), (hidden, obs))
    drawn = jax.jit(model.observation.sample)(*many, jnp.asarray(uniforms))
    head, given = model.observation.sites, model.observation._given(hidden, obs, at(drawn, np.s_[:1]))
    weights, categories = (np.exp(np.asarray(x, np.float64))[0] for x in head(given, codec.index(obs)))
    first, second = codec.sites_active.index(True), len(codec.nvec) - 1
    joint = np.einsum("k,ka,kb->ab", weights, categories[:, first], categories[:, second])
    index = np.asarray(codec.index(drawn))
    n = codec.nvec[first], codec.nvec[second]
    found = np.zeros(n)
    np.add.at(found, (index[:, first], index[:, second]), 1)
    expected = joint[: n[0], : n[1]] * count
    kept = expected > 5
    assert stats.chisquare(found[kept], expected[kept] / expected[kept].sum() * found[kept].sum()).pvalue > 1e-3
    product = np.outer(found.sum(axis=1), found.sum(axis=0)) / count
    assert np.abs(joint * count)[: n[0], : n[1]].sum() == pytest.approx(count, rel=1e-3)
    assert np.abs(product - expected).max() > 5 * np.sqrt(expected.max() / count)
    np.testing.assert_array_equal(np.asarray(drawn["rest"][1])[:, 1], 1)  # a bit that never changes


def test_a_category_that_the_logs_never_held_is_unlikely_and_not_impossible():
    world = make_world("tree")
    model = step_model(world.config, world.codec, jax.tree.map(lambda leaf: leaf[0], world.params["members"]))
    obs, after = at(world.obs, np.s_[:, 0]), at(world.obs, np.s_[:, 1])
    odd = {**after, "grid": after["grid"].at[:, 0, 0].set(jnp.uint8([8, 5]))}
    features = model.inputs(odd, at(world.action, np.s_[:, 0]), world.reward[:, 0])
    hidden = jnp.concatenate([jnp.zeros((8, world.config.trunk.width)), features], axis=-1)
    nats, strange = (np.asarray(model.observation_log_prob(hidden, obs, x)) for x in (after, odd))
    assert np.isfinite(strange).all()
    np.testing.assert_array_equal(strange[:, :2], nats[:, :2])
    assert np.median(nats[:, 2] - strange[:, 2]) > 5
