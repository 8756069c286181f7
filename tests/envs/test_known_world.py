"""A known environment in the place of a model: it steps as the environment, and a probe finds nothing wrong with it."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel.agents.record import record
from worldmodel.corpus.columns import Columns
from worldmodel.envs.known_world import known_world
from worldmodel.envs.true_dynamics import true_dynamics
from worldmodel.fidelity import probe
from worldmodel.simulator import Simulator


def test_it_steps_as_the_environment_and_the_probe_says_so():
    spec, logged = record("CartPole-v1", behaviours=["random"], episodes=60, seed=0)
    episodes = list(logged)
    columns = Columns.from_trajectories(episodes)
    world = known_world(spec, *true_dynamics(spec), columns)
    longest = max(episodes, key=len)
    simulator = Simulator(world.dynamics, 500)
    first = jnp.asarray(longest.observations[:1])
    state, _ = simulator.start_at(world.params, jax.random.split(jax.random.key(0), 1), first)
    step = jax.jit(simulator.step)
    for action, obs in zip(longest.actions, longest.observations[1:], strict=True):
        state, found = step(world.params, state, jnp.asarray([action]))
        np.testing.assert_allclose(found.obs[0], obs, atol=1e-4)
    assert bool(found.terminated[0]) is longest.terminated
    out = probe(world, corpus=columns, horizon=8, starts=20).to_json()
    json.dumps(out, allow_nan=False)
    assert out["one_step"]["nrmse"]["mean"] < 1e-4 and out["rollout"]["divergence_horizon"]["median"] is None
    assert all(region["certified"] for region in out["trust_region"]["regions"] if region["episodes"] == 30)
    nll = out["one_step"]["nll_per_dim"]
    assert nll["mean"] is None and "not finite" in nll["why"]
