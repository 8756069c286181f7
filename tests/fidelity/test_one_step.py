import json
import math

import numpy as np
import pytest
from scipy import special, stats

from worldmodel.fidelity import one_step
from worldmodel.fidelity.estimates import json_safe


def test_linear_reference_error():
    # Real x' = .9 x, simulated x' = 1.0 x, at x = 1 and x = -1: error .1, which is that of predicting no change.
    x = np.array([[1.0], [-1.0]] * 5)
    got = one_step.nrmse(1.0 * x, 0.9 * x, x)
    assert got.rmse == pytest.approx([0.1])
    assert got.overall.mean == pytest.approx(1.0)
    assert one_step.persistence_nrmse(0.9 * x, x).overall.mean == pytest.approx(1.0)
    # The same error where true changes have standard deviation 1.
    change = np.array([[1.0], [-1.0]] * 5)
    assert one_step.nrmse(x + change + 0.1, x + change, x).overall.mean == pytest.approx(0.1)


def test_nrmse_by_hand_and_persistence_floor():
    rng = np.random.default_rng(0)
    current = rng.normal(size=(53, 3)) * [1.0, 10.0, 0.1] + [0.0, 1000.0, 0.0]
    change = rng.normal(size=(53, 3)) * [1.0, 5.0, 0.01] + [0.5, 0.0, 0.02]
    target, prediction = current + change, current + change + rng.normal(size=(53, 3)) * [0.1, 0.2, 0.003]
    got = one_step.nrmse(prediction, target, current)
    by_hand = np.sqrt(np.mean((prediction - target) ** 2, axis=0)) / change.std(axis=0)
    np.testing.assert_allclose(got.per_dimension, by_hand)
    assert got.overall.mean == pytest.approx(by_hand.mean())
    floor = one_step.persistence_nrmse(target, current)
    np.testing.assert_allclose(floor.per_dimension, np.sqrt(np.mean(change**2, axis=0)) / change.std(axis=0))
    assert (floor.per_dimension >= 1).all()
    assert floor.per_dimension[2] == pytest.approx(math.hypot(0.02, 0.01) / 0.01, rel=0.2)


def test_nrmse_bootstrap_equals_recomputing_on_resampled_episodes():
    rng = np.random.default_rng(1)
    ids = np.repeat(np.arange(7), 5)
    current, change = rng.normal(size=(35, 2)), rng.normal(size=(35, 2)) + 3
    prediction = current + change + rng.normal(size=(35, 2)) * rng.gamma(2.0, size=7)[ids, None]
    got = one_step.nrmse(prediction, current + change, current, ids, seed=5, repetitions=300)
    draws = []
    for row in np.random.default_rng(5).multinomial(7, np.full(7, 1 / 7), size=300):
        rows = np.repeat(np.arange(35), row[ids])
        draws.append(one_step.nrmse(prediction[rows], (current + change)[rows], current[rows]).overall.mean)
    tail = special.ndtr(-math.sqrt(7 / 6) * stats.t.ppf(0.975, 6))
    assert got.overall.n == 7
    assert got.overall.lo == pytest.approx(np.quantile(draws, tail, method="lower"))
    assert got.overall.hi == pytest.approx(np.quantile(draws, 1 - tail, method="higher"))


def test_constant_dimensions_are_left_out_and_said():
    rng = np.random.default_rng(0)
    current = rng.normal(size=(40, 3)).astype(np.float32) * np.float32([1, 100, 1])
    # Dimension 1 moves by a constant .1: in float32 the difference of its values still shows rounding noise.
    target = current + np.stack([rng.normal(size=40), np.full(40, 0.1), np.zeros(40)], axis=1).astype(np.float32)
    assert (target - current)[:, 1].std() > 0
    got = one_step.nrmse(current, target, current)
    assert got.constant == (1, 2)
    assert np.isnan(got.per_dimension).tolist() == [False, True, True]
    assert got.overall.mean == pytest.approx(got.per_dimension[0])
    out = json.loads(json.dumps(json_safe(got), allow_nan=False))
    assert out["per_dimension"][1:] == [None, None]
    assert out["constant_dimensions"] == [1, 2]
    assert "dimensions [1, 2] left out" in out["why"]
    still = one_step.nrmse(current, current, current)
    assert still.overall.mean is None
    assert still.overall.why == "no dimension changes"


