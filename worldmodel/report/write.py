"""The files of a report: all of them or none, each put in place by a rename."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldmodel.report.evidence import Evidence
from worldmodel.report.numbers import strict_json


def write_report(run_dir: str | os.PathLike[str], report: Mapping[str, Any], evidence: Evidence) -> Path:
    """Writes `report.html`, `report.json` and `README.md` into `run_dir`, and returns the path of the page.

    Args:
      run_dir: made where it is missing; files of an earlier report are replaced.
      report: plain JSON, written to `report.json` unchanged. Estimates are `{"mean", "lo", "hi", "n"}` (95%), curves
        parallel arrays; a null stands beside `why`. Read: `env_id, seed, versions, timings, config, corpus, one_step,
        rollout, policies, ranking, transfer, training, policy_training, verdict`; what is missing is not drawn.
      evidence: one imagined and one real rollout.

    Raises:
      ValueError: the report holds what JSON cannot (the message names where), or no `env_id`. No file is touched then.
    """
    from worldmodel.report.card import model_card
    from worldmodel.report.page import html

    if not isinstance(report.get("env_id"), str):
        raise ValueError(f"report.env_id is {report.get('env_id')!r}; the id of the real environment is needed")
    run = Path(run_dir)
    files = {
        "report.json": strict_json(report),
        "report.html": html(report, evidence),
        "README.md": model_card(report, run),
    }
    run.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        _replace(run / name, content.encode("utf-8"))
    return run / "report.html"


def write_json(run_dir: str | os.PathLike[str], report: Mapping[str, Any]) -> Path:
    """Writes `report.json` alone and returns its path; `ValueError` names where the report holds what JSON cannot."""
    content = strict_json(report)
    run = Path(run_dir)
    run.mkdir(parents=True, exist_ok=True)
    _replace(run / "report.json", content.encode("utf-8"))
    return run / "report.json"


def write_hero(
    path: str | os.PathLike[str], report: Mapping[str, Any], evidence: Evidence, *, moments: int = 4
) -> Path:
    """Writes one PNG of 1600 x 700 pixels for the top of a README, and returns its path.

    Left: `moments` moments of the imagined over the real rollout (traces where there are no frames). Right: what the
    policy earns, and the open-loop error.
    """
    from worldmodel.report.hero import hero_png

    path = Path(path)
    picture = hero_png(report, evidence, moments)
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, picture)
    return path


def _replace(path: Path, content: bytes) -> None:
    """A reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
