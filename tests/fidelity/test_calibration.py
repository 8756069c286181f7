from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from worldmodel.fidelity import calibration
from worldmodel.fidelity.one_step import pit

P, Y = [0.9, 0.9, 0.9, 0.9, 0.1], [1, 1, 1, 0, 0]


def test_reference_values():
    assert calibration.expected_calibration_error(P, Y, bins=2) == pytest.approx(0.14)
    assert calibration.brier(P, Y).mean == pytest.approx(0.17)


def test_agreement_with_scikit_learn():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=211)
    y = rng.uniform(size=211) < p**2
    assert calibration.brier(p, y).mean == pytest.approx(brier_score_loss(y, p), abs=1e-12)
    observed, stated = calibration_curve(y, p, n_bins=7)
    ours = calibration.reliability(p, y, 7)
    np.testing.assert_allclose(ours["stated"], stated)
    np.testing.assert_allclose(ours["observed"], observed)
    share = np.array(ours["n"]) / 211
    assert calibration.expected_calibration_error(p, y, 7) == pytest.approx(np.sum(share * np.abs(stated - observed)))


def test_interval_equals_recomputing_on_resampled_episodes():
    rng = np.random.default_rng(1)
    ids, p = np.repeat(np.arange(6), 7), rng.uniform(size=42)
    y = rng.uniform(size=42) < p
    got = calibration.ece_interval(p, y, ids, seed=3, bins=4, repetitions=200)
    assert got.mean == pytest.approx(calibration.expected_calibration_error(p, y, 4)) and got.n == 6
    draws = []
    for row in np.random.default_rng(3).multinomial(6, np.full(6, 1 / 6), size=200):
        rows = np.repeat(np.arange(42), row[ids])
        draws.append(calibration.expected_calibration_error(p[rows], y[rows], 4))
    assert any(got.lo == pytest.approx(d) for d in draws) and any(got.hi == pytest.approx(d) for d in draws)
    assert calibration.ece_interval([], [], None).why == "no transitions"


def test_pit_tells_a_calibrated_forecast_from_a_bold_and_a_biased_one():
    rng = np.random.default_rng(2)
    n, truth = 6000, rng.normal(size=6000)
    errors = {}
    for name, scale, shift in (("calibrated", 1.0, 0.0), ("bold", 0.4, 0.0), ("biased", 1.0, 1.0)):
        places = pit(shift + scale * rng.normal(size=(19, n)), truth, seed=1)
        shares = np.array(calibration.pit_histogram(places))
        errors[name] = calibration.pit_error_interval(places, np.arange(n) // 20)
        assert shares.sum() == pytest.approx(1.0) and errors[name].mean == pytest.approx(calibration.pit_error(places))
        if name == "bold":
            assert shares[0] > 0.2 and shares[-1] > 0.2
        if name == "biased":
            assert shares[0] > 0.3 and shares[-1] < 0.03
    # Chance leaves each of ten shares about sqrt(9 / n) of a tenth off: .04; twice that bounds the mean of ten.
    assert errors["calibrated"].mean < 0.08
    assert min(errors["bold"].lo, errors["biased"].lo) > 0.3
    assert calibration.sharpness(np.arange(21.0)[:, None], 0.9) == pytest.approx([18.0])


def test_errors():
    with pytest.raises(ValueError, match=r"probability\[0\] is outside \[0, 1\]"):
        calibration.brier([1.5], [1])
    with pytest.raises(ValueError, match="outcome must be 0 or 1"):
        calibration.brier([0.5], [2])
    with pytest.raises(ValueError, match="bins is 0"):
        calibration.expected_calibration_error(P, Y, bins=0)
    with pytest.raises(ValueError, match="at least one"):
        calibration.expected_calibration_error([], [])
    with pytest.raises(ValueError, match=r"places must lie in \[0, 1\]"):
        calibration.pit_histogram([np.nan])
    with pytest.raises(ValueError, match="at least 2 samples"):
        calibration.sharpness(np.zeros((1, 3)))
