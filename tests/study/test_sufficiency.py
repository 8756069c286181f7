"""One number of fidelity, several kinds of corruption: alike, apart by an amount, apart in shape."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from worldmodel.study.means import WorldModelMeans, per_world_model
from worldmodel.study.sufficiency import scalar_sufficiency
from worldmodel.study.synthetic import CURVES, curve_study
from worldmodel.study.table import StudyTable


def two_kinds(second: str = "linear", lower: float = 0.0, seed: int = 0, seeds: int = 5) -> WorldModelMeans:
    rng = np.random.default_rng(seed)
    first = curve_study(CURVES["linear"], rng, seeds=seeds, levels=4)
    other = curve_study(CURVES[second], rng, seeds=seeds, levels=4)
    own = other.arm == "simulated"
    moved = dataclasses.replace(
        other,
        corruption=np.where(own, "rewards", other.corruption),
        real_return=other.real_return - lower * own,
        policy_seed=other.policy_seed + 1000 * ~own,
    )
    return per_world_model(StudyTable.of([*first.rows(), *moved.rows()]))


def test_kinds_that_share_a_curve():
    # At a true 5%, more than 5 of 20 happens once in 3,000 times.
    found = [scalar_sufficiency(two_kinds(seed=seed)) for seed in range(20)]
    assert sum(f.p_curve <= 0.05 for f in found) <= 5 and sum(f.p_interaction <= 0.05 for f in found) <= 5
    assert found[0].kinds == ("none", "rewards") and found[0].n == 40


def test_kinds_apart_by_an_amount_and_in_shape():
    apart = scalar_sufficiency(two_kinds(lower=0.2))
    assert apart.p_curve < 1e-4 and apart.p_interaction > 0.01
    shaped = scalar_sufficiency(two_kinds("logistic"))
    assert shaped.p_curve < 0.01 and shaped.p_interaction < 0.01


def test_the_interaction_by_hand():
    """Two kinds, two fidelities: the interaction is a t-test of the difference of differences."""
    means = two_kinds(seeds=6)
    means = means.where((means.fidelity == 0.25) | (means.fidelity == 1.0))
    groups = [
        means.real_return[(means.corruption == kind) & (means.fidelity == f)]
        for kind in ("none", "rewards")
        for f in (0.25, 1.0)
    ]
    pooled = np.mean([g.var(ddof=1) for g in groups])
    t = (groups[0].mean() - groups[1].mean() - groups[2].mean() + groups[3].mean()) / np.sqrt(4 * pooled / 6)
    assert scalar_sufficiency(means).p_interaction == pytest.approx(2 * stats.t.sf(abs(t), 20))


def test_what_cannot_be_compared_is_named():
    means = two_kinds()
    with pytest.raises(ValueError, match="compares 2 or more kinds of corruption; there is 1"):
        scalar_sufficiency(means.select(corruption="none"))
    shifted = dataclasses.replace(means, fidelity=means.fidelity + 0.01 * (means.corruption == "rewards"))
    with pytest.raises(ValueError, match="kinds none, rewards have 0 fidelities in common"):
        scalar_sufficiency(shifted)
    with pytest.raises(ValueError, match="a cell has 1"):
        scalar_sufficiency(two_kinds(seeds=1))
