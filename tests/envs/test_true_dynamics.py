"""The known dynamics are those of the real environment, step by step."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.agents.record import make_env, rebuild_env
from worldmodel.envs.true_dynamics import KNOWN, true_dynamics
from worldmodel.simulator import Dynamics
from worldmodel.trajectory import Spec


def spec_of(env_id: str, **kwargs) -> Spec:
    env = make_env(env_id, kwargs)
    spec = Spec.from_gymnasium(env)
    env.close()
    return spec


CASES = [("CartPole-v1", {}), ("Pendulum-v1", {}), ("Pendulum-v1", {"g": 3.7})]


@pytest.mark.parametrize(("env_id", "kwargs"), CASES)
def test_every_step_is_the_real_environments(env_id: str, kwargs: dict):
    spec = spec_of(env_id, **kwargs)
    dynamics, params = true_dynamics(spec)
    assert isinstance(dynamics, Dynamics)
    step = jax.jit(dynamics.advance)
    env = rebuild_env(spec)
    env.action_space.seed(0)
    ends = 0
    for episode in range(3):
        obs, _ = env.reset(seed=episode)
        state, _ = dynamics.start_at(params, jax.random.split(jax.random.key(0), 2), jnp.stack([obs, obs]))
        for _ in range(60):
            action = env.action_space.sample()
            obs, reward, terminated, _, _ = env.step(action)
            both = jnp.asarray(np.stack([action, action]).astype(np.float32 if env_id[0] == "P" else np.int32))
            state, seen, paid, end, _ = step(params, state, both, jax.random.split(jax.random.key(1), 2))
            np.testing.assert_allclose(seen[1], obs, atol=2e-4)
            np.testing.assert_allclose(paid, [reward] * 2, atol=2e-3)
            assert bool(end[0]) == terminated
            # What is seen says all: from the next step on, state by observation.
            state = dynamics.observe(params, state, both, jnp.stack([obs, obs]), paid, end)
            ends += terminated
            if terminated:
                break
    assert (ends > 0) == (env_id == "CartPole-v1")


@pytest.mark.parametrize("env_id", KNOWN)
def test_episodes_begin_where_the_real_ones_do(env_id: str):
    dynamics, params = true_dynamics(spec_of(env_id))
    _, obs = dynamics.initial(params, jax.random.split(jax.random.key(0), 2_000))
    env = gym.make(env_id)
    real = np.stack([env.reset(seed=seed)[0] for seed in range(2_000)])
    # Two uniform samples of 2,000 in up to 2 units: the means are within five deviations in all but 1e-6 of runs.
    np.testing.assert_allclose(obs.mean(axis=0), real.mean(axis=0), atol=5 * real.std() * (2 / 2_000) ** 0.5)
    np.testing.assert_allclose([obs.min(), obs.max()], [real.min(), real.max()], rtol=0.02)


def test_what_is_not_known_is_one_line():
    spec = spec_of("Pendulum-v1")
    for env_id in ("MountainCar-v0", "CartPole-v0", None):
        with pytest.raises(ValueError, match=r"^the true dynamics of .* known are CartPole-v1, Pendulum-v1$"):
            true_dynamics(dataclasses.replace(spec, env_id=env_id))
    with pytest.raises(ValueError, match="do not take its arguments"):
        true_dynamics(dataclasses.replace(spec, env_kwargs={"gravity": 1.0}))
    dynamics, params = true_dynamics(spec)
    state, obs = dynamics.initial(params, jax.random.split(jax.random.key(0), 2))
    with pytest.raises(ValueError, match="true dynamics have no density"):
        dynamics.score(params, state, jnp.zeros((2, 1)), obs, jnp.zeros(2), jnp.zeros(2, bool))
    assert dynamics.advance(params, state, jnp.zeros((2, 1)), jax.random.split(jax.random.key(0), 2))[4] == {}
