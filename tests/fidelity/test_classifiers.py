from __future__ import annotations

import math

import numpy as np
import pytest

from worldmodel.fidelity import classifiers
from worldmodel.fidelity.two_sample import energy_distance

P, Q = np.array([0.5, 0.5]), np.array([0.8, 0.2])


def test_reference_values():
    assert classifiers.accuracy_z(0.60, 100) == pytest.approx(2.0)
    assert classifiers.accuracy_bound(0.3) == pytest.approx(0.65)
    # The best classifier of both sides at one state and action, and the same blind to what followed.
    delta = classifiers.log_ratio(P / (P + Q), np.full(2, 0.5))
    assert delta == pytest.approx([-0.4700, 0.9163], abs=5e-5)
    assert Q @ -delta == pytest.approx(0.1927, abs=5e-5)


def pairs(seed: int, *, sigma: float, bias: float, episodes: int = 20, steps: int = 20):
    rng = np.random.default_rng(seed)
    n = episodes * steps
    given = rng.normal(size=(n, 2))
    real, sim = (given[:, :1] * 0.9 + sigma * rng.normal(size=(n, 1)) + shift for shift in (0.0, bias))
    # As in the probe: the error about a mean prediction is given, too.
    real, sim = (np.concatenate([side, side - 0.9 * given[:, :1]], axis=1) for side in (real, sim))
    return given, real, sim, np.repeat(np.arange(episodes), steps)


def test_the_null_is_one_half_on_average():
    aucs = np.array([classifiers.paired_c2st(*pairs(s, sigma=0.3, bias=0.0), seed=s).auc.mean for s in range(8)])
    # Each of 3200 pairs is right by a coin's toss: four standard errors, false alarm 6e-5. Leaked pairs give .1 to .24.
    assert abs(aucs.mean() - 0.5) < 4 * 0.5 / math.sqrt(8 * 400)


def test_a_bias_saturates_where_little_is_left_to_chance_and_the_effect_size_does_not():
    found = {}
    for sigma in (0.3, 0.001):
        given, real, sim, ids = pairs(0, sigma=sigma, bias=0.01)
        found[sigma] = classifiers.paired_c2st(given, real, sim, ids), energy_distance(real[:, 1], sim[:, 1])
    assert found[0.3][0].auc.mean < 0.65 and found[0.001][0].auc.mean > 0.99
    assert found[0.001][0].accuracy.lo > 0.95
    assert max(effect for _, effect in found.values()) < 0.05


def test_log_ratio_of_trees_is_about_the_truth_on_two_categories():
    rng = np.random.default_rng(1)
    n, ids = 6000, np.repeat(np.arange(60), 100)
    given = rng.normal(size=(n, 1))
    real, sim = ((rng.uniform(size=(n, 1)) < p[1]).astype(float) for p in (P, Q))
    test = classifiers.paired_c2st(given, real, sim, ids)
    assert -test.log_ratio[1].mean() == pytest.approx(0.1927, abs=0.05)
    for value, wanted in ((0.0, -0.47), (1.0, 0.9163)):
        assert test.log_ratio[0][real[:, 0] == value].mean() == pytest.approx(wanted, abs=0.12)
    assert test.accuracy.mean == pytest.approx(0.65, abs=0.02)


def test_without_the_state_action_term_the_visits_would_be_measured():
    # Equal dynamics, other states: the ratio is near zero, that of the transitions alone is not.
    rng = np.random.default_rng(2)
    n = 1500
    states = [rng.normal(size=(n, 1)) + shift for shift in (0.0, 1.0)]
    real, sim = (np.concatenate([s, 0.9 * s + 0.3 * rng.normal(size=(n, 1))], axis=1) for s in states)
    groups = [np.array([f"{side}{i // 50}" for i in range(n)]) for side in ("real", "sim")]
    on_real, on_sim = classifiers.transition_log_ratio(
        real=real, sim=sim, states=1, groups_real=groups[0], groups_sim=groups[1]
    )
    assert abs(on_real.mean()) < 0.1 and abs(on_sim.mean()) < 0.1
    label = np.repeat([1, 0], n)
    plain = classifiers.out_of_fold(np.concatenate([real, sim]), label, np.concatenate(groups), seed=0, folds=5)
    assert plain[:n].mean() - plain[n:].mean() > 0.15


def test_errors():
    given, real, sim, ids = pairs(0, sigma=0.3, bias=0.0, episodes=3, steps=4)
    with pytest.raises(ValueError, match="at least 2 episodes"):
        classifiers.paired_c2st(given, real, sim, np.zeros(12, int))
    with pytest.raises(ValueError, match=r"the same rows; got \[12, 2\], \[12, 2\], \[11, 2\]"):
        classifiers.paired_c2st(given, real, sim[:11], ids)
    sim[5] = np.nan
    with pytest.raises(ValueError, match="row 17 has a value that is not finite"):
        classifiers.paired_c2st(given, real, sim, ids)
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        classifiers.log_ratio([1.0], [0.5])
    with pytest.raises(ValueError, match="0 < states < F"):
        classifiers.transition_log_ratio(real=real, sim=real, states=2, groups_real=ids, groups_sim=ids)
    with pytest.raises(ValueError, match="at least one row"):
        classifiers.accuracy_z(0.5, 0)