def test_small_changes_of_large_float64_values_are_no_rounding():
    rng = np.random.default_rng(0)
    current = 1e5 + rng.normal(size=(50, 1))
    target = current + 1e-3 * rng.normal(size=(50, 1))
    assert one_step.persistence_nrmse(target, current).constant == ()


def test_nrmse_of_broken_or_misshapen_input():
    x = np.arange(6.0).reshape(3, 2)
    y = x**2
    broken = y.copy()
    broken[1, 0] = np.nan
    got = one_step.nrmse(broken, y, x)
    assert got.overall.mean is None
    assert got.overall.why == "1 of 3 predictions are not finite"
    json.dumps(json_safe(got), allow_nan=False)
    with pytest.raises(ValueError, match=r"share one shape \[N, D\]; got \[3, 1\], \[3, 2\], \[3, 2\]"):
        one_step.nrmse(x[:, :1], y, x)
    with pytest.raises(ValueError, match="target has a value that is not finite in row 1"):
        one_step.nrmse(y, broken, x)
    assert one_step.nrmse(x[:0], x[:0], x[:0]).overall.why == "no transitions"


def test_reward_mae_resamples_episodes():
    prediction, truth, ids = [1.0, 2.0, 3.0, 5.0], [1.0, 1.0, 1.0, 1.0], [0, 0, 1, 1]
    got = one_step.reward_mae(prediction, truth, ids)
    assert (got.mean, got.n) == (1.75, 2)
    assert (got.lo, got.hi) == (0.5, 3.0)
    with pytest.raises(ValueError, match=r"both be \[N\]; got \[4\] and \[1\]"):
        one_step.reward_mae(prediction, [1.0])


def test_brier_reference_and_counts():
    got = one_step.termination_scores([0.9, 0.9, 0.9, 0.9, 0.1], [1, 1, 1, 0, 0])
    assert got["brier"]["mean"] == pytest.approx(0.17)
    assert got["precision"]["mean"] == pytest.approx(0.75)
    assert got["recall"]["mean"] == 1.0
    assert got["f1"]["mean"] == pytest.approx(6 / 7)
    assert got["false_end_rate"]["sampled"]["mean"] == pytest.approx(0.5)
    assert got["false_end_rate"]["thresholded"]["mean"] == pytest.approx(0.5)
    assert got["counts"] == {"transitions": 5, "true_ends": 3, "predicted_ends": 4, "hits": 3, "false_ends": 1}
    for name in ("precision", "recall", "f1", "brier"):
        assert got[name]["lo"] <= got[name]["mean"] <= got[name]["hi"]


def test_no_events_still_leave_an_interval():
    # 0 false ends in 30,000 good steps bound the rate by about 3.7 / 30,000, not by 0; nor are 20 of 20 ends certainty.
    truth = np.zeros(30_020, bool)
    truth[-20:] = True
    got = one_step.termination_scores(np.where(truth, 1.0, 0.0), truth, episode_ids=np.arange(30_020) % 20)
    rate = got["false_end_rate"]["thresholded"]
    assert (rate["mean"], rate["lo"]) == (0.0, 0.0)
    assert rate["hi"] == pytest.approx(1 - 0.025 ** (1 / 30_000))
    assert got["recall"]["lo"] == pytest.approx(0.025 ** (1 / 20))
    assert got["f1"]["lo"] == pytest.approx(2 * got["recall"]["lo"] / (1 + got["recall"]["lo"]))
    assert got["recall"]["hi"] == 1.0


def test_sampled_false_ends_are_seen_where_thresholded_ones_are_not():
    truth = np.zeros(1000, bool)
    truth[-1] = True
    got = one_step.termination_scores(np.where(truth, 0.9, 0.01), truth)
    assert got["false_end_rate"]["sampled"]["mean"] == pytest.approx(0.01)
    assert got["false_end_rate"]["thresholded"]["mean"] == 0.0


def test_termination_without_ends_is_null_with_a_reason():
    got = one_step.termination_scores([0.1, 0.7, 0.2], [False, False, False])
    for name in ("precision", "recall", "f1"):
        assert got[name]["mean"] is None
        assert got[name]["why"] == "no true ends among 3 transitions"
    assert got["false_end_rate"]["thresholded"]["mean"] == pytest.approx(1 / 3)
    silent = one_step.termination_scores([0.1, 0.2], [True, False])
    assert silent["precision"]["why"] == "no end was predicted"
    assert silent["recall"]["mean"] == 0.0
    assert (
        one_step.termination_scores([0.9], [True])["false_end_rate"]["sampled"]["why"]
        == "every transition is a true end"
    )
    json.dumps(one_step.termination_scores([], []), allow_nan=False)


