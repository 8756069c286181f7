from __future__ import annotations

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.agents.counting import StepLedger
from worldmodel.agents.evaluate import real_episodes
from worldmodel.agents.policies import random_policy
from worldmodel.agents.record import make_env
from worldmodel.trajectory import Spec


def spec_of(env_id: str) -> Spec:
    env = make_env(env_id)
    spec = Spec.from_gymnasium(env)
    env.close()
    return spec


CARTPOLE = spec_of("CartPole-v1")


def lean(obs: jax.Array, key: jax.Array) -> jax.Array:
    """Follows the pole: falls over after some dozens of steps, sooner from some starts than from others."""
    return (obs[:, 2] > 0).astype(jnp.int32)


def run(policy, **options):
    ledger = StepLedger()
    return real_episodes(CARTPOLE, policy, **{"episodes": 12, "seed": 40, "ledger": ledger} | options), ledger


def test_episodes_are_those_of_a_plain_loop_each_by_its_own_seed():
    trajectories, ledger = run(lean, num_envs=5)
    env = gymnasium.make("CartPole-v1")
    for i, trajectory in enumerate(trajectories):
        obs, _ = env.reset(seed=40 + i)
        observations, ended = [obs], False
        while not ended:
            action = int(obs[2] > 0)
            obs, _, terminated, truncated, _ = env.step(action)
            observations.append(obs)
            ended = terminated or truncated
        np.testing.assert_array_equal(trajectory.observations, np.array(observations))
        assert (trajectory.terminated, trajectory.truncated) == (terminated, truncated and not terminated)
        assert trajectory.total_reward == len(trajectory) == len(observations) - 1
        assert trajectory.info["seed"] == 40 + i
        trajectory.validate(CARTPOLE)
    assert ledger.to_json() == {"evaluation": sum(map(len, trajectories))}
    assert len({len(t) for t in trajectories}) > 3


def test_a_wrapper_stands_between_policy_and_environment():
    def always(action):
        return lambda obs, key: jnp.full(len(obs), action, jnp.int32)

    class Turned(gymnasium.ActionWrapper):
        def action(self, action):
            return 1 - action

    (turned, ledger), (plain, _) = run(always(1), episodes=3, wrap=Turned), run(always(0), episodes=3)
    for one, other in zip(turned, plain, strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
        assert set(one.actions) == {1} and set(other.actions) == {0}
    assert ledger.total == sum(map(len, turned))


def test_batching_changes_no_draw_of_a_random_policy():
    policy = random_policy(CARTPOLE)
    (one, _), (many, _) = run(policy, num_envs=1), run(policy, num_envs=7)
    for a, b in zip(one, many, strict=True):
        np.testing.assert_array_equal(a.observations, b.observations)
        np.testing.assert_array_equal(a.actions, b.actions)
    (other, _) = run(policy, seed=41)
    assert any(len(a) != len(b) for a, b in zip(one[1:], other, strict=False))


def test_the_phase_is_the_callers_and_a_cut_is_no_end():
    trajectories, ledger = run(lean, episodes=3, phase="comparison", max_steps=6)
    assert ledger.to_json() == {"comparison": 18}
    assert not any(t.terminated or t.truncated for t in trajectories)


def test_boxes_and_time_limits():
    spec = spec_of("Pendulum-v1")
    (trajectory,) = real_episodes(spec, random_policy(spec), episodes=1, seed=0, ledger=StepLedger())
    assert trajectory.truncated and not trajectory.terminated and len(trajectory) == 200
    assert trajectory.actions.shape == (200, 1) and trajectory.actions.dtype == np.float32
    trajectory.validate(spec)


def test_bad_actions_and_environments_are_one_line():
    spec = spec_of("Pendulum-v1")

    def broken(obs, key):
        return jnp.full((obs.shape[0], 1), jnp.nan)

    with pytest.raises(ValueError, match="policy: action at step 0 is"):
        real_episodes(spec, broken, episodes=2, seed=0, ledger=StepLedger())
    with pytest.raises(ValueError, match=r"policy: action at step 0 is 7, outside 0\.\.1"):
        run(lambda obs, key: jnp.full(obs.shape[0], 7))
    with pytest.raises(ValueError, match="name no environment"):
        real_episodes(dataclasses.replace(spec, env_id=None), broken, episodes=1, seed=0, ledger=StepLedger())
    with pytest.raises(ValueError, match="not registered"):
        real_episodes(dataclasses.replace(spec, env_id="Pendolum-v1"), broken, episodes=1, seed=0, ledger=StepLedger())
    with pytest.raises(ValueError, match="must be at least 1"):
        run(lean, episodes=0)
