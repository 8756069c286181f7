"""For how many steps an imagined rollout can be followed, when real episodes end before the error has grown.

A window whose real episode ends while the error is still small is right-censored: dropping it would bias the horizon
down. Survival is the Kaplan-Meier estimate of `P(horizon > t)`.
"""

import math

import numpy as np

from worldmodel.fidelity.estimates import (
    Estimate,
    Values,
    cluster_index,
    cluster_sums,
    median_draws,
    percentile_estimate,
    resample_counts,
)

_TIE = 1e-12  # survival of exactly one half must count as reached despite rounding


def divergence_horizon(errors: Values, threshold: float | int) -> tuple[np.ndarray, np.ndarray]:
    """Largest k such that the error is at most `threshold` after each of steps 1..k: `(horizon [n], observed [n])`.

    `errors` `[n, H]`: column k - 1 is the error after k steps, same units as `threshold`. NaN from some column on means
    that the real episode was over; the horizon (int64) is then a lower bound (`observed` false), as it is if the error
    never exceeds. A simulator that broke must be `inf`, for trailing NaN is read as the end of the episode; NaN before
    a number raises ValueError.
    """
    errors = np.asarray(errors, np.float64)
    if errors.ndim != 2:
        raise ValueError(f"errors must be [n, H]; got shape {list(errors.shape)}")
    if not threshold >= 0:
        raise ValueError(f"divergence threshold is {threshold}; it must be zero or more")
    seen = ~np.isnan(errors)
    length = seen.sum(axis=1)
    gaps = np.flatnonzero((seen != (np.arange(errors.shape[1]) < length[:, None])).any(axis=1))
    if len(gaps):
        raise ValueError(
            f"errors row {gaps[0]} has NaN before a number; NaN may only follow the end of the real episode"
        )
    beyond = seen & (errors > threshold)
    observed = np.asarray(beyond.any(axis=1))
    first = beyond.argmax(axis=1) if errors.shape[1] else np.zeros(len(errors), np.int64)
    return np.where(observed, first, length).astype(np.int64), observed


def survival(times: Values, observed: Values) -> tuple[np.ndarray, np.ndarray]:
    """Kaplan-Meier: `(times, S)`, the distinct times at which something diverged and `P(horizon > t)` from each on.

    `times` `[n]` >= 0, `observed` `[n]` bool (false: right-censored there; at a tie the events come first).
    """
    times, observed = _checked(times, observed)
    grid = np.unique(times[observed])
    died = np.array([np.sum(observed & (times == t)) for t in grid], np.float64)
    at_risk = np.array([np.sum(times >= t) for t in grid], np.float64)
    return grid, np.cumprod(1 - died / at_risk) if len(grid) else np.zeros(0)


def median_horizon(times: Values, observed: Values) -> float:
    """Kaplan-Meier median: first time with `S(t) <= 1/2`; `inf` where survival never falls so far."""
    grid, s = survival(times, observed)
    reached = s <= 0.5 + _TIE
    return float(grid[reached.argmax()]) if reached.any() else math.inf


def rmst(times: Values, observed: Values, tau: float | int | None = None) -> float:
    """Restricted mean horizon: area under the Kaplan-Meier curve up to `tau` (default: the longest time seen).

    ValueError if `tau` is longer than that and the longest window is censored.
    """
    times, observed = _checked(times, observed)
    if len(times) == 0:
        return math.nan
    longest = float(times.max())
    # Once survival is 0 the area is known for good; before, nothing is known past the last time.
    if tau is not None and tau > longest and not observed[times == longest].all():
        raise ValueError(f"rmst to tau={tau} is not identified: the longest window is censored at {longest}")
    end = longest if tau is None else float(tau)
    grid, s = survival(times, observed)
    edges = np.concatenate([[0.0], np.minimum(grid, end), [end]])
    return float(np.sum(np.concatenate([[1.0], s]) * np.diff(edges)))


