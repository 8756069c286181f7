"""Pictures: what the trunk reads of them, and the distribution of the next one, all patches at once."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from worldmodel._types import Array, Float
from worldmodel.codec.picture import PictureCodec
from worldmodel.model.categories import Bias, neighbourhood
from worldmodel.model.heads import UNSEEN, logistic_mixture_log_prob, logistic_mixture_sample
from worldmodel.model.transformer import Dense, RMSNorm, normal

READ = 64
"""How many numbers the trunk reads of a picture."""

PIXEL = 4
"""Numbers that stand for a colour."""

PATCH = 16
"""Numbers that each patch gives to what the trunk reads."""

MIXING = 3
"""How often neighbouring patches are mixed: what moves by more than so many patches in a step is not followed."""

LEVEL = 1.0 / 127.5
"""Distance between two levels of a channel."""


class Pixels(nnx.Module):
    """Pixels of patches as numbers: a learned vector for each colour, or the levels themselves."""

    def __init__(self, codec: PictureCodec, *, rng: np.random.Generator):
        self.codec = codec
        count = len(codec.colours)
        self.table = nnx.Param(normal(rng, (count, PIXEL), 1.0)) if count else None
        self.size = codec.values * (PIXEL if count else 1)

    def __call__(self, picture: Array) -> Float[Array, "... P size"]:
        """uint8 `[..., H, W, C]` -> `[..., P, size]`."""
        values = self.codec.encode(picture)
        if self.table is None:
            return values
        hot = jax.nn.one_hot(values, len(self.codec.colours), dtype=jnp.float32)
        return (hot @ self.table[...]).reshape(*values.shape[:-1], -1)


class PictureReader(nnx.Module):
    """A picture as one vector of `READ` numbers."""

    def __init__(self, codec: PictureCodec, *, rng: np.random.Generator):
        self.pixels = Pixels(codec, rng=rng)
        self.patch = Dense(self.pixels.size, PATCH, rng=rng, bias=0.0)
        self.place = nnx.Param(normal(rng, (codec.patches, PATCH), 0.5))
        self.whole = Dense(codec.patches * PATCH, READ, rng=rng, bias=0.0)

    def __call__(self, picture: Array) -> Float[Array, "... READ"]:
        """uint8 `[..., H, W, C]` -> `[..., READ]`."""
        patches = jax.nn.silu(self.patch(self.pixels(picture)) + self.place[...])
        return self.whole(patches.reshape(*patches.shape[:-2], -1))


class PictureHead(nnx.Module):
    """Distribution of the next picture given `x [..., width]`, the present picture and the one before it.

    Patches see their neighbours in both pictures, and `x`; given these and one of `components`, which is the same for
    all, pixels are independent. A pixel of few colours is a category, whose present colour is raised by the logs' rate
    of staying; a level is a mixture of two logistics around the present one.
    """

    def __init__(self, width: int, codec: PictureCodec, *, hidden: int, components: int, rng: np.random.Generator):
        self.codec, self.components = codec, components
        self.pixels = Pixels(codec, rng=rng)
        self.patch = Dense(2 * self.pixels.size, hidden, rng=rng, bias=0.0)
        self.place = nnx.Param(normal(rng, (codec.patches, hidden), 0.5))
        self.given = Dense(width, hidden, rng=rng)
        self.norms = nnx.List([RMSNorm(hidden) for _ in range(MIXING)])
        self.mixers = nnx.List([Dense(9 * hidden, hidden, rng=rng, bias=0.0) for _ in range(MIXING)])
        self.norm = RMSNorm(hidden)
        self.weights = Dense(width, components, rng=rng, bias=0.0, gain=0.1)
        # Components that began alike would stay alike.
        self.offset = nnx.Param(normal(rng, (components, hidden), 0.5))
        kinds = len(codec.colours) or 6
        self.out = Dense(hidden, codec.values * kinds, rng=rng, bias=0.0, gain=0.1)
        stay = float(np.clip(codec.stays, 1e-3, 1.0 - 1e-4))
        raised = math.log(stay / (1.0 - stay)) + math.log(max(kinds - 1, 1))
        self.stay = Bias(np.full(codec.values, raised if codec.colours else 0.0))

    def log_prob(self, x: Array, before: Array, now: Array, following: Array) -> Array:
        """Nats `[...]` of the whole picture."""
        weights, parameters = self(x, before, now)
        values = self.codec.encode(following)[..., None, :, :]
        if self.codec.colours:
            said = jnp.take_along_axis(parameters, values[..., None], axis=-1)[..., 0] + math.log1p(-UNSEEN)
        else:
            said = logistic_mixture_log_prob(parameters, values, LEVEL)
        said = jnp.where(self.codec.inside, said, 0.0).sum(axis=(-2, -1))
        return jax.nn.logsumexp(weights + said, axis=-1)

    def sample(self, x: Array, before: Array, now: Array, uniforms: Array) -> Array:
        """By inversion from uniforms `[..., codec.uniforms]`, uint8 `[..., H, W, C]`."""
        weights, parameters = self(x, before, now)
        passed = uniforms[..., :1] > jnp.cumsum(jnp.exp(weights), axis=-1)[..., :-1]
        own = _chosen(parameters, jnp.sum(passed.astype(jnp.int32), axis=-1))
        if not self.codec.colours:
            pairs = uniforms[..., 1:].reshape(*own.shape[:-1], 2)
            return self.codec.decode(logistic_mixture_sample(own, pairs, LEVEL))
        each = uniforms[..., 1:].reshape(*own.shape[:-1], 1)
        passed = each > jnp.cumsum(jnp.exp(own), axis=-1)[..., :-1]
        return self.codec.decode(jnp.sum(passed.astype(jnp.int32), axis=-1))

    def central(self, x: Array, before: Array, now: Array) -> Array:
        """The likeliest colours, or the mean levels, in the likeliest component."""
        weights, parameters = self(x, before, now)
        own = _chosen(parameters, jnp.argmax(weights, axis=-1))
        if self.codec.colours:
            return self.codec.decode(jnp.argmax(own, axis=-1))
        logits, mean, _ = jnp.split(own, 3, axis=-1)
        return self.codec.decode(jnp.sum(jax.nn.softmax(logits, axis=-1) * mean, axis=-1))

    def __call__(self, x: Array, before: Array, now: Array) -> tuple[Float[Array, "... K"], Array]:
        """Log-weights of the components, and in each `[..., K, P, Q, V]` log-probabilities, or `[..., K, P, Q, 6]`."""
        codec, pair = self.codec, [self.pixels(now), self.pixels(before)]
        patches = self.patch(jnp.concatenate(pair, axis=-1)) + self.place[...] + self.given(x)[..., None, :]
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            patches = patches + jax.nn.silu(mixer(neighbourhood(norm(patches), codec.grid)))
        hidden = jax.nn.silu(self.norm(patches)[..., None, :, :] + self.offset[...][:, None])
        raw = self.out(hidden).reshape(*hidden.shape[:-1], codec.values, -1)
        values = codec.encode(now)[..., None, :, :, None]
        if codec.colours:
            same = (values == np.arange(len(codec.colours))).astype(jnp.float32)
            raw = jax.nn.log_softmax(raw + self.stay.bias[...][:, None] * same, axis=-1)
        else:
            logits, mean, scale = jnp.split(raw, 3, axis=-1)
            narrow = jnp.asarray([-3.0, -1.0], jnp.float32)
            raw = jnp.concatenate([logits, mean + values, scale + narrow], axis=-1)
        return jax.nn.log_softmax(self.weights(x), axis=-1), raw


def _chosen(parameters: Array, component: Array) -> Array:
    """`[..., K, P, Q, V]` of each row's own component, `[..., P, Q, V]`."""
    return jnp.take_along_axis(parameters, component[..., None, None, None, None], axis=-4)[..., 0, :, :, :]
