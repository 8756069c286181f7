"""A world of two: each alone at the ends, both by their share between; disturbed, branched and scanned as any other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import untrained_model
from worldmodel.perturbations import Perturbations, PerturbedDynamics, StickyActions, mixed
from worldmodel.simulator import Simulator

ROWS = 256
KEYS = jax.random.split(jax.random.key(0), ROWS)


@pytest.fixture(scope="module")
def worlds():
    return untrained_model("CartPole-v1", 0), untrained_model("CartPole-v1", 1)


def stepped(dynamics, params):
    """One step, all rows from one state."""

    @jax.jit
    def run(keys):
        state, _ = dynamics.start_at(params, keys, jnp.zeros((ROWS, 4)))
        return dynamics.advance(params, state, jnp.zeros(ROWS, jnp.int32), keys)[1:]

    return run(KEYS)


def test_steps_follow_one_or_the_other(worlds):
    one, two = (stepped(world.dynamics, world.params)[0] for world in worlds)
    obs, *_, info = stepped(*mixed(*worlds, 0.3))
    second = np.asarray(info["second"])
    np.testing.assert_allclose(obs, np.where(second[:, None], two, one), atol=1e-5)
    assert abs(second.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / ROWS)  # passed by chance once in 16,000 times
    assert np.abs(np.asarray(one - two)).max(axis=1).min() > 1e-4


@pytest.mark.slow
def test_the_score_is_that_of_the_mixture(worlds):
    transition = jnp.ones(8, jnp.int32), jnp.full((8, 4), 0.02), jnp.ones(8), jnp.zeros(8, bool)

    def score(dynamics, params):
        state, _ = dynamics.start_at(params, KEYS[:8], jnp.zeros((8, 4)))
        return np.asarray(dynamics.score(params, state, *transition), np.float64)

    whole = score(*mixed(*worlds, 0.25)).sum(axis=-1)
    one, two = (np.exp(score(world.dynamics, world.params).sum(axis=-1)) for world in worlds)
    np.testing.assert_allclose(whole, np.log(0.75 * one + 0.25 * two.mean(axis=0)), rtol=1e-4)


@pytest.mark.slow
def test_a_simulator_takes_it_disturbed(worlds):
    dynamics, params = mixed(*worlds, 0.5)
    disturbed = PerturbedDynamics(dynamics, Perturbations((StickyActions(0.3),)), worlds[0].dynamics.codec)
    simulator = Simulator(disturbed, max_episode_steps=5)

    @jax.jit
    def run(keys):
        state, _ = simulator.reset(params, keys)
        state, _ = simulator.step(params, state, jnp.zeros(4, jnp.int32))
        branches = simulator.branch(state, jnp.arange(4))
        on, off = (simulator.step(params, s, jnp.ones(4, jnp.int32))[1].obs for s in (state, branches))
        return on, off, simulator.reset_rows(params, jnp.ones(4, bool), state, on)[1]

    on, off, again = run(KEYS[:4])
    np.testing.assert_allclose(on, off, atol=1e-6)
    assert np.isfinite(again).all()


def test_worlds_that_do_not_fit_are_named(worlds):
    with pytest.raises(ValueError, match=r"the observation_space of untrained is .* that of untrained"):
        mixed(worlds[0], untrained_model("Pendulum-v1"), 0.5)
    with pytest.raises(ValueError, match=r"share of mixed worlds is 1\.5; 0 to 1 is allowed"):
        mixed(*worlds, 1.5)
