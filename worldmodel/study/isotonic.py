"""A threshold from a curve that rises and is otherwise free: isotonic regression, linear between the levels."""

from __future__ import annotations

import math

import numpy as np

from worldmodel.fidelity.estimates import Estimate, percentile_estimate
from worldmodel.study.estimands import Estimand, crossing
from worldmodel.study.means import WorldModelMeans, over_world_models
from worldmodel.study.response import Response, pooled_adjacent, response, step_on_a_grid

FALL_LEVEL = 0.01
"""Curves that fall where they should rise are refused at this level."""


@over_world_models
def isotonic_threshold(
    means: WorldModelMeans, estimand: Estimand, *, seed: int = 0, repetitions: int = 1000
) -> Estimate:
    """Where an isotonic fit reaches the target; 95% bootstrap interval over world models and runs of the other arm.

    Valid for curves that rise and are about linear between neighbouring levels, on a grid. Refused, with `why`: a
    jittered design (a bootstrap of isotonic regression at single points is inconsistent), a step on a grid, a curve
    that falls. An end is null where it is beyond the levels.
    """
    curve = response(means, estimand, "isotonic_threshold")
    n = len(curve.y)
    why = None
    if not curve.replicated:
        why = "isotonic regression is bootstrapped on a grid of levels only, with 2 or more world models at each"
    why = why or step_on_a_grid(curve, curve.target(estimand)) or falls(curve, seed)
    if why is not None:
        return Estimate(None, None, None, n, why)
    rng = np.random.default_rng([seed, 0])
    weight = curve.count.astype(np.float64)
    point = crossing(curve.levels, pooled_adjacent(curve.mean[None], weight), curve.target(estimand))[0]
    rising = pooled_adjacent(curve.draw_means(rng, repetitions), weight)
    draws = crossing(curve.levels, rising, curve.draw_targets(estimand, rng, repetitions))
    return threshold_estimate(float(point), draws, curve)


def threshold_estimate(point: float, draws: np.ndarray, curve: Response) -> Estimate:
    """An estimate within the levels: `-inf` is "already at the lowest", `+inf` "not even at the highest"."""
    # Two neighbouring levels and the other arm decide about a crossing: their degrees of freedom set the tails.
    units = max(2 * (curve.least - 1) + len(curve.other), 2)
    where = "already reached at the lowest level" if point == -math.inf else "not reached at the highest level"
    return percentile_estimate(point, draws, len(curve.y), why=where, tail_n=units)


def falls(curve: Response, seed: int, repetitions: int = 999) -> str | None:
    """Why the curve cannot be taken to rise, or None: level means are compared with their isotonic fit.

    The null distribution is that of a flat curve with the same spread, which is the hardest of rising ones to tell.
    """
    weight = curve.count.astype(np.float64)
    inside = curve.y - curve.mean[curve.level]
    sd = math.sqrt(float((inside**2).sum()) / max(len(curve.y) - len(curve.levels), 1))
    if sd == 0:
        return "the mean return falls as fidelity rises" if (np.diff(curve.mean) < 0).any() else None
    rng = np.random.default_rng([seed, 1])
    flat = sd * rng.normal(size=(repetitions, len(weight))) / np.sqrt(weight)
    both = np.concatenate([curve.mean[None], flat])
    misfit = ((both - pooled_adjacent(both, weight)) ** 2 * weight).sum(axis=1)
    p = (1 + np.sum(misfit[1:] >= misfit[0])) / (1 + repetitions)
    return None if p > FALL_LEVEL else f"the return falls as fidelity rises (p = {p:.3f}), where it is taken to rise"
