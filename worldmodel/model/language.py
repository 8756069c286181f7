"""The language model: the trunk between a table of token embeddings and logits of the next token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from worldmodel._types import Array, Float, Int
from worldmodel.model.cross_entropy import token_nll, token_scores, weighted_nll
from worldmodel.model.params import Params, Skeleton, filled, skeleton
from worldmodel.model.transformer import LayerCache, Trunk, TrunkConfig, normal

EMBEDDING_DEVIATION = 0.02
"""Of fresh embeddings, as in GPT-2 and Qwen3: the first logits are near zero."""


@dataclasses.dataclass(frozen=True)
class LanguageConfig:
    """Size of a language model."""

    vocabulary: int
    trunk: TrunkConfig = TrunkConfig(window=None)
    tied: bool = True
    """Logits are products with the embeddings themselves, not with a table of their own."""

    def __post_init__(self):
        if self.vocabulary < 2:
            raise ValueError(f"a vocabulary of {self.vocabulary}; at least 2 tokens are needed")


class Context(NamedTuple):
    """What `B` running texts have been so far: the trunk's cache, and how many positions of it are valid, int `[B]`."""

    cache: tuple[LayerCache, ...]
    seen: Array


class LanguageModel(nnx.Module):
    """Logits of every next token, of whole texts or one token at a time.

    `segments` int `[B, T]` number the documents that a row packs, padding among them: none sees another, and each is
    what it would be alone.
    """

    def __init__(self, config: LanguageConfig, *, rng: np.random.Generator):
        self.config = config
        shape = (config.vocabulary, config.trunk.width)
        self.embedding = nnx.Param(normal(rng, shape, EMBEDDING_DEVIATION))
        self.trunk = Trunk(config.trunk, rng=rng)
        self.unembedding = None if config.tied else nnx.Param(normal(rng, shape, EMBEDDING_DEVIATION))

    def __call__(
        self, tokens: Int[Array, "B T"], segments: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T vocabulary"]:
        """Logits of the token after each position."""
        return self._logits(self.hidden(tokens, segments))

    def hidden(self, tokens: Int[Array, "B T"], segments: Int[Array, "B T"] | None = None) -> Float[Array, "B T width"]:
        """What the logits of each position are made of."""
        return self.trunk(self.embedding[...][tokens], segments)

    def loss(
        self,
        tokens: Int[Array, "B T"],
        weights: Float[Array, "B T"],
        segments: Int[Array, "B T"] | None = None,
        *,
        hidden: Float[Array, "B T width"] | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean negative log-likelihood of the tokens, weighted, in nats, and the sum of the weights.

        `weights` are of the tokens as targets, 0 where nothing is to be learned. Nothing predicts the first token of a
        row or of a segment: its weight does not count. Where nothing at all is left, the loss is 0. `hidden`: what the
        method of this name gives, from who has computed it in another way.
        """
        target, weight = self._targets(tokens, weights, segments)
        total = jnp.sum(weight)
        read = self._flat(tokens, segments) if hidden is None else hidden.reshape(tokens.size, -1)
        nll = weighted_nll(read, self._table, target.reshape(-1), weight.reshape(-1))
        return nll / jnp.where(total > 0.0, total, 1.0), total

    def log_prob(self, tokens: Int[Array, "B T"], segments: Int[Array, "B T"] | None = None) -> Float[Array, "B T"]:
        """Nats of every token given those before it; 0 for the first of a row or of a segment."""
        target, known = self._targets(tokens, jnp.ones(tokens.shape, jnp.float32), segments)
        nll = token_nll(self._flat(tokens, segments), self._table, target.reshape(-1)).reshape(tokens.shape)
        return -jnp.roll(nll * known, 1, axis=1)

    def scores(
        self,
        tokens: Int[Array, "B T"],
        segments: Int[Array, "B T"] | None = None,
        *,
        hidden: Float[Array, "B T width"] | None = None,
    ) -> tuple[Float[Array, "B T"], Int[Array, "B T"]]:
        """`log_prob`, and the token that was likeliest in each place; 0 and -1 for the first of a row or a segment.

        `hidden` as in `loss`.
        """
        target, known = self._targets(tokens, jnp.ones(tokens.shape, jnp.float32), segments)
        read = self._flat(tokens, segments) if hidden is None else hidden.reshape(tokens.size, -1)
        nll, best = token_scores(read, self._table, target.reshape(-1))
        best = jnp.where(known > 0.0, best.reshape(tokens.shape), -1)
        return -jnp.roll(nll.reshape(tokens.shape) * known, 1, axis=1), jnp.roll(best, 1, axis=1)

    def start(
        self, tokens: Int[Array, "B T"], lengths: Int[Array, " B"], *, capacity: int | None = None
    ) -> tuple[Float[Array, "B vocabulary"], Context]:
        """Reads beginnings of texts, each the last `lengths[b]` tokens of its row (see `pad_left`).

        `capacity`: positions that a text may come to have; beyond them it forgets its beginning. None: the window.
        Returns logits of the next token, and the context to go on from.
        """
        real = (jnp.arange(tokens.shape[1]) >= tokens.shape[1] - lengths[:, None]).astype(jnp.int32)
        h, layers = self.trunk.prefill(self.embedding[...][tokens], real, capacity=capacity)
        return self._logits(h[:, -1]), Context(layers, jnp.minimum(lengths, layers[0].keys.shape[1]))

    def step(self, token: Int[Array, " B"], context: Context) -> tuple[Float[Array, "B vocabulary"], Context]:
        """Reads one more token of every text; returns logits of the next one."""
        cache, seen = context
        h, cache = self.trunk.step(self.embedding[...][token], cache, seen)
        return self._logits(h), Context(cache, jnp.minimum(seen + 1, cache[0].keys.shape[1]))

    @property
    def _table(self) -> Array:
        return (self.embedding if self.unembedding is None else self.unembedding)[...]

    def _logits(self, h: Array) -> Array:
        return (h.reshape(-1, h.shape[-1]) @ self._table.T).reshape(*h.shape[:-1], -1)

    def _flat(self, tokens: Array, segments: Array | None) -> Array:
        return self.hidden(tokens, segments).reshape(tokens.size, -1)

    def _targets(self, tokens: Array, weights: Array, segments: Array | None) -> tuple[Array, Array]:
        """Of every position the token after it and that token's weight, `[B, T]`; the last one has none."""
        return jnp.roll(tokens, -1, axis=1), target_weights(weights, segments)


def target_weights(weights: Float[Array, "B T"], segments: Int[Array, "B T"] | None = None) -> Float[Array, "B T"]:
    """Of every position the weight of the token after it, where that is of the same segment; else 0."""
    weight = jnp.roll(weights, -1, axis=1).at[:, -1].set(0.0)
    return weight if segments is None else jnp.where(jnp.roll(segments, -1, axis=1) == segments, weight, 0.0)


def language_model(config: LanguageConfig, params: Params) -> LanguageModel:
    """The module around its parameters."""
    return filled(_skeleton(config), params)


def init_params(config: LanguageConfig, seed: int) -> Params:
    """Fresh parameters, float32."""
    return nnx.to_pure_dict(nnx.state(LanguageModel(config, rng=np.random.default_rng(seed)), nnx.Param))


def abstract_params(config: LanguageConfig) -> Params:
    """What `init_params` gives as shapes and dtypes alone."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), nnx.to_pure_dict(_skeleton(config)[1]))


def pad_left(texts: Sequence[Sequence[int]], vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts side by side that end together: tokens int32 `[B, T]` with zeros before each, and lengths int32 `[B]`.

    Raises:
      ValueError: a text is empty, or holds what is no token of the vocabulary.
    """
    lengths = np.array([len(text) for text in texts], np.int32)
    if not len(lengths) or lengths.min() == 0:
        raise ValueError("no text to begin from" if not len(lengths) else f"text {lengths.argmin()} is empty")
    tokens = np.zeros((len(texts), int(lengths.max())), np.int32)
    for row, text in enumerate(texts):
        if min(text) < 0 or max(text) >= vocabulary:
            raise ValueError(f"text {row} holds tokens {min(text)} to {max(text)}; they are 0 to {vocabulary - 1}")
        tokens[row, tokens.shape[1] - len(text) :] = text
    return tokens, lengths


@cache
def _skeleton(config: LanguageConfig) -> Skeleton:
    return skeleton(lambda: LanguageModel(config, rng=np.random.default_rng(0)))
