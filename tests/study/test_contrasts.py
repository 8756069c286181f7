"""Factorial contrasts: exact in a balanced grid, honest in an unbalanced one; and the pooled fit of thresholds."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from worldmodel.study.contrasts import design_matrix, factorial, freedman_lane, holm, orthonormal
from worldmodel.study.means import per_world_model
from worldmodel.study.pooled import pooled_threshold
from worldmodel.study.synthetic import Noise, factorial_study, shifted_study
from worldmodel.study.table import StudyTable

EFFECTS = {"CF": 0.03, "DF": -0.03, "CDF": 0.02, "CD": 0.01}
NOTHING = Noise(1e-9, 0.0, 1)


def means_of(effects, seed=0, seeds=3, **options):
    return per_world_model(factorial_study(effects, np.random.default_rng(seed), seeds=seeds, **options))


def test_trends_are_orthonormal():
    trends = orthonormal(np.array([1.0, 1, 2, 3, 3]), 2)
    levels = trends[[0, 2, 3]]
    assert levels.T @ levels / 3 == pytest.approx(np.eye(2)) and levels.sum(axis=0) == pytest.approx([0, 0], abs=1e-12)
    assert levels[:, 0] == pytest.approx(np.sqrt(1.5) * np.array([-1, 0, 1]))
    design, names = design_matrix(means_of({}))
    assert design.T @ design / len(design) == pytest.approx(np.eye(len(names)), abs=1e-10)


def test_planted_effects_are_found_exactly_without_noise():
    found = factorial(means_of(EFFECTS, noise=NOTHING))
    assert found.balanced and {c.name: c.effect.mean for c in found.raw} == pytest.approx(EFFECTS, abs=1e-6)
    assert found.logit is None and "bounds" in found.why


def test_the_test_is_that_of_analysis_of_variance():
    """The contrast's F in a balanced grid: its sum of squares over the mean square within cells."""
    means = means_of(EFFECTS)
    found = factorial(means).raw[0]
    c, f = (orthonormal(getattr(means, name), 1)[:, 0] for name in ("complexity", "fidelity"))
    cells = np.unique(np.stack([means.complexity, means.diversity, means.fidelity]), axis=1, return_inverse=True)[1]
    cell = cells.reshape(-1)
    inside = means.real_return - (np.bincount(cell, means.real_return) / np.bincount(cell))[cell]
    df = len(means) - 45
    effect = float((c * f * means.real_return).mean())
    ratio = len(means) * effect**2 / (float(inside @ inside) / df)
    assert found.effect.mean == pytest.approx(effect)
    assert found.p == pytest.approx(stats.f.sf(ratio, 1, df))


def test_holm_by_hand():
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([[0.9, 0.9], [0.01, 0.5]])) == pytest.approx(np.array([[1.0, 1.0], [0.02, 0.5]]))


def test_both_scales_are_reported():
    """Effects that add on the logit interact on the scale of the rate, and only there."""
    means = means_of({}, noise=NOTHING)
    c, f = (orthonormal(getattr(means, name), 1)[:, 0] for name in ("complexity", "fidelity"))
    rng = np.random.default_rng(0)
    logit = 1.0 + c + f + 1e-3 * rng.normal(size=len(means))
    found = factorial(dataclasses.replace(means, real_return=1 / (1 + np.exp(-logit))), bounds=(0.0, 1.0))
    assert found.raw[0].p < 1e-6 and found.logit is not None and abs(found.logit[0].effect.mean) < 1e-3
    json.dumps(found.to_json(), allow_nan=False)
    with pytest.raises(ValueError, match="do not hold all returns"):
        factorial(means, bounds=(0.0, 0.1))


def test_permutation_agrees_and_needs_no_normal_errors():
    means = means_of({"CF": 0.02})
    found = factorial(means, permutations=999).raw[0]
    assert found.p_permutation == pytest.approx(found.p, abs=0.03)
    design, names = design_matrix(means)
    heavy = np.random.default_rng(1).standard_t(2, len(means))
    assert freedman_lane(design, names.index("CF"), heavy + 9 * design[:, names.index("CF")], 199, 0) == 1 / 200


def test_an_unbalanced_grid_is_told_apart_or_refused():
    means = means_of(EFFECTS, noise=NOTHING, seeds=4)
    fewer = means.where(np.random.default_rng(0).uniform(size=len(means)) > 0.2)
    found = factorial(fewer)
    assert not found.balanced and {c.name: c.effect.mean for c in found.raw} == pytest.approx(EFFECTS, abs=1e-6)
    hole = (means.complexity == 3) & (means.diversity == 3)
    with pytest.raises(ValueError, match="no degrees of freedom or cannot tell terms apart"):
        factorial(means.where(~hole))
    with pytest.raises(ValueError, match="45 terms for 45 world models"):
        factorial(means_of({}, seeds=1))
    with pytest.raises(ValueError, match="at least 2 levels of diversity; there are 1"):
        factorial(means.select(diversity=1.0))
    with pytest.raises(ValueError, match="contrast 'FC' cannot be formed; these can: "):
        factorial(means, contrasts=["FC"])


