import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from worldmodel.fidelity import rank_metrics, ranking
from worldmodel.fidelity.estimates import json_safe

TINY = {"sim": (0.1, 0.5, 0.4), "real": (0.2, 0.6, 0.9)}
TIED = {"sim": (0.5, 0.5, 0.1), "real": (0.9, 0.3, 0.1)}
# Multiples of 1/4 make ties, and sums and shifts that are exact in binary.
quarter = st.integers(-40, 40).map(lambda v: v / 4)
panels = st.lists(st.tuples(quarter, quarter), min_size=2, max_size=8).map(lambda rows: np.array(rows).T)


def bernoulli(rates, episodes, seed):
    rng = np.random.default_rng(seed)
    return [(rng.random(episodes) < p).astype(float) for p in rates]


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (rank_metrics.mae, 0.2333),
        (rank_metrics.pearson, 0.7751),
        (rank_metrics.spearman, 0.5),
        (rank_metrics.kendall, 0.3333),
        (rank_metrics.mmrv, 0.2),
        (rank_metrics.top1_agreement, 0.0),
    ],
)
def test_reference_values(metric, value):
    assert metric(**TINY) == pytest.approx(value, abs=5e-5)


def test_mmrv_is_asymmetric_and_its_convention_is_declared():
    swapped = {"sim": TINY["real"], "real": TINY["sim"]}
    assert rank_metrics.mmrv(**swapped) == pytest.approx(0.0667, abs=5e-5)
    assert rank_metrics.mmrv(**TINY, convention="sim_gap_xor") == pytest.approx(0.0667, abs=5e-5)
    assert rank_metrics.mmrv(**TIED) == pytest.approx(0.2)
    assert rank_metrics.mmrv(**TIED, convention="real_gap_strict") == 0.0
    with pytest.raises(ValueError, match="'simpler' is unknown; known: real_gap_xor, sim_gap_xor, real_gap_strict"):
        rank_metrics.mmrv(**TINY, convention="simpler")


def test_regrets():
    assert rank_metrics.regret_at_k(**TINY) == pytest.approx(0.3)
    assert rank_metrics.regret_at_k(**TINY, normalized=True) == pytest.approx(0.3333, abs=5e-5)
    assert rank_metrics.regret_at_k(**TINY, k=2) == 0.0
    other = {"sim": (0.9, 0.1, 0.5), "real": (0.9, 0.6, 0.2), "k": 2}
    assert rank_metrics.regret_at_k(**other) == 0.0
    assert rank_metrics.regret_at_k(**other, convention="scope_rl") == pytest.approx(0.4)


def test_regret_of_ties_is_the_expectation_over_their_order():
    sim, real = np.array([2.0, 1.0, 1.0, 1.0, 0.0]), np.array([3.0, 1.0, 5.0, 7.0, 9.0])
    rng = np.random.default_rng(0)
    for k in (1, 2, 3, 4):
        orders = [np.argsort(-(sim + 1e-6 * rng.random(5)))[:k] for _ in range(4000)]
        dope = np.mean([9.0 - real[o].max() for o in orders])
        scope = np.mean([np.sort(real)[-k:].sum() - real[o].sum() for o in orders])
        # Four standard errors at most: the losses of an order differ by 9 or less.
        assert rank_metrics.regret_at_k(sim=sim, real=real, k=k) == pytest.approx(dope, abs=0.2)
        assert rank_metrics.regret_at_k(sim=sim, real=real, k=k, convention="scope_rl") == pytest.approx(scope, abs=0.2)
    assert rank_metrics.regret_at_k(sim=[1.0, 1.0], real=[0.0, 1.0]) == 0.5


def test_line_of_calibration():
    assert rank_metrics.calibration_line(sim=[1.0, 2.0, 4.0], real=[5.0, 8.0, 14.0]) == pytest.approx((3.0, 2.0))
    rng = np.random.default_rng(0)
    sim, real = rng.normal(size=(2, 9))
    fitted = stats.linregress(sim, real)
    assert rank_metrics.calibration_line(sim=sim, real=real) == pytest.approx((fitted.slope, fitted.intercept))
    assert all(math.isnan(v) for v in rank_metrics.calibration_line(sim=[1.0, 1.0], real=[1.0, 2.0]))


def test_many_panels_at_once_are_the_same_as_one_at_a_time():
    sim, real = np.random.default_rng(1).integers(0, 4, (2, 30, 6)).astype(float)
    for convention in rank_metrics.REGRET_CONVENTIONS:
        for k in (1, 3, 6):
            rows = rank_metrics.regret_rows(sim, real, k, convention)
            for row, s, r in zip(rows, sim, real, strict=True):
                assert row == pytest.approx(rank_metrics.regret_at_k(sim=s, real=r, k=k, convention=convention))


