import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from worldmodel.fidelity import horizon

TIMES, OBSERVED = np.array([2, 3, 3, 5]), np.array([True, True, False, True])


def linear_errors(steps):
    """|x_k - x^_k| for real x' = .9 x and simulated x' = x from 1: .1, .19, .271, ..."""
    return 1.0 - 0.9 ** np.arange(1, steps + 1)


def test_divergence_horizon_reference():
    errors = linear_errors(3)
    np.testing.assert_allclose(errors, [0.1, 0.19, 0.271])
    times, observed = horizon.divergence_horizon(errors[None], 0.2)
    assert (times.tolist(), observed.tolist()) == ([2], [True])


def test_divergence_horizon_cases():
    nan, inf = math.nan, math.inf
    errors = np.array(
        [
            [0.1, 0.1, 0.1, 0.1],  # never exceeds: at least 4
            [0.1, 0.1, nan, nan],  # the real episode was over after 2
            [0.3, 0.1, 0.1, 0.1],  # exceeds at once, and coming back does not count
            [0.1, inf, inf, inf],  # the simulator broke
            [nan, nan, nan, nan],
            [0.2, 0.2, 0.3, nan],  # at the threshold is within it
        ]
    )
    times, observed = horizon.divergence_horizon(errors, 0.2)
    assert times.tolist() == [4, 2, 0, 1, 0, 2]
    assert observed.tolist() == [False, False, True, True, False, True]
    with pytest.raises(ValueError, match="row 1 has NaN before a number"):
        horizon.divergence_horizon([[0.1, 0.1], [nan, 0.1]], 0.2)
    with pytest.raises(ValueError, match=r"threshold is -1\.0"):
        horizon.divergence_horizon([[0.1]], -1.0)
    with pytest.raises(ValueError, match=r"must be \[n, H\]; got shape \[1\]"):
        horizon.divergence_horizon([0.1], 1.0)


def test_kaplan_meier_reference():
    times, s = horizon.survival(TIMES, OBSERVED)
    assert times.tolist() == [2, 3, 5]
    assert s == pytest.approx([0.75, 0.5, 0.0])
    assert horizon.median_horizon(TIMES, OBSERVED) == 3.0
    assert horizon.rmst(TIMES, OBSERVED) == pytest.approx(3.75)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=15))
@settings(max_examples=60)
def test_survival_equals_scipy(rows):
    times, observed = np.array([t for t, _ in rows]), np.array([o for _, o in rows])
    grid, s = horizon.survival(times, observed)
    theirs = stats.ecdf(stats.CensoredData.right_censored(times, ~observed)).sf
    np.testing.assert_allclose(s, theirs.evaluate(grid), atol=1e-12)
    steps = np.arange(times.max())
    # S is constant between whole numbers, so the area is a sum.
    assert horizon.rmst(times, observed) == pytest.approx(np.sum(theirs.evaluate(steps)))


def test_dropping_censored_windows_would_bias_the_horizon_down():
    rng = np.random.default_rng(0)
    true, end = rng.geometric(0.05, 4000), rng.geometric(0.05, 4000)
    times, observed = np.minimum(true, end), true <= end
    assert abs(horizon.median_horizon(times, observed) - np.median(true)) <= 1
    assert np.median(times[observed]) < 0.7 * np.median(true)


def test_rmst_restriction():
    assert horizon.rmst(TIMES, OBSERVED, tau=3) == pytest.approx(2.75)
    assert horizon.rmst(TIMES, OBSERVED, tau=50) == pytest.approx(3.75)
    assert horizon.rmst(TIMES, OBSERVED, tau=1) == 1.0
    with pytest.raises(ValueError, match=r"tau=9 is not identified: the longest window is censored at 4\.0"):
        horizon.rmst([2, 4], [True, False], tau=9)


