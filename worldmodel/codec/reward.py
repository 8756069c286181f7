"""Rewards: standardised numbers, atoms where the logs hold few values, or both."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import ArrayLike
from worldmodel.codec.box import BIN_FRACTION

MOST_ATOMS = 16
"""Most different rewards that are modelled as categories."""

FREQUENT = 0.02
"""Share of logged steps from which a reward is an atom among others that are a matter of degree."""

SEEN_ALONE = 16
"""How many of them there are at least."""

SEEN_OFTEN = 4
"""How many logged steps there are at least for each different reward: else there are too few to tell the kind."""


@dataclasses.dataclass(frozen=True)
class RewardCodec:
    """Standardises rewards; a reward that never varies in the logs is returned exactly, and so is one of few values.

    Attributes: `mean` and `scale` (standard deviation) in the logs; `constant`: they hold a single value; `atoms`: the
    `A` values that they hold, increasing, or those that are frequent, where `rest` are a matter of degree.
    """

    mean: float
    scale: float
    constant: bool
    atoms: tuple[float, ...] = ()
    rest: bool = True

    @property
    def bin(self) -> float:
        """Width of the likelihood's bin in units of the target."""
        return BIN_FRACTION

    @property
    def unit(self) -> float:
        """How much of a reward is a lot: one deviation in the logs; of a reward that never varies its size, or 1."""
        return (abs(self.mean) or 1.0) if self.constant else self.scale

    def encode(self, reward: ArrayLike) -> jax.Array:
        """Reward units -> standardised, float32 `[...]`."""
        return (jnp.asarray(reward, jnp.float32) - np.float32(self.mean)) / np.float32(self.scale)

    def known(self, reward: ArrayLike) -> jax.Array:
        """The reward, float32 `[...]`; the logs' mean where there was none yet (NaN)."""
        reward = jnp.asarray(reward, jnp.float32)
        return jnp.where(jnp.isnan(reward), jnp.float32(self.mean), reward)

    def decode(self, target: jax.Array) -> jax.Array:
        """The inverse of `encode`, float32 `[...]`."""
        if self.constant:
            return jnp.full(target.shape, self.mean, jnp.float32)
        return target * np.float32(self.scale) + np.float32(self.mean)

    @property
    def values(self) -> np.ndarray:
        """The atoms, float32 `[A]`."""
        return np.asarray(self.atoms, np.float32)

    @classmethod
    def fit(cls, rewards: np.ndarray) -> RewardCodec:
        """Statistics of logged rewards `[N]`."""
        rewards = np.asarray(rewards)
        exact = rewards.astype(np.float64)
        deviation, mean = float(exact.std()), float(exact.mean())
        if deviation <= 1e-7 * max(1.0, abs(mean)):
            return cls(mean, 1.0, True)
        values, counts = np.unique(rewards.astype(np.float32), return_counts=True)
        few = len(values) <= min(MOST_ATOMS, len(rewards) // SEEN_OFTEN)
        if not few:
            often = np.argsort(-counts)[:MOST_ATOMS]
            values = np.sort(values[often[counts[often] >= max(FREQUENT * len(rewards), SEEN_ALONE)]])
        return cls(mean, deviation, False, tuple(map(float, values)), rest=not few)
