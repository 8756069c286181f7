"""A study: grids of levels over families of environments, checked as a whole before anything runs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from worldmodel.study.cells import ANCHORS, Cell
from worldmodel.study.dials import LEARNED, Complexity, Diversity, Fidelity
from worldmodel.study.estimands import Tolerance
from worldmodel.study.family import Family
from worldmodel.study.preregistration import Preregistration
from worldmodel.study.table import WITH_WORLD_MODEL
from worldmodel.trajectory import suggest


@dataclasses.dataclass(frozen=True)
class Grid:
    """Every combination of the levels of one family, with its controls.

    Attributes:
      family: of environments.
      complexity: turns a knob of the family.
      fidelity: one dial for each kind of corruption; they are alternatives, never planted together.
      diversity: how many task instances are trained on.
      seeds: simulators of each cell; arms that set a target get twice as many.
      policies: trained in each simulator.
      controls: arms beside "simulated"; None: all that the family can train.
      together: seeds trained in one program.
    """

    family: Family
    complexity: Complexity
    fidelity: tuple[Fidelity, ...]
    diversity: Diversity = Diversity()
    seeds: int = 5
    policies: int = 1
    controls: tuple[str, ...] | None = None
    together: int = 5

    def __post_init__(self):
        family, name = self.family, self.family.name
        if not isinstance(family, Family):
            raise ValueError(
                f"{type(family).__name__} is no family of environments; see worldmodel.study.family.Family"
            )
        for what in ("seeds", "policies", "together"):
            if getattr(self, what) < 1:
                raise ValueError(f"{what} of {name} is {getattr(self, what)}; at least 1 is needed")
        knob = self.complexity.knob
        if knob not in family.knobs:
            known = ", ".join(family.knobs)
            raise ValueError(f"dial complexity turns {knob!r}, which {name} does not have; its knobs are {known}")
        for level in self.complexity.levels:
            family.knobs[knob].check(f"{knob} of {name}", level)
        if self.diversity.levels[-1] > family.most_diverse:
            asked = self.diversity.levels[-1]
            raise ValueError(f"dial diversity asks for {asked:g} instances; {name} has {family.most_diverse} at most")
        self._check_fidelity()
        for arm in self.controls or ():
            if arm not in family.arms or arm == "simulated":
                known = ", ".join(arm for arm in family.arms if arm != "simulated")
                raise ValueError(f"{name} has no control {arm!r}{suggest(arm, family.arms)}; its controls are {known}")

    def _check_fidelity(self) -> None:
        family = self.family
        kinds = [dial.corruption for dial in self.fidelity]
        if not kinds:
            raise ValueError(f"{family.name} has no fidelity dial; give one for each kind of corruption")
        for kind in kinds:
            if kind not in family.corruptions:
                known = ", ".join(family.corruptions)
                raise ValueError(f"dial fidelity plants {kind!r}, which {family.name} has not; it has {known}")
            if kinds.count(kind) > 1:
                raise ValueError(f"two dials set fidelity:{kind} of {family.name}; one dial holds all its levels")
            if kind == self.complexity.knob:
                raise ValueError(f"dials {self.complexity.name} and fidelity:{kind} both set {kind} of {family.name}")

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms beside "simulated"."""
        wanted = tuple(arm for arm in self.family.arms if arm != "simulated")
        if self.controls is None:
            # Only logs can be imitated.
            return tuple(arm for arm in wanted if arm != "cloning" or LEARNED in [d.corruption for d in self.fidelity])
        return self.controls

    def cells(self) -> Iterator[Cell]:
        """Anchors first: they say whether there is anything to gain."""
        places = list(itertools.product(self.complexity.levels, self.diversity.levels))
        for arm in sorted(self.arms, key=lambda arm: arm not in ANCHORS):
            for complexity, diversity in places:
                if arm == "cloning":
                    dials = [dial for dial in self.fidelity if dial.corruption == LEARNED]
                    for dial in dials:
                        for level in dial.levels:
                            yield from self._of(arm, complexity, diversity, level, dial.corruption)
                else:
                    # An exact simulator is exact whatever was not planted in it.
                    yield from self._of(arm, complexity, diversity, 1.0 if arm == "oracle" else None, None)
        for dial in self.fidelity:
            for (complexity, diversity), level in itertools.product(places, dial.levels):
                yield from self._of("simulated", complexity, diversity, level, dial.corruption, dial.jitter)

    def _of(
        self,
        arm: str,
        complexity: float | int,
        diversity: float | int,
        fidelity: float | int | None,
        corruption: str | None,
        jitter: float | int = 0.0,
    ) -> Iterator[Cell]:
        count = self.seeds * (2 if arm in ANCHORS else 1)
        for first in range(0, count, self.together):
            yield Cell(
                environment=self.family.name,
                family=self.family.describe(),
                arm=arm,
                knob=self.complexity.knob,
                complexity=float(complexity),
                diversity=int(diversity),
                fidelity=None if fidelity is None else float(fidelity),
                corruption=corruption,
                seeds=tuple(range(first, min(first + self.together, count))),
                policies=self.policies if arm in WITH_WORLD_MODEL else 1,
                jitter=float(jitter),
            )

    def to_json(self) -> dict[str, Any]:
        """The grid in words and numbers."""
        return {
            "family": self.family.describe() | {"name": self.family.name},
            "complexity": self.complexity.to_json(),
            "diversity": self.diversity.to_json(),
            "fidelity": [dial.to_json() for dial in self.fidelity],
            "seeds": self.seeds,
            "policies": self.policies,
            "arms": ["simulated", *self.arms],
            "bounds": self.family.bounds,
        }


