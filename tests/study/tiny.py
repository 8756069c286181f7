"""A family without learners: what is asked of it is written down, and it fails where it is told to."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

from worldmodel.study.cells import Cell
from worldmodel.study.dials import Complexity, Diversity, Fidelity, Knob
from worldmodel.study.grid import Grid, Study


@dataclasses.dataclass(frozen=True)
class Tiny:
    """Returns are the fidelity less a tenth of the seed; `logbook` is a folder with a file per time a cell was run."""

    logbook: str
    trouble: str = ""  # "raise", "die", "nan", "flat", "interrupt", "slow"
    at: float = 0.5  # in the simulated cell of this fidelity
    name: ClassVar[str] = "tiny"
    knobs: ClassVar[dict] = {"size": Knob(1, 9, "cells", "is larger", whole=True), "delay": Knob(0, 1, "s", "is late")}
    corruptions: ClassVar[tuple] = ("reward", "delay")
    arms: ClassVar[tuple] = ("simulated", "reference", "no_training", "oracle")
    most_diverse: ClassVar[int] = 4
    bounds: ClassVar[Any] = None

    def describe(self) -> dict[str, Any]:
        return {"kind": "Tiny"}

    def seconds(self, cell: Cell) -> float:
        return 36.0

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        book = Path(self.logbook)
        book.mkdir(exist_ok=True)
        here = cell.arm == "simulated" and cell.fidelity == self.at
        (book / f"{cell.key}.{len(list(book.glob(f'{cell.key}.*')))}").touch()
        if here and self.trouble == "raise":
            raise RuntimeError("the learner\nbroke")
        if here and cell.complexity == 1.0 and self.trouble == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if here and self.trouble == "interrupt":
            raise KeyboardInterrupt
        if self.trouble == "slow":
            time.sleep(0.1)
        base = {"reference": 1.0, "oracle": 1.0, "no_training": 1.0 if self.trouble == "flat" else 0.0}
        value = base.get(cell.arm, cell.fidelity)
        value = float("nan") if here and self.trouble == "nan" else value
        simulator = cell.arm in ("simulated", "oracle")
        return [
            {
                "world_model_seed": seed if simulator else None,
                "policy_seed": 0 if simulator else seed,
                "deployment": "training",
                "real_return": value - 0.1 * seed,
                "metrics": {"error": 1.0 - value} if simulator else {},
            }
            for seed in cell.seeds
        ]


def tiny_study(logbook: Path, levels=(0.0, 0.5), trouble: str = "", seeds: int = 2, **kwargs) -> Study:
    """Cells of a study of `Tiny`: two of each anchor, two oracles, and two of each level."""
    family = Tiny(str(logbook), trouble)
    grid = Grid(
        family,
        Complexity.of(family, "size", (1, 2)),
        (Fidelity.of("reward", levels),),
        Diversity(),
        seeds=seeds,
    )
    return Study("tiny", (grid,), **kwargs)


def times_run(logbook: Path) -> dict[str, int]:
    """How often each cell was run, by key."""
    counts: dict[str, int] = {}
    for file in logbook.iterdir():
        counts[file.stem] = counts.get(file.stem, 0) + 1
    return counts
