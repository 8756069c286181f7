"""Does the ensemble know where it is wrong: the link between its disagreement and its error.

It must be asked on data of the policies that the simulator is used for, not on the logs that it learned from (Lu et al.
2022): there it can look well and say nothing.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from worldmodel.fidelity.estimates import (
    Estimate,
    Values,
    cluster_index,
    cluster_sums,
    percentile_estimate,
    resample_counts,
)


def largest_disagreement(predictions: Values) -> np.ndarray:
    """`max_ij |f_i - f_j|` between members `[N, M, D]` -> `[N]`, in units of the predictions (MOReL)."""
    f = np.asarray(predictions, np.float64)
    if f.ndim != 3 or f.shape[1] < 2:
        raise ValueError(f"predictions must be [N, M, D] of at least 2 members; got shape {list(f.shape)}")
    return np.linalg.norm(f[:, :, None] - f[:, None], axis=-1).max(axis=(1, 2))


def rank_link(
    uncertainty: Values, error: Values, episode_ids: Values | None = None, seed: int = 0, *, repetitions: int = 500
) -> Estimate:
    """Spearman's correlation of `uncertainty` `[N]` and `error` `[N]`; 1 if the less certain are always the worse.

    The interval resamples episodes and holds the ranks of the whole sample.
    """
    u, e = np.asarray(uncertainty, np.float64), np.asarray(error, np.float64)
    if u.ndim != 1 or u.shape != e.shape:
        raise ValueError(f"uncertainty and error must both be [N]; got {list(u.shape)} and {list(e.shape)}")
    index, clusters = cluster_index(episode_ids, len(u))
    if not (np.isfinite(u) & np.isfinite(e)).all():
        return Estimate(None, None, None, clusters, "an uncertainty or an error is not finite")
    if clusters == 0 or np.ptp(u) == 0 or np.ptp(e) == 0:
        why = "no transitions" if clusters == 0 else "uncertainty or error is the same everywhere"
        return Estimate(None, None, None, clusters, why)
    x, y = ((stats.rankdata(side) - (len(u) + 1) / 2) / len(u) for side in (u, e))
    moments = cluster_sums(np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1), index, clusters)
    drawn = np.concatenate([counts @ moments for counts in resample_counts(clusters, repetitions, seed, width=6)])
    return percentile_estimate(float(_correlation(moments.sum(0)[None])[0]), _correlation(drawn), clusters)


def _correlation(sums: np.ndarray) -> np.ndarray:
    x, y, xx, yy, xy = (sums[:, 1:] / sums[:, :1]).T
    variance = (xx - x * x) * (yy - y * y)
    usable = variance > 1e-12
    return np.clip(np.where(usable, (xy - x * y) / np.sqrt(np.where(usable, variance, 1.0)), np.nan), -1, 1)
