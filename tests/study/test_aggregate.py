"""Aggregates over environments, the league of metrics, and laws of transfer: by hand, against references, refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from worldmodel.fidelity.scaling import LogSigmoid
from worldmodel.study.aggregate import interquartile_mean, iqm, performance_profile, probability_of_improvement
from worldmodel.study.means import WorldModelMeans, per_world_model
from worldmodel.study.metric_league import league
from worldmodel.study.scaling import transfer_scaling
from worldmodel.study.synthetic import CURVES, curve_study
from worldmodel.study.table import StudyTable


def units(**scores) -> WorldModelMeans:
    """`environment__arm=[values]`."""
    rows = [
        {"environment": name.partition("__")[0], "arm": name.partition("__")[2], "complexity": None, "diversity": None}
        | {"fidelity": 1.0, "corruption": None, "world_model_seed": i, "policy_seed": i, "deployment": "training"}
        | {"real_return": float(value)}
        for name, values in scores.items()
        for i, value in enumerate(values)
    ]
    return per_world_model(StudyTable.of(rows))


def test_interquartile_mean():
    assert interquartile_mean(np.array([0.0, 1, 2, 3])) == 1.5
    found = iqm(units(a__simulated=[0, 1], b__simulated=[2, 3]), repetitions=200)
    assert found.mean == 1.5 and found.n == 4 and found.lo <= 1.5 <= found.hi
    assert interquartile_mean(np.array([-1e9, 0.0, 1, 2, 3, 1e9, 2, 1])) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="no units of arm 'oracle'; arms: simulated"):
        iqm(units(a__simulated=[0, 1]), arm="oracle")


def test_probability_of_improvement_counts_ties_half():
    means = units(a__simulated=[1, 2], a__reference=[1, 3], b__simulated=[5, 5], b__reference=[5, 5])
    found = probability_of_improvement(means, "simulated", "reference", repetitions=200)
    assert found.mean == pytest.approx((0.375 + 0.5) / 2) and found.n == 8
    first, second = np.random.default_rng(0).normal(size=(2, 15))
    alone = probability_of_improvement(units(a__simulated=first, a__reference=second), "simulated", "reference")
    assert alone.mean == pytest.approx(stats.mannwhitneyu(first, second).statistic / 225)
    with pytest.raises(ValueError, match="not run in the same environments"):
        probability_of_improvement(units(a__simulated=[1, 2], b__simulated=[1, 2], b__null=[1, 2]), "simulated", "null")


def test_performance_profile_by_hand():
    means = units(a__simulated=[0, 1, 2, 3], b__simulated=[1, 1])
    found = performance_profile(means, [0.5, 1.0, 5.0], repetitions=400)
    assert found.mean == pytest.approx([(0.75 + 1) / 2, (0.5 + 0) / 2, 0.0])
    assert (found.lo <= found.mean).all() and (found.hi >= found.mean).all() and (found.n == 6).all()


def test_environments_are_resampled_apart():
    """Two environments far from each other: only the spread within each moves the mean of the middle."""
    rng = np.random.default_rng(0)
    means = units(a__simulated=rng.normal(size=20), b__simulated=100 + rng.normal(size=20))
    assert iqm(means).hi - iqm(means).lo < 2.0


# --- League -----------------------------------------------------------------------------------------------------------


def transferred(environments: int, rng) -> WorldModelMeans:
    """Transfer follows metric "good" alike everywhere; "scaled" only within each environment; "noise" nowhere."""
    count = 30
    name = np.repeat([f"e{i}" for i in range(environments)], count)
    good = rng.uniform(size=len(name))
    offset = np.repeat(np.linspace(0, 3, environments), count)
    y = 0.2 + 0.7 * good + 0.03 * rng.normal(size=len(name))
    metrics = {"noise": rng.normal(size=len(name)), "scaled": good + offset, "good": good}
    blank = units(a__simulated=np.zeros(len(name)))
    return dataclasses.replace(blank, environment=name, real_return=y, metrics=metrics)


def test_the_metric_that_travels_wins():
    rows = league(transferred(5, np.random.default_rng(0)))
    assert rows[0].metric == "good"
    by_name = {row.metric: row for row in rows}
    assert by_name["good"].left_out.lo > 0.9 and by_name["good"].left_out.n == 5
    assert by_name["noise"].left_out.mean < 0.05 and by_name["scaled"].left_out.mean < 0.2
    assert by_name["good"].to_json()["metric"] == "good"


def test_left_out_r2_by_hand():
    means = transferred(3, np.random.default_rng(1))
    row = next(row for row in league(means) if row.metric == "good")
    sums = np.zeros(2)
    for name in np.unique(means.environment):
        there = means.environment == name
        fit = stats.linregress(means.metrics["good"][~there], means.real_return[~there])
        y = means.real_return[there]
        sums += (
            ((y - fit.intercept - fit.slope * means.metrics["good"][there]) ** 2).sum(),
            ((y - means.real_return[~there].mean()) ** 2).sum(),
        )
    assert row.left_out.mean == pytest.approx(1 - sums[0] / sums[1])


def test_two_environments_are_too_few():
    rows = league(transferred(2, np.random.default_rng(0)))
    assert all(row.left_out.mean is None and "at least 3 environments; there are 2" in row.left_out.why for row in rows)
    constant = dataclasses.replace(transferred(3, np.random.default_rng(0)), metrics={"one": np.ones(90)})
    assert "the metric has one value outside" in league(constant)[0].left_out.why
    with pytest.raises(ValueError, match="needs measured fidelities"):
        league(dataclasses.replace(constant, metrics={}))


# --- Laws of transfer -------------------------------------------------------------------------------------------------


def test_transfer_grows_by_a_known_law():
    rows = curve_study(CURVES["flat"], np.random.default_rng(0), seeds=3, levels=8)
    means = per_world_model(rows)
    data = 10.0 ** (1 + 3 * np.nan_to_num(means.fidelity, nan=1.0))
    law = LogSigmoid(floor=-0.9, drop=0.7, middle=300.0, slope=1.5)
    noise = 0.005 * np.random.default_rng(1).normal(size=len(data))
    grown = dataclasses.replace(means, real_return=-law(data) + noise, metrics={"data": data})
    found = transfer_scaling(grown, "data", forms=[LogSigmoid], repetitions=100)
    assert found.law.middle == pytest.approx(300.0, rel=0.1) and found.law.floor == pytest.approx(-0.9, abs=0.02)
    with pytest.raises(ValueError, match="'steps' was not measured; metrics: data"):
        transfer_scaling(grown, "steps")