def test_jittered_fidelities_and_several_environments():
    rows = factorial_study({}, np.random.default_rng(0), seeds=8, noise=NOTHING)
    fidelity = np.random.default_rng(1).uniform(size=len(rows))
    both = [{**row, "environment": name} for name in ("one", "two") for row in rows.rows()]
    table = dataclasses.replace(StudyTable.of(both), fidelity=np.tile(fidelity, 2))
    z = orthonormal(table.fidelity, 1)[:, 0] * (table.complexity - 2) * np.sqrt(1.5)
    shift = 0.05 * z + 10.0 * (table.environment == "two")
    noise = 1e-3 * np.random.default_rng(2).normal(size=len(table))
    found = factorial(per_world_model(dataclasses.replace(table, real_return=shift + noise)))
    assert found.raw[0].effect.mean == pytest.approx(0.05, abs=1e-3)
    assert not found.balanced


def test_pseudo_replication_is_what_it_is_said_to_be():
    """Four policies a world model taken for world models: absent interactions are found too often; so never here."""
    right = wrong = 0
    for seed in range(25):
        rows = factorial_study({}, np.random.default_rng(seed), seeds=3, noise=Noise(0.08, 0.05, 4))
        right += any(c.p_holm <= 0.05 for c in factorial(per_world_model(rows)).raw)
        taken_apart = dataclasses.replace(rows, world_model_seed=np.arange(len(rows)))
        wrong += any(c.p_holm <= 0.05 for c in factorial(per_world_model(taken_apart)).raw)
    # At a true 5%, more than 6 of 25 happens once in 5,000 times.
    assert right <= 6 and wrong >= 8


# --- Thresholds moved by dials ----------------------------------------------------------------------------------------

SHIFTS = {"alpha_C": 0.06, "alpha_D": -0.04, "alpha_CD": 0.02}


def test_planted_shifts_are_found():
    rows = shifted_study(SHIFTS, np.random.default_rng(0), seeds=2, noise=Noise(1e-4, 0.0, 1))
    fit = pooled_threshold(per_world_model(rows), repetitions=50)
    truth = {"L": 0.2, "U": 0.9, "k": 12.0, "tau_0": 0.5, **SHIFTS}
    assert {name: fit[name].mean for name in truth} == pytest.approx(truth, abs=2e-3)
    assert fit.raises("alpha_C") is True and fit.raises("alpha_D") is False
    json.dumps(fit.to_json(), allow_nan=False)


def test_noise_is_stated_and_an_absent_shift_stays_open():
    means = per_world_model(shifted_study({"alpha_C": 0.06}, np.random.default_rng(0), seeds=4))
    fit = pooled_threshold(means, repetitions=300)
    assert fit.raises("alpha_C") is True and fit.raises("alpha_D") is None and fit.n == 4 * 54
    assert fit["alpha_C"].lo < 0.06 < fit["alpha_C"].hi and fit["alpha_C"].hi - fit["alpha_C"].lo < 0.05
    # A fidelity of its own for every world model.
    jittered = dataclasses.replace(means, fidelity=means.fidelity + np.linspace(-1e-3, 1e-3, len(means)))
    again = pooled_threshold(jittered, repetitions=50)
    assert again["alpha_C"].mean == pytest.approx(fit["alpha_C"].mean, abs=2e-3)


def test_a_dial_with_one_level_moves_nothing():
    means = per_world_model(shifted_study({"alpha_C": 0.06}, np.random.default_rng(0), seeds=2))
    fit = pooled_threshold(means.select(diversity=2.0), repetitions=50)
    assert (
        fit["alpha_D"].mean is None
        and fit["alpha_D"].why == "diversity has one level"
        and fit.raises("alpha_CD") is None
    )
    assert fit["alpha_C"].mean == pytest.approx(0.06, abs=0.03)
    with pytest.raises(ValueError, match="both have one"):
        pooled_threshold(means.select(diversity=2.0, complexity=1.0))
    with pytest.raises(ValueError, match="at least 4 levels of fidelity; there are 3"):
        pooled_threshold(means.where(means.fidelity > 0.5))


def test_efficiency_takes_out_other_anchors():
    rng = np.random.default_rng(0)
    means = per_world_model(shifted_study({"alpha_C": 0.06}, rng, seeds=3, noise=Noise(1e-3, 0.0, 1)))
    rows = [
        {"environment": "made up", "corruption": None, "deployment": "training", "complexity": c, "diversity": None}
        | {"fidelity": None, "world_model_seed": None, "policy_seed": i, "arm": arm}
        | {"real_return": c * value + 1e-3 * rng.normal()}
        for c in (1.0, 2.0, 3.0)
        for arm, value in (("reference", 0.9), ("no_training", 0.2))
        for i in range(4)
    ]
    own = dataclasses.replace(means, real_return=means.complexity * means.real_return)
    anchors = per_world_model(StudyTable.of(rows))
    joined = {
        f.name: np.concatenate([getattr(own, f.name), getattr(anchors, f.name)]) for f in dataclasses.fields(own)[:-1]
    }
    together = type(own)(**joined)
    fit = pooled_threshold(together, scale="efficiency", repetitions=50)
    assert fit["alpha_C"].mean == pytest.approx(0.06, abs=2e-3)
    assert (fit["L"].mean, fit["U"].mean) == pytest.approx((0.0, 1.0), abs=0.01)
    with pytest.raises(ValueError, match="complexity 1, diversity 1: no headroom, or fewer than 2 units"):
        pooled_threshold(own, scale="efficiency")