def test_a_panel_has_every_metric_beside_its_floor():
    rates = np.linspace(0.1, 0.9, 5)
    panel = ranking.rank_panel(list("abcde"), bernoulli(rates, 300, 0), bernoulli(rates, 100, 1), seed=0)
    for name in ("top1_agreement", "regret_at_3", "regret_at_3_scope_rl", "calibration_slope", "calibration_intercept"):
        assert panel[name]["lo"] <= panel[name]["mean"] <= panel[name]["hi"]
        assert panel["noise_floor"][name]["p"] > 0.01 and panel["excess"][name]["mean"] is not None
    assert panel["calibration_slope"]["lo"] < 1.0 < panel["calibration_slope"]["hi"]
    assert set(panel["noise_floor"]["calibration_slope"]) == {"mean", "q05", "q95", "p"}
    exaggerated = [2 * v for v in bernoulli(rates, 300, 0)]
    panel = ranking.rank_panel(list("abcde"), exaggerated, bernoulli(rates, 100, 1), seed=0)
    assert panel["calibration_slope"]["hi"] < 0.7 and panel["noise_floor"]["calibration_slope"]["p"] < 0.01
    assert "regret_at_3" not in ranking.rank_panel(["a", "b"], [[1.0, 2.0]] * 2, [[1.0, 2.0]] * 2, seed=0)


def test_regret_errors():
    with pytest.raises(ValueError, match="k=4; it must be between 1 and the 3 policies"):
        rank_metrics.regret_at_k(**TINY, k=4)
    with pytest.raises(ValueError, match=r"best real return, which is -1\.0"):
        rank_metrics.regret_at_k(sim=[1.0, 2.0], real=[-1.0, -2.0], normalized=True)
    with pytest.raises(ValueError, match="'sum' is unknown; known: dope, scope_rl"):
        rank_metrics.regret_at_k(**TINY, convention="sum")


def test_arguments_go_by_keyword_and_are_checked():
    for metric in (rank_metrics.pearson, rank_metrics.mae, rank_metrics.mmrv, rank_metrics.regret_at_k):
        with pytest.raises(TypeError):
            metric(TINY["sim"], TINY["real"])
    with pytest.raises(ValueError, match=r"shapes \[2\] and \[3\]"):
        rank_metrics.mae(sim=[1.0, 2.0], real=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"real\[1\] is not finite"):
        rank_metrics.mae(sim=[1.0, 2.0], real=[1.0, math.nan])


def test_correlations_equal_scipy_and_are_nan_for_a_constant():
    rng = np.random.default_rng(0)
    for _ in range(20):
        sim, real = rng.integers(0, 5, (2, 7)).astype(float)
        if np.ptp(sim) and np.ptp(real):
            assert rank_metrics.pearson(sim=sim, real=real) == pytest.approx(stats.pearsonr(sim, real)[0])
            assert rank_metrics.spearman(sim=sim, real=real) == pytest.approx(stats.spearmanr(sim, real)[0])
            assert rank_metrics.kendall(sim=sim, real=real) == pytest.approx(stats.kendalltau(sim, real)[0])
    for metric in (rank_metrics.pearson, rank_metrics.spearman, rank_metrics.kendall):
        assert math.isnan(metric(sim=[1.0, 1.0, 1.0], real=[1.0, 2.0, 3.0]))


