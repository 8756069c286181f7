"""Thresholds of one response curve: values by hand, refusals, and coverage at a small size."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy.optimize import curve_fit, isotonic_regression

from worldmodel.study.bracketing import bracket, seeds_for_non_inferiority
from worldmodel.study.breaks import HANSEN_95, break_test, jump, kink
from worldmodel.study.estimands import BreakEven, Tolerance, crossing, first_level, sustained_level
from worldmodel.study.every_threshold import thresholds
from worldmodel.study.isotonic import between_levels, isotonic_threshold
from worldmodel.study.least_squares import least_squares
from worldmodel.study.means import per_world_model
from worldmodel.study.response import pooled_adjacent, resampled_means
from worldmodel.study.sigmoid import fit_sigmoid, sigmoid_threshold
from worldmodel.study.synthetic import BASE, CURVES, REFERENCE, Noise, curve_study

PHI = np.array([0.2, 0.4, 0.6, 0.8, 1.0])
MEAN = np.array([0.1, 0.5, 0.88, 0.9, 0.92])
TENTH = Tolerance(0.1)
QUIET = Noise(1e-4, 0.0, 1)


def study(curve, seed=0, **options):
    return per_world_model(curve_study(CURVES[curve], np.random.default_rng(seed), **{"seeds": 5, **options}))


# --- By hand ----------------------------------------------------------------------------------------------------------


def test_the_threshold_of_a_known_curve():
    assert sustained_level(PHI, MEAN, MEAN[-1] - 0.05) == 0.6
    assert sustained_level(PHI, MEAN, 1.0) is None and sustained_level(PHI, MEAN, 0.0) == 0.2
    dip = np.array([0.1, 0.9, 0.5, 0.9, 0.9])
    assert sustained_level(PHI, dip, 0.85) == 0.8 and first_level(PHI, dip, 0.85) == 0.4


def test_crossings_between_levels():
    rows = np.stack([MEAN, np.zeros(5), np.ones(5), MEAN])
    found = crossing(PHI, rows, np.array([0.3, 0.5, 0.5, 0.5]))
    assert found == pytest.approx([0.3, math.inf, -math.inf, 0.4])


def test_constant_of_hansen():
    assert pytest.approx(7.352, abs=5e-4) == HANSEN_95


@pytest.mark.parametrize(
    ("sd", "delta", "seeds"), [(0.087, 0.05, 38), (0.087, 0.1, 10), (0.15, 0.05, 112), (0.15, 0.1, 28)]
)
def test_seeds_for_non_inferiority(sd, delta, seeds):
    assert seeds_for_non_inferiority(sd, delta) == seeds


def test_isotonic_regression_by_hand():
    fit = pooled_adjacent(np.array([[1.0, 3.0, 2.0, 4.0], [4.0, 3.0, 2.0, 1.0]]), np.array([1.0, 1.0, 3.0, 1.0]))
    assert fit[0] == pytest.approx([1.0, 2.25, 2.25, 4.0])
    assert fit[1] == pytest.approx([14 / 6] * 4)


def test_isotonic_regression_is_that_of_scipy():
    rng = np.random.default_rng(0)
    y, weight = rng.normal(size=(20, 9)) + 0.3 * np.arange(9), rng.integers(1, 5, 9).astype(float)
    for row, fit in zip(y, pooled_adjacent(y, weight), strict=True):
        assert fit == pytest.approx(isotonic_regression(row, weights=weight).x)


def test_where_a_bend_can_put_the_crossing():
    # Straight on: the chord says it all. After it the curve is flat: it may have turned earlier, never later.
    assert between_levels(PHI, np.array([0.0, 0.2, 0.4, 0.6, 0.8]), 0.5) == pytest.approx((0.7, 0.7))
    assert between_levels(PHI, np.array([0.0, 0.4, 0.6, 0.6, 0.6]), 0.5) == pytest.approx((0.45, 0.5))
    # A step: anywhere in its gap.
    assert between_levels(PHI, np.array([0.0, 0.0, 0.0, 1.0, 1.0]), 0.5) == pytest.approx((0.6, 0.8))


def test_resampled_means_have_the_variance_of_the_mean():
    values = np.array([0.0, 1.0, 5.0])
    drawn = resampled_means(values, np.random.default_rng(0), 200_000)
    assert drawn.var() == pytest.approx(values.var(ddof=1) / 3, rel=0.02) and drawn.mean() == pytest.approx(
        2.0, abs=0.02
    )


def test_many_fits_are_the_fits_of_each():
    x = np.linspace(0, 1, 12)
    rng = np.random.default_rng(0)
    y = 0.2 + 0.7 / (1 + np.exp(-9 * (x - 0.4))) + 0.05 * rng.normal(size=(6, 12))
    together = fit_sigmoid(x, y, np.ones(12), start=np.array([0.2, 0.7, math.log(9.0), 0.4]))
    for row, found in zip(y, together, strict=True):
        best, _ = curve_fit(lambda t, a, b, k, m: a + b / (1 + np.exp(-np.exp(k) * (t - m))), x, row, p0=found)
        assert found == pytest.approx(best, abs=1e-3)


def test_least_squares_never_gets_worse_and_stays_inside():
    def line(p):
        return p[:, :1] * np.arange(3.0), np.broadcast_to(np.arange(3.0)[None, :, None], (len(p), 3, 1))

    y = np.array([[0.0, 2.0, 4.0], [0.0, 9.0, 18.0]])
    at, rss = least_squares(line, np.zeros((2, 1)), y, np.ones(3), lower=np.array([0.0]), upper=np.array([5.0]))
    assert at[:, 0] == pytest.approx([2.0, 5.0]) and rss == pytest.approx([0.0, 16.0 + 64.0], abs=1e-6)


# --- Known curves, hardly any noise -----------------------------------------------------------------------------------


def test_brackets_of_known_curves():
    found = bracket(study("logistic", noise=QUIET), TENTH)
    assert (found.lower, found.upper, found.why) == (0.5, 0.6, None) and found.n == 50
    assert found.holds(CURVES["logistic"].tolerance(0.1)) and not found.holds(0.5) and not found.holds(0.61)
    worst = bracket(study("flat", noise=QUIET), TENTH)
    assert worst.lower == 1.0 and worst.upper is None and "not even fidelity 1 is shown to reach" in worst.why
    # Break-even: the flat curve lies at the base, where neither is shown. The straight line is above it from the start.
    assert bracket(study("linear", noise=QUIET), BreakEven()).upper == 0.1
    relative = bracket(study("hinge", noise=QUIET), Tolerance(0.1, relative=True))
    assert (relative.lower, relative.upper) == (0.5, 0.6)
    assert json.loads(json.dumps(worst.to_json(), allow_nan=False))["upper"] is None


def test_thresholds_of_known_curves():
    truth = CURVES["hinge"].tolerance(0.1)
    assert truth == pytest.approx(0.6 - 0.1 * 0.6 / (REFERENCE - BASE), abs=1e-5)
    found = isotonic_threshold(study("hinge", noise=QUIET), TENTH)
    assert found.mean == pytest.approx(truth, abs=1e-3) and found.lo <= truth <= found.hi
    truth = CURVES["logistic"].tolerance(0.1)
    for jittered in (False, True):
        sigmoid = sigmoid_threshold(study("logistic", noise=QUIET, jittered=jittered), TENTH)
        assert sigmoid.threshold.mean == pytest.approx(truth, abs=1e-3)
        assert (sigmoid.slope, sigmoid.middle) == pytest.approx((12.0, 0.45), rel=0.01)
    found = kink(study("hinge"))
    assert found.place.lo <= 0.6 <= found.place.hi and found.p < 0.01 and found.after == 0.0
    found = jump(study("step", jittered=True))
    assert found.place.lo <= 0.55 <= found.place.hi and found.place.hi - found.place.lo < 0.1
    assert (found.before, found.after) == pytest.approx((BASE, REFERENCE), abs=0.08)


def test_a_sigmoid_of_the_logarithm():
    means = study("logistic", noise=QUIET)
    amounts = dataclasses.replace(means, fidelity=np.exp(10 * means.fidelity))
    found = sigmoid_threshold(amounts, TENTH, log=True).threshold
    assert math.log(found.mean) / 10 == pytest.approx(CURVES["logistic"].tolerance(0.1), abs=1e-3)
    with pytest.raises(ValueError, match="with log=True amounts must be positive"):
        sigmoid_threshold(dataclasses.replace(means, fidelity=means.fidelity - 0.1), TENTH, log=True)


# --- Refusals ---------------------------------------------------------------------------------------------------------


def test_a_step_on_a_grid_is_never_bootstrapped():
    means = study("step", seeds=10)
    for found in (isotonic_threshold(means, TENTH), sigmoid_threshold(means, TENTH).threshold, jump(means).place):
        assert (found.mean, found.lo, found.hi) == (None, None, None)
        assert "a step on a grid cannot be" in found.why
    jittered = study("step", seeds=10, jittered=True)
    assert "use jump" in sigmoid_threshold(jittered, TENTH).threshold.why
    assert "on a grid of levels only" in isotonic_threshold(jittered, TENTH).why
    with pytest.raises(ValueError, match=r"fidelity 0.005 has 1: use a grid"):
        bracket(jittered, TENTH)


@pytest.mark.parametrize("jittered", [False, True])
def test_a_curve_that_falls_is_refused(jittered):
    for curve in ("opposite", "dip"):
        means = study(curve, seeds=20, jittered=jittered)
        assert "falls as fidelity rises" in sigmoid_threshold(means, TENTH, repetitions=50).threshold.why
        assert "falls" in isotonic_threshold(study(curve, seeds=20), TENTH).why
        assert kink(means).place.mean is None


def test_breaks_are_not_seen_where_another_shape_fits_better():
    assert "lack of fit" in kink(study("logistic", seeds=20)).place.why
    assert "a sigmoid" in jump(study("logistic", seeds=10, jittered=True)).place.why
    assert "a straight line does as well" in kink(study("linear", seeds=10)).place.why
    assert break_test(np.arange(8.0), np.arange(8.0), "kink") == 1.0


def test_the_reference_is_an_arm_of_its_own():
    means = study("hinge")
    with pytest.raises(ValueError, match=r"at least 2 runs of arm 'reference', .* own top is no substitute"):
        isotonic_threshold(means.where(means.arm == "simulated"), TENTH)
    with pytest.raises(ValueError, match="at least 2 runs of arm 'no_training'"):
        bracket(means.where(means.arm != "no_training"), BreakEven())
    with pytest.raises(ValueError, match="needs at least 2 levels of fidelity"):
        kink(means.where(means.arm == "reference"))
    with pytest.raises(ValueError, match="needs at least 5 levels"):
        sigmoid_threshold(study("hinge", levels=4), TENTH)
    with pytest.raises(ValueError, match="delta must be positive"):
        Tolerance(0.0)


def test_all_thresholds_in_one_answer():
    for options in ({}, {"jittered": True}):
        said = thresholds(study("logistic", **options), TENTH, repetitions=100)
        assert set(said) == {"bracket", "isotonic", "sigmoid", "kink", "jump"}
        assert all("why" in value for value in said.values() if None in value.values())
        json.dumps(said, allow_nan=False)


# --- Coverage, small; eval/study_validation.py does it at size --------------------------------------------------------


def test_intervals_cover_and_no_kink_is_invented():
    """30 studies: at a true 95% fewer than 24 are once in 1,700 times, at a true 5% more than 6 as rarely."""
    truth = CURVES["logistic"].tolerance(0.1)
    covered, alarms = np.zeros(3), 0
    for seed in range(30):
        means = study("logistic", seed, seeds=6)
        both = (
            isotonic_threshold(means, TENTH, seed=seed, repetitions=300),
            sigmoid_threshold(means, TENTH, seed=seed, repetitions=200),
        )
        for i, found in enumerate((both[0], both[1].threshold)):
            low, high = (end if end is not None else sign * math.inf for end, sign in ((found.lo, -1), (found.hi, 1)))
            covered[i] += low <= truth <= high
        covered[2] += bracket(means, TENTH).holds(truth)
        alarms += kink(study("linear", seed, seeds=8), seed=seed, repetitions=199).place.mean is not None
    assert (covered >= 24).all() and alarms <= 6
