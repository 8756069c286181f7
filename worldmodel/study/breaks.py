"""Where a rising curve turns flat (a kink), or leaps (a jump); and first, whether it does so at all.

Under "no break" its place means nothing, so that no table of F applies: the largest F over all places is compared with
that of a wild bootstrap (residuals of the straight line with random signs; Hansen 1996). A kink that is not found need
not be absent.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np
from scipy import stats

from worldmodel.fidelity.estimates import LEVEL, Estimate
from worldmodel.study.least_squares import line_fits
from worldmodel.study.means import WorldModelMeans, over_world_models
from worldmodel.study.response import Response, response
from worldmodel.study.sigmoid import MISFIT_LEVEL, leap_p_value

HANSEN_95 = -2.0 * math.log(1.0 - math.sqrt(LEVEL))
"""95% point of the likelihood ratio of a jump's place: 7.352 (Hansen 2000, Econometrica 68, table I)."""

TRIM = 0.1
_PLACES, _FINE = 60, 801


@dataclasses.dataclass(frozen=True)
class Break:
    """A kink or a jump.

    Attributes:
      place: its fidelity with a 95% interval, or null with `why`.
      p: of "a straight line does as well", by wild bootstrap.
      before, after: a kink's slopes, or a jump's means, as fitted; None where the break is refused.
    """

    place: Estimate
    p: float
    before: float | None
    after: float | None

    def to_json(self) -> dict[str, Any]:
        """The place's estimate, with `p`, `before` and `after`."""
        return {**self.place.to_json(), "p": self.p, "before": self.before, "after": self.after}


@over_world_models
def kink(means: WorldModelMeans, *, alpha: float = 0.05, seed: int = 0, repetitions: int = 999) -> Break:
    """Where a rising line turns into a plateau: `y = a + b min(x, place)`, interval by profile likelihood (F, 1 df).

    Null with `why` where a straight line does as well (`p > alpha`) or the curve does not rise and then flatten. Valid
    for such a curve. A sigmoid has no kink: where noise hides that it is one, this lands far above its middle.
    """
    curve = response(means, None, "kink")
    p = break_test(curve.phi, curve.y, "kink", seed=seed, repetitions=repetitions)
    if p > alpha:
        return _none(curve, p, f"no kink is shown: a straight line does as well (p = {p:.3f})")
    places = np.linspace(curve.levels[0], curve.levels[-1], _FINE)[1:]
    shape = np.minimum(curve.phi, places[:, None])
    rss, slope = line_fits(shape, curve.y)
    best = int(rss.argmin())
    if slope[best] <= 0:
        return _none(curve, p, "the curve bends, but it does not rise and then flatten")
    rest = curve.y - curve.y.mean() - slope[best] * (shape[best] - shape[best].mean())
    if (misfit := _lack_of_fit(curve, rest, 3)) < MISFIT_LEVEL:
        return _none(curve, p, f"the curve bends, but not as a line that turns flat (lack of fit, p = {misfit:.3g})")
    df = len(curve.y) - 3
    kept = places[rss - rss[best] <= stats.f.ppf(LEVEL, 1, df) * rss[best] / df]
    # A knot at the end of the range cannot be told from one beyond it.
    lo = None if kept[0] <= places[0] else float(kept[0])
    hi = None if kept[-1] >= places[-1] else float(kept[-1])
    why = None if None not in (lo, hi) else "the null end is beyond the observed fidelities"
    return Break(Estimate(float(places[best]), lo, hi, len(curve.y), why), p, float(slope[best]), 0.0)


