"""From rows to one answer: everything registered is asked, everything refused has a reason."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from worldmodel.study.analysis import analyse
from worldmodel.study.estimands import BreakEven, Tolerance
from worldmodel.study.preregistration import Preregistration, register
from worldmodel.study.synthetic import BASE, REFERENCE, Noise, shifted_study
from worldmodel.study.table import StudyTable

ASKED = Preregistration(estimands=(Tolerance(0.1), BreakEven()), seeds=3)


@pytest.fixture(scope="module")
def table() -> StudyTable:
    """Three complexities that shift the threshold, two diversities that do not; the hardest has no headroom."""
    rng = np.random.default_rng(0)
    study = shifted_study({"alpha_C": 0.08}, rng, seeds=3, shape=(3, 2, 6), noise=Noise(0.03, 0.01, 2))
    rows = dataclasses.replace(study, corruption=np.full(len(study), "dynamics")).rows()
    for complexity in (1.0, 2.0, 3.0):
        for arm, value in (("reference", REFERENCE if complexity < 3 else BASE), ("no_training", BASE)):
            rows += [
                {"environment": "made up", "complexity": complexity, "diversity": None, "deployment": "training"}
                | {"fidelity": None, "corruption": None, "world_model_seed": None, "policy_seed": i, "arm": arm}
                | {"real_return": value + 0.03 * rng.normal()}
                for i in range(6)
            ]
    return StudyTable.of(rows)


def test_everything_that_was_registered_is_answered(table, tmp_path):
    register(ASKED, tmp_path / "registration.json", rows=tmp_path / "rows.jsonl")
    changed = dataclasses.replace(ASKED, alpha=0.1)
    found = analyse(table, changed, registered=tmp_path / "registration.json", repetitions=200)
    json.dumps(found, allow_nan=False)
    assert found["registration"]["changed"] == ["alpha"]
    assert [(c["complexity"], c["diversity"]) for c in found["conditions"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    first = found["conditions"][0]
    assert first["kinds"]["dynamics"]["short"] == []
    assert first["headroom"]["mean"] == pytest.approx(REFERENCE - BASE, abs=0.06)
    asked = first["kinds"]["dynamics"]["thresholds"]
    assert [a["estimand"]["kind"] for a in asked] == ["Tolerance", "BreakEven"]
    assert (
        asked[0]["isotonic"]["mean"] < found["conditions"][2]["kinds"]["dynamics"]["thresholds"][0]["isotonic"]["mean"]
    )
    assert first["kinds"]["dynamics"]["efficiency"][-1]["mean"] == pytest.approx(1.0, abs=0.15)
    assert "compares 2 or more kinds" in first["one_curve"]["why"]
    dials = found["dials"][0]
    assert dials["pooled"]["alpha_C"]["lo"] > 0 > dials["pooled"]["alpha_D"]["lo"]
    assert [c["name"] for c in dials["contrasts"]["raw"]] == list(ASKED.contrasts)
    assert "needs measured fidelities" in found["league"]["why"]


def test_conditions_without_headroom_are_left_out_and_named(table):
    found = analyse(table, ASKED, repetitions=50)
    assert found["registration"] is None
    more = analyse(table, dataclasses.replace(ASKED, seeds=4), repetitions=50)["conditions"][0]
    assert more["kinds"]["dynamics"]["short"][-1] == "fidelity 1: 3 of 4 world models"
    assert len(found["excluded"]) == 2 and all("complexity 3.0" in said for said in found["excluded"])
    everything = analyse(table, dataclasses.replace(ASKED, exclusions=()), repetitions=50)
    assert everything["excluded"] == [] and len(everything["conditions"]) == 6
    hardest = everything["conditions"][-1]
    assert "no headroom" in hardest["headroom"]["why"]
    assert all("no headroom" in e["why"] for e in hardest["kinds"]["dynamics"]["efficiency"])
    assert "no headroom" in everything["league"]["why"] or "measured" in everything["league"]["why"]


def test_a_deployment_that_was_not_run_is_named(table):
    with pytest.raises(ValueError, match="no unit has deployment 'held out'; there are: training"):
        analyse(table, ASKED, deployment="held out")
