"""A bracket `(L, U]` for a threshold, from tests alone: no shape of the curve is assumed but that it does not fall.

Down from the highest fidelity, one-sided tests show levels to be at least the target; `U` is the last before the
first that fails. Up from the lowest, tests show levels to be below it; `L` is the last such. Both are fixed sequences,
so that no correction is due: `P(U < T)` and `P(L >= T)` are at most `alpha / 2` each.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import stats

from worldmodel.study.estimands import Estimand
from worldmodel.study.means import WorldModelMeans, over_world_models
from worldmodel.study.response import Response, response


@dataclasses.dataclass(frozen=True)
class Bracket:
    """The threshold lies in `(lower, upper]`.

    Attributes:
      lower, upper: a level of fidelity, or None where the bracket is open; `why` then says the reason.
      levels: float64 `[K]`.
      p_reached: float64 `[K]`, one-sided p-values of "at least the target" (non-inferiority) at each level.
      p_below: float64 `[K]`, of "below the target".
      n: world models.
    """

    lower: float | None
    upper: float | None
    levels: np.ndarray
    p_reached: np.ndarray
    p_below: np.ndarray
    n: int
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        """`{"lower", "upper", "n", "levels", "p_reached", "p_below"}`, and `"why"` where an end is null."""
        out: dict[str, Any] = {"lower": self.lower, "upper": self.upper, "n": self.n}
        out |= {name: getattr(self, name).tolist() for name in ("levels", "p_reached", "p_below")}
        return out if self.why is None else {**out, "why": self.why}

    def holds(self, truth: float) -> bool:
        """Whether `truth` (`inf`: never reached) lies in it."""
        return (self.lower is None or truth > self.lower) and (self.upper is None or truth <= self.upper)


@over_world_models
def bracket(means: WorldModelMeans, estimand: Estimand, *, alpha: float = 0.05) -> Bracket:
    """Brackets the threshold with Welch's t-tests at one-sided level `alpha / 2`.

    Raises:
      ValueError: as `response`, or a level has a single world model.
    """
    curve = response(means, estimand, "bracket")
    if not curve.replicated:
        thin = float(curve.levels[curve.count.argmin()])
        raise ValueError(f"bracket needs at least 2 world models at every level; fidelity {thin:g} has 1: use a grid")
    reached, below = welch(curve, estimand)
    shown, worse = reached <= alpha / 2, below <= alpha / 2
    failed = np.flatnonzero(~shown)
    first = 0 if len(failed) == 0 else int(failed[-1]) + 1
    last = int(np.argmin(np.append(worse, False))) - 1
    upper = float(curve.levels[first]) if first < len(shown) else None
    lower = float(curve.levels[last]) if last >= 0 else None
    reasons = []
    if lower is None:
        reasons.append(f"not even fidelity {curve.levels[0]:g} is shown to be below the target")
    if upper is None:
        reasons.append(f"not even fidelity {curve.levels[-1]:g} is shown to reach the target")
    why = "; ".join(reasons) or None
    return Bracket(lower, upper, curve.levels, reached, below, len(curve.y), why)


def welch(curve: Response, estimand: Estimand) -> tuple[np.ndarray, np.ndarray]:
    """One-sided p-values `[K]` of "the level's mean is at least the target" and of "it is below"."""
    variance = np.array([curve.y[curve.level == k].var(ddof=1) for k in range(len(curve.levels))]) / curve.count
    own = estimand.weight**2 * curve.other.var(ddof=1) / len(curve.other)
    difference = curve.mean - curve.target(estimand)
    total = variance + own
    spread = variance**2 / (curve.count - 1) + own**2 / (len(curve.other) - 1)
    # Without any spread the sign decides; a level that meets the target exactly has reached it.
    t = np.divide(difference, np.sqrt(total), out=np.where(difference < 0, -math.inf, math.inf), where=total > 0)
    df = np.divide(total**2, spread, out=np.ones_like(total), where=spread > 0)
    return stats.t.sf(t, df), stats.t.cdf(t, df)


def seeds_for_non_inferiority(sd: float, delta: float, *, alpha: float = 0.05, power: float = 0.8) -> int:
    """Runs per arm so that equal arms are shown to be within `delta`: `2 (z_{1-alpha} + z_power)^2 sd^2 / delta^2`.

    `sd` is of one world model's value; `alpha` is one-sided (`bracket` tests at half of its own).
    """
    if sd < 0 or delta <= 0:
        raise ValueError(f"sd must not be negative and delta must be positive; got {sd} and {delta}")
    z = stats.norm.ppf(1 - alpha) + stats.norm.ppf(power)
    return max(2, math.ceil(2 * z**2 * sd**2 / delta**2))
