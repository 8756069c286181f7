from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from worldmodel.fidelity import return_shape
from worldmodel.fidelity.consistency import consistency_ratio, paired_success
from worldmodel.fidelity.prediction_powered import prediction_powered_mean


def test_spread_and_worst_decile_by_hand():
    rng = np.random.default_rng(0)
    sim, real = 2.0 * rng.normal(size=41), rng.normal(size=31)
    ratio = return_shape.spread_ratio(sim=sim, real=real)
    assert ratio["mean"] == pytest.approx(sim.std(ddof=1) / real.std(ddof=1))
    assert ratio["lo"] > 1.0 and ratio["p"] < 0.05 and ratio["n"] == 31
    assert ratio["floor"]["q05"] < 1 < ratio["floor"]["q95"]
    assert ratio["excess"] == pytest.approx(ratio["mean"] - ratio["floor"]["mean"])
    worst = return_shape.worst_decile_error(sim=sim, real=real)
    assert worst["mean"] == pytest.approx(np.sort(sim)[:5].mean() - np.sort(real)[:4].mean())
    assert worst["hi"] < 0
    json.dumps([ratio, worst], allow_nan=False)


def test_a_simulator_that_keeps_the_mean_and_loses_the_shape_is_seen():
    rng = np.random.default_rng(1)
    real = np.where(rng.uniform(size=200) < 0.15, 0.0, 100.0)  # a bad end now and then
    sim = np.full(300, real.mean()) + rng.normal(size=300)
    assert return_shape.spread_ratio(sim=sim, real=real)["hi"] < 0.2
    assert return_shape.worst_decile_error(sim=sim, real=real)["lo"] > 50


def test_equal_shapes_are_rarely_called_different():
    # 100 pairs of equal distributions: a rate of .1 is accepted for p <= .05 (bound of false alarm 1e-4).
    alarms = {"spread": 0, "worst": 0}
    for seed in range(100):
        rng = np.random.default_rng(seed)
        sim, real = rng.gamma(4.0, size=200), rng.gamma(4.0, size=50)
        alarms["spread"] += return_shape.spread_ratio(sim=sim, real=real, seed=seed)["p"] <= 0.05
        alarms["worst"] += return_shape.worst_decile_error(sim=sim, real=real, seed=seed)["p"] <= 0.05
    assert max(alarms.values()) <= stats.binom.ppf(1 - 1e-4, 100, 0.1)


def test_what_cannot_be_compared_is_said():
    flat = return_shape.spread_ratio(sim=[1.0, 2.0], real=[3.0, 3.0])
    assert flat["mean"] is None and flat["why"] == "real returns have no spread" and flat["p"] is None
    assert "two episodes" in return_shape.spread_ratio(sim=[1.0], real=[3.0, 4.0])["why"]
    assert "not finite" in return_shape.worst_decile_error(sim=[1.0, np.nan], real=[3.0, 4.0])["why"]
    json.dumps(flat, allow_nan=False)


def test_runs_that_agree_and_runs_that_do_not():
    rng = np.random.default_rng(2)
    runs = rng.normal(size=(5, 60))
    alike = return_shape.run_to_run(runs)
    assert alike["p"] == pytest.approx(stats.f_oneway(*runs).pvalue) and alike["sd"] < 0.2 and alike["runs"] == 5
    apart = return_shape.run_to_run(runs + 3.0 * np.arange(5)[:, None])
    assert apart["p"] < 1e-6 and apart["sd"] == pytest.approx(3.0 * np.arange(5).std(ddof=1), rel=0.1)
    assert return_shape.run_to_run(np.ones((2, 3))) == {"sd": 0.0, "p": 1.0, "runs": 2}
    assert return_shape.run_to_run([[1.0, 1.0], [2.0, 2.0]])["p"] == 0.0
    assert return_shape.run_to_run([[1.0, 2.0]])["why"] == "it needs two runs of two episodes"


def test_exploitation_gap_by_hand():
    sim, real = (
        {"a": [1.0, 3.0], "b": [5.0, 7.0], "own": [9.0, 11.0]},
        {"a": [1.0, 1.0], "b": [5.0, 5.0], "own": [2.0, 4.0]},
    )
    got = return_shape.exploitation_gap(sim=sim, real=real, optimised="own")
    assert (got["gap"]["mean"], got["others"]["mean"], got["excess"]["mean"]) == (7.0, 1.0, 6.0)
    assert got["policy"] == "own" and got["gap"]["lo"] <= 7.0 <= got["gap"]["hi"]
    alone = return_shape.exploitation_gap(sim={"own": [1.0, 2.0]}, real={"own": [1.0, 2.0]}, optimised="own")
    assert alone["others"]["why"] == "there is no other policy"
    with pytest.raises(ValueError, match="optimised policy 'c' is unknown; known: a, b, own"):
        return_shape.exploitation_gap(sim=sim, real=real, optimised="c")


