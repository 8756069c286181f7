"""Pictures as patches of pixels: each pixel one of few colours, or, where there are many, a level per channel."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import ArrayLike
from worldmodel.codec.discrete import distinct_rows

LARGEST_SIDE = 96
"""Most pixels of a side."""

MOST_COLOURS = 32
"""Most different colours whose pixels are categories; with more, a pixel is a level in each channel."""

COARSE = 48
"""Pictures with a longer side have patches of 8x8 pixels, others of 4x4."""

LOOKED_AT = 1_024
"""Pictures of the logs that colours are collected from."""


@dataclasses.dataclass(frozen=True)
class PictureCodec:
    """A Box of bytes with the axes height, width and channels `C`.

    `P` patches of `S` pixels each tile the picture, from the top left; beyond its edge they repeat the last pixel.

    Attributes:
      shape: height, width, channels.
      colours: the `V` different pixels that the logs hold, in lexical order; none where they are more than
        `MOST_COLOURS`.
      stays: share of pixels that a step leaves as they are.
    """

    shape: tuple[int, ...]
    colours: tuple[tuple[int, ...], ...]
    stays: float
    kind: str = "picture"

    @property
    def patch(self) -> int:
        """Pixels of a patch's side."""
        return 8 if max(self.shape[:2]) > COARSE else 4

    @property
    def grid(self) -> tuple[int, int]:
        """Patches from top to bottom, and from left to right."""
        height, width = self.shape[:2]
        return -(-height // self.patch), -(-width // self.patch)

    @property
    def patches(self) -> int:
        """Number of patches `P`."""
        return self.grid[0] * self.grid[1]

    @property
    def values(self) -> int:
        """Numbers that are predicted of a patch `Q`: one for each pixel, or one for each pixel and channel."""
        return self.patch**2 * (1 if self.colours else self.shape[2])

    @property
    def pixels(self) -> int:
        """Predicted numbers inside of the picture."""
        return int(self.inside.sum())

    @cached_property
    def inside(self) -> np.ndarray:
        """Bool `[P, Q]`: False where a patch hangs over the edge."""
        height, width, channels = self.shape
        return self._cut(np.ones((height, width, 1 if self.colours else channels), np.bool_), np.pad)

    @property
    def uniforms(self) -> int:
        """How many uniform numbers a drawn picture takes: one for the component, then one or two for each value."""
        return 1 + self.patches * self.values * (1 if self.colours else 2)

    @cached_property
    def _table(self) -> np.ndarray:
        return np.array(self.colours, np.int32)

    def encode(self, picture: ArrayLike) -> jax.Array:
        """uint8 `[..., H, W, C]` -> `[..., P, Q]`: int32 index of the nearest colour, or float32 levels in [-1, 1]."""
        pixels = jnp.asarray(picture)
        if not self.colours:
            return self._cut(pixels, _pad_edges).astype(jnp.float32) / 127.5 - 1.0
        apart = jnp.abs(pixels.astype(jnp.int32)[..., None, :] - self._table).sum(axis=-1)
        return self._cut(jnp.argmin(apart, axis=-1)[..., None].astype(jnp.int32), _pad_edges)

    def decode(self, values: jax.Array) -> jax.Array:
        """The inverse of `encode`: uint8 `[..., H, W, C]`."""
        height, width, channels = self.shape
        rows, columns = self.grid
        depth, side = (1 if self.colours else channels), self.patch
        lead = values.shape[:-2]
        tiles = values.reshape(*lead, rows, columns, side, side, depth)
        whole = tiles.swapaxes(-3, -4).reshape(*lead, rows * side, columns * side, depth)[..., :height, :width, :]
        if self.colours:
            return jnp.asarray(self._table.astype(np.uint8))[whole[..., 0]]
        return jnp.clip(jnp.round((whole + 1.0) * 127.5), 0, 255).astype(jnp.uint8)

    def flatten(self, picture: ArrayLike) -> jax.Array:
        """Mean brightness of each patch, float32 `[..., P]`: what distances between pictures are measured by."""
        brightness = jnp.asarray(picture).astype(jnp.float32).mean(axis=-1, keepdims=True)
        height, width, _ = self.shape
        inside = self._cut(np.ones((height, width, 1), np.float32), np.pad)
        return (self._cut(brightness, _pad_zeros) * inside).sum(axis=-1) / inside.sum(axis=-1)

    def _cut(self, picture: Any, pad: Any) -> Any:
        """`[..., H, W, D]` as patches `[..., P, patch * patch * D]`."""
        (rows, columns), side = self.grid, self.patch
        height, width, depth = picture.shape[-3:]
        lead = picture.shape[:-3]
        edges = [(0, 0)] * len(lead) + [(0, rows * side - height), (0, columns * side - width), (0, 0)]
        tiles = pad(picture, edges).reshape(*lead, rows, side, columns, side, depth)
        return tiles.swapaxes(-3, -4).reshape(*lead, rows * columns, side * side * depth)

    @classmethod
    def fit(cls, space: Mapping[str, Any], values: Any, following: Any) -> PictureCodec:
        """The colours of `N` pictures `[N, H, W, C]` and of those a step later, and how many pixels stay."""
        chosen = np.unique(np.linspace(0, len(values) - 1, LOOKED_AT).astype(np.int64))
        before, after = (np.asarray(column[chosen]) for column in (values, following))
        colours = distinct_rows(np.concatenate([before, after]), MOST_COLOURS)
        return cls(
            shape=tuple(space["shape"]),
            colours=() if colours is None else tuple(tuple(map(int, colour)) for colour in colours),
            stays=float((before == after).all(axis=-1).mean()),
        )


def _pad_edges(picture: jax.Array, edges: list[tuple[int, int]]) -> jax.Array:
    return jnp.pad(picture, edges, mode="edge")


def _pad_zeros(picture: jax.Array, edges: list[tuple[int, int]]) -> jax.Array:
    return jnp.pad(picture, edges)
