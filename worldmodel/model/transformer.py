"""The trunk: a pre-norm causal transformer with sliding-window or full attention and a rolling key-value cache.

RMSNorm, rotary positions, grouped-query attention with QK-norm and SwiGLU: the arithmetic of Qwen3
(arXiv 2505.09388), and without QK-norm that of Llama (arXiv 2302.13971). Only relative positions enter, so the cached
form computes exactly the full-history forward, at step ten as at step 10^6, and a document behaves alike wherever it
begins: at the start of a row, after padding, or behind another one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from worldmodel._types import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class TrunkConfig:
    """Shape of the trunk."""

    width: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 128
    window: int | None = 16
    """Positions that attention sees, the present one included; None: all of them."""
    head_channels: int | None = None
    """Channels of one attention head; None: width over heads."""
    qk_norm: bool = True
    """Queries and keys are normed, as in Qwen3; Llama's are not."""
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-6

    def __post_init__(self):
        if self.head_channels is None and (self.width % self.heads or self.head_width % 2):
            raise ValueError(f"width {self.width} must be an even multiple of heads {self.heads}")
        if self.head_width < 2 or self.head_width % 2:
            raise ValueError(f"head_channels {self.head_channels} must be even: rotation pairs them")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if min(self.layers, self.mlp, 1 if self.window is None else self.window) < 1:
            raise ValueError("layers, window and mlp must be at least 1")
        if min(self.rope_base, self.norm_epsilon) <= 0.0:
            raise ValueError(f"rope_base {self.rope_base} and norm_epsilon {self.norm_epsilon} must be above 0")

    @property
    def head_width(self) -> int:
        """Channels of one attention head."""
        return self.width // self.heads if self.head_channels is None else self.head_channels

    @property
    def query_width(self) -> int:
        """Channels of all heads together."""
        return self.heads * self.head_width

    def seen(self, length: int) -> int:
        """Pairs of a position and one that it looks at, in a sequence of so many."""
        reach = length if self.window is None else min(self.window, length)
        return reach * length - reach * (reach - 1) // 2


class LayerCache(NamedTuple):
    """Keys (before rotation) and values of the last `S` positions, newest last: float32 `[B, S, kv_heads, C]`."""

    keys: Array
    values: Array


def normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> Array:
    """Initial weights, float32, drawn on the host: to compile a draw for every shape takes many seconds."""
    return jnp.asarray(np.float32(deviation) * rng.standard_normal(shape, dtype=np.float32))


class Dense(nnx.Module):
    """Linear map of the last axis, computed as one 2-D product (several times faster on CPU).

    `bias`: its initial value; None for a map without one.
    """

    def __init__(
        self, size_in: int, size_out: int, *, rng: np.random.Generator, bias: float | None = None, gain: float = 1.0
    ):
        self.kernel = nnx.Param(normal(rng, (size_in, size_out), gain / math.sqrt(size_in)))
        self.bias = None if bias is None else nnx.Param(jnp.full(size_out, bias, jnp.float32))

    def __call__(self, x: Array) -> Array:
        """`[..., size_in]` -> `[..., size_out]`."""
        y = (x.reshape(-1, x.shape[-1]) @ self.kernel[...]).reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias[...]


class RMSNorm(nnx.Module):
    """`x / rms(x) * scale` over the last axis."""

    def __init__(self, size: int, epsilon: float = 1e-6):
        self.scale, self.epsilon = nnx.Param(jnp.ones(size)), epsilon

    def __call__(self, x: Array) -> Array:
        """Any leading axes."""
        variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(variance + self.epsilon) * self.scale[...]


def rotate(
    x: Float[Array, "B T H C"], positions: Int[np.ndarray, " T"], base: float = 10_000.0
) -> Float[Array, "B T H C"]:
    """Rotary position embedding (Su et al. 2021, arXiv 2104.09864), halves paired as in Llama and Qwen."""
    half = x.shape[-1] // 2
    frequency = base ** (-np.arange(half, dtype=np.float64) / half)
    angle = positions[:, None].astype(np.float64) * frequency
    cos = np.cos(angle).astype(np.float32)[:, None, :]
    sin = np.sin(angle).astype(np.float32)[:, None, :]
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attend(query: Array, keys: Array, values: Array, mask: Array) -> Array:
    """Grouped-query attention.

    Shapes: query `[B, T, heads, C]`, keys and values `[B, S, kv_heads, C]`, mask `[B or 1, T, S]` (True: may
    look). Returns `[B, T, heads * C]`.
    """
    query, keys, values = _heads_first(query, keys, values)
    return _heads_last(_attend(query, keys, values, mask))


