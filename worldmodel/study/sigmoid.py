"""A threshold from a sigmoid with four parameters: `low + rise / (1 + exp(-slope (x - middle)))`.

`x` is the fidelity or, for amounts of data or compute, its logarithm.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import stats

from worldmodel.fidelity.estimates import Estimate
from worldmodel.study.estimands import Estimand
from worldmodel.study.isotonic import falls, threshold_estimate
from worldmodel.study.least_squares import Model, least_squares, line_fits
from worldmodel.study.means import WorldModelMeans, over_world_models
from worldmodel.study.response import Response, response, step_on_a_grid

_MIDDLES, _SLOPES = 41, 15
LEAST_SLOPE, GREATEST_SLOPE = 0.5, 200.0
"""Of the sigmoid, over the range of `x`."""

MISFIT_LEVEL = 0.01
"""Level at which a shape is refused because another fits better."""


@dataclasses.dataclass(frozen=True)
class SigmoidThreshold:
    """Where a fitted sigmoid reaches the target, and the fit: numbers in units of return and of `x`."""

    threshold: Estimate
    low: float
    rise: float
    slope: float
    middle: float

    def to_json(self) -> dict[str, object]:
        """The threshold's estimate beside the fit."""
        own = {name: getattr(self, name) for name in ("low", "rise", "slope", "middle")}
        return {**self.threshold.to_json(), "fit": own}


@over_world_models
def sigmoid_threshold(
    means: WorldModelMeans, estimand: Estimand, *, log: bool = False, seed: int = 0, repetitions: int = 1000
) -> SigmoidThreshold:
    """Where the sigmoid reaches the target; 95% bootstrap interval over world models and runs of the other arm.

    Valid where the curve is such a sigmoid, on a grid or jittered. (A hinge is none: there it is biased.) `log`: of the
    logarithm of `fidelity`, for amounts of data or compute; the threshold is in the amount's own units. Refused, with
    `why`: a step (on a grid, or one that no sigmoid fits better), a curve that falls. ValueError as `response`, or for
    fewer than 5 levels.
    """
    curve = response(means, estimand, "sigmoid_threshold")
    if len(curve.levels) < 5:
        raise ValueError(f"a sigmoid has 4 parameters and needs at least 5 levels; there are {len(curve.levels)}")
    if log and curve.levels[0] <= 0:
        raise ValueError(f"with log=True amounts must be positive; the least is {curve.levels[0]:g}")
    rng = np.random.default_rng([seed, 2])
    at, back = (np.log, np.exp) if log else (np.asarray, np.asarray)
    target, targets = curve.target(estimand), curve.draw_targets(estimand, rng, repetitions)
    if curve.replicated:
        x, y, weight = at(curve.levels), curve.mean[None], curve.count.astype(np.float64)
        drawn, weights = curve.draw_means(rng, repetitions), weight
    else:
        n = len(curve.y)
        x, y, weight = at(curve.phi), curve.y[None], np.ones(n)
        drawn = np.broadcast_to(y, (repetitions, n))
        weights = rng.multinomial(n, np.full(n, 1 / n), repetitions).astype(np.float64)
    point = fit_sigmoid(x, y, weight)
    why = falls(curve, seed) or (step_on_a_grid(curve, target) if curve.replicated else _a_leap(curve))
    if why:
        found = Estimate(None, None, None, len(curve.y), why)
    else:
        fits = fit_sigmoid(x, drawn, weights, start=point[0])
        ends = float(x[0]), float(x[-1])
        reached = reaches(point, np.array([target]), ends)[0]
        draws = back(np.clip(reaches(fits, targets, ends), -700, None)) if log else reaches(fits, targets, ends)
        found = threshold_estimate(float(back(reached)) if math.isfinite(reached) else float(reached), draws, curve)
    low, rise, log_slope, middle = (float(v) for v in point[0])
    return SigmoidThreshold(found, low, rise, math.exp(log_slope), middle)