@given(panels, st.integers(1, 5), quarter, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_mmrv_invariances(panel, scale, shift, random):
    sim, real = panel
    base = rank_metrics.mmrv(sim=sim, real=real)
    assert 0.0 <= base <= np.ptp(real)
    # Only the order of the simulated returns matters; real returns may be shifted, and scale with the result.
    assert rank_metrics.mmrv(sim=np.exp(sim / 4), real=real) == pytest.approx(base)
    assert rank_metrics.mmrv(sim=sim, real=scale * real + shift) == pytest.approx(scale * base)
    order = list(range(len(sim)))
    random.shuffle(order)
    assert rank_metrics.mmrv(sim=sim[order], real=real[order]) == pytest.approx(base)
    assert rank_metrics.mmrv(sim=real, real=real) == 0.0
    assert rank_metrics.mmrv(sim=sim, real=real, convention="real_gap_strict") <= base
    assert rank_metrics.mmrv(sim=sim, real=real, convention="sim_gap_xor") == pytest.approx(by_hand_sim_gap(sim, real))


def by_hand_sim_gap(sim, real):
    pairs = range(len(sim))
    worst = [
        max(abs(sim[i] - sim[j]) for j in pairs if i == j or (real[i] > real[j]) != (sim[i] > sim[j])) for i in pairs
    ]
    return sum(worst) / len(worst)


@given(panels, st.integers(1, 8))
@settings(max_examples=60)
def test_regret_is_never_negative_and_falls_with_k(panel, k):
    sim, real = panel
    k = min(k, len(sim))
    regret = [rank_metrics.regret_at_k(sim=sim, real=real, k=i) for i in range(1, len(sim) + 1)]
    assert regret[-1] == 0.0
    assert min(regret) >= 0.0
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(regret))
    assert rank_metrics.regret_at_k(sim=sim, real=real, k=k, convention="scope_rl") >= 0.0
    assert rank_metrics.regret_at_k(sim=real, real=real, k=k) == 0.0


@pytest.mark.parametrize(
    ("episodes", "mmrv", "q95", "pearson"),
    [(20, 0.083, 0.169, 0.793), (50, 0.034, None, 0.903), (200, 0.006, None, 0.970)],
)
def test_noise_floor_of_a_perfect_simulator(episodes, mmrv, q95, pearson):
    outcomes = [np.arange(1000) < round(1000 * p) for p in np.linspace(0.3, 0.7, 8)]
    floor = ranking.noise_floor(
        real_returns=outcomes, n_sim=[1000] * 8, n_real=[episodes] * 8, seed=0, repetitions=2000
    )
    # Monte Carlo error of these means is below .001 for MMRV and .003 for Pearson.
    assert floor["mmrv"]["mean"] == pytest.approx(mmrv, abs=0.005)
    assert floor["pearson"]["mean"] == pytest.approx(pearson, abs=0.012)
    if q95:
        assert floor["mmrv"]["q95"] == pytest.approx(q95, abs=0.012)
    assert set(floor["kendall"]) == {"mean", "q05"}
    assert floor["kendall"]["q05"] < floor["kendall"]["mean"]


def test_noise_floor_shrinks_with_more_real_episodes():
    real = bernoulli(np.linspace(0.2, 0.8, 6), 30, seed=0)
    few, many = (ranking.noise_floor(real_returns=real, n_sim=[500] * 6, n_real=[n] * 6, seed=0) for n in (30, 3000))
    assert many["mmrv"]["mean"] < 0.5 * few["mmrv"]["mean"]
    assert many["pearson"]["mean"] > few["pearson"]["mean"]


def test_noise_floor_and_intervals_hold_what_they_promise():
    # 150 perfect simulators. A true rate of .1 is accepted for alarms of the floor test at 5% (400 runs of this case
    # gave .055 to .07), and one of .08 for intervals that miss the true value, the perfect one (.04 to .06).
    # Each bound has false alarm 1e-4.
    trials = 150
    alarms, misses = (dict.fromkeys(("pearson", "mmrv", "mae"), 0) for _ in range(2))
    for trial in range(trials):
        rates = np.random.default_rng(1000 + trial).uniform(0.3, 0.7, 8)
        sim, real = bernoulli(rates, 200, 2 * trial), bernoulli(rates, 20, 2 * trial + 1)
        panel = ranking.rank_panel([str(p) for p in rates], sim, real, trial, repetitions=200)
        for name, perfect in (("pearson", 1.0), ("mmrv", 0.0), ("mae", 0.0)):
            alarms[name] += panel["noise_floor"][name]["p"] <= 0.05
            misses[name] += not panel[name]["lo"] <= perfect <= panel[name]["hi"]
    assert max(alarms.values()) <= stats.binom.ppf(1 - 1e-4, trials, 0.1)
    assert max(misses.values()) <= stats.binom.ppf(1 - 1e-4, trials, 0.08)


def test_a_simulator_that_inverts_the_ranking_exceeds_the_floor():
    rates = np.linspace(0.1, 0.9, 8)
    panel = ranking.rank_panel(list("abcdefgh"), bernoulli(rates[::-1], 100, 0), bernoulli(rates, 100, 1), seed=0)
    assert panel["pearson"]["hi"] < 0
    assert panel["excess"]["mmrv"]["lo"] > 0
    assert panel["mmrv"]["mean"] > panel["noise_floor"]["mmrv"]["q95"]
    assert panel["noise_floor"]["mmrv"]["p"] == pytest.approx(1 / 1001)
    assert panel["regret_at_1"]["mean"] > 0.5
    assert panel["top1_agreement"]["mean"] == 0.0


