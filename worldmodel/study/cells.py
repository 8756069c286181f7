"""A cell: one combination of levels and one arm, for some seeds. What it gives depends on its content alone."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from worldmodel.study.dials import jittered

ARMS: Mapping[str, str] = {
    "simulated": "trained in the simulator of the cell's fidelity",
    "reference": "trained in reality, with as many steps as in the simulator",
    "no_training": "not trained",
    "cloning": "imitates the logs that the simulator was learned from",
    "real_equal_budget": "trained in reality, with as many steps as a simulator's logs hold",
    "null": "trained in a simulator in which nothing depends on what is done",
    "oracle": "trained in an exact simulator",
}
"""What is deployed."""

ANCHORS = ("reference", "no_training")
"""Arms that say whether there is anything to gain, and so run first."""

VERSION = 1
"""Of what a cell's content means, which fields it has among it; a change makes every result stale."""

REQUIRED = ("world_model_seed", "policy_seed", "deployment", "real_return")
OPTIONAL = ("simulated_return", "episodes", "real_steps", "simulated_steps", "metrics")


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is trained and deployed together.

    Attributes:
      environment: name of the family.
      family: what `Family.describe` says.
      arm: a key of `ARMS`.
      complexity: level, of `knob`.
      diversity: number of task instances trained on.
      fidelity: level; None where the arm has none.
      corruption: its kind; None where the arm has none.
      seeds: of simulators, or of policies where the arm has no simulator.
      policies: trained in each simulator.
      jitter: see `Fidelity`.
    """

    environment: str
    family: Mapping[str, Any]
    arm: str
    knob: str
    complexity: float
    diversity: int
    fidelity: float | None
    corruption: str | None
    seeds: tuple[int, ...]
    policies: int = 1
    jitter: float = 0.0

    def content(self) -> dict[str, Any]:
        """All that decides the result, plain JSON."""
        return json.loads(json.dumps({**dataclasses.asdict(self), "version": VERSION}))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Cell:
        """The inverse of `content`."""
        values = {name: content[name] for name in (field.name for field in dataclasses.fields(cls))}
        return cls(**{**values, "seeds": tuple(values["seeds"])})

    @property
    def key(self) -> str:
        """Hash of the content: 16 hexadecimal digits of SHA-256 of its canonical JSON."""
        text = json.dumps(self.content(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def fidelity_of(self, seed: int) -> float:
        """Of the simulator of a seed; 1 where the arm has none of its own."""
        return 1.0 if self.fidelity is None else jittered(self.fidelity, self.jitter, seed)

    @property
    def place(self) -> tuple[str, float, int]:
        """Environment, complexity, diversity: what the anchors belong to."""
        return self.environment, self.complexity, self.diversity

    def __str__(self) -> str:
        fidelity = "" if self.fidelity is None or self.corruption is None else f", {self.corruption} {self.fidelity:g}"
        seeds = f"seeds {self.seeds[0]}-{self.seeds[-1]}"
        levels = f"{self.knob} {self.complexity:g}, {self.diversity} instances"
        return f"{self.environment} ({levels}{fidelity}), {self.arm}, {seeds}"


def finished_rows(cell: Cell, measured: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """A family's rows with the cell's own columns; `seconds` of the whole cell are spread evenly.

    Raises:
      ValueError: a row lacks a column, or holds one that is unknown or not finite.
    """
    if not measured:
        raise ValueError(f"{cell}: no row came back")
    out = []
    for row in measured:
        unit = row.get("world_model_seed")
        if missing := [name for name in REQUIRED if name not in row]:
            raise ValueError(f"{cell}: a row has no {missing[0]!r}")
        if unknown := sorted(set(row) - {*REQUIRED, *OPTIONAL}):
            raise ValueError(f"{cell}: a row has {unknown[0]!r}; known are {', '.join((*REQUIRED, *OPTIONAL))}")
        if not math.isfinite(row["real_return"]):
            raise ValueError(f"{cell}: a real return is {row['real_return']}")
        out.append(
            {
                "cell": cell.key,
                "environment": cell.environment,
                "complexity": cell.complexity,
                "diversity": float(cell.diversity),
                "fidelity": cell.fidelity if unit is None or cell.fidelity is None else cell.fidelity_of(unit),
                "corruption": cell.corruption,
                "arm": cell.arm,
                "simulated_return": None,
                "episodes": None,
                "real_steps": 0,
                "simulated_steps": 0,
                **row,
                "seconds": round(seconds / len(measured), 4),
                "metrics": row.get("metrics") or {},
            }
        )
    return out
