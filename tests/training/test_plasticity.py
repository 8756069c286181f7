"""Gauges of plasticity, each against a case whose answer is known."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import tiny_columns, untrained_model
from tests.training.many_devices import DEBUG
from worldmodel.corpus import window_batches
from worldmodel.model.step import init_params
from worldmodel.training.plasticity import (
    Plasticity,
    dormant_share,
    effective_rank,
    power_step,
    random_direction,
    trunk_activity,
)
from worldmodel.training.step import as_batch


def test_power_iteration_finds_the_eigenvalue_of_largest_magnitude():
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(7, 7)))
    hessian = jnp.asarray(basis @ np.diag([-5.0, 3.0, 2.0, 1.0, 0.5, 0.1, 0.0]) @ basis.T, jnp.float32)

    def gradient(params):
        return {"x": hessian @ params["x"] + jnp.asarray([3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0])}

    params = {"x": jnp.zeros(7)}
    direction = random_direction(params, jax.random.key(0))
    for _ in range(30):
        direction, value, norm = power_step(gradient, params, direction)
    assert float(value) == pytest.approx(-5.0, rel=1e-4)
    assert float(norm) == pytest.approx(5.0)


def test_a_unit_is_dormant_below_a_fortieth_of_its_layers_mean():
    alive, silent = np.ones((11, 5)), np.ones((11, 3))
    silent[:, 0] = 0.0
    silent[:, 1] = 1e-3
    silent[:, 2] = -1.0
    assert float(dormant_share([jnp.asarray(alive), jnp.asarray(silent)])) == pytest.approx(2 / 8)


def test_effective_rank_counts_equal_directions():
    rng = np.random.default_rng(0)
    orthogonal, _ = np.linalg.qr(rng.normal(size=(101, 5)) - 0.5)
    orthogonal -= orthogonal.mean(axis=0)
    assert float(effective_rank(jnp.asarray(np.outer(np.arange(9.0), np.ones(5)), jnp.float32))) == pytest.approx(
        1, abs=0.02
    )
    assert 4.8 < float(effective_rank(jnp.asarray(orthogonal, jnp.float32))) <= 5.0001


@pytest.fixture(scope="module")
def measured():
    """A debug model and a batch."""
    model = untrained_model("CartPole-v1")
    dynamics = dataclasses.replace(model.dynamics, config=DEBUG)
    _, columns = tiny_columns("CartPole-v1", episodes=4, seed=0)
    return dynamics, as_batch(next(window_batches(columns, length=7, batch_size=6, seed=0)), dynamics.codec)


def test_dead_hidden_units_are_seen(measured):
    dynamics, batch = measured
    params = jax.tree.map(lambda leaf: np.array(leaf[0]), init_params(DEBUG, dynamics.codec, 0))
    params["trunk"]["blocks"][0]["gate_up"]["kernel"][:, :5] = 0.0  # the gates of 5 of the 16 units
    features, hidden = jax.jit(lambda params: trunk_activity(dynamics, params, batch))(params)
    assert features.shape == (6 * 7, 16)
    assert [layer.shape for layer in hidden] == [(6 * 7, 16)]
    assert float(dormant_share(hidden)) == pytest.approx(5 / 16)


@pytest.mark.slow
def test_all_gauges_of_a_model_and_a_lost_trunk_fits_worse(measured):
    dynamics, batch = measured
    gauge = Plasticity(dynamics, batch, 0)
    members = init_params(DEBUG, dynamics.codec, 0)
    found = gauge.measure(members)
    assert set(found) == {
        "curvature", "gradient_norm", "weight_norm", "dormant_units", "effective_rank", "fresh_target_error",
    }  # fmt: skip
    assert all(np.isfinite(value) for value in found.values())
    assert found == gauge.measure(members), "the same parameters give the same gauges"
    dead = jax.tree.map(lambda leaf: leaf, members)
    dead["trunk"]["norm"]["scale"] = jnp.zeros_like(members["trunk"]["norm"]["scale"])
    lost = gauge.measure(dead)
    assert lost["fresh_target_error"] > found["fresh_target_error"] + 0.05
    assert lost["effective_rank"] < found["effective_rank"]
