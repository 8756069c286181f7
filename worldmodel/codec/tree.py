"""Codecs of spaces with several parts: the leaves of a `Dict` or `Tuple`, or one leaf of categories or pixels.

Continuous dimensions of all Boxes come first, side by side; then the sites of all categorical leaves; then pictures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel.codec.box import BoxCodec
from worldmodel.codec.discrete import GridCodec, MultiDiscreteCodec
from worldmodel.codec.picture import PictureCodec
from worldmodel.spaces import Path, assemble, at

Leaf = BoxCodec | MultiDiscreteCodec | GridCodec | PictureCodec


@dataclasses.dataclass(frozen=True)
class TreeCodec:
    """Values built of leaves.

    Attributes:
      paths: of each leaf, keys of dicts (`str`) and places in tuples (`int`); `()` for a space that is its own leaf.
      leaves: the codec of each.

    `C` continuous dimensions, `S` sites, each of at most `V` categories.
    """

    paths: tuple[Path, ...]
    leaves: tuple[Leaf, ...]
    kind: str = "tree"

    @cached_property
    def boxes(self) -> tuple[tuple[Path, BoxCodec], ...]:
        """The continuous leaves."""
        return tuple((p, leaf) for p, leaf in zip(self.paths, self.leaves, strict=True) if isinstance(leaf, BoxCodec))

    @cached_property
    def categories(self) -> tuple[tuple[Path, MultiDiscreteCodec | GridCodec], ...]:
        """The categorical leaves."""
        pairs = zip(self.paths, self.leaves, strict=True)
        return tuple((p, leaf) for p, leaf in pairs if isinstance(leaf, (MultiDiscreteCodec, GridCodec)))

    @cached_property
    def pictures(self) -> tuple[tuple[Path, PictureCodec], ...]:
        """The leaves that are pictures."""
        pairs = zip(self.paths, self.leaves, strict=True)
        return tuple((p, leaf) for p, leaf in pairs if isinstance(leaf, PictureCodec))

    @cached_property
    def numbers(self) -> int:
        """Number of continuous dimensions `C`."""
        return sum(leaf.size for _, leaf in self.boxes)

    @cached_property
    def sites(self) -> int:
        """Number of sites `S`."""
        return sum(leaf.sites for _, leaf in self.categories)

    @cached_property
    def nvec(self) -> tuple[int, ...]:
        """Number of categories of each site `[S]`."""
        return tuple(n for _, leaf in self.categories for n in leaf.nvec)

    @cached_property
    def stays(self) -> tuple[float, ...]:
        """Share of logged steps in which each site stays as it is `[S]`."""
        return tuple(stay for _, leaf in self.categories for stay in leaf.stays)

    @cached_property
    def numbers_active(self) -> tuple[bool, ...]:
        """Which continuous dimensions the logs show to change `[C]`."""
        return tuple(active for _, leaf in self.boxes for active in leaf.active)

    @cached_property
    def sites_active(self) -> tuple[bool, ...]:
        """Which sites the logs show to change `[S]`."""
        return tuple(stay < 1.0 for stay in self.stays)

    @property
    def active(self) -> tuple[bool, ...]:
        """Both, in the order of `flatten`."""
        return self.numbers_active + self.sites_active

    @property
    def dimensions(self) -> int:
        """Over how many dimensions the likelihood is spread: numbers and sites that change, and all pixels."""
        return sum(self.active) + sum(leaf.pixels for _, leaf in self.pictures)

    @cached_property
    def bins(self) -> np.ndarray:
        """Bin width of each continuous dimension in units of the target, float32 `[C]`."""
        return np.concatenate([np.zeros(0, np.float32), *(leaf.bins for _, leaf in self.boxes)])

    @cached_property
    def scale(self) -> tuple[float, ...]:
        """Standard deviation of each continuous dimension `[C]`."""
        return tuple(value for _, leaf in self.boxes for value in leaf.scale)

    @property
    def uniforms(self) -> int:
        """How many uniform numbers a drawn value takes: two for each number, one for each site and for all sites.

        And those of its pictures.
        """
        sites = 1 + self.sites if self.sites else 0
        return 2 * self.numbers + sites + sum(leaf.uniforms for _, leaf in self.pictures)

    @property
    def size(self) -> int:
        """Number of features."""
        return self.numbers + sum(self.nvec) + sum(leaf.patches for _, leaf in self.pictures)

    def flatten(self, value: Any) -> jax.Array:
        """A value -> float32 `[..., C + S + P]`: its numbers, its categories, the brightness of its patches."""
        numbers = [leaf.flatten(at(value, path)) for path, leaf in self.boxes]
        sites = [leaf.index(at(value, path)).astype(jnp.float32) for path, leaf in self.categories]
        patches = [leaf.flatten(at(value, path)) for path, leaf in self.pictures]
        return jnp.concatenate([*numbers, *sites, *patches], axis=-1)

    def number_features(self, value: Any) -> jax.Array:
        """Continuous dimensions, standardised, float32 `[..., C]`."""
        return jnp.concatenate([leaf.features(at(value, path)) for path, leaf in self.boxes], axis=-1)

    def features(self, value: Any) -> jax.Array:
        """`number_features`, a one-hot of every site, brightness of patches from -1 to 1, float32 `[..., size]`."""
        numbers = [self.number_features(value)] if self.boxes else []
        hot = [leaf.features(at(value, path)) for path, leaf in self.categories]
        patches = [leaf.flatten(at(value, path)) / 127.5 - 1.0 for path, leaf in self.pictures]
        return jnp.concatenate([*numbers, *hot, *patches], axis=-1)

    @property
    def number_pieces_size(self) -> int:
        """Number of values that `number_pieces` returns."""
        return sum(leaf.pieces_size for _, leaf in self.boxes)

    def number_pieces(self, value: Any) -> jax.Array:
        """Piecewise-linear encoding of the continuous dimensions, see `BoxCodec.pieces`."""
        return jnp.concatenate([leaf.pieces(at(value, path)) for path, leaf in self.boxes], axis=-1)

    def encode(self, following: Any, current: Any) -> jax.Array:
        """Standardised change of the continuous dimensions, float32 `[..., C]`."""
        changes = [leaf.encode(at(following, path), at(current, path)) for path, leaf in self.boxes]
        return jnp.concatenate(changes, axis=-1)

    def index(self, value: Any) -> jax.Array:
        """Category of every site, int32 `[..., S]`; the site's number of categories for what the logs never held."""
        return jnp.concatenate([leaf.index(at(value, path)) for path, leaf in self.categories], axis=-1)

    def decode(self, target: jax.Array, current: Any) -> Any:
        """The value whose continuous dimensions lie `target` `[..., C]` after `current`; sites are as in `current`."""
        return self._replace(current, self._decoded(self.boxes, target, current))

    def decode_index(self, index: jax.Array, current: Any) -> Any:
        """The value with these categories `[..., S]`; its numbers, and the sites that never change, as in `current`."""
        return self._replace(current, self._decoded(self.categories, index, current))

    def replace_pictures(self, pictures: Iterable[jax.Array], current: Any) -> Any:
        """The value with these pictures, in the order of the leaves; everything else as in `current`."""
        found = [(path, new) for (path, _), new in zip(self.pictures, pictures, strict=True)]
        return self._replace(current, found)

    def _decoded(self, parts: Iterable[tuple[Path, Any]], flat: jax.Array, current: Any) -> Iterator[tuple[Path, Any]]:
        first = 0
        for path, leaf in parts:
            width = leaf.size if isinstance(leaf, BoxCodec) else leaf.sites
            yield path, leaf.decode(flat[..., first : first + width], at(current, path))
            first += width

    def _replace(self, current: Any, found: Iterable[tuple[Path, Any]]) -> Any:
        parts = {path: at(current, path) for path in self.paths} | dict(found)
        return assemble([(path, parts[path]) for path in self.paths])
