"""The sliced Wasserstein distance between halves of a sample of episodes, with intervals that resample them."""

from __future__ import annotations

from typing import Any

import numpy as np

from worldmodel.fidelity.estimates import Estimate, Values, cluster_index, percentile_estimate
from worldmodel.fidelity.fidelity_index import resampled_halves
from worldmodel.fidelity.two_sample import random_directions

DIRECTIONS = 16


def sliced_halves(
    real: Values, sim: Values, episode_ids: Values, *, seed: int = 0, repetitions: int = 200
) -> dict[str, Any]:
    """`two_sample.sliced_wasserstein` from real rows `[N, D]` of one half to simulated and real rows of the other.

    JSON: `sim`, `floor` and their difference `excess` with its interval; nulls beside `why` for under four episodes.
    """
    x, y = np.asarray(real, np.float64), np.asarray(sim, np.float64)
    index, clusters = cluster_index(episode_ids, len(x))
    if clusters < 4:
        nothing = Estimate(None, None, None, clusters, f"two halves need at least 4 episodes; there are {clusters}")
        return {"sim": None, "floor": None, "excess": nothing.to_json()}
    half, counts = resampled_halves(clusters, seed, repetitions)
    weights = np.concatenate([np.ones((1, clusters)), counts])[:, index]  # the sample itself first
    first = half[index]
    distances = np.zeros((2, repetitions + 1))
    directions = random_directions(x.shape[1], DIRECTIONS, seed)
    for direction in directions:
        a = x @ direction
        for place, b in enumerate((a, y @ direction)):
            distances[place] += _weighted_w1(a, b, weights * first, weights * ~first)
            distances[place] += _weighted_w1(a, b, weights * ~first, weights * first)
    floor, simulated = distances / (2 * DIRECTIONS)
    excess = percentile_estimate(float(simulated[0] - floor[0]), (simulated - floor)[1:], clusters)
    return {"sim": float(simulated[0]), "floor": float(floor[0]), "excess": excess.to_json(), "directions": DIRECTIONS}


def _weighted_w1(a: np.ndarray, b: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """1-Wasserstein distance `[R]` of values `a` weighted `left` `[R, N]` and `b` weighted `right`."""
    values = np.concatenate([a, b])
    order = np.argsort(values)
    shares = np.concatenate([left / left.sum(1, keepdims=True), -right / right.sum(1, keepdims=True)], axis=1)
    return np.abs(np.cumsum(shares[:, order], axis=1)[:, :-1]) @ np.diff(values[order])
