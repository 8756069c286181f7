"""The three dials of a study. Each declares its scale: name, unit, levels, and how a level changes an environment."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from worldmodel.trajectory import suggest

CORRUPTIONS: Mapping[str, str] = {
    "dynamics_bias": "steps are pulled towards better outcomes than they have",
    "dynamics_noise": "steps lead to arbitrary outcomes",
    "reward": "rewards are wrong by an amount that depends on state and action",
    "false_ends": "episodes end where they should not",
    "delay": "actions take effect later",
    "localised": "as dynamics_bias, in a part of the states only",
    "determinism": "steps lead to their likeliest outcome, always",
    "logs": "none: the simulator is learned from logs, and the level is the number of logged steps",
}
"""What a fidelity dial can plant in an exact simulator, or how else fidelity is made."""

GOLDEN = 0.6180339887498949
LEARNED = "logs"
"""The one kind that plants nothing, whose levels are steps and not shares."""


@dataclasses.dataclass(frozen=True)
class Dial:
    """One scale.

    Attributes:
      levels: ascending numbers, in `unit`.
      unit: what one is.
      changes: how a level changes an environment, in words.
    """

    levels: tuple[float | int, ...]
    unit: str
    changes: str

    def __post_init__(self):
        if not self.levels:
            raise ValueError(f"dial {self.name} has no levels; at least one is needed")
        if not all(math.isfinite(level) for level in self.levels):
            raise ValueError(f"dial {self.name} has levels {_listed(self.levels)}; all must be finite")
        if list(self.levels) != sorted(set(self.levels)):
            raise ValueError(f"dial {self.name} has levels {_listed(self.levels)}; they must ascend, each once")

    @property
    def name(self) -> str:
        """Which of the three it is, and what it turns."""
        return type(self).__name__.lower()

    def to_json(self) -> dict[str, Any]:
        """Name, unit, levels and what a level changes."""
        return {"name": self.name, "unit": self.unit, "levels": list(self.levels), "changes": self.changes}


@dataclasses.dataclass(frozen=True)
class Knob:
    """Something of an environment that a complexity dial can turn: its range, unit, and what it changes."""

    low: float | int
    high: float | int
    unit: str
    changes: str
    whole: bool = False

    def check(self, name: str, level: float | int) -> None:
        """`ValueError` for a level outside the range, or not whole where it must be."""
        if not self.low <= level <= self.high or (self.whole and level != int(level)):
            kind = "a whole number" if self.whole else "a number"
            raise ValueError(f"{name} cannot be {level:g}; {kind} from {self.low:g} to {self.high:g} is allowed")


@dataclasses.dataclass(frozen=True)
class Complexity(Dial):
    """How hard the task is: one knob of the environment's family, at a time."""

    knob: str = ""

    @classmethod
    def of(cls, family: Any, knob: str, levels: tuple[float | int, ...]) -> Complexity:
        """The dial that turns a knob of `family`, whose unit and meaning it takes; `ValueError` names the knobs."""
        if knob not in family.knobs:
            known = ", ".join(family.knobs)
            raise ValueError(f"{family.name} has no knob {knob!r}{suggest(knob, family.knobs)}; its knobs are {known}")
        own = family.knobs[knob]
        return cls(tuple(float(level) for level in levels), own.unit, own.changes, knob)

    @property
    def name(self) -> str:
        """With the knob."""
        return f"complexity:{self.knob}"


@dataclasses.dataclass(frozen=True)
class Diversity(Dial):
    """How many instances of the task (physics, starts) are trained on; the steps of training in all stay the same."""

    levels: tuple[float | int, ...] = (1.0,)
    unit: str = "task instances"
    changes: str = "training is spread over so many instances of the task, in as many steps altogether"

    def __post_init__(self):
        super().__post_init__()
        for level in self.levels:
            if level != int(level) or level < 1:
                raise ValueError(f"dial diversity has level {level:g}; it counts instances, from 1")


@dataclasses.dataclass(frozen=True)
class Fidelity(Dial):
    """How faithful the simulator is: 1 is exact, and at 0 nothing is left of what the corruption replaces.

    For `LEARNED` fidelity is not planted: a level is the number of logged steps that the simulator is learned from.

    Attributes:
      corruption: a key of `CORRUPTIONS`.
      jitter: width around a level over which its simulators are spread, evenly. Without it a leap between two levels
        has no place; with it there is no level to bracket.
    """

    corruption: str = "dynamics_bias"
    jitter: float | int = 0.0

    @classmethod
    def of(cls, corruption: str, levels: tuple[float | int, ...], *, jitter: float | int = 0.0) -> Fidelity:
        """The dial of one kind of corruption; `ValueError` names the kinds."""
        if corruption not in CORRUPTIONS:
            known = ", ".join(CORRUPTIONS)
            raise ValueError(f"corruption {corruption!r} is unknown{suggest(corruption, CORRUPTIONS)}; known: {known}")
        unit = "logged steps" if corruption == LEARNED else "share of steps, or of size, that is right"
        return cls(tuple(float(level) for level in levels), unit, CORRUPTIONS[corruption], corruption, float(jitter))

    def __post_init__(self):
        super().__post_init__()
        low, high = (1.0, math.inf) if self.corruption == LEARNED else (0.0, 1.0)
        for level in self.levels:
            if not low <= level <= high:
                raise ValueError(f"dial {self.name} has level {level:g}; {low:g} to {high:g} is allowed")
        if not 0.0 <= self.jitter < 1.0 or (self.jitter and self.corruption == LEARNED):
            allowed = "0 (logs hold whole steps)" if self.corruption == LEARNED else "0 to below 1"
            raise ValueError(f"dial {self.name} has jitter {self.jitter:g}; {allowed} is allowed")

    @property
    def name(self) -> str:
        """With the kind of corruption."""
        return f"fidelity:{self.corruption}"

    def to_json(self) -> dict[str, Any]:
        """As any dial, with its jitter."""
        return {**super().to_json(), "jitter": self.jitter}


def jittered(level: float, jitter: float, seed: int) -> float:
    """The fidelity of a simulator: `level`, moved by a golden-ratio sequence over its seed, reflected at 0 and 1."""
    moved = level + jitter * ((0.5 + (seed + 1) * GOLDEN) % 1.0 - 0.5) if jitter else level
    return -moved if moved < 0 else 2.0 - moved if jitter and moved > 1 else moved


def _listed(levels: tuple[float | int, ...]) -> str:
    return ", ".join(f"{level:g}" for level in levels)
