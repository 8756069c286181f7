"""One response curve: real return against fidelity, beside the arm that sets the target. What thresholds are read from.

Resamples are of world models within each level and of runs of the other arm, which is always part of them: its noise is
noise of the threshold. A resampled mean is moved from the observed one by `sqrt(n / (n - 1))` times what the plain
bootstrap would, which makes its variance unbiased.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from worldmodel.study.estimands import Estimand
from worldmodel.study.means import WorldModelMeans, the_only

STEP_SHARE = 0.75
"""A gap between two levels that holds more than this of the whole rise is taken for a step."""


@dataclasses.dataclass(frozen=True)
class Response:
    """World models `[n]` by level, and runs of another arm.

    Attributes:
      phi, y: float64 `[n]`, fidelity and real return, in order of fidelity.
      levels, mean, count: `[K]`, distinct fidelities, mean return and number of world models at each.
      level: int64 `[n]`, which level.
      other: float64 `[m]`, returns of the arm that sets the target.
    """

    phi: np.ndarray
    y: np.ndarray
    levels: np.ndarray
    level: np.ndarray
    mean: np.ndarray
    count: np.ndarray
    other: np.ndarray

    @property
    def replicated(self) -> bool:
        """Every level has at least two world models: a grid, not a jittered design."""
        return bool(self.count.min() >= 2)

    @property
    def block(self) -> np.ndarray:
        """Int64 `[n]`: units of about the same fidelity, of which a spread can be told; levels, or fives in a row."""
        return self.level if self.replicated else np.minimum(np.arange(len(self.y)) // 5, max(len(self.y) // 5 - 1, 0))

    @property
    def least(self) -> int:
        """World models at the level that has fewest."""
        return int(self.count.min())

    def target(self, estimand: Estimand) -> float:
        """The return to be reached."""
        return float(estimand.weight * self.other.mean() - estimand.offset)

    def draw_targets(self, estimand: Estimand, rng: np.random.Generator, repetitions: int) -> np.ndarray:
        """`[R]` targets of resampled runs."""
        return estimand.weight * resampled_means(self.other, rng, repetitions) - estimand.offset

    def draw_means(self, rng: np.random.Generator, repetitions: int) -> np.ndarray:
        """`[R, K]` means of world models resampled within each level."""
        parts = [resampled_means(self.y[self.level == k], rng, repetitions) for k in range(len(self.levels))]
        return np.stack(parts, axis=1)


def response(means: WorldModelMeans, estimand: Estimand | None, what: str) -> Response:
    """The curve in `means`, which must hold one cell of all other factors.

    Raises:
      ValueError: several environments, complexities, diversities, corruptions or deployments; fewer than two levels of
        fidelity; fewer than two runs of the arm that the estimand needs.
    """
    the_only(means, "environment", "complexity", "diversity", "corruption", "deployment", what=what)
    own = means.arm == "simulated"
    order = np.argsort(means.fidelity[own], kind="stable")
    phi, y = means.fidelity[own][order], means.real_return[own][order]
    found, level, count = np.unique(phi, return_inverse=True, return_counts=True)
    if len(found) < 2:
        raise ValueError(f"{what} needs at least 2 levels of fidelity in arm 'simulated'; there are {len(found)}")
    other = np.zeros(0) if estimand is None else means.returns(estimand.arm)
    if estimand is not None and len(other) < 2:
        raise ValueError(
            f"{what} needs at least 2 runs of arm {estimand.arm!r}, which sets the target; there are {len(other)}. The "
            "curve's own top is no substitute: its noise is taken for the threshold's"
        )
    mean = np.bincount(level, y) / count
    return Response(phi, y, found, level.reshape(-1), mean, count, other)


def resampled_means(values: np.ndarray, rng: np.random.Generator, repetitions: int) -> np.ndarray:
    """`[R]` means of resamples of `values` `[n]`, of unbiased variance (see the head of this module)."""
    n, mean = len(values), values.mean()
    if n < 2:
        return np.full(repetitions, mean)
    drawn = values[rng.integers(0, n, (repetitions, n))].mean(axis=1)
    return mean + math.sqrt(n / (n - 1)) * (drawn - mean)


def pooled_adjacent(y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Rows of `y` `[R, K]` made non-decreasing by least squares with weights `[K]` (max-min formula)."""
    total = np.concatenate([np.zeros((len(y), 1)), np.cumsum(y * weight, axis=1)], axis=1)
    mass = np.concatenate([[0.0], np.cumsum(weight)])
    size = len(weight)
    spans = np.full((len(y), size, size), np.inf)
    for start in range(size):
        spans[:, start, start:] = (total[:, start + 1 :] - total[:, start : start + 1]) / (
            mass[start + 1 :] - mass[start]
        )
    # least[r, i, k]: the least mean of a span that starts at i and ends at k or later.
    least = np.minimum.accumulate(spans[:, :, ::-1], axis=2)[:, :, ::-1]
    least[:, np.tril(np.ones((size, size), bool), -1)] = -np.inf
    return least.max(axis=1)


def step_on_a_grid(curve: Response, target: float) -> str | None:
    """Why the place of `target` cannot be told inside a gap between two levels, or None.

    Where nearly the whole rise happens between two neighbouring levels, every resample puts the crossing there, at a
    place that the straight line between the two sets and not the data: an interval of no width that covers in half a
    per cent of cases.
    """
    fit = pooled_adjacent(curve.mean[None], curve.count.astype(np.float64))[0]
    rises = np.diff(fit)
    if rises.sum() <= 0 or len(rises) < 2:
        return None
    k = int(rises.argmax())
    if rises[k] <= STEP_SHARE * rises.sum() or not fit[k] < target <= fit[k + 1]:
        return None
    return (
        f"{rises[k] / rises.sum():.0%} of the rise happens between the levels {curve.levels[k]:g} and "
        f"{curve.levels[k + 1]:g}: a step on a grid cannot be bootstrapped, its place inside the gap was not observed; "
        "report the bracket, or give every world model a fidelity of its own and use jump"
    )
