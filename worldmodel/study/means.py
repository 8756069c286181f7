"""One value per world-model seed: the only thing from which the study's estimators infer anything.

Policies that were trained in one world model share its errors. To count them as independent is pseudo-replication: with
five world models of four policies per cell it finds absent interactions in 17% of studies instead of 5%. So every
estimator demands `WorldModelMeans`, and only `per_world_model` makes them from a table.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np

from worldmodel.study.table import NUMBERS, TEXT, WITH_WORLD_MODEL, StudyTable

FACTORS = (*TEXT, *NUMBERS)
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class WorldModelMeans:
    """Columns of `M` independent units: world models, or policies' trainings in arms that have no world model.

    Attributes:
      environment, corruption, arm, deployment: `[M]` str, as in `StudyTable`.
      complexity, diversity, fidelity: `[M]` float64.
      unit: `[M]` int64, seed of the world model, or of the training where there is no world model.
      real_return: `[M]` float64, mean over the unit's policies, each first averaged over its rows.
      policies: `[M]` int64, how many.
      metrics: measured fidelities by name, `[M]` float64 each.

    Raises:
      ValueError: a unit stands twice in one cell.
    """

    environment: np.ndarray
    complexity: np.ndarray
    diversity: np.ndarray
    fidelity: np.ndarray
    corruption: np.ndarray
    arm: np.ndarray
    deployment: np.ndarray
    unit: np.ndarray
    real_return: np.ndarray
    policies: np.ndarray
    metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        keys, _ = _groups([*(getattr(self, name) for name in FACTORS), self.unit])
        found, counts = np.unique(keys, return_counts=True)
        if len(found) < len(keys):
            place = int(np.argmax(keys == found[np.argmax(counts)]))
            raise ValueError(
                f"unit {self.unit[place]} of arm {self.arm[place]!r} in {self.environment[place]!r} stands "
                f"{counts.max()} times in one cell; a world model gives one value: use per_world_model(table)"
            )

    def __len__(self) -> int:
        return len(self.unit)

    def where(self, keep: np.ndarray) -> WorldModelMeans:
        """The units for which `keep` bool `[M]` holds."""
        columns = {f.name: getattr(self, f.name)[keep] for f in dataclasses.fields(self) if f.name != "metrics"}
        return WorldModelMeans(**columns, metrics={name: column[keep] for name, column in self.metrics.items()})

    def select(self, **factors: str | float) -> WorldModelMeans:
        """The units with these values of factors; a factor that does not apply to a unit matches every value.

        Raises:
          ValueError: no such factor, or no unit has the value.
        """
        keep = np.ones(len(self), bool)
        for name, value in factors.items():
            if name not in FACTORS:
                raise ValueError(f"{name!r} is no factor; factors: {', '.join(FACTORS)}")
            column = getattr(self, name)
            if not (column == value).any():
                known = ", ".join(str(v) for v in levels(column))
                raise ValueError(f"no unit has {name} {value!r}; there are: {known}")
            keep &= (column == value) | (np.isnan(column) if name in NUMBERS else column == "")
        return self.where(keep)

    def returns(self, arm: str) -> np.ndarray:
        """Values of the units of one arm."""
        return self.real_return[self.arm == arm]


def per_world_model(table: StudyTable) -> WorldModelMeans:
    """Averages rows to policies, and policies to one value per world-model seed and cell."""
    owns = np.isin(table.arm, WITH_WORLD_MODEL)
    unit = np.where(owns, table.world_model_seed, table.policy_seed)
    factors = [getattr(table, name) for name in FACTORS]
    by_policy, first_row = _groups([*factors, unit, table.policy_seed])
    by_unit, first = _groups([column[first_row] for column in (*factors, unit)])

    def averaged(column: np.ndarray) -> np.ndarray:
        return _mean_by(_mean_by(column, by_policy, len(first_row)), by_unit, len(first))

    return WorldModelMeans(
        **{name: getattr(table, name)[first_row][first] for name in FACTORS},
        unit=unit[first_row][first],
        real_return=averaged(table.real_return),
        policies=np.bincount(by_unit, minlength=len(first)).astype(np.int64),
        metrics={name: averaged(column) for name, column in table.metrics.items()},
    )


def over_world_models(estimator: Callable[_P, _T]) -> Callable[_P, _T]:
    """Makes an estimator refuse anything but `WorldModelMeans` as its first argument, in words."""

    @functools.wraps(estimator)
    def checked(*args, **kwargs):
        means = args[0] if args else kwargs.get("means")
        if not isinstance(means, WorldModelMeans):
            what = f"a StudyTable of {len(means)} policies" if isinstance(means, StudyTable) else type(means).__name__
            raise TypeError(
                f"{estimator.__name__} takes WorldModelMeans, one value per world-model seed; got {what}. Policies of "
                "one world model are not independent: call per_world_model(table) first"
            )
        return estimator(*args, **kwargs)

    return checked


def levels(column: np.ndarray) -> np.ndarray:
    """Distinct values of a factor where it applies, ascending."""
    return np.unique(column[column != ""] if column.dtype.kind == "U" else column[~np.isnan(column)])


def the_only(means: WorldModelMeans, *names: str, what: str) -> None:
    """ValueError unless each factor in `names` has at most one value among the units."""
    for name in names:
        if len(found := levels(getattr(means, name))) > 1:
            listed = ", ".join(str(v) for v in found[:6])
            raise ValueError(
                f"{what} takes one {name} at a time; there are {len(found)} ({listed}): use means.select({name}=...)"
            )


def _groups(columns: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Index of each row's group, and the first row of each group; NaNs are equal to each other."""
    total: Any = np.zeros(len(columns[0]), np.int64)
    first: Any = total
    for column in columns:
        _, code = np.unique(column, return_inverse=True)
        total = total * (int(code.max(initial=0)) + 1) + code.reshape(-1)
        # Numbered anew each time, so that the product of sizes cannot overflow.
        _, first, total = np.unique(total, return_index=True, return_inverse=True)
        total = total.reshape(-1)
    return total, first


def _mean_by(values: np.ndarray, index: np.ndarray, groups: int) -> np.ndarray:
    return np.bincount(index, values, groups) / np.bincount(index, minlength=groups)
