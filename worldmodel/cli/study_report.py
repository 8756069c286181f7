"""`worldmodel study report`: what a study's folder says so far."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import tyro


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Tables of real returns by level and arm, of the cells that are done.

    The numbers are also kept in report.json beside the results.

    Example: worldmodel study report runs/planted
    """

    folder: tyro.conf.Positional[pathlib.Path]
    """Folder of the study."""
    deployment: str = "training"
    """Where the policies were deployed: training, or the name of a held-out variant."""
    repetitions: int = 1000
    """Resamples of the intervals."""
    json: bool = False
    """Print one JSON object."""


def report(options: ReportOptions) -> dict[str, Any]:
    """Prints, keeps and returns the report."""
    from worldmodel.study.store import Store
    from worldmodel.study.summary import summarise, tables
    from worldmodel.training.checkpoint import write_json

    store = Store(options.folder)
    result = summarise(store, options.deployment, repetitions=options.repetitions)
    write_json(options.folder / "report.json", result)
    print(json.dumps(result, allow_nan=False) if options.json else tables(result))
    return result