def test_median_interval_equals_recomputing_on_resampled_episodes():
    rng = np.random.default_rng(0)
    times, observed, ids = rng.integers(1, 30, 48), rng.random(48) < 0.8, np.arange(48) // 4
    got = horizon.median_horizon_interval(times, observed, ids, seed=2, repetitions=400)
    area = horizon.rmst_interval(times, observed, ids, seed=2, repetitions=400)
    curves, clusters = horizon._resampled_survival(times.astype(float), observed, ids, 2, 400)
    counts = np.random.default_rng(2).multinomial(12, np.full(12, 1 / 12), size=400)
    for row, curve in zip(counts[:40], curves[:40], strict=True):
        rows = np.repeat(np.arange(48), row[ids])
        grid, s = horizon.survival(times[rows], observed[rows])
        np.testing.assert_allclose(curve[np.searchsorted(np.unique(times), grid)], s, atol=1e-12)
    assert (got.n, area.n, clusters) == (12, 12, 12)
    assert got.mean == horizon.median_horizon(times, observed)
    assert area.mean == pytest.approx(horizon.rmst(times, observed))
    assert got.lo < got.mean < got.hi
    assert area.lo < area.mean < area.hi


def test_median_that_is_not_reached_is_null_with_a_reason():
    got = horizon.median_horizon_interval([5, 9, 9, 9], [True, False, False, False], seed=0)
    assert got.mean is None
    assert got.hi is None
    assert "3 of 4 windows ended within the threshold, the longest at 9" in got.why
    assert horizon.median_horizon([9, 9], [False, False]) == math.inf
    assert horizon.median_horizon_interval([], []).why == "no windows"
    assert horizon.rmst_interval([], []).why == "no windows"
    assert horizon.rmst_interval([9, 9], [False, False]).mean == 9.0


def test_coverage_of_the_median_interval():
    # Geometric horizons, half of them censored; a true miss rate of .07 is accepted, with false alarm 1e-4.
    rng = np.random.default_rng(3)
    truth = stats.geom.median(0.03)
    trials = 200
    misses = 0
    for trial in range(trials):
        true, end = rng.geometric(0.03, 40), rng.geometric(0.03, 40)
        got = horizon.median_horizon_interval(np.minimum(true, end), true <= end, seed=trial, repetitions=300)
        misses += (got.lo is not None and got.lo > truth) or (got.hi is not None and got.hi < truth)
    assert misses <= stats.binom.ppf(1 - 1e-4, trials, 0.07)


def test_horizon_errors():
    with pytest.raises(ValueError, match=r"both be \[n\]; got \[2\] and \[1\]"):
        horizon.survival([1, 2], [True])
    with pytest.raises(ValueError, match="finite and not negative"):
        horizon.median_horizon([1.0, math.inf], [True, False])
    with pytest.raises(ValueError, match=r"curve must be \[H\]; got shape \[1, 2\]"):
        horizon.compounding_factor([[0.1, 0.2]])
    assert math.isnan(horizon.rmst([], []))


def test_compounding_factor():
    k = np.arange(1, 8)
    assert horizon.compounding_factor(0.01 * np.exp(0.3 * k)) == pytest.approx(0.3)
    assert horizon.compounding_factor(np.full(5, 0.1)) == pytest.approx(0.0, abs=1e-12)
    assert horizon.compounding_factor(linear_errors(3)) == pytest.approx(0.5 * math.log(2.71))
    # Entries without a logarithm are left out, and the others keep their step.
    curve = 0.01 * np.exp(0.3 * k)
    curve[[0, 3, 6]] = [0.0, math.nan, math.inf]
    assert horizon.compounding_factor(curve) == pytest.approx(0.3)
    assert math.isnan(horizon.compounding_factor([0.0, 0.0, 1.0]))


def test_compounding_interval():
    rng = np.random.default_rng(0)
    errors = 0.01 * np.exp(0.3 * np.arange(1, 11) + 0.3 * rng.normal(size=(60, 10)))
    got = horizon.compounding_interval(errors, np.arange(60) // 3, seed=0)
    assert got.mean == pytest.approx(horizon.compounding_factor(np.median(errors, axis=0)))
    assert got.lo < 0.3 < got.hi
    assert got.n == 20
    flat = horizon.compounding_interval(np.zeros((4, 3)))
    assert flat.mean is None
    assert "fewer than two horizons" in flat.why
