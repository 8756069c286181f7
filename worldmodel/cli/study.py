"""`worldmodel study`: fidelity against transfer."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any

import tyro


@dataclasses.dataclass(frozen=True)
class StudyOptions:
    """Trains policies in simulators of graded fidelity, deploys them in reality, and keeps one line per policy.

    The same command goes on where it was stopped, and runs what was added since. Exit code 1 where a cell failed:
    it is kept with its traceback, and tried again at the next start.

    Example: worldmodel study planted_threshold --out runs/planted --quick
    """

    recipe: tyro.conf.Positional[str]
    """Name of a recipe (planted_threshold, three_dials), or a Python file that defines STUDY; its code is run."""
    out: pathlib.Path
    """Folder of the study."""
    quick: bool = False
    """A small form of the study, for a first look."""
    workers: int = os.cpu_count() or 1
    """Processes on this machine, of one thread each."""
    ray: str | None = None
    """Address of a Ray cluster that computes instead ("local": one made for this); needs the extra `ray`."""
    max_core_hours: float | None = None
    """Refuse to start where the estimate is above this."""
    json: bool = False
    """Print one JSON object."""


def study(options: StudyOptions) -> dict[str, Any]:
    """Runs what is missing; prints and returns the summary. `SystemExit(1)` where a cell failed."""
    from worldmodel.cli.progress import CellBar
    from worldmodel.study.pool import Pool, Processes
    from worldmodel.study.runner import run_study
    from worldmodel.study.source import Source

    source = Source(options.recipe, options.quick)
    wanted = source.load()
    pool: Pool
    if options.ray is None:
        pool = Processes(source, options.workers)
    else:
        from worldmodel.study.ray_pool import RayPool

        pool = RayPool(source, options.ray, workers=options.workers)
    with CellBar(options.workers) as bar:
        if wanted.note:
            bar.say(f"{wanted.name}: {wanted.note}")
        found = run_study(
            wanted,
            options.out,
            pool,
            max_core_hours=options.max_core_hours,
            budget=lambda budget: bar.say(f"{wanted.name}: {budget}"),
            progress=bar,
        )
    result = {"study": wanted.name, "note": wanted.note, **found.to_json()}
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        _print(options, result)
    if found.failed:
        raise SystemExit(1)
    return result


def _print(options: StudyOptions, result: dict[str, Any]) -> None:
    print(
        f"{result['study']}: {result['run']} cells run, {result['reused']} found done, {result['failed']} failed; "
        f"{result['rows']:,} rows in {options.out}/results.jsonl"
    )
    for place in result["left_out"]:
        where = f"{place['environment']}, complexity {place['complexity']:g}, diversity {place['diversity']}"
        print(f"left out: {where}: {place['why']}")
    if result["failed"]:
        print(f"why cells failed: worldmodel study status {options.out}")
    print(f"what it says: worldmodel study report {options.out}")
