"""Heads: distributions of the next observation, the reward given it, the termination given both.

A continuous vector is a chain over its dimensions, each a mixture of discretised logistics
(Salimans et al. 2017, PixelCNN++, eq. 2) that sees the dimensions before it. Probabilities are of bins,
so that atoms and densities compare and no likelihood is unbounded.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from worldmodel._types import Array, ArrayLike, Float
from worldmodel.codec import BoxCodec, DiscreteCodec
from worldmodel.model.transformer import Dense, normal

UNSEEN = 1e-6
"""Probability kept back for what the logs never held, where they hold few values: no likelihood is zero."""

SCALE_FLOOR = 1e-3
"""Least scale of a mixture's component, in bins: far below what one resolves, so that sharp predictions can be true."""

UNIFORM_MARGIN = 1e-6
"""Uniform draws stay this far from 0 and 1, which bounds a logistic sample to 14 scales."""


def logistic_mixture_log_prob(parameters: Array, value: Array, bins: ArrayLike, *, bin_scale: float = 1.0) -> Array:
    """Log-probability of the bin `[value - w/2, value + w/2]` of width `w = bin_scale * bins`.

    Shapes: parameters `[..., 3K]` (logits, means, raw scales), value `[...]`, bins broadcast to it. Nats `[...]`.
    """
    logits, mean, scale = _mixture(parameters, bins)
    half = jnp.asarray(bins, jnp.float32)[..., None] * (bin_scale / 2.0) / scale
    centre = jnp.abs(value[..., None] - mean) / scale  # the logistic is symmetric
    upper, lower = centre + half, centre - half
    # sigmoid(upper) - sigmoid(lower) as one quotient: a single logarithm, and nothing overflows.
    share = -jnp.expm1(-2.0 * half) / ((1.0 + jnp.exp(-upper)) * (1.0 + jnp.exp(-jnp.abs(lower))))
    inside = jnp.log(share) - jnp.maximum(lower, 0.0)
    return jax.nn.logsumexp(logits + inside, axis=-1) - jax.nn.logsumexp(logits, axis=-1)


def logistic_mixture_sample(parameters: Array, uniforms: Array, bins: ArrayLike) -> Array:
    """A sample from uniforms `[..., 2]` by inversion: the first picks the component, the second the value."""
    logits, mean, scale = _mixture(parameters, bins)
    cumulative = jnp.cumsum(jax.nn.softmax(logits, axis=-1), axis=-1)
    component = jnp.sum(uniforms[..., :1] > cumulative[..., :-1], axis=-1)
    chosen = jax.nn.one_hot(component, mean.shape[-1], dtype=mean.dtype)
    u = jnp.clip(uniforms[..., 1], UNIFORM_MARGIN, 1.0 - UNIFORM_MARGIN)
    return jnp.sum(chosen * mean, axis=-1) + jnp.sum(chosen * scale, axis=-1) * (jnp.log(u) - jnp.log1p(-u))


def logistic_mixture_mean(parameters: Array) -> Array:
    """Mean of the mixture, `[...]`."""
    logits, mean, _ = jnp.split(parameters, 3, axis=-1)
    return jnp.sum(jax.nn.softmax(logits, axis=-1) * mean, axis=-1)


def logistic_mixture_scale(parameters: Array, bins: ArrayLike) -> Array:
    """Average scale of the components, `[...]`."""
    logits, _, scale = _mixture(parameters, bins)
    return jnp.sum(jax.nn.softmax(logits, axis=-1) * scale, axis=-1)


def _mixture(parameters: Array, bins: ArrayLike) -> tuple[Array, Array, Array]:
    logits, mean, raw = jnp.split(parameters, 3, axis=-1)
    floor = jnp.asarray(bins, jnp.float32)[..., None] * SCALE_FLOOR
    return logits, mean, jax.nn.softplus(raw) + floor


