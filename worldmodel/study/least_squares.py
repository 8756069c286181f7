"""Many small non-linear least-squares fits at once: Levenberg and Marquardt's method over a batch (of resamples)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Model = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Parameters `[R, P]` -> fitted values `[R, N]` and their derivatives `[R, N, P]`."""

_UP, _DOWN = 8.0, 0.3


def line_fits(shapes: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Residual sum of squares and slope `[G]` of `y` `[n]` on each row of `shapes` `[G, n]`, with a constant."""
    shapes, y = shapes - shapes.mean(axis=1, keepdims=True), y - y.mean()
    slope = (shapes @ y) / np.maximum((shapes**2).sum(axis=1), 1e-300)
    return (y**2).sum() - slope * (shapes @ y), slope


def least_squares(
    model: Model,
    start: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
    *,
    lower: np.ndarray,
    upper: np.ndarray,
    steps: int = 25,
) -> tuple[np.ndarray, np.ndarray]:
    """Minimises `sum(weight * (y - model)^2)` in each row.

    Args:
      model: see `Model`.
      start: `[R, P]`.
      y: `[R, N]`.
      weight: `[R, N]`, or `[N]` for all rows.
      lower: `[P]`, bounds onto which every step is clipped.
      upper: `[P]`, likewise.
      steps: at most.

    Returns: parameters `[R, P]` and sums of squares `[R]`, never above those of `start`.
    """
    now = np.clip(start, lower, upper)
    weight = np.broadcast_to(weight, y.shape)
    fitted, slope = model(now)
    best = (weight * (y - fitted) ** 2).sum(axis=1)
    damping = np.full(len(now), 1e-2)
    live = np.arange(len(now))
    for _ in range(steps):
        w, jacobian = weight[live], slope
        weighted = jacobian * w[:, :, None]
        curvature = np.swapaxes(weighted, 1, 2) @ jacobian
        pull = (np.swapaxes(weighted, 1, 2) @ (y[live] - fitted)[:, :, None])[:, :, 0]
        diagonal = np.einsum("rpp->rp", curvature)
        floor = 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-300
        damped = curvature + np.einsum(
            "rp,pq->rpq", damping[live][:, None] * np.maximum(diagonal, floor) + floor, np.eye(now.shape[1])
        )
        trial = np.clip(now[live] + np.linalg.solve(damped, pull[:, :, None])[:, :, 0], lower, upper)
        tried, tried_slope = model(trial)
        loss = (w * (y[live] - tried) ** 2).sum(axis=1)
        better = loss < best[live]
        gain = np.where(better, best[live] - loss, 0.0)
        rows = live[better]
        now[rows], best[rows] = trial[better], loss[better]
        fitted = np.where(better[:, None], tried, fitted)
        slope = np.where(better[:, None, None], tried_slope, slope)
        damping[live] *= np.where(better, _DOWN, _UP)
        # A row is done when a step gains nothing to speak of, or when no step, however short, gains.
        going = np.where(better, gain > 1e-9 * best[live], damping[live] < 1e6)
        live, fitted, slope = live[going], fitted[going], slope[going]
        if len(live) == 0:
            break
    return now, best
