"""What the missing cells will cost, in core-hours: from cells of the same kind that were measured, else by a guess."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from worldmodel.study.cells import Cell
from worldmodel.study.grid import Study


@dataclasses.dataclass(frozen=True)
class Budget:
    """Of `cells` that are missing: core-hours, and how many of the cells are of a kind that was measured."""

    cells: int
    core_hours: float
    measured: int

    def __str__(self) -> str:
        basis = "as measured here" if self.measured == self.cells else f"{self.measured} of them as measured here"
        return f"{self.cells} cells, about {self.core_hours:.2g} core-hours ({basis if self.measured else 'a guess'})"


class Costs:
    """Core-seconds of cells: the families' guesses, corrected by what cells of the same family and arm took."""

    def __init__(self, study: Study, finished: Iterable[tuple[Cell, float]] = ()):
        self._study = study
        self._sums: dict[tuple[str, str], list[float]] = {}
        for cell, seconds in finished:
            self.learn(cell, seconds)

    def learn(self, cell: Cell, seconds: float) -> None:
        """Takes note of a finished cell; one of a family that is no longer in the study says nothing."""
        if cell.environment in (grid.family.name for grid in self._study.grids):
            sums = self._sums.setdefault((cell.environment, cell.arm), [0.0, 0.0])
            sums[0] += seconds
            sums[1] += self._guess(cell)

    def knows(self, cell: Cell) -> bool:
        """Whether a cell of its kind was measured."""
        return (cell.environment, cell.arm) in self._sums

    def seconds(self, cell: Cell) -> float:
        """Of one cell."""
        took, guessed = self._sums.get((cell.environment, cell.arm), (1.0, 1.0))
        return self._guess(cell) * took / max(guessed, 1e-9)

    def of(self, cells: Sequence[Cell]) -> Budget:
        """Of cells that are missing."""
        hours = sum(self.seconds(cell) for cell in cells) / 3600
        return Budget(len(cells), hours, sum(self.knows(cell) for cell in cells))

    def _guess(self, cell: Cell) -> float:
        return self._study.family(cell.environment).seconds(cell)
