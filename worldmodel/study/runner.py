"""Runs the cells of a study that are missing, and keeps each as soon as it is done."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worldmodel.corpus.lock import only_writer
from worldmodel.study.budget import Budget, Costs
from worldmodel.study.cells import ANCHORS, Cell
from worldmodel.study.grid import Study
from worldmodel.study.headroom import without_headroom
from worldmodel.study.pool import Outcome, Pool
from worldmodel.study.store import Store


@dataclasses.dataclass(frozen=True)
class Progress:
    """A cell that has just been done, or failed: how many of how many, and seconds of one core that are left."""

    done: int
    total: int
    core_seconds_left: float
    cell: Cell
    outcome: Outcome


@dataclasses.dataclass(frozen=True)
class Summary:
    """Cells of a start: run now, found done, failed, and left out for want of headroom (by place, with the reason)."""

    run: int
    reused: int
    failed: int
    left_out: dict[tuple[str, float, int], str]
    rows: int

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        places = [
            {"environment": place[0], "complexity": place[1], "diversity": place[2], "why": why}
            for place, why in self.left_out.items()
        ]
        return {**dataclasses.asdict(self), "left_out": places}


def run_study(
    study: Study,
    out: Path,
    pool: Pool,
    *,
    max_core_hours: float | None = None,
    budget: Callable[[Budget], None] = lambda budget: None,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Summary:
    """Runs what is missing in the folder `out`; killed at any instant, the same call goes on from there.

    Anchors run first. Where training in reality gains nothing over none, nothing else is run: such places are named in
    the summary. A cell that fails is kept with its traceback, stops nothing, and is tried again at the next start.

    Raises:
      ValueError: the folder is another study's, another runner is at work in it, or the estimate is above the budget.
    """
    out.mkdir(parents=True, exist_ok=True)
    with only_writer(out):
        store = Store(out)
        store.check(study)
        with contextlib.closing(pool):
            return _run(study, store, pool, max_core_hours, budget, progress)


def _run(
    study: Study,
    store: Store,
    pool: Pool,
    max_core_hours: float | None,
    budget: Callable[[Budget], None],
    progress: Callable[[Progress], None],
) -> Summary:
    cells, done = study.cells(), store.done()
    reused = sum(cell.key in done for cell in cells)
    costs = Costs(study, store.seconds())
    missing = [cell for cell in cells if cell.key not in done]
    estimate = costs.of(missing)
    budget(estimate)
    if max_core_hours is not None and estimate.core_hours > max_core_hours:
        raise ValueError(
            f"the missing cells need about {estimate.core_hours:.2g} core-hours, more than the {max_core_hours:g} "
            "allowed; ask for fewer levels or seeds, or allow more"
        )
    store.claim(study)
    counts = {"run": 0, "failed": 0}
    left_out: dict[tuple[str, float, int], str] = {}
    for anchors in (True, False):
        keys = [cell.key for cell in cells if cell.arm in ANCHORS]
        left_out = {} if anchors else without_headroom(store.rows(keys), study.headroom)
        waiting = [cell for cell in missing if (cell.arm in ANCHORS) == anchors and cell.place not in left_out]
        later = [cell for cell in missing if cell.arm not in ANCHORS] if anchors else []
        left = {cell.key: cell for cell in [*waiting, *later]}
        for cell, outcome in pool(waiting):
            if outcome.error is None:
                store.add(cell, outcome.rows, outcome.seconds)
                costs.learn(cell, outcome.seconds)
                counts["run"] += 1
            else:
                store.add_failure(cell, outcome.error, outcome.traceback)
                counts["failed"] += 1
            del left[cell.key]
            seconds = sum((costs.seconds(each) for each in left.values()), 0.0)
            finished = counts["run"] + counts["failed"]
            progress(Progress(finished, finished + len(left), seconds, cell, outcome))
    rows = len(store.rows([cell.key for cell in cells]))
    return Summary(counts["run"], reused, counts["failed"], left_out, rows)
