"""Which measured fidelity tells best how well training will transfer, in an environment that has not been seen.

A correlation within the data flatters a metric: every environment has its own scale. Here a line is fitted to all
environments but one and judged in that one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from worldmodel.fidelity.estimates import Estimate, percentile_estimate, resample_counts
from worldmodel.study.means import WorldModelMeans, levels, over_world_models, the_only

LEAST_ENVIRONMENTS = 3


@dataclasses.dataclass(frozen=True)
class LeagueRow:
    """A metric's R2 in environments left out (may be negative; `n` counts environments) and in those fitted to."""

    metric: str
    left_out: Estimate
    in_sample: float | None

    def to_json(self) -> dict[str, Any]:
        """The estimate, with the metric's name and the R2 of the fit."""
        return {"metric": self.metric, **self.left_out.to_json(), "in_sample": self.in_sample}


@over_world_models
def league(means: WorldModelMeans, *, seed: int = 0, repetitions: int = 2000) -> list[LeagueRow]:
    """All metrics of the units of arm `simulated`, the best first.

    Returns should be transfer efficiencies (`as_efficiency`). R2 is `1 - sum (y - predicted)^2 / sum (y - mean)^2`,
    with line and mean of the *other* environments; its interval resamples environments, whose predictions stay. Null
    with `why` where a metric was measured in fewer than three environments, or does not vary. ValueError without any.
    """
    the_only(means, "deployment", what="league")
    own = means.where(means.arm == "simulated")
    if not own.metrics:
        raise ValueError("league needs measured fidelities: rows with 'metrics' in arm 'simulated'")
    rows = [_row(name, column, own, seed, repetitions) for name, column in own.metrics.items()]
    return sorted(rows, key=lambda row: -np.inf if row.left_out.mean is None else row.left_out.mean, reverse=True)


def _row(name: str, column: np.ndarray, own: WorldModelMeans, seed: int, repetitions: int) -> LeagueRow:
    known = np.isfinite(column)
    x, y, environment = column[known], own.real_return[known], own.environment[known]
    found = levels(environment)
    if len(found) < LEAST_ENVIRONMENTS:
        why = f"leaving one environment out needs at least {LEAST_ENVIRONMENTS} environments; there are {len(found)}"
        return LeagueRow(name, Estimate(None, None, None, len(found), why), None)
    sums = np.zeros((len(found), 2))
    for i, left_out in enumerate(found):
        there = environment == left_out
        if np.ptp(x[~there]) == 0:
            why = f"the metric has one value outside {left_out!r}"
            return LeagueRow(name, Estimate(None, None, None, len(found), why), None)
        slope, level = np.polyfit(x[~there], y[~there], 1)
        errors = y[there] - level - slope * x[there]
        sums[i] = (errors**2).sum(), ((y[there] - y[~there].mean()) ** 2).sum()
    if sums[:, 1].sum() == 0:
        return LeagueRow(name, Estimate(None, None, None, len(found), "the return does not vary"), None)
    drawn = np.concatenate([counts @ sums for counts in resample_counts(len(found), repetitions, seed)])
    draws = 1 - np.divide(drawn[:, 0], drawn[:, 1], out=np.full(len(drawn), np.nan), where=drawn[:, 1] > 0)
    point = 1 - float(sums[:, 0].sum() / sums[:, 1].sum())
    inside = float(np.corrcoef(x, y)[0, 1] ** 2) if np.ptp(y) > 0 else None
    return LeagueRow(name, percentile_estimate(point, draws, len(found)), inside)
