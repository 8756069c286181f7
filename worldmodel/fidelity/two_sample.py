"""How far apart two samples are: energy distance, Wasserstein distances, kernel mean discrepancy.

`x` `[N, D]` and `y` `[M, D]` are rows in units that make dimensions comparable, since a distance adds them up: divide
by standard deviations first. `[N]` is read as `[N, 1]`. ValueError on other shapes, no rows, or values that are not
finite.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats
from scipy.spatial import distance

from worldmodel.fidelity.estimates import Values


def energy_distance(x: Values, y: Values, *, unbiased: bool = False) -> float:
    """`2 E|X - Y| - E|X - X'| - E|Y - Y'|`, in units of the data (Szekely and Rizzo 2013).

    The square of what `scipy.stats.energy_distance` gives in one dimension. By default the pairs of a row with itself
    count (never negative, and above zero for two samples of one distribution); `unbiased` leaves them out (zero on
    average there, so that it may be negative) and needs two rows of each.
    """
    x, y = _rows(x, y, least=2 if unbiased else 1)
    within = sum(
        2.0 * distance.pdist(side).sum() / (len(side) * (len(side) - unbiased)) if len(side) > 1 else 0.0
        for side in (x, y)
    )
    return float(2.0 * distance.cdist(x, y).mean() - within)


def energy_coefficient(x: Values, y: Values) -> float:
    """Energy distance as a share of `2 E|X - Y|`, from 0 (same) to 1 (two points): an effect size without units."""
    x, y = _rows(x, y)
    between = 2.0 * distance.cdist(x, y).mean()
    return 0.0 if between == 0 else float(np.clip(energy_distance(x, y) / between, 0.0, 1.0))


def wasserstein1(x: Values, y: Values) -> float:
    """Exact earth mover's distance under `|x - y|`, in units of the data.

    In one dimension by quantiles, in more by an optimal assignment, which needs as many rows in `x` as in `y`.
    """
    x, y = _rows(x, y)
    if x.shape[1] == 1:
        return float(stats.wasserstein_distance(x[:, 0], y[:, 0]))
    if len(x) != len(y):
        raise ValueError(f"wasserstein1 in {x.shape[1]} dimensions needs equally many rows; got {len(x)} and {len(y)}")
    cost = distance.cdist(x, y)
    return float(cost[optimize.linear_sum_assignment(cost)].mean())


def random_directions(dimensions: int, count: int, seed: int) -> np.ndarray:
    """Directions float64 `[count, dimensions]`, uniform on the sphere."""
    draws = np.random.default_rng(seed).normal(size=(count, dimensions))
    return draws / np.linalg.norm(draws, axis=1, keepdims=True)


def sliced_wasserstein(x: Values, y: Values, directions: Values) -> float:
    """Mean over `directions` `[P, D]` (unit length) of the 1-Wasserstein distance of the projections.

    Averages away an error in a single dimension: `1 / sqrt(D)` of it is left (Bonneel et al. 2015).
    """
    x, y = _rows(x, y)
    directions = np.asarray(directions, np.float64)
    if directions.ndim != 2 or directions.shape[1] != x.shape[1] or len(directions) == 0:
        raise ValueError(f"directions must be [P, {x.shape[1]}], at least one; got shape {list(directions.shape)}")
    sides = zip((x @ directions.T).T, (y @ directions.T).T, strict=True)
    return float(np.mean([stats.wasserstein_distance(a, b) for a, b in sides]))


def median_gamma(x: Values, y: Values) -> float:
    """`1 / median |u - v|^2` over the pairs of the pooled rows: the bandwidth rule of the median (Gretton et al. 2012).

    ValueError where half of the pairs or more coincide.
    """
    x, y = _rows(x, y)
    middle = float(np.median(distance.pdist(np.concatenate([x, y]), "sqeuclidean")))
    if middle == 0:
        raise ValueError("the median distance between rows is zero; name a gamma")
    return 1.0 / middle


def mmd2_unbiased(x: Values, y: Values, *, gamma: float | int | None = None) -> float:
    """Squared maximum mean discrepancy under `exp(-gamma |u - v|^2)`: the unbiased U-statistic (Gretton et al. 2012).

    Zero on average for two samples of one distribution, hence often negative: average before anything is cut off at
    zero. `gamma`: None for `median_gamma`. Needs two rows of each.
    """
    x, y = _rows(x, y, least=2)
    gamma = median_gamma(x, y) if gamma is None else gamma
    if not gamma > 0:
        raise ValueError(f"gamma is {gamma}; it must be positive")
    within = sum(np.exp(-gamma * distance.pdist(side, "sqeuclidean")).mean() for side in (x, y))
    return float(within - 2.0 * np.exp(-gamma * distance.cdist(x, y, "sqeuclidean")).mean())


def _rows(x: Values, y: Values, *, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    sides = []
    for name, side in (("x", x), ("y", y)):
        rows = np.asarray(side, np.float64)
        rows = rows[:, None] if rows.ndim == 1 else rows
        if rows.ndim != 2 or len(rows) < least:
            raise ValueError(f"{name} must be [N, D] with at least {least} rows; got shape {list(np.shape(side))}")
        if not np.isfinite(rows).all():
            raise ValueError(
                f"{name} has a value that is not finite in row {int(np.argwhere(~np.isfinite(rows))[0, 0])}"
            )
        sides.append(rows)
    if sides[0].shape[1] != sides[1].shape[1]:
        raise ValueError(f"x has {sides[0].shape[1]} dimensions and y {sides[1].shape[1]}; they must have the same")
    return sides[0], sides[1]
