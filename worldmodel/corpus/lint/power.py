"""How well the lint finds a planted fault: what is counted over logs (`eval/lint_power.py`)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from worldmodel.corpus.lint.run import lint
from worldmodel.trajectory import Spec, Trajectory


def examined(seed: int, log: list[Trajectory], spec: Spec, code: str, *, changed: bool) -> dict[str, Any]:
    """The lint on one log: whether it names `code` (of a clean log, `""`: anything), all codes, and CPU seconds."""
    start = time.process_time()
    report = lint(log, spec)
    seconds = time.process_time() - start
    codes = sorted({f.code for f in report.findings if f.severity != "note"})
    found = code in codes if code else bool(codes)
    return {"seed": seed, "found": found, "codes": codes, "changed": changed, "seconds": seconds}


def summary(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """A cell's counts, from what `examined` gave for each seed."""
    codes = [code for t in trials for code in t["codes"]]
    return {
        "found": sum(t["found"] for t in trials),
        "n": len(trials),
        "changed": sum(t["changed"] for t in trials),
        "codes": {code: codes.count(code) for code in sorted(set(codes))},
        "missed_seeds": [t["seed"] for t in trials if not t["found"]][:20] if trials[0]["changed"] else [],
        "found_seeds": [t["seed"] for t in trials if t["found"]][:20] if not trials[0]["changed"] else [],
        "cpu_seconds_per_lint": round(float(np.mean([t["seconds"] for t in trials])), 3),
        "cpu_seconds_most": round(float(np.max([t["seconds"] for t in trials])), 3),
    }
