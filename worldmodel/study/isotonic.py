"""A threshold from a curve that rises and is otherwise free: isotonic regression, linear between the levels.

What the curve does between two levels was not observed. Where it keeps bending as it does around them, it lies between
the chord and the lines of the neighbouring gaps: the interval is widened by how far that can move the crossing.
"""

from __future__ import annotations

import dataclasses
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

    Valid for curves that rise without a leap, on a grid. Refused, with `why`: a
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
    found = threshold_estimate(float(point), draws, curve)
    if found.mean is None:
        return found
    fit = pooled_adjacent(curve.mean[None], weight)[0]
    earliest, latest = between_levels(curve.levels, fit, curve.target(estimand))
    # What noise moves and what the bend moves are apart: they add as squares.
    lo = None if found.lo is None else found.mean - math.hypot(found.mean - found.lo, found.mean - earliest)
    hi = None if found.hi is None else found.mean + math.hypot(found.hi - found.mean, latest - found.mean)
    return dataclasses.replace(found, lo=lo, hi=hi)


def between_levels(phi: np.ndarray, rising: np.ndarray, target: float) -> tuple[float, float]:
    """Earliest and latest place inside its gap where a curve through `rising` `[K]` at `phi` `[K]` reaches `target`.

    A curve that bends one way around the gap lies between the chord and the nearer of its neighbours' lines; where it
    bends both ways, between all of them. The target must lie between two levels.
    """
    k = int(np.argmax(rising >= target)) - 1
    start, end = float(phi[k]), float(phi[k + 1])
    slopes = np.diff(rising) / np.diff(phi)
    middle = float(slopes[k])
    left = float(slopes[k - 1]) if k > 0 else middle
    right = float(slopes[k + 1]) if k + 1 < len(slopes) else middle
    chord = start + float(target - rising[k]) / middle
    from_left = min(start + float(target - rising[k]) / left, end) if left > 0 else end
    from_right = max(end - float(rising[k + 1] - target) / right, start) if right > 0 else start
    if left >= middle >= right:
        return max(from_left, from_right), chord
    if left <= middle <= right:
        return chord, min(from_left, from_right)
    return min(chord, from_left, from_right), max(chord, from_left, from_right)


def threshold_estimate(point: float, draws: np.ndarray, curve: Response) -> Estimate:
    """An estimate within the levels: `-inf` is "already at the lowest", `+inf` "not even at the highest"."""
    # Two neighbouring levels and the other arm decide about a crossing: their degrees of freedom set the tails.
    units = max(2 * (curve.least - 1) + len(curve.other), 2)
    where = "already reached at the lowest level" if point == -math.inf else "not reached at the highest level"
    return percentile_estimate(point, draws, len(curve.y), why=where, tail_n=units)


def falls(curve: Response, seed: int, repetitions: int = 999) -> str | None:
    """Why the curve cannot be taken to rise, or None: means of levels are compared with their isotonic fit.

    The null distribution is that of a flat curve with the same spread, which is the hardest of rising ones to tell.
    World models with fidelities of their own are taken by fives.
    """
    weight = np.bincount(curve.block).astype(np.float64)
    mean = np.bincount(curve.block, curve.y) / weight
    inside = curve.y - mean[curve.block]
    df = max(len(curve.y) - len(weight), 1)
    sd = math.sqrt(float((inside**2).sum()) / df)
    if sd == 0:
        return "the mean return falls as fidelity rises" if (np.diff(mean) < 0).any() else None
    rng = np.random.default_rng([seed, 1])
    flat = sd * rng.normal(size=(repetitions, len(weight))) / np.sqrt(weight)
    flat /= np.sqrt(rng.chisquare(df, (repetitions, 1)) / df)  # each flat curve would be judged by a spread of its own
    both = np.concatenate([mean[None], flat])
    misfit = ((both - pooled_adjacent(both, weight)) ** 2 * weight).sum(axis=1)
    p = (1 + np.sum(misfit[1:] >= misfit[0])) / (1 + repetitions)
    return None if p > FALL_LEVEL else f"the return falls as fidelity rises (p = {p:.3f}), where it is taken to rise"