def attend_backwards(
    query: Array, keys: Array, values: Array, *, window: int | None, segments: Array | None = None
) -> Array:
    """The same over a sequence: each position looks at its own segment, no further back than the window.

    Queries are taken a block at a time beside the keys that any of them sees: what the mask would hide is, block by
    block, not computed.
    """
    steps = query.shape[1]
    query, keys, values = _heads_first(query, keys, values)
    size, reach, blocks = _block_size(steps), steps if window is None else window, []
    for start in range(0, steps, size):
        end, first = min(start + size, steps), max(start + 1 - reach, 0) // size * size
        age = np.arange(start, end)[:, None] - np.arange(first, end)
        mask = jnp.asarray((age >= 0) & (age < reach))[None]
        if segments is not None:
            mask = mask & (segments[:, start:end, None] == segments[:, None, first:end])
        blocks.append(_attend(query[:, :, :, start:end], keys[:, :, first:end], values[:, :, first:end], mask))
    return _heads_last(jnp.concatenate(blocks, axis=3))


def _block_size(steps: int) -> int:
    """64 queries; of a long sequence more, so that there are at most 16 blocks."""
    return 64 * max(1, -(-steps // (16 * 64)))


def _heads_first(query: Array, keys: Array, values: Array) -> tuple[Array, Array, Array]:
    """Scaled query `[B, kv_heads, heads / kv_heads, T, C]`, keys and values `[B, kv_heads, S, C]`."""
    batch, steps, heads, channels = query.shape
    groups = keys.shape[2]
    grouped = (query / math.sqrt(channels)).reshape(batch, steps, groups, heads // groups, channels)
    return grouped.transpose(0, 2, 3, 1, 4), keys.transpose(0, 2, 1, 3), values.transpose(0, 2, 1, 3)


def _heads_last(attended: Array) -> Array:
    batch, groups, each, steps, channels = attended.shape
    return attended.transpose(0, 3, 1, 2, 4).reshape(batch, steps, groups * each * channels)


def _attend(query: Array, keys: Array, values: Array, mask: Array) -> Array:
    """Attention in the order of `_heads_first`, a product for each group of heads.

    Sums are divided by after the product with the values: its backward pass then goes over the weights once, as in
    FlashAttention (Dao et al. 2022, arXiv 2205.14135).
    """
    batch, groups, each, steps, channels = query.shape
    rows = query.reshape(batch, groups, each * steps, channels)
    scores = jnp.einsum("bgtc,bgsc->bgts", rows, keys).reshape(batch, groups, each, steps, -1)
    scores = jnp.where(mask[:, None, None], scores, jnp.finfo(scores.dtype).min)
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    weights = weights.reshape(batch, groups, each * steps, -1)
    sums = jnp.einsum("bgts,bgsc->bgtc", weights, values)
    return (sums / jnp.sum(weights, axis=-1, keepdims=True)).reshape(query.shape)


class Block(nnx.Module):
    """Attention and SwiGLU, each behind a norm and added to the residual stream."""

    def __init__(self, config: TrunkConfig, *, rng: np.random.Generator):
        self.config = config
        kv_width = config.kv_heads * config.head_width
        residual_gain = 1.0 / math.sqrt(2 * config.layers)
        self.norm_attention = RMSNorm(config.width, config.norm_epsilon)
        self.qkv = Dense(config.width, config.query_width + 2 * kv_width, rng=rng)
        self.norm_query = RMSNorm(config.head_width, config.norm_epsilon) if config.qk_norm else None
        self.norm_key = RMSNorm(config.head_width, config.norm_epsilon) if config.qk_norm else None
        self.output = Dense(config.query_width, config.width, rng=rng, gain=residual_gain)
        self.norm_mlp = RMSNorm(config.width, config.norm_epsilon)
        self.gate_up = Dense(config.width, 2 * config.mlp, rng=rng)
        self.down = Dense(config.mlp, config.width, rng=rng, gain=residual_gain)

    def project(self, x: Float[Array, "B T width"]) -> tuple[Array, Array, Array]:
        """Query `[B, T, heads, C]`, key and value `[B, T, kv_heads, C]`, before rotation."""
        c = self.config
        kv_width = c.kv_heads * c.head_width
        qkv = self.qkv(self.norm_attention(x))
        query, key, value = jnp.split(qkv, [c.query_width, c.query_width + kv_width], axis=-1)
        lead = x.shape[:2]
        query = query.reshape(*lead, c.heads, c.head_width)
        key = key.reshape(*lead, c.kv_heads, c.head_width)
        if self.norm_query is not None and self.norm_key is not None:
            query, key = self.norm_query(query), self.norm_key(key)
        return query, key, value.reshape(*lead, c.kv_heads, c.head_width)

    def finish(self, x: Array, attended: Array) -> Array:
        """Adds the attention's output and the MLP to the stream `[B, T, width]`."""
        x = x + self.output(attended)
        gate, up = jnp.split(self.gate_up(self.norm_mlp(x)), 2, axis=-1)
        return x + self.down(jax.nn.silu(gate) * up)


class Trunk(nnx.Module):
    """Stack of blocks over a sequence (`__call__`) or one step at a time over a cache (`step`)."""

    def __init__(self, config: TrunkConfig, *, rng: np.random.Generator):
        self.config = config
        self.blocks = nnx.List([Block(config, rng=rng) for _ in range(config.layers)])
        self.norm = RMSNorm(config.width, config.norm_epsilon)

    def __call__(
        self, x: Float[Array, "B T width"], segments: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T width"]:
        """Full forward; position t sees t-W+1..t, of its own segment where rows hold several documents or padding."""
        return self._forward(x, segments)[0]

    def prefill(
        self, x: Float[Array, "B T width"], segments: Int[Array, "B T"] | None = None, *, capacity: int | None = None
    ) -> tuple[Float[Array, "B T width"], tuple[LayerCache, ...]]:
        """The same, and the cache that `step` goes on from; `capacity` as in `empty_cache`.

        Rows end together: shorter ones are padded on the left, with a segment of its own.
        """
        h, layers = self._forward(x, segments)
        slots = self._slots(capacity)
        missing = max(slots - x.shape[1], 0)
        # Not the last `slots` of an array padded on the left: its copy would be the longer one.
        return h, jax.tree.map(lambda kept: jnp.pad(kept[:, -slots:], [(0, 0), (missing, 0), (0, 0), (0, 0)]), layers)

    def empty_cache(self, batch: int, *, capacity: int | None = None) -> tuple[LayerCache, ...]:
        """A cache for `batch` rows that hold nothing yet.

        `capacity`: positions that it can hold. None: the window. Beyond it, full attention forgets the oldest.
        """
        c = self.config
        zeros = jnp.zeros((batch, self._slots(capacity), c.kv_heads, c.head_width), jnp.float32)
        return tuple(LayerCache(zeros, zeros) for _ in range(c.layers))

    def step(
        self, x: Float[Array, "B width"], cache: tuple[LayerCache, ...], seen: Int[Array, " B"]
    ) -> tuple[Float[Array, "B width"], tuple[LayerCache, ...]]:
        """One position for every row; `seen[b]` past positions of row b's cache are valid (at most its capacity)."""
        capacity, base = cache[0].keys.shape[1], self.config.rope_base
        slots = np.arange(capacity)
        mask = (jnp.asarray(slots) >= capacity - 1 - seen[:, None])[:, None, :]
        stream, new_cache = x[:, None, :], []
        for block, layer in zip(self.blocks, cache, strict=True):
            query, key, value = block.project(stream)
            keys = jnp.concatenate([layer.keys[:, 1:], key], axis=1)
            values = jnp.concatenate([layer.values[:, 1:], value], axis=1)
            # Weight zero is not enough: a reset row may still hold the NaN of an episode that diverged.
            valid = jnp.where(mask[:, 0, :, None, None], values, 0.0)
            attended = attend(rotate(query, slots[-1:], base), rotate(keys, slots, base), valid, mask)
            stream = block.finish(stream, attended)
            new_cache.append(LayerCache(keys, values))
        return self.norm(stream)[:, 0], tuple(new_cache)

    def _forward(self, x: Array, segments: Array | None) -> tuple[Array, tuple[LayerCache, ...]]:
        """The outputs, and of every layer all keys and values."""
        positions, base, layers = np.arange(x.shape[1]), self.config.rope_base, []
        for block in self.blocks:
            query, key, value = block.project(x)
            turned = rotate(query, positions, base), rotate(key, positions, base)
            x = block.finish(x, attend_backwards(*turned, value, window=self.config.window, segments=segments))
            layers.append(LayerCache(key, value))
        return self.norm(x), tuple(layers)

    def _slots(self, capacity: int | None) -> int:
        window = self.config.window
        if window is not None and capacity not in (None, window):
            raise ValueError(f"a cache of capacity {capacity}; with a window of {window} it holds just that")
        if capacity is None and window is None:
            raise ValueError("full attention has no window to size a cache by; say which capacity it needs")
        if capacity is not None and capacity < 1:
            raise ValueError(f"a cache of capacity {capacity}; at least 1 is needed")
        return capacity or window  # pyright: ignore[reportReturnType]
