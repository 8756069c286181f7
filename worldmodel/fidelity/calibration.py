"""Are stated probabilities and intervals as often right as they claim: ECE, Brier, reliability, PIT.

`episode_ids` `[N]` name the episode of each row: intervals resample episodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from worldmodel.fidelity.estimates import (
    Estimate,
    Values,
    cluster_index,
    cluster_mean_interval,
    percentile_estimate,
    resample_counts,
)

PIT_BINS = 10


def brier(probability: Values, outcome: Values, episode_ids: Values | None = None, seed: int = 0) -> Estimate:
    """Mean squared difference of `probability` `[N]` and `outcome` `[N]` (0 or 1): 0 is best (Brier 1950)."""
    p, y = _stated(probability, outcome)
    return cluster_mean_interval((p - y) ** 2, episode_ids, seed)


def expected_calibration_error(probability: Values, outcome: Values, bins: int = 10) -> float:
    """`sum_b share_b |mean probability_b - mean outcome_b|` over `bins` equal bins of [0, 1] (Naeini et al. 2015).

    `probability` `[N]` of the event, `outcome` `[N]` whether it came. Depends on the bins, and is above zero by chance
    for a calibrated forecast too, the more so the fewer rows: read it beside `bins` and `N`. A probability on an edge
    belongs to the bin above; 1 to the last.
    """
    p, y = _stated(probability, outcome)
    if bins < 1:
        raise ValueError(f"bins is {bins}; at least 1 is needed")
    if len(p) == 0:
        raise ValueError("no probabilities; at least one is needed")
    where = _bin(p, bins)
    gap = np.bincount(where, p, bins) - np.bincount(where, y, bins)
    return float(np.abs(gap).sum() / len(p))


def reliability(probability: Values, outcome: Values, bins: int = 10) -> dict[str, list[Any]]:
    """What a reliability diagram draws, as parallel lists: `stated[]`, `observed[]` (null for an empty bin), `n[]`."""
    p, y = _stated(probability, outcome)
    where = _bin(p, bins)
    n = np.bincount(where, minlength=bins)
    means = [np.bincount(where, side, bins) / np.maximum(n, 1) for side in (p, y)]
    stated, observed = ([float(v) if k else None for v, k in zip(side, n, strict=True)] for side in means)
    return {"stated": stated, "observed": observed, "n": n.tolist()}


def ece_interval(
    probability: Values,
    outcome: Values,
    episode_ids: Values | None = None,
    seed: int = 0,
    *,
    bins: int = 10,
    repetitions: int = 500,
) -> Estimate:
    """`expected_calibration_error` with an interval that resamples episodes."""
    p, y = _stated(probability, outcome)
    if len(p) == 0:
        return Estimate(None, None, None, 0, "no transitions")
    gaps, rows, clusters = _gaps(p, y, episode_ids, bins)
    draws = [
        np.abs(counts @ gaps).sum(1) / (counts @ rows)
        for counts in resample_counts(clusters, repetitions, seed, width=bins)
    ]
    return percentile_estimate(expected_calibration_error(p, y, bins), np.concatenate(draws), clusters)


def _gaps(p: np.ndarray, y: np.ndarray, ids: Values | None, bins: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Stated minus observed events by episode and bin `[clusters, bins]`, rows by episode, number of episodes."""
    index, clusters = cluster_index(ids, len(p))
    cell = index * bins + _bin(p, bins)
    gaps = np.bincount(cell, p - y, clusters * bins).reshape(clusters, bins)
    return gaps, np.bincount(index, minlength=clusters).astype(np.float64), clusters


def pit_histogram(places: Values, bins: int = PIT_BINS) -> list[float]:
    """Share of probability integral transforms (`one_step.pit`, any shape) in each of `bins` equal bins of [0, 1].

    `1 / bins` each if calibrated; high at both ends if too sure, in the middle if too unsure, at one end if biased.
    """
    u = np.ravel(np.asarray(places, np.float64))
    if len(u) == 0 or not ((u >= 0) & (u <= 1)).all():
        raise ValueError("places must lie in [0, 1], at least one")
    return (np.bincount(_bin(u, bins), minlength=bins) / len(u)).tolist()


def pit_error(places: Values, bins: int = PIT_BINS) -> float:
    """Mean absolute departure of `pit_histogram` from flat, as a share of flat: 0 if calibrated."""
    return float(np.mean(np.abs(np.array(pit_histogram(places, bins)) * bins - 1.0)))


def pit_error_interval(
    places: Values, episode_ids: Values, seed: int = 0, *, bins: int = PIT_BINS, repetitions: int = 500
) -> Estimate:
    """`pit_error` of places `[N, ...]` with an interval that resamples the episodes `[N]`."""
    u = np.asarray(places, np.float64)
    u = u.reshape(len(u), -1)
    index, clusters = cluster_index(episode_ids, len(u))
    if u.size == 0:
        return Estimate(None, None, None, clusters, "no transitions")
    cell = index[:, None] * bins + _bin(u, bins)
    counts = np.bincount(cell.ravel(), minlength=clusters * bins).reshape(clusters, bins).astype(np.float64)
    drawn = np.concatenate([weights @ counts for weights in resample_counts(clusters, repetitions, seed, width=bins)])
    draws = np.mean(np.abs(drawn / drawn.sum(1, keepdims=True) * bins - 1.0), axis=1)
    return percentile_estimate(pit_error(u, bins), draws, clusters)


def sharpness(samples: Values, level: float | int = 0.9) -> np.ndarray:
    """Width of the central `level` interval of an ensemble `[M, N]` -> `[N]`, in its units: smaller is sharper.

    Says something only beside calibration: a forecast that is sure and wrong is sharp, too.
    """
    x = np.asarray(samples, np.float64)
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"samples must be [M, N] with at least 2 samples; got shape {list(x.shape)}")
    if not 0 < level < 1:
        raise ValueError(f"sharpness level is {level}; it must lie between 0 and 1")
    lo, hi = np.quantile(x, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    return hi - lo


def _bin(p: np.ndarray, bins: int) -> np.ndarray:
    return np.minimum((p * bins).astype(np.int64), bins - 1)


def _stated(probability: Values, outcome: Values) -> tuple[np.ndarray, np.ndarray]:
    p, y = np.asarray(probability, np.float64), np.asarray(outcome, np.float64)
    if p.ndim != 1 or p.shape != y.shape:
        raise ValueError(f"probability and outcome must both be [N]; got {list(p.shape)} and {list(y.shape)}")
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"probability[{int(np.argmin((p >= 0) & (p <= 1)))}] is outside [0, 1]")
    if not np.isin(y, (0, 1)).all():
        raise ValueError("outcome must be 0 or 1: whether the event came")
    return p, y
