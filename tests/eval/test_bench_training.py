"""The training bench: what it makes of what both sides say, and that our side runs."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from worldmodel.model.language import LanguageConfig
from worldmodel.model.transformer import TrunkConfig

SCRIPT = Path(__file__).parents[2] / "eval" / "bench_training.py"


@pytest.fixture(scope="module")
def bench():
    return runpy.run_path(str(SCRIPT))


def said(seconds, losses, ceiling, *, peak=100.0):
    memory = {"peak_mb": peak, "libraries_mb": 40.0, "device_mb": 0.0}
    return {"seconds": seconds, "losses": losses, **memory, "ceiling": {"flops": ceiling, "device": "cpu"}}


def options(**fields):
    return argparse.Namespace(**({"steps": 2, "batch": 3, "length": 5, "precision": "float32"} | fields))


def test_arithmetic_is_counted_by_hand(bench):
    config = LanguageConfig(7, TrunkConfig(width=10, layers=3, heads=1, kv_heads=1, window=2))
    assert bench["step_flops"](config, 1_000, options()) == 3 * (6 * 1_000 * 5 + 12 * 3 * 10 * (1 + 2 + 2 + 2 + 2))


def test_sides_are_compared_round_by_round(bench):
    rounds = [{"ours": said(9.0, [4.0, 4.0], 1.0), "torch": said(9.0, [4.0, 4.0], 1.0)}]
    for slowness in (1.0, 3.0, 10.0):  # of the machine, which hits both sides and the ceiling alike
        ours = said(2.0 * slowness, [2.0, 1.0], 90.0 / slowness, peak=90.0)
        rounds.append({"ours": ours, "torch": said(3.0 * slowness, [2.0, 1.004], 100.0 / slowness)})
    result = bench["summary"](rounds, 70.0, options())
    assert result["ratio"] == {"median": 1.5, "least": 1.5, "most": 1.5}
    assert result["ours"]["share_of_ceiling"] == pytest.approx(0.7)
    assert result["ours"]["tokens_per_second"] == 3 * 5 / 3.0
    assert result["loss_difference"] == pytest.approx(0.004 / 1.004)
    assert result["ours"]["without_libraries_mb"] == 50.0
    assert result["passes"] == {"share": True, "ratio": True, "loss": True, "memory": True}
    assert "1.50 (1.50 to 1.50 by round)" in bench["table"](result | {"parameters": 1_000})
    rounds[1]["torch"]["losses"][0] = 2.02
    rounds[1]["ours"]["peak_mb"] = 101.0
    worse = bench["summary"](rounds, 50.0, options())
    assert worse["passes"] == {"share": False, "ratio": True, "loss": False, "memory": False}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_our_side_trains(precision, tmp_path):
    sizes = [
        "--preset",
        "debug",
        "--rounds",
        "1",
        "--steps",
        "2",
        "--vocabulary",
        "29",
        "--batch",
        "3",
        "--length",
        "70",
    ]
    command = [sys.executable, SCRIPT, *sizes, "--precision", precision, "--out", tmp_path / "out.json"]
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    result = json.loads((tmp_path / "out.json").read_text())
    assert done.returncode == (0 if result["passes"]["share"] else 1), done.stderr
    assert len(result["ours"]["losses"]) == 4
    assert result["ours"]["losses"][0] == pytest.approx(3.4, abs=0.2)
    assert result["ours"]["tokens_per_second"] > 0
    assert "torch" not in result
