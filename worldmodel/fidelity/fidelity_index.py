"""One number from 0 (no better than a trivial model) to 1 (not to be told from reality at this sample size).

`phi = 1 - (D(sim, real) - D(real, real')) / (D(null, real) - D(real, real'))` for a divergence `D`: the floor is what a
second real sample scores, the null what a trivial model scores. It may lie outside of 0 and 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial import distance

from worldmodel.fidelity.estimates import Estimate, Values, cluster_index, percentile_estimate

Dissimilarity = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Rows `[N, D]`, `[M, D]` -> float64 `[N, M]`, the less the more alike."""

euclidean: Dissimilarity = distance.cdist
"""Makes the divergence the energy distance."""


def fidelity_index(*, sim: float | int, floor: float | int, null: float | int) -> float:
    """`phi` from three divergences from reality; NaN where the null is no further from it than the floor."""
    return 1.0 - (sim - floor) / (null - floor) if null > floor else float("nan")


def gaussian(gamma: float | int) -> Dissimilarity:
    """Minus the kernel `exp(-gamma |u - v|^2)`: makes the divergence the squared maximum mean discrepancy."""
    return lambda a, b: -np.exp(-gamma * distance.cdist(a, b, "sqeuclidean"))


@dataclasses.dataclass(frozen=True)
class HalvesIndex:
    """Divergences between the two halves of a sample of episodes, and what follows from them.

    Attributes:
      sim, floor, null: from real rows to simulated, further real, and trivial ones; None where not formed.
      excess: `sim - floor`.
      phi: the index.
    """

    sim: float | None
    floor: float | None
    null: float | None
    excess: Estimate
    phi: Estimate

    def to_json(self) -> dict[str, Any]:
        """The fields by name, estimates as theirs."""
        values = {name: getattr(self, name) for name in ("sim", "floor", "null")}
        return {**values, "excess": self.excess.to_json(), "phi": self.phi.to_json()}


def halves_index(
    real: Values,
    sim: Values,
    null: Values,
    episode_ids: Values,
    *,
    dissimilarity: Dissimilarity = euclidean,
    seed: int = 0,
    repetitions: int = 500,
) -> HalvesIndex:
    """`phi` of `D = 2 E d(X, Y) - E d(X, X') - E d(Y, Y')` (all pairs), with intervals that resample episodes.

    Episodes are dealt into two halves. The real rows of one are compared with the real (floor), the simulated and the
    null rows of the other, and the other way round, so that all three differ from reality by the same chance.

    Args:
      real: `[N, D]` transitions in comparable units, state and action among the columns.
      sim: `[N, D]` the same with a simulated next state.
      null: `[N, D]` the same with that of a trivial model.
      episode_ids: `[N]`; at least four episodes.
      dissimilarity: `d`.
      seed: of halves and intervals.
      repetitions: resamples.
    """
    sides = [np.asarray(side, np.float64) for side in (real, sim, null)]
    if sides[0].ndim != 2 or any(side.shape != sides[0].shape for side in sides):
        raise ValueError(f"real, sim and null must share one shape [N, D]; got {[list(s.shape) for s in sides]}")
    index, clusters = cluster_index(episode_ids, len(sides[0]))
    if clusters < 4:
        nothing = Estimate(None, None, None, clusters, f"two halves need at least 4 episodes; there are {clusters}")
        return HalvesIndex(None, None, None, nothing, nothing)
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(clusters))
    sides = [side[order] for side in sides]

    def sums(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.add.reduceat(np.add.reduceat(dissimilarity(a, b), starts, axis=1), starts, axis=0)

    # Sums over the rows of two episodes make every resample a product of small matrices.
    across = [sums(sides[0], side) for side in sides]
    within = [across[0], *(sums(side, side) for side in sides[1:])]
    size = np.bincount(index, minlength=clusters).astype(np.float64)
    half, counts = resampled_halves(clusters, seed, repetitions)
    points = _divergences(across, within, size, half[None] * 1.0, ~half[None] * 1.0)
    draws = _divergences(across, within, size, counts * half, counts * ~half)
    floor, simulated, trivial = (float(value) for value in points[:, 0])
    phi = percentile_estimate(
        float(_phi(points)[0]), _phi(draws), clusters, why="the null is no further from reality than real episodes are"
    )
    return HalvesIndex(
        simulated, floor, trivial, percentile_estimate(simulated - floor, draws[1] - draws[0], clusters), phi
    )


def resampled_halves(clusters: int, seed: int, repetitions: int) -> tuple[np.ndarray, np.ndarray]:
    """Which episodes are in the first half, bool `[clusters]`, and how often each is drawn, float64 `[R, clusters]`."""
    rng = np.random.default_rng(seed)
    half = rng.permutation(clusters) % 2 == 0
    counts = np.zeros((repetitions, clusters))
    for side in (half, ~half):
        size = int(side.sum())
        counts[:, side] = rng.multinomial(size, np.full(size, 1 / size), size=repetitions)
    return half, counts


def _divergences(
    across: list[np.ndarray], within: list[np.ndarray], size: np.ndarray, one: np.ndarray, two: np.ndarray
) -> np.ndarray:
    """`D` `[3, R]` of real to real, simulated and null rows, for weights `one`, `two` `[R, clusters]` of episodes."""

    def mean(sums: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return ((left @ sums) * right).sum(1) / ((left @ size) * (right @ size))

    out = []
    for between, own in zip(across, within, strict=True):
        both = [
            2 * mean(between, left, right) - mean(within[0], left, left) - mean(own, right, right)
            for left, right in ((one, two), (two, one))
        ]
        out.append(np.mean(both, axis=0))
    return np.stack(out)


def _phi(values: np.ndarray) -> np.ndarray:
    floor, sim, null = values
    span = null - floor
    return np.where(span > 0, 1.0 - (sim - floor) / np.where(span > 0, span, 1.0), np.nan)
