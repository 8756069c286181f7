"""A small codec whose units are round numbers, and a counting world that shows what reaches it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from worldmodel.codec import BoxCodec, DiscreteCodec, RewardCodec, StepCodec


def box_codec(scale: tuple[float, ...], low: float | None, high: float | None, active: tuple[bool, ...] | None = None):
    """A float32 Box whose numbers have these deviations."""
    size = len(scale)
    zeros, ones = (0.0,) * size, (1.0,) * size
    active = active or (True,) * size
    return BoxCodec((size,), "float32", (low,) * size, (high,) * size, zeros, scale, zeros, ones, active)


NUMBERS = StepCodec(
    box_codec((1.0, 10.0), None, None), box_codec((1.0, 1.0), -1.0, 1.0), RewardCodec(0.0, 2.0, False), 0.1
)
"""Two numbers seen, of deviations 1 and 10; two numbers to act by, in [-1, 1]; rewards of deviation 2."""

CHOICES = StepCodec(box_codec((1.0, 10.0), None, None), DiscreteCodec(4, start=3), RewardCodec(1.0, 1.0, True), 0.1)
"""Actions 3, 4, 5, 6; a reward that is always 1."""


class Echo(NamedTuple):
    """Shows the action that reached it and the chance of its step; pays 1; ends after `longest` steps."""

    longest: int = 10

    def initial(self, params, key, context=None):
        del params, context
        return jnp.zeros(key.shape[0], jnp.int32), jnp.zeros((key.shape[0], 2), jnp.float32)

    def advance(self, params, state, action, key, *, uncertainty=False):
        del params, uncertainty
        chance = jax.vmap(jax.random.uniform)(key)
        seen = action[:, 0] if action.ndim == 2 else action.astype(jnp.float32)
        state = state + 1
        return state, jnp.stack([seen, chance], axis=-1), jnp.ones(len(state)), state >= self.longest, {}

    def observe(self, params, state, action, obs, reward, terminated):
        del params, action, obs, reward, terminated
        return state + 1

    def score(self, params, state, action, obs, reward, terminated):
        del params, action, obs, reward, terminated
        return jnp.zeros((1, len(state), 3))
