"""Planners as policies in the real environment: what they remember, and what they earn with the true dynamics."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import untrained_model
from worldmodel.agents.counting import StepLedger
from worldmodel.agents.evaluate import PolicyWithMemory, real_episodes
from worldmodel.agents.planner import Planner, PlannerMemory
from worldmodel.agents.policies import random_policy
from worldmodel.agents.sequences import CEM, SequenceSearch
from worldmodel.envs.true_dynamics import true_dynamics

SMALL = SequenceSearch(horizon=4, candidates=8, iterations=2, update=CEM(3))


def spec_of(env_id: str):
    return untrained_model(env_id).spec


def in_truth(env_id: str, search: SequenceSearch) -> Planner:
    dynamics, params = true_dynamics(spec_of(env_id))
    return Planner(dynamics, search, spec_of(env_id), params)


def episodes(planner, **options):
    options = {"episodes": 3, "seed": 7, "ledger": StepLedger(), "max_steps": 12} | options
    return real_episodes(planner.spec, planner, **options)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_planner_in_the_true_dynamics_beats_chance(env_id: str):
    search = SequenceSearch(horizon=20, candidates=32, iterations=2)
    planner = in_truth(env_id, search)
    assert isinstance(planner, PolicyWithMemory)
    ran = episodes(planner, max_steps=80)
    chance = real_episodes(spec_of(env_id), random_policy(spec_of(env_id)), episodes=3, seed=7, ledger=StepLedger())
    earned, by_chance = (np.mean([e.rewards[:80].sum() for e in some]) for some in (ran, chance))
    # CartPole: chance falls within some 25 steps. Pendulum: chance pays -6 a step, a swing up within 80 steps half.
    assert earned == 80 if env_id == "CartPole-v1" else earned > by_chance + 100


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_how_many_run_at_once_changes_nothing(env_id: str):
    planner = Planner.in_model(untrained_model(env_id), SMALL)
    one, many = episodes(planner, num_envs=1), episodes(planner, num_envs=3)
    for a, b in zip(one, many, strict=True):
        np.testing.assert_allclose(a.actions, b.actions, atol=1e-4)
        a.validate(planner.spec)


@dataclasses.dataclass(frozen=True)
class Recorder:
    """A policy whose memory is what it was told: `[B, 3]` of the sum of observations, of rewards, and the steps."""

    params: float = 0.5

    def begin(self, params, obs, key):
        return jnp.stack([obs[:, 0], jnp.zeros(len(obs)), jnp.zeros(len(obs))], axis=1)

    def act(self, params, memory, obs, key):
        # Tells its memory through the action: -2 to 2.
        return jnp.clip(params * memory[:, 2:] - 1.0, -2, 2), memory

    def observe(self, params, memory, action, obs, reward, terminated):
        return memory + jnp.stack([obs[:, 0], reward, jnp.ones(len(obs))], axis=1)

    def replace_rows(self, where, fresh, memory):
        return jnp.where(where[:, None], fresh, memory)

    def __hash__(self):
        return id(type(self))


def test_memories_are_of_one_episode_each():
    ran = real_episodes(
        spec_of("Pendulum-v1"), Recorder(), episodes=5, seed=0, ledger=StepLedger(), num_envs=2, max_steps=5
    )
    for episode in ran:  # more episodes than environments: a memory that went on would start elsewhere
        np.testing.assert_allclose(episode.actions[:, 0], [-1.0, -0.5, 0.0, 0.5, 1.0], atol=1e-6)


def test_what_really_happened_is_absorbed():
    model = untrained_model("CartPole-v1")
    planner = Planner.in_model(model, SMALL)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(3, 2, 4)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 2)
    memory = planner.begin(planner.params, obs[0], keys)
    state, _ = model.dynamics.start_at(model.params, keys, obs[0])
    for t in range(2):
        action, reward, end = jnp.array([0, 1]), jnp.array([1.0, 0.5]), jnp.zeros(2, bool)
        memory = planner.observe(planner.params, memory, action, obs[t + 1], reward, end)
        state = model.dynamics.observe(model.params, state, action, obs[t + 1], reward, end)
    for a, b in zip(jax.tree.leaves(memory.belief), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)
    fresh = planner.begin(planner.params, obs[0], keys)
    mixed = planner.replace_rows(jnp.array([True, False]), fresh, memory)
    assert isinstance(mixed, PlannerMemory)
    np.testing.assert_array_equal(mixed.belief.seen, [0, 2])


def test_planners_of_one_kind_compile_once():
    a, b = (Planner.in_model(untrained_model("CartPole-v1", seed), SMALL) for seed in (0, 0))
    assert a == b and hash(a) == hash(b)
    assert a != Planner.in_model(untrained_model("CartPole-v1"), dataclasses.replace(SMALL, horizon=5))


def test_spaces_that_it_cannot_plan_in_are_one_line():
    spec = spec_of("Pendulum-v1")
    several = dataclasses.replace(spec, action_space={"type": "MultiDiscrete", "nvec": [2, 2], "start": [0, 0]})
    dynamics, params = true_dynamics(spec)
    with pytest.raises(ValueError, match="the action space is MultiDiscrete; a planner takes Discrete or Box"):
        Planner(dynamics, SMALL, several, params)
    endless = dataclasses.replace(spec, action_space={**spec.action_space, "low": [None], "high": [None]})
    with pytest.raises(ValueError, match="Box without bounds"):
        Planner(dynamics, SMALL, endless, params)
