"""What behaviours may know of the episodes recorded before theirs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from worldmodel.trajectory import Spec, Trajectory

REMEMBERED = 500
NEIGHBOURS = 30


@dataclasses.dataclass(frozen=True)
class LinearRule:
    """Scores `weights @ obs + bias`: weights float64 `[scores, size]` on flattened observations, bias `[scores]`."""

    weights: np.ndarray
    bias: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Tried:
    """A rule, the return and kind of end of its episode, and the last observation it reached, flattened."""

    rule: LinearRule
    total_reward: float
    terminated: bool
    end: np.ndarray


class Past:
    """Mean and spread of the observations recorded so far, and the linear rules tried so far with what came of them.

    Observations are flattened; Discrete ones are one-hot. Before the first, the mean is 0 and the deviation 1.
    """

    def __init__(self, spec: Spec):
        space = spec.observation_space
        self._codes = np.eye(space["n"]) if space["type"] == "Discrete" else None
        self._start = space.get("start", 0)
        self.size: int = space["n"] if self._codes is not None else math.prod(space["shape"])
        self.mean: np.ndarray = np.zeros(self.size)
        self._square = np.zeros(self.size)
        self._count = 0
        self._tried: list[_Tried] = []

    @property
    def deviation(self) -> np.ndarray:
        """float64 `[size]`, positive; 1 for what never varied."""
        deviation = np.sqrt(self._square / max(self._count, 1))
        return np.where(deviation > 1e-8, deviation, 1.0)

    def flat(self, observations: np.ndarray) -> np.ndarray:
        """float64 `[T, size]` of observations `[T, ...]`."""
        if self._codes is not None:
            return self._codes[np.asarray(observations) - self._start]
        return np.asarray(observations, np.float64).reshape(-1, self.size)

    def flat_one(self, obs: Any) -> np.ndarray:
        """float64 `[size]` of one observation."""
        if self._codes is not None:
            return self._codes[int(obs) - self._start]
        return np.asarray(obs, np.float64).ravel()

    def absorb(self, trajectory: Trajectory, rule: LinearRule | None) -> None:
        """Takes in a finished episode, and the rule that it tried, if any.

        Moments by the parallel update of Chan, Golub and LeVeque (1979).
        """
        rows = self.flat(trajectory.observations)
        total = self._count + len(rows)
        shift = rows.mean(0) - self.mean
        self._square = self._square + ((rows - rows.mean(0)) ** 2).sum(0) + shift**2 * self._count * len(rows) / total
        self.mean = self.mean + shift * len(rows) / total
        self._count = total
        if rule is not None:
            self._tried.append(_Tried(rule, trajectory.total_reward, trajectory.terminated, rows[-1]))
            del self._tried[:-REMEMBERED]

    def best(self, share: float) -> list[LinearRule]:
        """The `share` of the rules with the highest return, at least one where any was tried."""
        return _top(self._tried, [tried.total_reward for tried in self._tried], share)

    def most_novel(self, share: float) -> list[LinearRule]:
        """The `share` of the rules whose episodes ended farthest from where others did; at least one of any.

        Only episodes that terminated count, where there are any: rare ends are what logs lack first. Far is the mean
        distance to the nearest few, in spreads of what rules usually reach (novelty search; Lehman and Stanley 2011).
        """
        pool = [tried for tried in self._tried if tried.terminated] or self._tried
        if not pool:
            return []
        ends = np.stack([tried.end for tried in pool])
        # The middle half of the ends is the yardstick, because a rare kind of end must not widen its own.
        spread = np.subtract(*np.quantile(ends, [0.75, 0.25], axis=0))
        ends = ends / np.where(spread > 1e-8, spread, self.deviation)
        squares = (ends**2).sum(1)
        distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * ends @ ends.T, 0.0))
        nearest = np.sort(distances, axis=1)[:, 1 : NEIGHBOURS + 1]
        return _top(pool, nearest.sum(1), share)


def _top(pool: list[_Tried], merit: Any, share: float) -> list[LinearRule]:
    order = np.argsort(-np.asarray(merit, np.float64), kind="stable")
    return [pool[i].rule for i in order[: math.ceil(share * len(pool))]]
