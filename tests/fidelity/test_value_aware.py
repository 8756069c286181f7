from __future__ import annotations

import math

import numpy as np
import pytest

from worldmodel.fidelity import value_aware
from worldmodel.fidelity.value_function import fit_value

P, Q, V = np.array([0.5, 0.5]), np.array([0.8, 0.2]), np.array([0.0, 1.0])


def test_reference_values():
    said = {"real_reward": 0.0, "sim_reward": 0.0, "real": P, "value": V}
    assert value_aware.value_aware_error(**said, sim=Q) == pytest.approx(0.3)
    assert value_aware.value_aware_error(**said, sim=P) == 0.0
    assert value_aware.value_aware_error(real_reward=1.0, sim_reward=1.5, real=P, sim=Q, value=V, gamma=0.5) == (
        pytest.approx(0.35)
    )


def draws(rng: np.random.Generator, sim: np.ndarray, n: int = 40_000) -> list[np.ndarray]:
    """Two simulated and two real samples of V at one state and action."""
    return [(rng.uniform(size=n) < p[1]).astype(float) for p in (sim, sim, P, P)]


def test_the_naive_square_charges_a_perfect_simulator_and_the_product_does_not():
    rng = np.random.default_rng(0)
    for sim, delta in ((P, 0.0), (Q, 0.3)):
        a, b, real_a, real_b = draws(rng, sim)
        product = value_aware.cross_product(a - real_a, b - real_b)
        # Four standard errors: false alarm 6e-5.
        assert abs(product.mean() - delta**2) < 4 * product.std() / math.sqrt(len(product))
        naive = ((a - real_a) ** 2).mean()
        assert naive == pytest.approx(delta**2 + sim[0] * sim[1] + 0.25, abs=0.02)
        if delta == 0.0:
            assert naive == pytest.approx(0.5, abs=0.02)


def test_variance_subtraction_is_the_mean_product_of_two():
    e = np.random.default_rng(1).normal(size=9)
    pairs = [e[i] * e[j] for i in range(9) for j in range(9) if i != j]
    assert value_aware.variance_subtracted(e) == pytest.approx(np.mean(pairs))
    with pytest.raises(ValueError, match="n >= 2"):
        value_aware.variance_subtracted([1.0])


def test_one_real_sample_each_is_enough_where_neighbours_are_near():
    rng = np.random.default_rng(2)
    n = 4000
    places, ids = rng.uniform(-1, 1, (n, 2)), np.repeat(np.arange(100), 40)
    delta = 0.5 * places[:, 0]
    found = value_aware.value_error_estimates(delta + rng.normal(size=n), places, ids)
    # E delta^2 = 1/12; the noise alone would add 1. The standard error is about 1 / sqrt(4000): .016.
    assert found["squared"].mean == pytest.approx(1 / 12, abs=0.065)
    assert abs(found["mean"].mean) < 0.065 and found["mean"].n == 100
    null = value_aware.value_error_estimates(rng.normal(size=n), places, ids)
    assert null["squared"].lo < 0 < null["squared"].hi


def test_partners_come_from_other_episodes():
    # Errors are alike within an episode and opposite between the two: the product of neighbours must be negative.
    places = np.arange(6.0)[:, None] // 3 + 0.01 * np.arange(6.0)[:, None]
    found = value_aware.value_error_estimates([1.0, 1.0, 1.0, -1.0, -1.0, -1.0], places, [0, 0, 0, 1, 1, 1])
    assert found["squared"].mean == -1.0
    one = value_aware.value_error_estimates([1.0, 2.0], np.zeros((2, 1)), [0, 0])
    assert one["squared"].why == "it needs two episodes"
    with pytest.raises(ValueError, match=r"places \[N, D\]"):
        value_aware.value_error_estimates([1.0], [1.0], [0])
    with pytest.raises(ValueError, match=r"both be \[N\]"):
        value_aware.cross_product([1.0], [1.0, 2.0])


def test_a_value_function_finds_what_is_quadratic():
    rng = np.random.default_rng(3)
    obs, time = rng.uniform(-1, 1, (9001, 3)), rng.integers(0, 50, 9001)
    to_come = 50.0 - time + 10 * obs[:, 0] * obs[:, 1] - 5 * obs[:, 2] ** 2
    value = fit_value(obs, time, to_come)
    assert value.r2 > 0.999
    np.testing.assert_allclose(value(obs[:7], time[:7]), to_come[:7], atol=0.5)
    # A place far outside is held at four deviations, so that a simulator that breaks promises no fortune.
    assert np.abs(value(np.full((1, 3), 1e9), np.array([0]))).max() < 1000
    flat = fit_value(obs, time, np.full(9001, 7.0))
    assert flat.r2 == 1.0 and flat(obs[:1], time[:1]) == pytest.approx([7.0])
    wide = fit_value(rng.normal(size=(500, 40)), np.arange(500), np.arange(500.0))
    assert wide.r2 > 0.99 and len(wide.weights) == 1 + 2 * 41