# --- the real return from few real and many simulated episodes --------------------------------------------------------


def returns(rng: np.random.Generator, n: int, extra: int, share: float) -> dict[str, np.ndarray]:
    """A start decides a share of the variance; the simulator knows the start, is biased, and has its own noise."""

    def split(count: int) -> tuple[np.ndarray, np.ndarray]:
        start = math.sqrt(share) * rng.normal(size=count)
        return 10 + start + math.sqrt(1 - share) * rng.normal(size=count), 40 + 3 * start + 0.5 * rng.normal(size=count)

    real, paired = split(n)
    return {"real": real, "paired_sim": paired, "sim": split(extra)[1]}


@pytest.mark.parametrize(("share", "n"), [(0.0, 20), (0.7, 20), (0.7, 8)])
def test_the_interval_covers_whatever_the_simulator_is_worth(share: float, n: int):
    # 600 repetitions: a true coverage of .93 is accepted (bound of false alarm 1e-4).
    rng, covered, shorter = np.random.default_rng(0), 0, []
    for _ in range(600):
        got = prediction_powered_mean(**returns(rng, n, 300, share))
        covered += got.estimate.lo <= 10 <= got.estimate.hi
        shorter.append(got.shortening)
    assert covered >= stats.binom.ppf(1e-4, 600, 0.93)
    if share and n == 20:
        assert np.mean(shorter) > 0.2
    if not share:
        assert np.mean(shorter) > -0.05


def test_prediction_powered_by_hand_and_at_its_limits():
    rng = np.random.default_rng(1)
    data = returns(rng, 30, 200, 0.7)
    got = prediction_powered_mean(**data)
    y, f, g = data.values()
    weight = np.cov(y, f)[0, 1] / (f.var(ddof=1) + 30 / 200 * g.var(ddof=1))
    assert got.weight == pytest.approx(weight)
    assert got.estimate.mean == pytest.approx(np.mean(y - weight * f) + weight * g.mean())
    assert got.correlation == pytest.approx(np.corrcoef(y, f)[0, 1])
    # Few starts make further simulated episodes worth less.
    assert prediction_powered_mean(**data, starts=10).weight < 0.5 * weight
    deaf = prediction_powered_mean(real=y, paired_sim=np.full(30, 5.0), sim=np.full(200, 5.0))
    assert deaf.weight == 0.0 and deaf.estimate.mean == pytest.approx(y.mean()) and deaf.correlation is None
    few = prediction_powered_mean(real=[1.0, 2.0], paired_sim=[1.0, 2.0], sim=[1.0, 2.0])
    assert few.estimate.lo is None and "at least 3 real" in few.estimate.why
    same = prediction_powered_mean(real=np.full(5, 3.0), paired_sim=np.arange(5.0), sim=np.arange(9.0))
    assert same.estimate.mean == 3.0 and same.correlation is None
    json.dumps([d.to_json() for d in (got, deaf, few, same)], allow_nan=False)
    with pytest.raises(ValueError, match="one return for each of the 30 real episodes; got 29"):
        prediction_powered_mean(real=y, paired_sim=f[:-1], sim=g)
    with pytest.raises(ValueError, match="sim must be finite returns"):
        prediction_powered_mean(real=y, paired_sim=f, sim=[np.nan])


def test_consistency_of_successes():
    assert consistency_ratio(replayed=0.555, real=0.505) == pytest.approx(1.099, abs=5e-4)
    with pytest.raises(ValueError, match=r"which is 0\.0; it must be positive"):
        consistency_ratio(replayed=0.5, real=0.0)
    sim, replayed = np.array([True] * 6 + [False] * 4), np.array([True] * 4 + [False] * 5 + [True])
    got = paired_success(sim=sim, replayed=replayed)
    assert got["counts"] == {"both": 4, "sim_only": 2, "real_only": 1, "neither": 3}
    assert got["confirmed"]["mean"] == pytest.approx(2 / 3) and got["hallucinated"]["mean"] == pytest.approx(1 / 3)
    assert got["difference"]["mean"] == pytest.approx(0.1)
    assert paired_success(sim=~sim & sim, replayed=replayed)["confirmed"]["why"] == "no success in the simulator"
    with pytest.raises(ValueError, match=r"both be bool \[n\]"):
        paired_success(sim=sim, replayed=[1] * 10)
