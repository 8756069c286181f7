"""What a study asks of a family of environments: anything of this form can be studied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from worldmodel.study.cells import Cell
from worldmodel.study.dials import Knob


@runtime_checkable
class Family(Protocol):
    """A family of environments, its simulators of graded fidelity, and the learner that is trained in them."""

    @property
    def name(self) -> str:
        """Unique within a study."""
        ...

    @property
    def knobs(self) -> Mapping[str, Knob]:
        """What a complexity dial can turn."""
        ...

    @property
    def corruptions(self) -> Sequence[str]:
        """Which fidelity dials its simulator has."""
        ...

    @property
    def arms(self) -> Sequence[str]:
        """Arms that it can train, of `worldmodel.study.cells.ARMS`."""
        ...

    @property
    def most_diverse(self) -> int:
        """Most task instances that can be trained on."""
        ...

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Least and greatest possible return, where they are known."""
        ...

    def describe(self) -> dict[str, Any]:
        """All that decides its results, as JSON: part of every cell's content."""
        ...

    def seconds(self, cell: Cell) -> float:
        """A guess of the core-seconds that a cell takes, before one was measured."""
        ...

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        """The rows of a cell: `world_model_seed`, `policy_seed`, `deployment`, `real_return`, and what was measured."""
        ...
