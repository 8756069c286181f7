"""How much a step's error matters for the return: `delta(s, a) = (R_sim - R) + gamma (P_sim - P) V`.

Squares of single samples do not measure it: `E (V(s_sim) - V(s))^2` is the squared bias *plus both variances*, so that
a perfect simulator of a stochastic world is charged for the world's noise (losses of this kind: Farahmand et al. 2017).
Here a square is always a product of two errors whose noises are independent. Units are those of the return.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial import KDTree

from worldmodel.fidelity.estimates import Estimate, Values, cluster_mean_interval, cluster_ratio_interval

CANDIDATES = 16


def value_aware_error(
    *, real_reward: Any, sim_reward: Any, real: Values, sim: Values, value: Values, gamma: float | int = 1.0
) -> np.ndarray:
    """`|delta|` where both distributions are known: next states `real`, `sim` `[..., V]`, `value` `[V]` -> `[...]`.

    `real_reward`, `sim_reward`: expected rewards, numbers or `[...]`.
    """
    gain = (np.asarray(sim, np.float64) - np.asarray(real, np.float64)) @ np.asarray(value, np.float64)
    return np.asarray(np.abs(np.asarray(sim_reward) - np.asarray(real_reward) + gamma * gain))


def cross_product(first: Values, second: Values) -> np.ndarray:
    """Unbiased samples of `delta^2` from two errors `[N]` of the same state and action whose noises are independent.

    Each error is `(r + gamma V(s'))` of a simulated sample minus that of a real one; the two share neither sample. A
    single value may be negative: average before a root is taken.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"first and second must both be [N]; got shapes {list(a.shape)} and {list(b.shape)}")
    return a * b


def variance_subtracted(errors: Values) -> float:
    """Unbiased `(mean error)^2` of `n >= 2` independent errors: `mean^2 - s^2 / n`, the mean product of two of them."""
    e = np.asarray(errors, np.float64)
    if e.ndim != 1 or len(e) < 2:
        raise ValueError(f"errors must be [n] with n >= 2; got shape {list(e.shape)}")
    return float(e.mean() ** 2 - e.var(ddof=1) / len(e))


def value_error_estimates(errors: Values, places: Values, episode_ids: Values, seed: int = 0) -> dict[str, Estimate]:
    """Mean error, and mean squared `delta`, from logs that hold one real next state for each state and action.

    Args:
      errors: `[N]` simulated minus real `r + gamma V(s')`, one sample of each.
      places: `[N, D]` states and actions, in comparable units. The second, independent error at nearly the same place
        is that of the nearest row of another episode: unbiased as far as `delta` is alike there.
      episode_ids: `[N]`.
      seed: of the intervals.

    Returns:
      `mean` (signed; positive: the simulator promises too much) and `squared` (may be negative).
    """
    e, x, ids = np.asarray(errors, np.float64), np.asarray(places, np.float64), np.asarray(episode_ids)
    if e.ndim != 1 or x.ndim != 2 or len(x) != len(e) or ids.shape != e.shape:
        raise ValueError(f"errors and episode_ids must be [N] and places [N, D]; got {e.shape}, {ids.shape}, {x.shape}")
    mean = cluster_mean_interval(e, ids, seed)
    if len(np.unique(ids)) < 2:
        return {"mean": mean, "squared": Estimate(None, None, None, len(np.unique(ids)), "it needs two episodes")}
    near = np.asarray(KDTree(x).query(x, k=min(CANDIDATES, len(x)))[1])
    other = ids[near] != ids[:, None]
    found = other.any(axis=1)
    partner = near[np.arange(len(x)), other.argmax(axis=1)]
    product = np.where(found, cross_product(e, e[partner]), 0.0)
    why = f"the {CANDIDATES} nearest neighbours of every step are of its own episode"
    return {"mean": mean, "squared": cluster_ratio_interval(product, 1.0 * found, ids, seed, why=why)}