def leap_p_value(phi: np.ndarray, y: np.ndarray) -> float:
    """P-value of a leap between two levels, against a sigmoid, whose limit of infinite slope it is; `[n]` both."""
    places = np.unique(phi)[:-1]
    leap = float(line_fits((phi > places[:, None]).astype(np.float64), y)[0].min())
    n, fit = len(y), fit_sigmoid(phi, y[None], np.ones(len(y)))
    left = float(((y - _model(phi)(fit)[0][0]) ** 2).sum())
    return 1.0 if left <= 0 or n < 5 else float(stats.f.sf((leap - left) / (left / (n - 4)), 1, n - 4))


def _a_leap(curve: Response) -> str | None:
    p = leap_p_value(curve.phi, curve.y)
    return None if p < MISFIT_LEVEL else f"a leap fits as well as a sigmoid (p = {p:.3f}): use jump"


def fit_sigmoid(x: np.ndarray, y: np.ndarray, weight: np.ndarray, *, start: np.ndarray | None = None) -> np.ndarray:
    """Parameters `[R, 4]` (low, rise, log slope, middle) of rising sigmoids fitted to `y` `[R, N]` at `x` `[N]`.

    weight `[N]` or `[R, N]`. From the best of a grid, or from `start` `[4]`.
    """
    width = float(x.max() - x.min())
    spread = float(np.ptp(y)) or 1.0
    lower = np.array([y.min() - spread, 0.0, math.log(LEAST_SLOPE / width), x.min() - width])
    upper = np.array([y.max() + spread, 4 * spread, math.log(GREATEST_SLOPE / width), x.max() + width])
    if start is not None:
        begin = np.broadcast_to(start, (len(y), 4)).copy()
    else:
        begin = np.stack([_best_on_grid(x, row, np.broadcast_to(weight, y.shape)[i]) for i, row in enumerate(y)])
    return least_squares(_model(x), begin, y, weight, lower=lower, upper=upper)[0]


def reaches(fits: np.ndarray, target: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    """Where sigmoids `[R, 4]` reach `target` `[R]`; `-inf` or `+inf` if that is below or above the observed `ends`."""
    low, rise, log_slope, middle = fits.T
    share = np.divide(target - low, rise, out=np.where(target <= low, -1.0, 2.0), where=rise > 0)
    inside = np.clip(share, 1e-12, 1 - 1e-12)
    at = middle + np.log(inside / (1 - inside)) / np.exp(log_slope)
    at = np.where((share <= 0) | (at < ends[0]), -np.inf, at)
    return np.where((share >= 1) | (at > ends[1]), np.inf, at)


def _model(x: np.ndarray) -> Model:
    def model(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low, rise, log_slope, middle = (p[:, i, None] for i in range(4))
        slope = np.exp(log_slope)
        z = slope * (x - middle)
        s = 0.5 * (1 + np.tanh(0.5 * z))
        bell = rise * s * (1 - s)
        return low + rise * s, np.stack([np.ones_like(s), s, bell * z, -bell * slope], axis=2)

    return model


def _best_on_grid(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    width = x.max() - x.min()
    middle, log_slope = np.meshgrid(
        np.linspace(x.min() - 0.1 * width, x.max() + 0.1 * width, _MIDDLES),
        np.log(np.geomspace(2.0, 100.0, _SLOPES) / width),
        indexing="ij",
    )
    middle, log_slope = middle.reshape(-1, 1), log_slope.reshape(-1, 1)
    share = weight / weight.sum()
    s = 0.5 * (1 + np.tanh(0.5 * np.exp(log_slope) * (x - middle)))
    mean_s, mean_y = s @ share, float(y @ share)
    along = ((s - mean_s[:, None]) * (y - mean_y)) @ share
    spread = ((s - mean_s[:, None]) ** 2) @ share
    rise = np.maximum(np.divide(along, spread, out=np.zeros_like(along), where=spread > 1e-12), 0.0)
    best = int(np.argmax(rise * (2 * along - rise * spread)))
    return np.array([mean_y - rise[best] * mean_s[best], rise[best], log_slope[best, 0], middle[best, 0]])
