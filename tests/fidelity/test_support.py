"""Imagined episodes are followed until they leave what is trusted."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.agents.record import record
from worldmodel.certificate import Certificate, Node, Region
from worldmodel.corpus.columns import Columns
from worldmodel.envs.known_world import known_world
from worldmodel.envs.true_dynamics import true_dynamics
from worldmodel.fidelity.support import stability
from worldmodel.simulator import Simulator

BORDER = 0.15


def right(obs, keys):
    return jnp.ones(len(obs), jnp.int32)


@pytest.fixture(scope="module")
def world():
    """CartPole itself, certified where the pole has not fallen far."""
    spec, episodes = record("CartPole-v1", behaviours=["random"], episodes=20, seed=0)
    known = known_world(spec, *true_dynamics(spec), Columns.from_trajectories(episodes))
    regions = tuple(Region(rule, 0.5, 50, 0.1, 0.0, good) for rule, good in (("near", True), ("far", False)))
    root = Node(6, BORDER, Node(region=0), Node(region=1))
    return dataclasses.replace(known, certificate=Certificate(root, (0, 1, 2, 3), regions, 0.25, 0.1, 0.9, 0))


def test_first_steps_outside_are_counted_as_they_happen(world):
    out = stability(world, right, episodes=32, seed=3)
    json.dumps(out, allow_nan=False)
    assert out["left_count"] == out["episodes"] == 32 and out["left"][-1] == 1.0
    keys = jax.vmap(jax.random.split)(jax.random.split(jax.random.key(3), 32))
    simulator = Simulator(world.dynamics, 500)
    state, obs = simulator.reset(world.params, keys[:, 0])
    inside = np.zeros(32, int)
    going = np.ones(32, bool)
    for _ in range(20):
        state, step = simulator.step(world.params, state, right(obs, None))
        going &= np.abs(np.asarray(step.obs[:, 2])) <= BORDER
        inside += going
    assert out["stay"]["mean"] == pytest.approx(inside.mean())
    assert out["median"]["mean"] == pytest.approx(np.median(inside), abs=1)
    assert out["steps"][0] == inside.min() + 1
    assert out["expected"] == sorted(out["expected"])


def test_episodes_that_end_inside_are_censored(world):
    out = stability(world, right, episodes=8, steps=2)
    assert out["left_count"] == 0 and out["left"] == [] and out["median"]["mean"] is None
    assert out["stay"]["mean"] == 2.0


def test_what_it_cannot_do_is_said(world):
    with pytest.raises(ValueError, match="needs an ensemble or a certificate"):
        stability(dataclasses.replace(world, certificate=None), right)
    with pytest.raises(ValueError, match="episodes and steps must be at least 1, not 0"):
        stability(world, right, episodes=0)
