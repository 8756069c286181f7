from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics.pairwise import rbf_kernel

from worldmodel.fidelity import two_sample

X, Y = np.array([0.0, 1.0]), np.array([2.0, 3.0])


def test_reference_values():
    assert two_sample.energy_distance(X, Y) == pytest.approx(3.0)
    assert stats.energy_distance(X, Y) == pytest.approx(1.732, abs=5e-4)
    assert two_sample.wasserstein1(X, Y) == pytest.approx(2.0)
    assert two_sample.mmd2_unbiased(X, Y, gamma=1.0) == pytest.approx(0.5334, abs=5e-5)
    assert two_sample.mmd2_unbiased(X, X, gamma=1.0) == pytest.approx(-0.6321, abs=5e-5)


def test_agreement_with_scipy_and_scikit_learn():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=37), rng.normal(size=23) + 0.5
    assert two_sample.energy_distance(x, y) == pytest.approx(stats.energy_distance(x, y) ** 2, rel=1e-9)
    assert two_sample.wasserstein1(x, y) == pytest.approx(stats.wasserstein_distance(x, y), rel=1e-9)
    a, b = rng.normal(size=(11, 3)), rng.normal(size=(11, 3)) + 0.3
    assert two_sample.wasserstein1(a, b) == pytest.approx(stats.wasserstein_distance_nd(a, b), abs=1e-6)
    gamma = two_sample.median_gamma(a, b)
    k_xx, k_yy, k_xy = rbf_kernel(a, a, gamma), rbf_kernel(b, b, gamma), rbf_kernel(a, b, gamma)
    within = [(k.sum() - np.trace(k)) / (len(k) * (len(k) - 1)) for k in (k_xx, k_yy)]
    assert two_sample.mmd2_unbiased(a, b) == pytest.approx(sum(within) - 2 * k_xy.mean(), abs=1e-9)


def test_agreement_with_pot():
    ot = pytest.importorskip("ot", reason="POT is not installed: 180 MB for one comparison")
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(31, 4)), rng.normal(size=(31, 4)) + 0.2
    directions = two_sample.random_directions(4, 13, seed=0)
    theirs = ot.sliced_wasserstein_distance(x, y, projections=directions.T, p=1)
    assert two_sample.sliced_wasserstein(x, y, directions) == pytest.approx(theirs, abs=1e-6)
    assert two_sample.wasserstein1(x, y) == pytest.approx(ot.emd2([], [], ot.dist(x, y, "euclidean")), abs=1e-6)


def test_sliced_distance_of_a_shift_by_hand():
    rng = np.random.default_rng(2)
    x, shift = rng.normal(size=(50, 3)), np.array([3.0, 0.0, 0.0])
    directions = two_sample.random_directions(3, 200, seed=1)
    assert np.linalg.norm(directions, axis=1) == pytest.approx(1.0)
    # A projection moves by the shift's component along it; half of it on average in three dimensions.
    wanted = np.abs(directions @ shift).mean()
    assert two_sample.sliced_wasserstein(x, x + shift, directions) == pytest.approx(wanted, rel=1e-9)
    assert wanted == pytest.approx(1.5, rel=0.1)


def test_unbiased_forms_have_mean_zero_for_equal_distributions():
    rng = np.random.default_rng(3)
    draws = [rng.normal(size=(2, 15, 2)) for _ in range(300)]
    for statistic in (
        lambda a, b: two_sample.mmd2_unbiased(a, b, gamma=0.5),
        lambda a, b: two_sample.energy_distance(a, b, unbiased=True),
    ):
        values = np.array([statistic(a, b) for a, b in draws])
        # Four standard errors: false alarm 6e-5.
        assert abs(values.mean()) < 4 * values.std(ddof=1) / math.sqrt(len(values))
        assert values.min() < 0
    assert np.mean([two_sample.energy_distance(a, b) for a, b in draws]) > 0.05


def test_energy_coefficient_is_a_share():
    assert two_sample.energy_coefficient([0.0, 0.0], [1.0, 1.0]) == 1.0
    assert two_sample.energy_coefficient(X, X) == 0.0
    assert two_sample.energy_coefficient([1.0], [1.0]) == 0.0


def test_errors():
    with pytest.raises(ValueError, match="x has 2 dimensions and y 1"):
        two_sample.energy_distance(np.zeros((3, 2)), np.zeros(3))
    with pytest.raises(ValueError, match="y has a value that is not finite in row 1"):
        two_sample.energy_distance(X, [0.0, np.nan])
    with pytest.raises(ValueError, match="at least 2 rows"):
        two_sample.mmd2_unbiased([1.0], Y)
    with pytest.raises(ValueError, match="at least 1 rows"):
        two_sample.energy_distance([], Y)
    with pytest.raises(ValueError, match="gamma is -1"):
        two_sample.mmd2_unbiased(X, Y, gamma=-1.0)
    with pytest.raises(ValueError, match="median distance between rows is zero"):
        two_sample.mmd2_unbiased([1.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="equally many rows; got 2 and 3"):
        two_sample.wasserstein1(np.zeros((2, 2)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"directions must be \[P, 1\]"):
        two_sample.sliced_wasserstein(X, Y, np.zeros((3, 2)))
