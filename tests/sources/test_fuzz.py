"""Damaged logs: a clear error or a correct read, never a traceback, a hang, a crash or a full memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from worldmodel.sources import FORMATS

WORKER = Path(__file__).with_name("fuzz.py")
# A corpus is told by its checksums (tests/corpus); an environment has no file.
FORMATS_OF_FILES = [name for name in FORMATS if name not in ("corpus", "gymnasium")]
MOST_MB = 1500


def fuzz(name: str, seed: int, count: int) -> dict:
    run = subprocess.run(
        [sys.executable, str(WORKER), name, str(seed), str(count)], capture_output=True, text=True, timeout=600
    )
    last = run.stderr.splitlines()[-3:]
    assert run.returncode == 0, f"the reader of {name} died ({run.returncode}) after {last}"
    return json.loads(run.stdout.splitlines()[-1])


def check(outcome: dict, count: int) -> None:
    assert not outcome["faults"]
    assert outcome["read"] + outcome["refused"] == count
    assert outcome["refused"] > count // 3, "the damage is real"
    assert outcome["peak_mb"] < MOST_MB


@pytest.mark.parametrize("name", FORMATS_OF_FILES)
def test_a_few_damaged_copies(name):
    check(fuzz(name, seed=0, count=30), 30)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS_OF_FILES)
def test_five_hundred_damaged_copies(name):
    check(fuzz(name, seed=1, count=500), 500)
