import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from worldmodel.fidelity import estimates
from worldmodel.fidelity.estimates import Estimate

finite = st.floats(-1e6, 1e6, allow_subnormal=False)


def misses_allowed(trials: int, miss_rate: float = 0.05, false_alarm: float = 1e-4) -> tuple[int, int]:
    """Counts of misses that an interval with this true miss rate leaves with probability `false_alarm` at most."""
    return tuple(int(v) for v in stats.binom.ppf([false_alarm / 2, 1 - false_alarm / 2], trials, miss_rate))


def test_json_form_of_an_estimate():
    assert Estimate(1.0, 0.5, 1.5, 7).to_json() == {"mean": 1.0, "lo": 0.5, "hi": 1.5, "n": 7}
    assert Estimate(1.0, None, None, 1, "one unit").to_json() == {
        "mean": 1.0,
        "lo": None,
        "hi": None,
        "n": 1,
        "why": "one unit",
    }


def test_an_estimate_refuses_nan_and_unexplained_gaps():
    with pytest.raises(ValueError, match=r"Estimate\.hi is inf"):
        Estimate(1.0, 0.0, math.inf, 3)
    with pytest.raises(ValueError, match="no `why`"):
        Estimate(1.0, None, None, 3)


def test_mean_interval_is_the_t_interval():
    values = np.array([1.0, 2.0, 4.0, 7.0, 11.0])
    got = estimates.mean_interval(values)
    lo, hi = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))
    assert (got.mean, got.n) == (5.0, 5)
    assert (got.lo, got.hi) == pytest.approx((lo, hi))


@pytest.mark.parametrize(
    ("values", "mean", "n", "why"),
    [
        ([], None, 0, "no values"),
        ([3.0], 3.0, 1, "at least 2 units"),
        ([1.0, math.nan, math.inf], None, 3, "2 of 3 values are not finite"),
    ],
)
def test_what_cannot_be_formed_is_null_and_says_why(values, mean, n, why):
    for got in (estimates.mean_interval(values), estimates.cluster_mean_interval(values)):
        assert (got.mean, got.lo, got.hi, got.n) == (mean, None, None, n)
        assert why in got.why


