"""How behaviours draw actions of a space, and how probable each draw was."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import special

from worldmodel.spaces import box_bounds

NEAR_SPREAD = 0.1
PREFERRED_SPREAD = 0.15


def arm_of(space: Mapping[str, Any]) -> DiscreteArm | BoxArm:
    """The arm of an action space in JSON form; `ValueError` for a Box that is unbounded or not of floats."""
    if space["type"] == "Discrete":
        return DiscreteArm(space["n"], space["start"])
    low, high = box_bounds(space)
    dtype = np.dtype(space["dtype"])
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError("action space is a Box without bounds; behaviours need finite low and high")
    if dtype.kind != "f":
        raise ValueError(f"action space is a Box of {dtype}; behaviours need a Box of floats or a Discrete space")
    return BoxArm(low.ravel(), high.ravel(), tuple(space["shape"]), dtype)


@dataclasses.dataclass(frozen=True)
class DiscreteArm:
    """Actions `start..start+n-1`, int64."""

    n: int
    start: int

    @property
    def width(self) -> int:
        """Number of scores that a preference takes."""
        return self.n

    @property
    def uniform_log_prob(self) -> float:
        """Log-probability of any action when drawn uniformly."""
        return -math.log(self.n)

    def draw_uniform(self, rng: np.random.Generator) -> np.int64:
        """Any action."""
        return np.int64(self.start + rng.integers(self.n))

    def draw_near(self, action: np.int64, rng: np.random.Generator) -> np.int64:
        """The same action."""
        return action

    def near_log_probs(self, before: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """float64 `[T]`: of `actions` drawn near `before`."""
        return np.where(before == actions, 0.0, -np.inf)

    def draw_preferred(self, scores: np.ndarray, rng: np.random.Generator) -> np.int64:
        """By the softmax of `scores` `[n]`."""
        edges = np.cumsum(np.exp(scores - scores.max()))
        return np.int64(self.start + min(int(np.searchsorted(edges, rng.random() * edges[-1], "right")), self.n - 1))

    def preferred_log_probs(self, scores: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """float64 `[T]`: of `actions` drawn by `scores` `[T, n]`."""
        return special.log_softmax(scores, axis=1)[np.arange(len(actions)), actions - self.start]


@dataclasses.dataclass(frozen=True)
class BoxArm:
    """Actions in a bounded Box; nearness and preference are normals truncated to it, dimension by dimension.

    Attributes:
      low: float64 `[D]`, flattened.
      high: float64 `[D]`.
      shape: of an action.
      dtype: of an action.
    """

    low: np.ndarray
    high: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def width(self) -> int:
        """Number of scores that a preference takes."""
        return len(self.low)

    @property
    def uniform_log_prob(self) -> float:
        """Log-density of any action when drawn uniformly."""
        return -float(np.log(self.high - self.low).sum())

    def draw_uniform(self, rng: np.random.Generator) -> np.ndarray:
        """Any action."""
        return self._executed(self.low + (self.high - self.low) * rng.random(self.width))

    def draw_near(self, action: np.ndarray, rng: np.random.Generator, spread: float = NEAR_SPREAD) -> np.ndarray:
        """Around `action`, with a deviation of `spread` times the range."""
        return self._draw(np.ravel(action), spread, rng)

    def near_log_probs(self, before: np.ndarray, actions: np.ndarray, spread: float = NEAR_SPREAD) -> np.ndarray:
        """float64 `[T]`: of `actions` drawn near `before`."""
        return self._log_probs(before.reshape(len(before), self.width), spread, actions)

    def draw_preferred(self, scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Around `low + (high - low) * sigmoid(scores)`, `scores` `[D]`."""
        return self._draw(self._centre(scores), PREFERRED_SPREAD, rng)

    def preferred_log_probs(self, scores: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """float64 `[T]`: of `actions` drawn by `scores` `[T, D]`."""
        return self._log_probs(self._centre(scores), PREFERRED_SPREAD, actions)

    def _centre(self, scores: np.ndarray) -> np.ndarray:
        return self.low + (self.high - self.low) * special.expit(scores)

    def _draw(self, centre: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
        spread = share * (self.high - self.low)
        left = special.ndtr((self.low - centre) / spread)
        right = special.ndtr((self.high - centre) / spread)
        return self._executed(centre + spread * special.ndtri(left + (right - left) * rng.random(self.width)))

    def _log_probs(self, centre: np.ndarray, share: float, actions: np.ndarray) -> np.ndarray:
        spread = share * (self.high - self.low)
        z = (np.asarray(actions, np.float64).reshape(len(actions), self.width) - centre) / spread
        inside = special.ndtr((self.high - centre) / spread) - special.ndtr((self.low - centre) / spread)
        return (-0.5 * z**2 - 0.5 * math.log(2 * math.pi) - np.log(spread * inside)).sum(axis=1)

    def _executed(self, action: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(action, self.low), self.high).astype(self.dtype).reshape(self.shape)