def test_panel_is_json_and_equals_the_metrics():
    sim, real = bernoulli([0.2, 0.5, 0.9], 40, 0), bernoulli([0.3, 0.6, 0.8], 20, 1)
    panel = ranking.rank_panel(["a", "b", "c"], sim, real, seed=3)
    assert json_safe(panel) == json.loads(json.dumps(panel, allow_nan=False))
    means = {"sim": [v.mean() for v in sim], "real": [v.mean() for v in real]}
    for name in ("pearson", "spearman", "kendall", "mae", "mmrv"):
        assert panel[name]["mean"] == pytest.approx(getattr(rank_metrics, name)(**means))
        assert panel[name]["lo"] <= panel[name]["mean"] <= panel[name]["hi"]
        assert panel["excess"][name]["mean"] == pytest.approx(panel[name]["mean"] - panel["noise_floor"][name]["mean"])
    assert panel["regret_at_1"]["mean"] == pytest.approx(rank_metrics.regret_at_k(**means))
    assert panel["mmrv_convention"] == "real_gap_xor"
    assert (panel["n_policies"], panel["mmrv"]["n"]) == (3, 60)
    assert panel["smallest_permutation_p"] == pytest.approx(0.167, abs=5e-4)
    assert panel == ranking.rank_panel(["a", "b", "c"], sim, real, seed=3)
    assert panel != ranking.rank_panel(["a", "b", "c"], sim, real, seed=4)


def test_constant_panel_is_null_with_a_reason():
    panel = ranking.rank_panel(["a", "b"], [np.full(5, 500.0)] * 2, [np.arange(5.0), np.arange(5.0) + 9], seed=0)
    assert panel["pearson"]["mean"] is None
    assert "same mean return in simulation" in panel["pearson"]["why"]
    assert panel["noise_floor"]["pearson"]["p"] is None
    assert panel["excess"]["pearson"]["mean"] is None
    assert panel["mae"]["mean"] is not None
    json.dumps(panel, allow_nan=False)


def test_single_episodes_have_no_interval_and_no_floor():
    panel = ranking.rank_panel(["a", "b", "c"], [[1.0, 2.0], [2.0, 3.0], [4.0, 5.0]], [[1.0], [2.0], [3.0]], seed=0)
    assert panel["pearson"]["mean"] == pytest.approx(0.982, abs=1e-3)
    assert panel["pearson"]["lo"] is None
    assert "at least 2 units" in panel["pearson"]["why"]
    assert "single real episode" in panel["noise_floor"]["mmrv"]["why"]
    json.dumps(panel, allow_nan=False)


def test_equal_means_stay_tied_whatever_the_order_of_summation():
    returns = np.random.default_rng(0).uniform(0, 100, 1001)
    panel = ranking.rank_panel(
        ["a", "b", "c"], [returns, returns[::-1], returns - 50], [[9, 9], [1, 1], [0, 0]], seed=0
    )
    # A tie in simulation against a real gap of 8 is one violation under XOR: (8 + 0 + 0) / 3.
    assert panel["mmrv"]["mean"] == pytest.approx(8 / 3)


@pytest.mark.parametrize(
    ("names", "sim", "real", "message"),
    [
        (["a"], [[1.0]], [[1.0]], "at least 2 policies; got 1"),
        (["a", "a"], [[1.0], [2.0]], [[1.0], [2.0]], r"2 names \(1 distinct\)"),
        (["a", "b"], [[1.0], [2.0]], [[1.0]], "2 sim and 1 real arrays"),
        (["a", "b"], [[1.0], []], [[1.0], [2.0]], "sim_returns of 'b' must be finite returns"),
        (["a", "b"], [[1.0], [2.0]], [[1.0], [math.nan]], "real_returns of 'b' must be finite returns"),
    ],
)
def test_panel_errors(names, sim, real, message):
    with pytest.raises(ValueError, match=message):
        ranking.rank_panel(names, sim, real, seed=0)


def test_noise_floor_errors():
    with pytest.raises(ValueError, match=r"n_sim is \[5\]; it needs one positive count for each of 2 policies"):
        ranking.noise_floor(real_returns=[[1.0, 2.0], [3.0, 4.0]], n_sim=[5], seed=0)
    with pytest.raises(ValueError, match="at least 2 policies; got 1"):
        ranking.noise_floor(real_returns=[[1.0, 2.0]], n_sim=[5], seed=0)
