"""The reward of a step: one of few values, a number, or one of few values or else a number."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array
from worldmodel.codec import RewardCodec
from worldmodel.model.heads import (
    UNSEEN,
    Perceptron,
    balance,
    logistic_mixture_log_prob,
    logistic_mixture_mean,
    logistic_mixture_sample,
)


class RewardHead(Perceptron):
    """Distribution of the reward given `x [..., width]`.

    Where the codec has `A` atoms and `rest`, the last of `A + 1` categories is any other number, from the mixture.
    """

    def __init__(self, width: int, codec: RewardCodec, *, hidden: int, components: int, rng: np.random.Generator):
        self.codec = codec
        self.categories = len(codec.atoms) + codec.rest if codec.atoms else 0
        self.numbers = codec.rest or not codec.atoms
        super().__init__(width, hidden, self.categories + 3 * components * self.numbers, rng=rng)

    def log_prob(self, x: Array, reward: Array, *, bin_scale: float = 1.0, balanced: bool = False) -> Array:
        """Nats `[...]`; those of `UNSEEN` for a value that is none of the atoms where there is no rest."""
        codec, target = self.codec, self.codec.encode(reward)
        categories, mixture = self._split(x)
        if not self.numbers:
            mixture = jnp.zeros((*target.shape, 3), jnp.float32)
        elif balanced:
            mixture = balance(mixture, codec.bin)
        other = logistic_mixture_log_prob(mixture, target, codec.bin, bin_scale=bin_scale)
        if not self.categories:
            return other
        said = jax.nn.log_softmax(categories, axis=-1)
        gaps = jnp.abs(reward[..., None] - codec.values)
        atom = jnp.take_along_axis(said, jnp.argmin(gaps, axis=-1)[..., None], axis=-1)[..., 0]
        is_atom = jnp.min(gaps - 1e-6 * np.maximum(np.abs(codec.values), 1e-6), axis=-1) <= 0.0
        if self.numbers:
            return jnp.where(is_atom, atom, said[..., -1] + other)
        return jnp.where(is_atom, atom + math.log1p(-UNSEEN), other + math.log(UNSEEN))

    def sample(self, x: Array, uniforms: Array) -> Array:
        """A reward in its own units `[...]`, by inversion from uniforms `[..., 2]`."""
        codec = self.codec
        categories, mixture = self._split(x)
        if not self.categories:
            return codec.decode(logistic_mixture_sample(mixture, uniforms, codec.bin))
        cumulative = jnp.cumsum(jax.nn.softmax(categories, axis=-1), axis=-1)[..., :-1]
        place = jnp.sum((uniforms[..., :1] > cumulative).astype(jnp.int32), axis=-1)
        if not self.numbers:
            return jnp.asarray(codec.values)[place]
        # What the first number passed beyond the atoms chooses the component.
        before = cumulative[..., -1:]
        beyond = jnp.clip((uniforms[..., :1] - before) / jnp.maximum(1.0 - before, 1e-6), 0.0, 1.0)
        pair = jnp.concatenate([beyond, uniforms[..., 1:]], axis=-1)
        number = codec.decode(logistic_mixture_sample(mixture, pair, codec.bin))
        atom = jnp.asarray(codec.values)[jnp.minimum(place, len(codec.atoms) - 1)]
        return jnp.where(place < len(codec.atoms), atom, number)

    def mean(self, x: Array) -> Array:
        """The expected reward in its own units `[...]`."""
        codec = self.codec
        categories, mixture = self._split(x)
        if not self.categories:
            return codec.decode(logistic_mixture_mean(mixture))
        shares = jax.nn.softmax(categories, axis=-1)
        atoms = jnp.sum(shares[..., : len(codec.atoms)] * codec.values, axis=-1)
        return atoms + shares[..., -1] * codec.decode(logistic_mixture_mean(mixture)) if self.numbers else atoms

    def _split(self, x: Array) -> tuple[Array, Array]:
        """Logits of the categories `[..., A or A + 1]`, the mixture's parameters `[..., 3K]`; of size 0 without any."""
        categories, mixture = jnp.split(self(x), [self.categories], axis=-1)
        return categories, mixture
