"""Linear policies found by augmented random search: cheap, graded in strength, and written in twenty numbers a row.

Mania, Guy, Recht 2018, "Simple random search provides a competitive approach to reinforcement learning"
(arXiv 1803.07055), algorithm 1, V2-t: observations are standardised by running statistics, the best directions kept.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from worldmodel.agents.arms import BoxArm, arm_of
from worldmodel.agents.behaviour import mixture_log_prob
from worldmodel.agents.past import LinearRule
from worldmodel.trajectory import Spec

if TYPE_CHECKING:
    import gymnasium


@dataclasses.dataclass(frozen=True)
class ARSConfig:
    """Hyperparameters, named as in the paper; defaults are those for HalfCheetah.

    Attributes:
      iterations: updates.
      directions: N, tried both ways in each update.
      top: b, directions that are used.
      step_size: alpha.
      noise: nu, the size of a direction.
      survival_bonus: taken off each reward while searching, so that standing still is no optimum.
      snapshots: checkpoints yielded, evenly spaced, the first and the last among them.
    """

    iterations: int = 60
    directions: int = 32
    top: int = 4
    step_size: float = 0.02
    noise: float = 0.03
    survival_bonus: float = 0.0
    snapshots: int = 6


@dataclasses.dataclass(frozen=True)
class LinearCheckpoint:
    """A policy `action = weights @ (obs - mean) / scale`, clipped to the action space.

    Attributes:
      weights: float64 `[A, D]`.
      mean, scale: float64 `[D]`.
      mean_return: undiscounted, of the episodes that were run for it while searching.
      steps: environment steps taken until it was found.
    """

    weights: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    mean_return: float
    steps: int

    def action(self, obs: np.ndarray) -> np.ndarray:
        """Unclipped action `[..., A]` for observations `[..., D]`."""
        return ((obs - self.mean) / self.scale) @ self.weights.T

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an npz of its fields."""
        np.savez(path, **dataclasses.asdict(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LinearCheckpoint:
        """The inverse of `save`; `ValueError` for another file."""
        with np.load(pathlib.Path(path), allow_pickle=False) as data:
            names = {field.name for field in dataclasses.fields(cls)}
            if set(data.files) != names:
                raise ValueError(f"{path}: holds {sorted(data.files)}; a linear checkpoint holds {sorted(names)}")
            return cls(data["weights"], data["mean"], data["scale"], float(data["mean_return"]), int(data["steps"]))


class _Statistics:
    """Running mean and variance of observations (Chan et al. 1979, pairwise)."""

    def __init__(self, size: int):
        self.count, self.mean, self._square = 0, np.zeros(size), np.zeros(size)

    def add(self, rows: np.ndarray) -> None:
        count, mean = len(rows), rows.mean(axis=0)
        shift, total = mean - self.mean, self.count + count
        self._square += rows.var(axis=0) * count + shift**2 * self.count * count / total
        self.mean = self.mean + shift * count / total
        self.count = total

    @property
    def scale(self) -> np.ndarray:
        """Standard deviation; 1 where nothing has varied."""
        deviation = np.sqrt(self._square / max(self.count, 1))
        return np.where(deviation > 1e-7, deviation, 1.0)


def augmented_random_search(
    env: gymnasium.Env, config: ARSConfig, *, seed: int, progress: Callable[[int, float], None] | None = None
) -> Iterator[LinearCheckpoint]:
    """Searches, and yields `config.snapshots` checkpoints from the first iteration's to the last's.

    Args:
      env: a real environment with vectors as observations and a bounded Box of actions; it must end its episodes.
      config: how to search.
      seed: of directions and episodes; the same seed gives the same checkpoints.
      progress: called with (iterations done, mean return of the iteration).

    Raises:
      ValueError: `top` exceeds `directions`, or there are fewer iterations than snapshots.
    """
    if not 1 <= config.top <= config.directions:
        raise ValueError(f"top is {config.top}; 1 to {config.directions} directions can be used")
    if not 1 <= config.snapshots <= config.iterations:
        raise ValueError(f"snapshots is {config.snapshots}; 1 to {config.iterations} are possible")
    rng = np.random.default_rng(seed)
    size, width = (math.prod(space.shape or ()) for space in (env.observation_space, env.action_space))
    weights, statistics, steps = np.zeros((width, size)), _Statistics(size), 0
    due = set(np.linspace(1, config.iterations, config.snapshots).round().astype(int).tolist())
    env.reset(seed=int(rng.integers(2**31)))
    for iteration in range(1, config.iterations + 1):
        directions = rng.normal(size=(config.directions, width, size))
        mean, scale = statistics.mean.copy(), statistics.scale
        returns, lengths = np.zeros((config.directions, 2)), np.zeros((config.directions, 2))
        for k, direction in enumerate(directions):
            for side, sign in enumerate((1.0, -1.0)):
                tried = LinearCheckpoint(weights + sign * config.noise * direction, mean, scale, 0.0, 0)
                returns[k, side], rows = _episode(env, tried)
                lengths[k, side] = len(rows)
                statistics.add(rows)
                steps += len(rows)
        scores = returns - config.survival_bonus * lengths
        best = np.argsort(-scores.max(axis=1), kind="stable")[: config.top]
        spread = max(float(scores[best].std()), 1e-8)
        gain = (scores[best, 0] - scores[best, 1]) @ directions[best].reshape(config.top, -1)
        found = LinearCheckpoint(weights, mean, scale, float(returns.mean()), steps)
        weights = weights + config.step_size / (config.top * spread) * gain.reshape(width, size)
        if progress is not None:
            progress(iteration, found.mean_return)
        if iteration in due:
            yield found


def _episode(env: gymnasium.Env, policy: LinearCheckpoint) -> tuple[float, np.ndarray]:
    """Return, and the observations acted on, float64 `[T, D]`."""
    space = env.action_space
    obs, _ = env.reset()
    rows, total, over = [], 0.0, False
    while not over:
        rows.append(np.ravel(obs).astype(np.float64))
        action = np.clip(policy.action(rows[-1]), space.low.ravel(), space.high.ravel())  # pyright: ignore[reportAttributeAccessIssue]
        obs, reward, terminated, truncated, _ = env.step(action.reshape(space.shape).astype(space.dtype))
        total += float(reward)
        over = terminated or truncated
    return total, np.stack(rows)


class NoisyLinearPolicy:
    """A checkpoint for recording: uniform with probability `uniform`, else a truncated normal around its action.

    `spread` is the deviation of that normal as a share of the action's range.
    """

    def __init__(
        self, checkpoint: LinearCheckpoint, spec: Spec, uniform: float, rng: np.random.Generator, *, spread: float
    ):
        arm = arm_of(spec.action_space)
        if not isinstance(arm, BoxArm):
            raise ValueError("a linear checkpoint acts in a bounded Box")
        self.rule: LinearRule | None = None
        self._checkpoint, self._arm, self._uniform, self._rng = checkpoint, arm, uniform, rng
        self._spread = spread

    def act(self, obs: np.ndarray) -> np.ndarray:
        """As `worldmodel.agents.behaviour.Policy.act`."""
        if self._rng.random() < self._uniform:
            return self._arm.draw_uniform(self._rng)
        return self._arm.draw_near(self._clipped(np.ravel(obs)), self._rng, self._spread)

    def log_probs(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """As `worldmodel.agents.behaviour.Policy.log_probs`."""
        acted_on = observations[: len(actions)].reshape(len(actions), -1)
        near = self._arm.near_log_probs(self._clipped(acted_on), actions, self._spread)
        return mixture_log_prob(self._uniform, self._arm.uniform_log_prob, near)

    def _clipped(self, obs: np.ndarray) -> np.ndarray:
        return np.clip(self._checkpoint.action(obs), self._arm.low, self._arm.high)
