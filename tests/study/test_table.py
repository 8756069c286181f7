"""Rows on disk and in memory: what is null, what is refused, and where."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from worldmodel.study.synthetic import CURVES, curve_study
from worldmodel.study.table import NO_SEED, StudyTable, append_rows, read_table

ROW = {
    "environment": "pendulum",
    "complexity": 2.0,
    "diversity": 8,
    "fidelity": 0.5,
    "corruption": "dynamics",
    "world_model_seed": 3,
    "policy_seed": 0,
    "real_return": -150.0,
    "arm": "simulated",
    "deployment": "training",
    "seconds": 12.0,
    "metrics": {"nrmse": 0.1, "crps": None},
}
ANCHOR = {**ROW, "arm": "reference", "fidelity": None, "corruption": None, "world_model_seed": None, "metrics": {}}


def test_rows_go_to_disk_and_back(tmp_path):
    table = StudyTable.of([ROW, ANCHOR])
    assert math.isnan(table.fidelity[1]) and table.corruption[1] == "" and table.world_model_seed[1] == NO_SEED
    assert table.metrics["nrmse"][0] == 0.1 and math.isnan(table.metrics["crps"][0])
    append_rows(tmp_path / "rows.jsonl", table)
    append_rows(tmp_path / "rows.jsonl", table)
    again = read_table(tmp_path / "rows.jsonl")
    assert again.rows() == table.rows() * 2
    first = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[1])
    assert first["fidelity"] is None and first["world_model_seed"] is None and first["metrics"]["nrmse"] is None


def test_a_line_that_is_being_written_is_passed_over(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW)[:30])
    assert len(read_table(path)) == 1
    path.write_text(json.dumps(ROW)[:30] + "\n" + json.dumps(ROW) + "\n")
    with pytest.raises(ValueError, match=r"line 1 of .*rows.jsonl is not JSON"):
        read_table(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arm": "simulatd"}, "arm 'simulatd' is unknown; known: simulated, reference"),
        ({"real_return": None}, "row 1 has null for 'real_return'"),
        ({"real_return": "9"}, "row 1 has '9' for 'real_return'; it must be a number"),
        ({"policy_seed": 0.5}, "row 1 has 0.5 for 'policy_seed'; it must be an integer"),
        ({"world_model_seed": None}, "row 1 of 2: a policy trained in a world model has no world_model_seed"),
        ({"fidelity": None}, "row 1 of 2: a policy of arm 'simulated' has no fidelity"),
        ({"real_return": math.inf}, "row 1 of 2: real_return is not finite"),
    ],
)
def test_bad_rows_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        StudyTable.of([ROW, {**ROW, **change}])


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match="row 0 has no 'deployment'"):
        StudyTable.of([{name: value for name, value in ROW.items() if name != "deployment"}])
    table = curve_study(CURVES["flat"], np.random.default_rng(0), seeds=2, levels=2)
    with pytest.raises(ValueError, match=r"column fidelity has shape \[3\]"):
        StudyTable(**{**vars(table), "fidelity": np.zeros(3)})