@dataclasses.dataclass(frozen=True)
class Study:
    """A named set of grids.

    Attributes:
      name: of the study; a folder belongs to one.
      grids: each over a family of its own.
      questions: what will be asked of the results; it is written down before the first cell.
      headroom: least difference between the reference and no training, in units of return, below which a place has
        nothing to show and its other cells are not run.
      note: what the study can not conclude, for the one who reads its tables.
    """

    name: str
    grids: tuple[Grid, ...]
    questions: Preregistration = Preregistration(estimands=(Tolerance(0.1, relative=True),))
    headroom: float | int = 0.0
    note: str = ""

    def __post_init__(self):
        if not self.grids:
            raise ValueError(f"study {self.name!r} has no grids; at least one is needed")
        names = [grid.family.name for grid in self.grids]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two grids of study {self.name!r} are over {name!r}; give one family per grid")

    def cells(self) -> list[Cell]:
        """Of all grids, in the order in which they run."""
        cells = [cell for grid in self.grids for cell in grid.cells()]
        return sorted(cells, key=lambda cell: cell.arm not in ANCHORS)

    def family(self, name: str) -> Family:
        """The family of that name."""
        return next(grid.family for grid in self.grids if grid.family.name == name)

    @property
    def registration(self) -> Preregistration:
        """The questions, with the least numbers of simulators and policies of any grid."""
        seeds, policies = (min(getattr(grid, name) for grid in self.grids) for name in ("seeds", "policies"))
        return dataclasses.replace(self.questions, seeds=seeds, policies=policies)

    def quick(self) -> Study:
        """The same with 3 simulators a cell, for a first look."""
        grids = tuple(dataclasses.replace(grid, seeds=min(grid.seeds, 3)) for grid in self.grids)
        return dataclasses.replace(self, grids=grids, note=self.note or "3 simulators a cell: intervals are wide")

    def to_json(self) -> dict[str, Any]:
        """The study in words and numbers."""
        grids = [grid.to_json() for grid in self.grids]
        return {
            "name": self.name,
            "note": self.note,
            "headroom": self.headroom,
            "questions": self.registration.to_json(),
            "grids": grids,
        }