@over_world_models
def jump(means: WorldModelMeans, *, alpha: float = 0.05, seed: int = 0, repetitions: int = 999) -> Break:
    """Where a level curve leaps: `y = before, after` below and above; Hansen's inversion of the likelihood ratio.

    The interval is the hull of all places with a ratio of at most `HANSEN_95`; conservative for clear jumps. Null with
    `why`: on a grid (world models must have fidelities of their own: between two levels nothing was observed, and a
    bootstrap would say so with no width), where a straight line does as well, or where a sigmoid does better.
    """
    curve = response(means, None, "jump")
    p = break_test(curve.phi, curve.y, "jump", seed=seed, repetitions=repetitions)
    if len(curve.levels) < 0.5 * len(curve.phi) or len(curve.levels) < 10:
        return _none(
            curve,
            p,
            f"{len(curve.phi)} world models stand on {len(curve.levels)} levels: a step on a grid cannot be placed or "
            "bootstrapped, since nothing was observed inside its gap; report the bracket, or jitter the fidelities",
        )
    if p > alpha:
        return _none(curve, p, f"no jump is shown: a straight line does as well (p = {p:.3f})")
    places = curve.levels[:-1]
    rss, rise = line_fits((curve.phi > places[:, None]).astype(np.float64), curve.y)
    best, n = int(rss.argmin()), len(curve.y)
    if (gradual := leap_p_value(curve.phi, curve.y)) < MISFIT_LEVEL:
        return _none(curve, p, f"the curve rises gradually, it does not leap (p = {gradual:.3g} against a sigmoid)")
    kept = np.flatnonzero(n * (rss - rss[best]) <= HANSEN_95 * rss[best])
    # The jump is anywhere between the last fidelity before it and the first after it.
    lo, hi = float(curve.levels[kept[0]]), float(curve.levels[kept[-1] + 1])
    middle = 0.5 * float(curve.levels[best] + curve.levels[best + 1])
    before = float(curve.y[curve.phi <= places[best]].mean())
    return Break(Estimate(middle, lo, hi, n), p, before, before + float(rise[best]))


def break_test(
    phi: np.ndarray,
    y: np.ndarray,
    kind: Literal["kink", "jump"],
    *,
    seed: int = 0,
    repetitions: int = 999,
) -> float:
    """P-value of "a straight line does as well" against a line with a kink or jump anywhere (but in the outer tenths).

    phi, y: `[n]`, one value per world model. Size: .05, from 40 world models on.
    """
    n = len(y)
    lo, hi = np.quantile(phi, [TRIM, 1 - TRIM])
    if kind == "kink":
        places = np.linspace(lo, hi, _PLACES)
        shapes = np.maximum(phi - places[:, None], 0.0)
    else:
        found = np.unique(phi)
        places = found[(found >= lo) & (found < hi)]
        shapes = (phi > places[:, None]).astype(np.float64)
    line, _ = np.linalg.qr(np.stack([np.ones(n), phi], axis=1))
    shapes = shapes - (shapes @ line) @ line.T
    norm = np.sqrt((shapes**2).sum(axis=1))
    shapes = shapes[norm > 1e-9 * math.sqrt(n)] / norm[norm > 1e-9 * math.sqrt(n), None]
    rest = y - line @ (line.T @ y)
    if len(shapes) == 0 or n < 5 or not (rest**2).sum() > 1e-20 * max(float((y**2).sum()), 1e-300):
        return 1.0
    # Residuals are smaller than errors where a point pulls the line: undone before signs are drawn.
    wild = rest / (1.0 - (line**2).sum(axis=1))
    signs = np.random.default_rng([seed, 3]).integers(0, 2, (repetitions, n)) * 2.0 - 1.0
    observed = _largest_share(rest[None], line, shapes)[0]
    null = _largest_share(wild * signs, line, shapes)
    return float((1 + np.sum(null >= observed)) / (1 + repetitions))


def _lack_of_fit(curve: Response, rest: np.ndarray, parameters: int) -> float:
    """P-value of what is left of residuals `[n]` between levels (blocks), judged by the spread within; or 1."""
    count = np.bincount(curve.block)
    mean = np.bincount(curve.block, rest) / count
    more, df = len(count) - parameters, len(rest) - len(count)
    inside = float(((rest - mean[curve.block]) ** 2).sum())
    if min(more, df) < 1 or inside <= 0:
        return 1.0
    return float(stats.f.sf(float(count @ mean**2) / more / (inside / df), more, df))


def _largest_share(y: np.ndarray, line: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """Largest part of the line's residual sum of squares that one of the shapes explains (a function of F): `[R]`."""
    left = (y**2).sum(axis=1) - ((y @ line) ** 2).sum(axis=1)
    return ((y @ shapes.T) ** 2).max(axis=1) / left


def _none(curve: Response, p: float, why: str) -> Break:
    return Break(Estimate(None, None, None, len(curve.y), why), p, None, None)
