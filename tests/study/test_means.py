"""One value per world-model seed, and no way around it."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

from worldmodel import study
from worldmodel.study.estimands import Tolerance
from worldmodel.study.means import WorldModelMeans, per_world_model
from worldmodel.study.synthetic import CURVES, curve_study
from worldmodel.study.table import StudyTable

ROW = {"environment": "e", "complexity": 1.0, "diversity": 1.0, "corruption": "noise", "deployment": "training"}


def row(arm, fidelity, world_model, policy, real_return, **other):
    seeds = {"world_model_seed": world_model, "policy_seed": policy}
    return {**ROW, "arm": arm, "fidelity": fidelity, **seeds, "real_return": real_return, **other}


def test_policies_and_episodes_are_averaged_by_hand():
    table = StudyTable.of(
        [
            row("simulated", 0.5, 0, 0, 1.0, metrics={"m": 2.0}),
            row("simulated", 0.5, 0, 0, 3.0, metrics={"m": 2.0}),  # a second evaluation of the same policy
            row("simulated", 0.5, 0, 1, 6.0, metrics={"m": 4.0}),
            row("simulated", 0.5, 1, 0, 7.0, metrics={"m": 5.0}),
            row("simulated", 1.0, 1, 0, 8.0, metrics={"m": 5.0}),  # the same seed at another fidelity: another model
            row("reference", None, None, 0, 9.0),
            row("reference", None, None, 1, 11.0),  # without a world model every training is a unit
        ]
    )
    means = per_world_model(table)
    own = means.select(arm="simulated", fidelity=0.5)
    assert own.real_return.tolist() == [4.0, 7.0] and own.policies.tolist() == [2, 1] and own.unit.tolist() == [0, 1]
    assert own.metrics["m"].tolist() == [3.0, 5.0]
    assert means.returns("reference").tolist() == [9.0, 11.0]
    # A dial that does not apply to an arm matches every value.
    assert means.select(fidelity=1.0).returns("reference").tolist() == [9.0, 11.0]
    with pytest.raises(ValueError, match=r"no unit has fidelity 0\.7; there are: 0\.5, 1\.0"):
        means.select(fidelity=0.7)
    with pytest.raises(ValueError, match="'phi' is no factor; factors: environment"):
        means.select(phi=0.7)


ESTIMATORS = [
    name
    for name in sorted(study._HOME)
    if inspect.isfunction(getattr(study, name))
    and next(iter(inspect.signature(getattr(study, name)).parameters), "") == "means"
]


def test_every_estimator_is_in_the_list():
    expected = {"bracket", "isotonic_threshold", "sigmoid_threshold", "kink", "jump", "thresholds", "headroom_of"}
    expected |= {"transfer_efficiency", "as_efficiency", "pooled_threshold", "factorial", "iqm", "performance_profile"}
    expected |= {"probability_of_improvement", "league", "transfer_scaling"}
    assert expected <= set(ESTIMATORS)


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"apply_exclusions"}))
def test_policies_are_never_taken_for_world_models(name):
    table = curve_study(CURVES["hinge"], np.random.default_rng(0), seeds=2, levels=3)
    others = {"estimand": Tolerance(0.1), "thresholds": [0.5], "arm": "simulated", "over": "reference", "size": "m"}
    wanted = inspect.signature(getattr(study, name)).parameters
    given = {key: value for key, value in others.items() if key in wanted}
    with pytest.raises(
        TypeError, match=rf"{name} takes WorldModelMeans, .* got a StudyTable of \d+ policies.*per_world"
    ):
        getattr(study, name)(table, **given)
    with pytest.raises(TypeError, match="got ndarray"):
        getattr(study, name)(table.real_return, **given)


def test_means_cannot_hold_policies():
    means = per_world_model(curve_study(CURVES["hinge"], np.random.default_rng(0), seeds=2, levels=3))
    twice = np.repeat(np.arange(len(means)), 2)
    columns = {f.name: getattr(means, f.name)[twice] for f in dataclasses.fields(means) if f.name != "metrics"}
    with pytest.raises(ValueError, match="stands 2 times in one cell; a world model gives one value"):
        WorldModelMeans(**columns)


def test_one_condition_at_a_time():
    rows = [row("simulated", f, i, 0, f, complexity=c) for f in (0.5, 1.0) for i in (0, 1) for c in (1.0, 2.0)]
    rows += [row("reference", None, None, i, 1.0) for i in (0, 1)]
    with pytest.raises(ValueError, match=r"bracket takes one complexity at a time; there are 2 \(1.0, 2.0\)"):
        study.bracket(per_world_model(StudyTable.of(rows)), Tolerance(0.1))
