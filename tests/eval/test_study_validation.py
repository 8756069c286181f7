"""The study's validation: what it counts, that every part runs, and that a cell is run once."""

from __future__ import annotations

import json
import math
import runpy
import sys
from pathlib import Path

import pytest

from worldmodel.fidelity.estimates import Estimate

SCRIPT = Path(__file__).parents[2] / "eval" / "study_validation.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def test_what_counts_as_covered(script):
    judged = script["_judged"]
    inside = judged(Estimate(0.5, 0.4, 0.6, 9), 0.45)
    assert inside["covered"] == 1 and inside["width"] == pytest.approx(0.2) and inside["error"] == pytest.approx(0.05)
    assert judged(Estimate(0.5, 0.4, 0.6, 9), 0.7) | {"below": 1, "covered": 0} == judged(
        Estimate(0.5, 0.4, 0.6, 9), 0.7
    )
    open_above = Estimate(None, 0.4, None, 9, "not reached at the highest level")
    assert judged(open_above, math.inf)["covered"] == 1 and judged(open_above, 0.3)["covered"] == 0
    nowhere = Estimate(None, None, None, 9, "not reached at the highest level")
    assert judged(nowhere, math.inf)["covered"] == 1 and judged(nowhere, 0.9)["covered"] == 0
    refused = judged(Estimate(None, None, None, 9, "the return falls as fidelity rises"), 0.5)
    assert refused["refused"] == 1 and refused["covered"] == 0


def test_the_flip_is_where_it_is_said_to_be(script):
    assert [script["exact_flip"](h) for h in (1, 2, 4, 8)] == pytest.approx([0.723, 0.777, 0.819, 0.847], abs=5e-4)


def test_every_kind_of_cell_runs(script):
    for part, cells in script["PARTS"].items():
        key, repetition = next(iter(cells()))
        assert key and all(isinstance(value, (int, float)) for value in repetition(0).values()), part


def test_a_cell_is_run_once(tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--parts", "pilot", "--repetitions", "2", "--out", str(out)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    first = out.read_text()
    assert [json.loads(line)["sd"] for line in first.splitlines()] == [0.04, 0.08, 0.15]
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert out.read_text() == first
    assert capsys.readouterr().out.count("| sd | repetitions | covered | variance |") == 2