@given(st.lists(finite, min_size=2, max_size=30), st.integers(0, 5))
@settings(max_examples=60)
def test_intervals_contain_the_mean(values, seed):
    rows = np.array(values)
    for got in (
        estimates.mean_interval(rows),
        estimates.bootstrap_interval(np.mean, rows, seed=seed, repetitions=50),
        estimates.cluster_mean_interval(rows, np.arange(len(rows)) // 2, seed, repetitions=50),
    ):
        if got.lo is not None:
            assert got.lo <= got.mean <= got.hi
            assert got.mean == pytest.approx(rows.mean(), abs=1e-6)


def test_coverage_of_the_t_interval():
    rng = np.random.default_rng(0)
    trials = 1000
    intervals = [estimates.mean_interval(row) for row in rng.normal(2.0, 3.0, (trials, 6))]
    misses = sum(not e.lo <= 2.0 <= e.hi for e in intervals)
    low, high = misses_allowed(trials)  # exact for normal values: false alarm 1e-4
    assert low <= misses <= high


@pytest.mark.parametrize("clusters", [8, 40])
def test_coverage_of_the_cluster_bootstrap(clusters):
    # Rows of an episode share most of their noise: counting rows as independent covers about .6 here.
    rng = np.random.default_rng(1)
    trials, rows = 400, 6
    ids = np.repeat(np.arange(clusters), rows)
    data = rng.normal(size=(trials, clusters, 1)) + 0.5 * rng.normal(size=(trials, clusters, rows))
    misses = naive = 0
    for trial, values in enumerate(data.reshape(trials, -1)):
        clustered = estimates.cluster_mean_interval(values, ids, trial, repetitions=300)
        misses += not clustered.lo <= 0.0 <= clustered.hi
        flat = estimates.mean_interval(values)
        naive += not flat.lo <= 0.0 <= flat.hi
    # The bootstrap is approximate: true miss rates of .035 to .065 are accepted, each with false alarm 1e-4.
    assert misses_allowed(trials, 0.035)[0] <= misses <= misses_allowed(trials, 0.065)[1]
    assert naive > misses_allowed(trials, 0.25)[0]


def test_bootstrap_resamples_whole_clusters():
    seen = []

    def statistic(rows):
        seen.append(np.unique(rows, return_counts=True))
        return float(rows.mean())

    units = [np.full(3, 1.0), np.full(5, 2.0), np.full(7, 3.0)]
    got = estimates.bootstrap_interval(statistic, units, seed=0, repetitions=50)
    assert got.n == 3
    assert got.mean == pytest.approx(34 / 15)
    for values, counts in seen:
        assert all(c % {1.0: 3, 2.0: 5, 3.0: 7}[v] == 0 for v, c in zip(values, counts, strict=True))


def test_bootstrap_is_a_function_of_the_seed():
    rows = np.random.default_rng(0).normal(size=(11, 3))
    same = [estimates.bootstrap_interval(np.median, rows, seed=4) for _ in range(2)]
    other = estimates.bootstrap_interval(np.median, rows, seed=5)
    assert same[0] == same[1]
    assert (other.lo, other.hi) != (same[0].lo, same[0].hi)


def test_bootstrap_withholds_an_interval_that_is_mostly_undefined():
    rows = np.array([0.0, 0.0, 0.0, 1.0])
    got = estimates.bootstrap_interval(lambda x: 1.0 / x.max() if x.max() else math.nan, rows, seed=0)
    assert got.mean == 1.0
    assert got.lo is None
    assert "undefined in" in got.why


def test_bootstrap_of_too_few_units():
    assert estimates.bootstrap_interval(np.mean, [], seed=0).why == "no units"
    one = estimates.bootstrap_interval(np.mean, [np.array([1.0, 3.0])], seed=0)
    assert (one.mean, one.lo, one.n) == (2.0, None, 1)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"values of shape \[n\]; got shape \[2, 2\]"):
        estimates.mean_interval(np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"must both be \[N\]; got \[2\] and \[3\]"):
        estimates.cluster_ratio_interval([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"errors must be \[n, H\]; got shape \[3\]"):
        estimates.median_curve(np.zeros(3))


def test_ratio_of_sums():
    got = estimates.cluster_ratio_interval([1.0, 2.0, 3.0], [2.0, 2.0, 8.0])
    assert got.mean == 0.5
    assert estimates.cluster_ratio_interval([0.0, 0.0], [0.0, 0.0], why="nothing counted").why == "nothing counted"


def test_few_units_give_wider_intervals_than_plain_percentiles():
    rows = np.random.default_rng(3).normal(size=6)
    got = estimates.bootstrap_interval(np.mean, rows, seed=0, repetitions=4000)
    picks = np.random.default_rng(0).integers(0, 6, (4000, 6))
    lo, hi = np.quantile(rows[picks].mean(1), [0.025, 0.975])
    assert got.lo < lo
    assert got.hi > hi


def test_cluster_ids_must_be_one_per_row():
    with pytest.raises(ValueError, match=r"cluster_ids has shape \[2\]; it must be \[3\]"):
        estimates.cluster_mean_interval([1.0, 2.0, 3.0], [0, 1])


def test_cluster_bootstrap_in_blocks_equals_one_block(monkeypatch):
    values, ids = np.random.default_rng(0).normal(size=70), np.arange(70) // 5
    whole = estimates.cluster_mean_interval(values, ids, 3)
    monkeypatch.setattr(estimates, "_CHUNK", 100)
    assert estimates.cluster_mean_interval(values, ids, 3) == whole


def test_median_curve_equals_the_plain_bootstrap_of_medians():
    rng = np.random.default_rng(0)
    errors = rng.gamma(2.0, size=(21, 3))
    errors[5:, 2] = np.nan
    ids = np.arange(21) // 3
    curve = estimates.median_curve(errors, ids, seed=7, repetitions=200)
    np.testing.assert_allclose(curve.mean, np.nanmedian(errors, axis=0))
    assert curve.n.tolist() == [7, 7, 2]
    _, draws, _ = estimates.median_draws(errors, ids, 7, 200)
    counts = np.concatenate(list(estimates.resample_counts(7, 200, 7, width=21)))
    for row, drawn in zip(counts[:30], draws[:30], strict=True):
        resample = np.repeat(errors, row[ids].astype(int), axis=0)
        present = ~np.isnan(resample).all(axis=0)
        np.testing.assert_allclose(drawn[present], np.nanmedian(resample[:, present], axis=0))
        assert np.isnan(drawn[~present]).all()


def test_median_curve_says_where_it_is_thin_and_stays_json():
    errors = np.array([[0.1, 0.2, 0.3], [0.2, math.inf, math.nan], [0.3, math.inf, math.nan]])
    curve = estimates.median_curve(errors, seed=0)
    out = json.loads(json.dumps(estimates.json_safe(curve), allow_nan=False))
    assert out["x"] == [1.0, 2.0, 3.0]
    assert out["mean"] == [0.2, None, 0.3]
    assert out["lo"][2] is None
    assert out["n"] == [3, 3, 1]
    assert "at 2 of 3 horizons (2, 3)" in out["why"]


def test_median_curve_of_nothing():
    assert estimates.median_curve(np.zeros((0, 2))).to_json()["mean"] == [None, None]


def test_json_safe_converts_and_names_the_path():
    tree = {"a": np.float32(0.5), "b": [np.int64(3), np.array([1.0, 2.0]), np.array(True)], "c": mean_of([1.0, 2.0])}
    out = estimates.json_safe(tree)
    assert json.loads(json.dumps(out)) == out
    assert out["b"] == [3, [1.0, 2.0], True]
    assert out["c"]["mean"] == 1.5
    with pytest.raises(ValueError, match=r"value at one_step\.nrmse\[1\] is nan"):
        estimates.json_safe({"one_step": {"nrmse": np.array([0.1, math.nan])}})
    with pytest.raises(ValueError, match="the top level is inf"):
        estimates.json_safe(math.inf)
    with pytest.raises(ValueError, match="key 3 at a is a int"):
        estimates.json_safe({"a": {3: 1}})
    with pytest.raises(ValueError, match=r"value at a\[0\] is a complex"):
        estimates.json_safe({"a": [1j]})


def mean_of(values):
    return estimates.mean_interval(values)
