"""`worldmodel study report`: what a study's folder says so far."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import tyro


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Tables of real returns by level and arm, and the fidelity that is needed, of the cells that are done.

    Beside the results it keeps the tables (report.md), the numbers (report.json) and pictures (figures/).

    Example: worldmodel study report runs/planted
    """

    folder: tyro.conf.Positional[pathlib.Path]
    """Folder of the study."""
    deployment: str = "training"
    """Where the policies were deployed: training, or the name of a held-out variant."""
    repetitions: int = 1000
    """Resamples of the intervals."""
    figures: bool = True
    """Draw the pictures."""
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
    text = tables(result)
    (options.folder / "report.md").write_text(text + "\n", encoding="utf-8")
    if options.figures:
        from worldmodel.cli.progress import console
        from worldmodel.report.study import draw

        for line in draw(store, options.deployment, options.folder / "figures")[1]:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    print(json.dumps(result, allow_nan=False) if options.json else text)
    return result
