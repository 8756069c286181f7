"""What a study measured: one row per policy that was trained in a world model and deployed in the real environment.

On disk a row is one line of JSON. A dial that does not apply to an arm (the fidelity of a policy that was trained in
reality) is null there, and NaN or an empty string in memory; it matches every value when rows are selected.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ARMS = ("simulated", "reference", "no_training", "cloning", "real_equal_budget", "null", "oracle")
WITH_WORLD_MODEL = ("simulated", "null", "oracle")
"""Arms whose policies were trained in a world model. Of all others the independent unit is the policy's training."""

TEXT = ("environment", "corruption", "arm", "deployment")
NUMBERS = ("complexity", "diversity", "fidelity")
SEEDS = ("world_model_seed", "policy_seed")
NO_SEED = -1
_NULLABLE = ("corruption", *NUMBERS, "world_model_seed")


@dataclasses.dataclass(frozen=True)
class StudyTable:
    """Columns of `N` deployed policies.

    Attributes:
      environment: `[N]` str.
      complexity: `[N]` float64, the dial of the task.
      diversity: `[N]` float64, the dial of the world model's data, or of the tasks trained on.
      fidelity: `[N]` float64, the knob that was turned (not a measured fidelity), higher is more faithful.
      corruption: `[N]` str, what kind of unfaithfulness the knob sets.
      world_model_seed: `[N]` int64, `NO_SEED` where there is no world model.
      policy_seed: `[N]` int64.
      real_return: `[N]` float64, mean return in the real environment; higher is better.
      arm: `[N]` str, one of `ARMS`.
      deployment: `[N]` str, "training" or the name of a held-out variant.
      metrics: measured fidelities (or sizes) by name, each `[N]` float64, NaN where not measured.
    """

    environment: np.ndarray
    complexity: np.ndarray
    diversity: np.ndarray
    fidelity: np.ndarray
    corruption: np.ndarray
    world_model_seed: np.ndarray
    policy_seed: np.ndarray
    real_return: np.ndarray
    arm: np.ndarray
    deployment: np.ndarray
    metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        count = len(self.environment)
        columns = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "metrics"}
        for name, column in {**columns, **self.metrics}.items():
            if column.shape != (count,):
                raise ValueError(f"column {name} has shape {list(column.shape)}; environment has [{count}]")
        if unknown := sorted(set(self.arm.tolist()) - set(ARMS)):
            raise ValueError(f"arm {unknown[0]!r} is unknown; known: {', '.join(ARMS)}")
        _refuse(~np.isfinite(self.real_return), "real_return is not finite")
        owns = np.isin(self.arm, WITH_WORLD_MODEL)
        _refuse(owns & (self.world_model_seed == NO_SEED), "a policy trained in a world model has no world_model_seed")
        _refuse((self.arm == "simulated") & ~np.isfinite(self.fidelity), "a policy of arm 'simulated' has no fidelity")

    def __len__(self) -> int:
        return len(self.environment)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> StudyTable:
        """The table of rows as they stand on disk; keys that are no columns are passed over."""
        rows = list(rows)
        columns: dict[str, Any] = {}
        for name in (*TEXT, *NUMBERS, *SEEDS, "real_return"):
            columns[name] = _column(name, [_cell(row, name, i) for i, row in enumerate(rows)])
        measured = [row.get("metrics") or {} for row in rows]
        names = sorted({name for own in measured for name in own})
        metrics = {name: _column(name, [own.get(name) for own in measured]) for name in names}
        return cls(**columns, metrics=metrics)

    def rows(self) -> list[dict[str, Any]]:
        """Rows for JSON: what is NaN, empty or `NO_SEED` here is null there."""
        out = []
        for i in range(len(self)):
            row: dict[str, Any] = {name: str(getattr(self, name)[i]) or None for name in TEXT}
            row |= {name: _number(getattr(self, name)[i]) for name in (*NUMBERS, "real_return")}
            row |= {name: int(getattr(self, name)[i]) for name in SEEDS}
            row["world_model_seed"] = None if row["world_model_seed"] == NO_SEED else row["world_model_seed"]
            if self.metrics:
                row["metrics"] = {name: _number(column[i]) for name, column in self.metrics.items()}
            out.append(row)
        return out


def read_table(path: Path) -> StudyTable:
    """The table in a file of JSON lines; a last line that is still being written is passed over.

    Raises:
      ValueError: a line is no row of a study; the line's number is named.
    """
    text = path.read_text(encoding="utf-8")
    rows = []
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if i == len(lines) - 1:
                continue
            raise ValueError(f"line {i + 1} of {path} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"line {i + 1} of {path} is a {type(row).__name__}; every line is an object")
        rows.append(row)
    try:
        return StudyTable.of(rows)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def append_rows(path: Path, table: StudyTable) -> None:
    """Appends the rows of `table` to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in table.rows())


def _cell(row: Mapping[str, Any], name: str, place: int) -> Any:
    if name not in row and name not in _NULLABLE:
        raise ValueError(f"row {place} has no {name!r}; it has: {', '.join(sorted(row))}")
    value = row.get(name)
    if value is None and name not in _NULLABLE:
        raise ValueError(f"row {place} has null for {name!r}; only {', '.join(_NULLABLE)} may be null")
    wanted = str if name in TEXT else int if name in SEEDS else (int, float)
    if value is not None and (isinstance(value, bool) or not isinstance(value, wanted)):
        kind = "a string" if name in TEXT else "an integer" if name in SEEDS else "a number"
        raise ValueError(f"row {place} has {value!r} for {name!r}; it must be {kind}")
    return value


def _column(name: str, values: list[Any]) -> np.ndarray:
    if name in TEXT:
        return np.array(["" if v is None else v for v in values], np.str_)
    if name in SEEDS:
        return np.array([NO_SEED if v is None else v for v in values], np.int64)
    return np.array([math.nan if v is None else v for v in values], np.float64)


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _refuse(bad: np.ndarray, what: str) -> None:
    if bad.any():
        raise ValueError(f"row {int(np.argmax(bad))} of {len(bad)}: {what}")
