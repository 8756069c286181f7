"""What can be planted in any Gymnasium environment from outside, as wrappers."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np

KINDS = ("dynamics_noise", "reward", "false_ends", "delay")
"""What needs no knowledge of the environment."""

LATEST = 4
"""Steps by which actions come late where nothing is left of their timing."""

FALSE_ENDS = 0.2
"""Probability of a false end in a step where nothing is left of the ends."""


class Faulty(gymnasium.Wrapper):
    """An environment of which `amount` (0 to 1) is wrong, as `kind` says; 0 is the environment itself.

    dynamics_noise: that share of the actions is replaced by arbitrary ones. reward: that share of the reward is another
    function of observation and action, drawn by `seed`, as large as `reward_size`. false_ends: so many steps end that
    should not. delay: actions come up to `LATEST` steps late, the first one in place of those before it.
    """

    def __init__(self, env: gymnasium.Env, kind: str, amount: float, seed: int, *, reward_size: float = 1.0):
        super().__init__(env)
        if kind not in KINDS:
            raise ValueError(f"corruption {kind!r} cannot be planted from outside; {', '.join(KINDS)} can")
        self._kind, self._amount, self._size = kind, amount, reward_size
        self._taste = np.random.default_rng(seed)
        self._weights: np.ndarray | None = None
        self._line: deque[Any] = deque(maxlen=1 + round(amount * LATEST) if kind == "delay" else 1)
        self._rng = np.random.default_rng(seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; with a seed, what goes wrong in it is the same again."""
        self._line.clear()
        if seed is not None:
            self._rng = np.random.default_rng([seed, 1])
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the faulty environment."""
        self._line.append(action)
        executed = self._line[0]
        if self._kind == "dynamics_noise" and self._rng.random() < self._amount:
            executed = _arbitrary(self.env.action_space, self._rng)
        obs, reward, terminated, truncated, info = super().step(executed)
        if self._kind == "reward":
            reward = (1.0 - self._amount) * float(reward) + self._amount * self._size * self._liked(obs, action)
        if self._kind == "false_ends" and self._rng.random() < self._amount * FALSE_ENDS:
            terminated = True
        return obs, reward, terminated, truncated, info

    def _liked(self, obs: Any, action: Any) -> float:
        seen = np.concatenate([_flat(self.env.observation_space, obs), _flat(self.env.action_space, action)])
        if self._weights is None:
            self._weights = self._taste.normal(size=len(seen))
        return float(np.tanh(self._weights @ seen))


def _flat(space: gymnasium.Space, value: Any) -> np.ndarray:
    return np.asarray(gymnasium.spaces.flatten(space, value), np.float64)


def _arbitrary(space: gymnasium.Space, rng: np.random.Generator) -> Any:
    space.seed(int(rng.integers(2**31)))
    return space.sample()