def test_termination_errors():
    with pytest.raises(ValueError, match=r"probability\[1\] is outside \[0, 1\]"):
        one_step.termination_scores([0.5, math.nan], [True, False])
    with pytest.raises(ValueError, match="truth must be boolean"):
        one_step.termination_scores([0.5, 0.5], [0, 2])
    with pytest.raises(ValueError, match=r"both be \[N\]"):
        one_step.termination_scores([0.5, 0.5], [True])


def test_crps_references():
    ensemble, truth = np.array([[-1.0], [0.0], [1.0]]), np.zeros(1)
    assert one_step.crps_ensemble(ensemble, truth)[0] == pytest.approx(0.2222, abs=5e-5)
    assert one_step.crps_fair(ensemble, truth)[0] == pytest.approx(0.0, abs=1e-12)
    normal = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)[:, None]
    assert one_step.crps_fair(normal, truth)[0] == pytest.approx(0.2337, abs=2e-4)


def test_crps_equals_the_pairwise_form_and_fair_is_unbiased_in_size():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 7)), rng.normal(size=7)
    pairs = np.abs(x[:, None] - x[None]).sum((0, 1))
    np.testing.assert_allclose(one_step.crps_fair(x, y), np.abs(x - y).mean(0) - pairs / 40)
    np.testing.assert_allclose(one_step.crps_ensemble(x, y), np.abs(x - y).mean(0) - pairs / 50)
    n = 40_000
    truth, pool = rng.normal(size=n), rng.normal(size=(8, n))
    scores = {m: one_step.crps_fair(pool[:m], truth) for m in (2, 8)}
    expected = 1 / math.sqrt(math.pi)  # E CRPS of N(0, 1) under itself
    for score in scores.values():
        # False alarm 6e-5 (four standard errors).
        assert abs(score.mean() - expected) < 4 * score.std() / math.sqrt(n)
    assert one_step.crps_ensemble(pool[:2], truth).mean() > expected + 0.2


def test_crps_agrees_with_scoringrules():
    scoringrules = pytest.importorskip("scoringrules", reason="scoringrules is not installed: it is in the dev extra")
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(9, 31)), rng.normal(size=31)
    fair = scoringrules.crps_ensemble(y, x.T, estimator="fair")
    np.testing.assert_allclose(one_step.crps_fair(x, y), fair, atol=1e-6)
    np.testing.assert_allclose(
        one_step.crps_ensemble(x, y), scoringrules.crps_ensemble(y, x.T, estimator="nrg"), atol=1e-6
    )
    np.testing.assert_allclose(scoringrules.crps_normal(0.0, 0.0, 1.0), 0.2337, atol=5e-5)


def test_crps_errors():
    with pytest.raises(ValueError, match="at least 2 samples; got 1"):
        one_step.crps_fair(np.zeros((1, 3)), np.zeros(3))
    with pytest.raises(ValueError, match=r"got shapes \[2, 3\] and \[4\]"):
        one_step.crps_fair(np.zeros((2, 3)), np.zeros(4))
    with pytest.raises(ValueError, match="must be finite"):
        one_step.pit(np.full((2, 3), np.nan), np.zeros(3))


@pytest.mark.parametrize("draw", [lambda g, s: g.normal(size=s), lambda g, s: g.integers(0, 3, s).astype(float)])
def test_pit_is_uniform_and_coverage_exact_for_calibrated_samples(draw):
    rng = np.random.default_rng(0)
    n = 5000
    samples, truth = draw(rng, (4, n)), draw(rng, (n,))
    u = one_step.pit(samples, truth, seed=1)
    assert stats.kstest(u, "uniform").pvalue > 1e-4  # its false-alarm rate
    for level in (0.5, 0.9):
        got = one_step.coverage(samples, truth, level, seed=1)
        # Four standard errors: false alarm 6e-5. Central sample quantiles of 4 samples would cover far too little.
        assert got.mean == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / n))
        assert got.n == n


def test_coverage_sees_overconfidence():
    rng = np.random.default_rng(0)
    got = one_step.coverage(
        0.3 * rng.normal(size=(50, 500)), rng.normal(size=500), 0.9, episode_ids=np.arange(500) // 10
    )
    assert got.hi < 0.6
    assert got.n == 50
    with pytest.raises(ValueError, match=r"level is 1\.5"):
        one_step.coverage(np.zeros((2, 1)), np.zeros(1), 1.5)
