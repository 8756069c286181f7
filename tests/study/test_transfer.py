"""Transfer efficiency: by hand, refused without headroom, and on the scale of its anchors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from worldmodel.study.means import per_world_model
from worldmodel.study.synthetic import BASE, CURVES, REFERENCE, Noise, curve_study
from worldmodel.study.table import StudyTable
from worldmodel.study.transfer import as_efficiency, fieller, headroom_of, transfer_efficiency


def study(seed=0, **options):
    return per_world_model(curve_study(CURVES["linear"], np.random.default_rng(seed), **{"seeds": 5, **options}))


def test_efficiency_by_hand():
    y, base, reference = np.array([4.0, 6.0]), np.array([1.0, 3.0]), np.array([9.0, 11.0])
    found = fieller(y, base, reference)
    assert found.mean == pytest.approx((5 - 2) / (10 - 2)) and found.n == 2
    # The ends are where the test of y - r reference - (1 - r) base is at its critical value.
    from scipy import stats

    shares = np.array([1.0, (1 - 0.375) ** 2, 0.375**2])
    t = stats.t.ppf(0.975, shares.sum() ** 2 / (shares**2).sum())
    for end in (found.lo, found.hi):
        off = 5 - end * 10 - (1 - end) * 2
        assert abs(off) == pytest.approx(t * np.sqrt(1 + end**2 + (1 - end) ** 2), rel=1e-6)


def test_fieller_and_bootstrap_agree():
    means = study(seeds=40).select(fidelity=0.5)
    exact, drawn = (transfer_efficiency(means, method=method) for method in ("fieller", "bootstrap"))
    assert exact.mean == drawn.mean == pytest.approx(0.5, abs=0.06)
    assert (drawn.lo, drawn.hi) == pytest.approx((exact.lo, exact.hi), abs=0.01)


def test_without_headroom_nothing_is_said_of_transfer():
    means = study().select(fidelity=0.5)
    flat = dataclasses.replace(
        means, real_return=np.where(means.arm == "reference", means.real_return - (REFERENCE - BASE), means.real_return)
    )
    for method in ("fieller", "bootstrap"):
        found = transfer_efficiency(flat, method=method)
        assert (found.mean, found.lo, found.hi) == (None, None, None) and found.why.startswith("no headroom: ")
    room = headroom_of(flat)
    assert room.lo < 0 < room.hi and "not clear of zero" in room.why
    assert headroom_of(means).why is None and headroom_of(means).mean == pytest.approx(REFERENCE - BASE, abs=0.1)
    with pytest.raises(ValueError, match=r"made up \(complexity 1.0, diversity 1.0, training\): no headroom"):
        as_efficiency(flat)
    assert fieller(np.array([1.0, 2.0]), np.zeros(2), np.array([-1.0, 1.5])).lo is None


def test_returns_on_the_scale_of_their_anchors():
    means = study(noise=Noise(1e-3, 0.0, 1))
    harder = curve_study(CURVES["linear"], np.random.default_rng(1), seeds=5, noise=Noise(1e-3, 0.0, 1))
    harder = dataclasses.replace(harder, complexity=harder.complexity + 1, real_return=10 * harder.real_return - 3)
    both = StudyTable.of([*curve_study(CURVES["linear"], np.random.default_rng(0), seeds=5).rows(), *harder.rows()])
    scaled = as_efficiency(per_world_model(both))
    own = scaled.select(complexity=2.0)
    assert own.returns("reference").mean() == pytest.approx(1.0) and own.returns("no_training").mean() == pytest.approx(
        0
    )
    assert own.select(fidelity=0.5).returns("simulated").mean() == pytest.approx(0.5, abs=0.01)
    with pytest.raises(ValueError, match="takes one complexity at a time"):
        headroom_of(per_world_model(both))
    with pytest.raises(ValueError, match="at least 2 units of arm 'no_training'"):
        headroom_of(means.where(means.arm != "no_training"))


def test_anchors_without_a_diversity_stand_for_all():
    rows = curve_study(CURVES["linear"], np.random.default_rng(0), seeds=4, levels=2, noise=Noise(0.01, 0.0, 2))
    anchors = rows.arm != "simulated"
    rows = dataclasses.replace(rows, diversity=np.where(anchors, np.nan, 1.0 + rows.policy_seed))
    scaled = as_efficiency(per_world_model(rows))
    assert scaled.returns("reference").mean() == pytest.approx(1.0)
    assert scaled.select(fidelity=1.0).returns("simulated").mean() == pytest.approx(1.0, abs=0.05)