def median_horizon_interval(
    times: Values,
    observed: Values,
    cluster_ids: Values | None = None,
    seed: int = 0,
    *,
    repetitions: int = 1000,
) -> Estimate:
    """Kaplan-Meier median with an interval that resamples clusters (episodes); null where survival stays above 1/2."""
    times, observed = _checked(times, observed)
    if len(times) == 0:
        return Estimate(None, None, None, 0, "no windows")
    draws, clusters = _resampled_survival(times, observed, cluster_ids, seed, repetitions)
    grid = np.unique(times)
    reached = draws <= 0.5 + _TIE
    medians = np.where(reached.any(axis=1), grid[reached.argmax(axis=1)], np.inf)
    still = (
        f"{int((~observed).sum())} of {len(times)} windows ended within the threshold, the longest at {times.max():g}"
    )
    why = f"no median: survival stays above one half; {still}"
    return percentile_estimate(median_horizon(times, observed), medians, clusters, why=why)


def rmst_interval(
    times: Values,
    observed: Values,
    cluster_ids: Values | None = None,
    seed: int = 0,
    *,
    repetitions: int = 1000,
) -> Estimate:
    """Restricted mean horizon up to the longest time seen, with an interval that resamples clusters (episodes)."""
    times, observed = _checked(times, observed)
    if len(times) == 0:
        return Estimate(None, None, None, 0, "no windows")
    draws, clusters = _resampled_survival(times, observed, cluster_ids, seed, repetitions)
    # A resample without the longest windows is censored short of tau; its survival is carried on, as is usual.
    steps = np.diff(np.unique(times), prepend=0.0)
    area = np.concatenate([np.ones((len(draws), 1)), draws[:, :-1]], axis=1) @ steps
    return percentile_estimate(rmst(times, observed), area, clusters)


def _resampled_survival(times, observed, cluster_ids, seed: int, repetitions: int) -> tuple[np.ndarray, int]:
    """Kaplan-Meier curves `[R, distinct times]` of resampled clusters, and the number of clusters."""
    index, clusters = cluster_index(cluster_ids, len(times))
    grid, at = np.unique(times, return_inverse=True)
    leaves = np.eye(len(grid))[at]
    gone, died = (cluster_sums(x, index, clusters) for x in (leaves, leaves * observed[:, None]))
    curves = []
    for counts in resample_counts(clusters, repetitions, seed, width=len(grid)):
        at_risk = np.cumsum((counts @ gone)[:, ::-1], axis=1)[:, ::-1]
        curves.append(np.cumprod(1 - counts @ died / np.maximum(at_risk, 1.0), axis=1))
    return np.concatenate(curves), clusters


def _checked(times: Values, observed: Values) -> tuple[np.ndarray, np.ndarray]:
    times, observed = np.asarray(times, np.float64), np.asarray(observed, bool)
    if times.ndim != 1 or times.shape != observed.shape:
        raise ValueError(f"times and observed must both be [n]; got {list(times.shape)} and {list(observed.shape)}")
    if not (np.isfinite(times) & (times >= 0)).all():
        raise ValueError("times must be finite and not negative; censoring is said by `observed`, not by inf or NaN")
    return times, observed


def compounding_factor(curve: Values) -> float:
    """Least-squares slope of `log e_k` against k for errors `[H]` after k = 1..H steps: growth per step, in nats.

    Entries that are NaN, zero or infinite have no logarithm and are left out; NaN if fewer than two remain.
    """
    curve = np.asarray(curve, np.float64)
    if curve.ndim != 1:
        raise ValueError(f"curve must be [H]; got shape {list(curve.shape)}")
    return float(_slopes(curve[None])[0])


def compounding_interval(
    errors: Values, cluster_ids: Values | None = None, seed: int = 0, *, repetitions: int = 1000
) -> Estimate:
    """`compounding_factor` of the median curve of `errors` `[n, H]`, with an interval that resamples clusters."""
    errors = np.asarray(errors, np.float64)
    medians, draws, live = median_draws(errors, cluster_ids, seed, repetitions)
    clusters = int(live.max(initial=0))
    return percentile_estimate(
        compounding_factor(medians), _slopes(draws), clusters, why="fewer than two horizons with a positive error"
    )


def _slopes(curves: np.ndarray) -> np.ndarray:
    usable = np.isfinite(curves) & (curves > 0)
    y = np.log(np.where(usable, curves, 1.0))
    k = np.broadcast_to(np.arange(1.0, curves.shape[1] + 1), curves.shape)
    n = np.maximum(usable.sum(axis=1, keepdims=True), 1)
    dk = np.where(usable, k - (k * usable).sum(axis=1, keepdims=True) / n, 0.0)
    spread = (dk * dk).sum(axis=1)
    return np.divide((dk * y).sum(axis=1), spread, out=np.full(len(curves), np.nan), where=spread > 0)