def balance(parameters: Array, bins: ArrayLike) -> Array:
    """The same parameters of a mixture, whose means and raw scales pass on their gradient times the mixture's scale.

    This is the beta-NLL of Seitzer et al. 2022 (arXiv 2203.09168) with beta = 1: gradients stay of order one however
    sharp the prediction gets. The choice among components keeps its own gradient: the scale would starve it.
    """
    fixed = jax.lax.stop_gradient(parameters)
    factor = logistic_mixture_scale(fixed, bins)[..., None]
    kinds = jnp.asarray(np.repeat([0.0, 1.0, 1.0], parameters.shape[-1] // 3), jnp.float32)
    return fixed + (parameters - fixed) * (1.0 - kinds + kinds * factor)


class ChainHead(nnx.Module):
    """Joint distribution of a vector `[..., D]` given `h [..., width]`: `prod_d p(y_d | h, y_<d)`.

    Without `chain` the dimensions are independent given `h`: to measure what the chain is worth.
    """

    def __init__(
        self, width: int, dims: int, *, hidden: int, components: int, rng: np.random.Generator, chain: bool = True
    ):
        self.dims, self.hidden, self.components, self.chain = dims, hidden, components, chain
        self.context = Dense(width, dims * hidden, rng=rng, bias=0.0)
        self.previous = nnx.Param(normal(rng, (dims, dims, hidden), 1.0 / math.sqrt(dims)))
        self.mix = nnx.Param(normal(rng, (dims, hidden, 3 * components), 0.1 / math.sqrt(hidden)))
        self.skip = Dense(width, dims, rng=rng, gain=0.1)
        means = np.linspace(-1.0, 1.0, components) * (0.5 if components > 1 else 0.0)
        bias = np.concatenate([np.zeros(components), means, np.zeros(components)]).astype(np.float32)
        self.bias = nnx.Param(jnp.tile(jnp.asarray(bias), (dims, 1)))
        self.temper = nnx.Param(jnp.zeros(dims, jnp.float32))

    def parameters(self, h: Array, y: Array) -> Array:
        """Mixture parameters of every dimension with the true predecessors given, `[..., D, 3K]`, before `temper`."""
        before = jnp.asarray(np.triu(np.full((self.dims, self.dims), self.chain, np.float32), k=1))
        weights = (self.previous[...] * before[:, :, None]).reshape(self.dims, -1)
        hidden = self._context(h) + (y @ weights).reshape(*y.shape[:-1], self.dims, self.hidden)
        raw = jnp.einsum("...dm,dmk->...dk", jax.nn.silu(hidden), self.mix[...]) + self.bias[...]
        return raw + self._skip(h)

    def log_prob(
        self, h: Array, y: Array, bins: np.ndarray, *, bin_scale: float = 1.0, balanced: bool = False
    ) -> Float[Array, "... D"]:
        """Nats of each dimension given its predecessors; see `logistic_mixture_log_prob`."""
        parameters = self.parameters(h, y)
        if balanced:
            parameters = balance(parameters, bins)
        return logistic_mixture_log_prob(parameters + self._tempered, y, bins, bin_scale=bin_scale)

    def sample(self, h: Array, uniforms: Array, bins: np.ndarray) -> Float[Array, "... D"]:
        """Ancestral sample; uniforms `[..., D, 2]`."""
        return self._unroll(h, lambda d, p: logistic_mixture_sample(p, uniforms[..., d, :], bins[d]))

    def central(self, h: Array) -> Float[Array, "... D"]:
        """The chain run on its own means."""
        return self._unroll(h, lambda d, p: logistic_mixture_mean(p))

    @property
    def _tempered(self) -> Array:
        """What is added to the parameters `[D, 3K]`: each dimension's own correction of all its scales.

        It moves while the rest comes to rest (see `make_optimizer`): the last, small steps make predictions sharper
        than their scales can follow.
        """
        none = jnp.zeros((self.dims, self.components), jnp.float32)
        return jnp.concatenate([none, none, jnp.repeat(self.temper[...][:, None], self.components, axis=1)], axis=1)

    def _skip(self, h: Array) -> Array:
        """A linear map of h, added to every component's mean, `[..., D, 3K]`: most of a step is linear."""
        mean = jnp.repeat(self.skip(h)[..., None], self.components, axis=-1)
        none = jnp.zeros_like(mean)
        return jnp.concatenate([none, mean, none], axis=-1)

    def _context(self, h: Array) -> Array:
        return self.context(h).reshape(*h.shape[:-1], self.dims, self.hidden)

    def _unroll(self, h: Array, choose) -> Array:
        context, previous, mix = self._context(h), self.previous[...], self.mix[...]
        offset = self.bias[...] + self._tempered + self._skip(h)
        values: list[Array] = []
        for d in range(self.dims):
            hidden = context[..., d, :]
            for j, value in enumerate(values if self.chain else ()):
                hidden = hidden + value[..., None] * previous[j, d]
            values.append(choose(d, jax.nn.silu(hidden) @ mix[d] + offset[..., d, :]))
        return jnp.stack(values, axis=-1)


class CategoricalHead(nnx.Module):
    """Distribution of a category `[...]` given `h [..., width]`; the methods are those of `ChainHead`."""

    def __init__(self, width: int, n: int, *, rng: np.random.Generator):
        self.logits = Dense(width, n, rng=rng, bias=0.0, gain=0.1)

    def log_prob(
        self, h: Array, y: Array, bins: np.ndarray | None = None, *, bin_scale: float = 1.0, balanced: bool = False
    ) -> Float[Array, "... 1"]:
        """Nats, with a trailing axis of one dimension; categories have neither bins nor a scale."""
        del bins, bin_scale, balanced
        return jnp.take_along_axis(jax.nn.log_softmax(self.logits(h), axis=-1), y[..., None], axis=-1)

    def sample(self, h: Array, uniforms: Array, bins: np.ndarray | None = None) -> Array:
        """By inversion from uniforms `[..., 1, 2]`, int32 `[...]`."""
        del bins
        cumulative = jnp.cumsum(jax.nn.softmax(self.logits(h), axis=-1), axis=-1)
        return jnp.sum(uniforms[..., 0, :1] > cumulative[..., :-1], axis=-1).astype(jnp.int32)

    def central(self, h: Array) -> Array:
        """The likeliest category, int32 `[...]`."""
        return jnp.argmax(self.logits(h), axis=-1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class LeafHead:
    """The head of one Box or one Discrete between values of its space; it adds no weights."""

    codec: BoxCodec | DiscreteCodec
    head: ChainHead | CategoricalHead

    def log_prob(
        self,
        h: Array,
        obs: Array,
        next_obs: Array,
        before: Array | None = None,
        *,
        bin_scale: float = 1.0,
        balanced: bool = False,
    ) -> Array:
        """Nats per dimension `[..., D]` of the next value, 0 for one that never changes."""
        del before  # what a picture's head looks at
        target = self.codec.encode(next_obs, obs)
        nats = self.head.log_prob(h, target, self.codec.bins, bin_scale=bin_scale, balanced=balanced)
        return nats * jnp.asarray(self.codec.active, jnp.float32)

    def sample(self, h: Array, obs: Array, uniforms: Array, before: Array | None = None) -> Array:
        """A next value from uniforms `[..., codec.uniforms]`."""
        del before
        pairs = uniforms.reshape(*uniforms.shape[:-1], -1, 2)
        return self.codec.decode(self.head.sample(h, pairs, self.codec.bins), obs)

    def central(self, h: Array, obs: Array, before: Array | None = None) -> Array:
        """The chain run on its own means, or the likeliest category."""
        del before
        return self.codec.decode(self.head.central(h), obs)


class Perceptron(nnx.Module):
    """Two hidden layers; `bias` is where the output starts."""

    def __init__(self, size_in: int, hidden: int, size_out: int, *, rng: np.random.Generator, bias: float = 0.0):
        self.first = Dense(size_in, hidden, rng=rng, bias=0.0)
        self.second = Dense(hidden, hidden, rng=rng, bias=0.0)
        self.last = Dense(hidden, size_out, rng=rng, bias=bias, gain=0.1)

    def __call__(self, x: Array) -> Array:
        """`[..., size_in]` -> `[..., size_out]`."""
        x = jax.nn.silu(self.first(x))
        x = x + jax.nn.silu(self.second(x))
        return self.last(x)
