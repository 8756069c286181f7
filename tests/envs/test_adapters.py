"""One contract for the adapters to JAX's interfaces: same keys, same actions, same trajectory from each of them."""

from __future__ import annotations

import dataclasses

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.functional_jax_env import FunctionalJaxEnv

from tests.support import untrained_model
from worldmodel.envs.functional import SimBrax, SimFuncEnv
from worldmodel.envs.gymnax import SimGymnax
from worldmodel.envs.pure import PureEpisode

ENVS = ("CartPole-v1", "FrozenLake-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow))
STEPS = 12


@pytest.fixture(scope="module", params=ENVS)
def model(request):
    return untrained_model(request.param)


def actions_of(model):
    space = model.spec.to_gymnasium()[1]
    space.seed(0)
    return jnp.asarray(np.stack([space.sample() for _ in range(STEPS)]))


def keys_of(seed=3):
    return jax.random.split(jax.random.key(seed), STEPS + 1)


def functional(model):
    """Keys are used as they are."""
    env, (first, *rest) = SimFuncEnv(model), keys_of()
    params = env.default_params
    state = jax.jit(env.initial)(first, params)
    step, seen = jax.jit(env.transition), [np.asarray(env.observation(state, first))]
    paid, ends = [], []
    for action, key in zip(actions_of(model), rest, strict=True):
        following = step(state, action, key, params)
        paid.append(float(env.reward(state, action, following, key)))
        ends.append(bool(env.terminal(following, key)))
        seen.append(np.asarray(env.observation(following, key)))
        state = following
    return np.stack(seen), paid, ends


def by_gymnax(model):
    """gymnax splits a step's key; the halves here are the same ones."""
    env, (first, *rest) = SimGymnax(model), keys_of()
    params = env.default_params
    obs, state = jax.jit(env.reset_env)(first, params)
    step, seen, paid, ends = jax.jit(env.step_env), [np.asarray(obs)], [], []
    start = model.spec.action_space.get("start", 0)
    for action, key in zip(actions_of(model), rest, strict=True):
        obs, state, reward, terminated, _ = step(key, state, action - start, params)
        seen.append(np.asarray(obs))
        paid.append(float(reward))
        ends.append(bool(terminated))
    return np.stack(seen), paid, ends


def by_brax(model):
    """Brax's state carries a key; each step's is put there."""
    env, (first, *rest) = SimBrax(model), keys_of()
    episode = PureEpisode.of(model)
    state = jax.jit(env.reset)(jax.random.key(0))
    begun = episode.begin(model.params, first)
    state = state.replace(pipeline_state=begun, obs=begun.observation)
    step, seen, paid, ends = jax.jit(env.step), [np.asarray(state.obs)], [], []
    advance = jax.jit(episode.advance)
    for action, key in zip(actions_of(model), rest, strict=True):
        own, _ = jax.random.split(key)
        want, _ = advance(model.params, state.pipeline_state, action, own)
        got = step(state.replace(info={**state.info, "rng": key}), action)
        np.testing.assert_allclose(got.obs, want.observation, atol=1e-5)
        state = got.replace(pipeline_state=advance(model.params, state.pipeline_state, action, key)[0])
        seen.append(np.asarray(state.pipeline_state.observation))
        paid.append(float(state.pipeline_state.reward))
        ends.append(bool(state.pipeline_state.terminated))
    return np.stack(seen), paid, ends


@pytest.mark.parametrize("adapter", [by_gymnax, by_brax], ids=["gymnax", "brax"])
def test_same_keys_and_actions_give_the_same_trajectory(model, adapter):
    want, got = functional(model), adapter(model)
    np.testing.assert_array_equal(got[0], want[0])
    assert got[1:] == want[1:]


def test_a_batch_is_so_many_episodes(model):
    episode = PureEpisode.of(model)
    keys = jax.random.split(jax.random.key(1), 20)
    action = actions_of(model)[0]

    def one(key):
        begin, step = jax.random.split(key)
        return episode.advance(model.params, episode.begin(model.params, begin), action, step)[0]

    batch, single = jax.jit(jax.vmap(one))(keys), jax.jit(one)
    for row in (0, 7, 19):
        alone = single(keys[row])
        np.testing.assert_allclose(batch.observation[row], alone.observation, atol=1e-5)
        np.testing.assert_allclose(batch.reward[row], alone.reward, atol=1e-5)


def test_gymnax_resets_by_itself_and_tells_where_it_ended(model):
    env = SimGymnax(model, max_episode_steps=4)
    params = env.default_params

    def body(carry, key):
        obs, state = carry
        act, step = jax.random.split(key)
        action = env.action_space(params).sample(act)
        obs, state, reward, terminated, truncated, info = env.step(step, state, action, params)
        return (obs, state), (state.time, reward, terminated, truncated, info["final_observation"])

    @jax.jit
    def run(key):
        return jax.lax.scan(body, env.reset(key, params), jax.random.split(key, 20))[1]

    time, reward, terminated, truncated, final = jax.vmap(run)(jax.random.split(jax.random.key(0), 3))
    over = np.asarray(terminated | truncated)
    np.testing.assert_array_equal(np.asarray(time)[over], 0)
    assert (np.asarray(time)[~over] > 0).all()
    assert over.any()
    assert not np.asarray(terminated & truncated).any()
    assert reward.shape == (3, 20)
    space = env.observation_space(params)
    assert jax.tree.leaves(final)[0].shape[:2] == (3, 20)
    assert space.contains(jax.tree.map(lambda x: x[0, 0], final))


def test_gymnax_is_a_gymnax_environment(model):
    env = SimGymnax(model)
    assert isinstance(env, gymnax.environments.environment.Environment)
    assert env.num_actions == model.dynamics.codec.action.size
    assert env.default_params.max_steps_in_episode == model.spec.max_episode_steps
    assert model.spec.env_id in env.name
    longer = env.default_params.replace(max_steps_in_episode=7)
    assert longer.max_steps_in_episode == 7


def test_gymnasium_runs_the_functional_one():
    model = untrained_model("CartPole-v1")
    env = FunctionalJaxEnv(SimFuncEnv(model))
    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(3):
        obs, reward, *_ = env.step(env.action_space.sample())
    assert np.isfinite(float(reward))
    assert np.shape(obs) == (env.observation_space.shape or ())


def test_brax_ends_by_the_time_limit():
    model = untrained_model("Pendulum-v1")
    env = SimBrax(model, max_episode_steps=3)
    state = env.reset(jax.random.key(0))
    done, truncation = [], []
    for action in actions_of(model)[:3]:
        state = jax.jit(env.step)(state, action)
        done.append(float(state.done))
        truncation.append(float(state.info["truncation"]))
    assert done == truncation == [0.0, 0.0, 1.0]
    assert (env.observation_size, env.action_size, env.backend) == (3, 1, "worldmodel")


def test_categories_that_begin_elsewhere_count_from_zero_in_gymnax():
    model = untrained_model("CartPole-v1")
    shifted = {"type": "Discrete", "n": 2, "start": 5}
    codec = dataclasses.replace(model.dynamics.codec, action=dataclasses.replace(model.dynamics.codec.action, start=5))
    spec = dataclasses.replace(model.spec, action_space=shifted)
    moved = dataclasses.replace(model, spec=spec, dynamics=dataclasses.replace(model.dynamics, codec=codec))
    results = []
    for env in (SimGymnax(model), SimGymnax(moved)):
        _, state = env.reset(jax.random.key(0))
        results.append(np.asarray(env.step(jax.random.key(1), state, 1)[0]))
    np.testing.assert_allclose(*results, atol=1e-6)
