"""Observations with several parts: what the model reads of them, and their joint distribution."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from flax import nnx

from worldmodel._types import Array, PyTree
from worldmodel.codec import GridCodec, TreeCodec
from worldmodel.codec.discrete import one_hot
from worldmodel.model.categories import SitesHead
from worldmodel.model.heads import ChainHead
from worldmodel.model.picture import READ, PictureHead, PictureReader
from worldmodel.model.transformer import normal
from worldmodel.spaces import at

SHORT = 8
"""Sites with more categories than this are read as vectors of this many learned numbers, others one-hot."""


class TreeReader(nnx.Module):
    """Values of a `TreeCodec` as vectors."""

    def __init__(self, codec: TreeCodec, *, rng: np.random.Generator):
        self.codec = codec
        tables, size = [], 0
        for _, leaf in codec.categories:
            if max(leaf.nvec) <= SHORT:
                size += leaf.size
                continue
            # The cells of a grid are of one kind wherever they lie; sites of other leaves are not.
            rows = 1 if isinstance(leaf, GridCodec) else leaf.sites
            # A large grid weighs as much as one number does: it must not drown what else is read, the action above all.
            tables.append(nnx.Param(normal(rng, (rows, max(leaf.nvec), SHORT), 1.0 / math.sqrt(SHORT * leaf.sites))))
            size += leaf.sites * SHORT
        self.tables = nnx.List(tables)
        self.pictures = nnx.List([PictureReader(leaf, rng=rng) for _, leaf in codec.pictures])
        size += READ * len(codec.pictures)
        self.size = codec.numbers + size
        self.pieces_size = codec.number_pieces_size + size

    def features(self, value: PyTree) -> Array:
        """Float32 `[..., size]`: numbers standardised, then the categories, then the pictures."""
        return self._read(self.codec.number_features, value)

    def pieces(self, value: PyTree) -> Array:
        """Float32 `[..., pieces_size]`: piecewise-linear numbers, then the categories, then the pictures."""
        return self._read(self.codec.number_pieces, value)

    def _read(self, numbers: Callable[[PyTree], Array], value: PyTree) -> Array:
        pictures = zip(self.pictures, self.codec.pictures, strict=True)
        seen = [reader(at(value, path)) for reader, (path, _) in pictures]
        return jnp.concatenate([*self._numbers(numbers, value), *self._sites(value), *seen], axis=-1)

    def _numbers(self, read, value: PyTree) -> list[Array]:
        return [read(value)] if self.codec.numbers else []

    def _sites(self, value: PyTree) -> list[Array]:
        if not self.codec.sites:
            return []
        index = self.codec.index(value)
        parts, tables, first = [], iter(self.tables), 0
        for _, leaf in self.codec.categories:
            own = index[..., first : first + leaf.sites]
            first += leaf.sites
            most = max(leaf.nvec)
            if most <= SHORT:
                parts.append(one_hot(own, leaf.nvec))
                continue
            table = jnp.broadcast_to(next(tables)[...], (leaf.sites, most, SHORT))
            hot = one_hot(own, (most,) * leaf.sites).reshape(*own.shape, most)
            read = jnp.einsum("...sv,sve->...se", hot, table)
            parts.append(read.reshape(*read.shape[:-2], -1))
        return parts


class TreeHead(nnx.Module):
    """Joint distribution of the next value given `h [..., width]`: numbers as a chain, categories given them.

    Pictures are given `h` and the numbers, and look back one step further, at `before`: what moves shows in two.
    """

    def __init__(
        self,
        width: int,
        codec: TreeCodec,
        *,
        hidden: int,
        outer: int,
        components: int,
        chain: bool,
        rng: np.random.Generator,
    ):
        self.codec = codec
        own = {"hidden": hidden, "components": components, "chain": chain, "rng": rng}
        self.numbers = ChainHead(width, codec.numbers, **own) if codec.numbers else None
        given = width + codec.numbers + codec.number_pieces_size
        sites = {"hidden": hidden, "outer": outer, "components": 2 * components, "rng": rng}
        self.sites = SitesHead(given, codec, **sites) if codec.sites else None
        self.pictures = nnx.List(
            [PictureHead(given, leaf, hidden=outer, components=components, rng=rng) for _, leaf in codec.pictures]
        )

    def log_prob(
        self,
        h: Array,
        obs: PyTree,
        next_obs: PyTree,
        before: PyTree = None,
        *,
        bin_scale: float = 1.0,
        balanced: bool = False,
    ) -> Array:
        """Nats of each number given those before it, 0 for one that never changes, then of all sites together.

        Then of each picture; `before` is the observation before `obs`, None where there are no pictures.
        """
        codec, parts = self.codec, []
        if self.numbers is not None:
            target = codec.encode(next_obs, obs)
            nats = self.numbers.log_prob(h, target, codec.bins, bin_scale=bin_scale, balanced=balanced)
            parts.append(nats * jnp.asarray(codec.numbers_active, jnp.float32))
        given = self._given(h, obs, next_obs)
        if self.sites is not None:
            parts.append(self.sites.log_prob(given, codec.index(obs), codec.index(next_obs))[..., None])
        for head, (path, _) in zip(self.pictures, codec.pictures, strict=True):
            seen = (at(each, path) for each in (before, obs, next_obs))
            parts.append(head.log_prob(given, *seen)[..., None])
        return jnp.concatenate(parts, axis=-1)

    def sample(self, h: Array, obs: PyTree, uniforms: Array, before: PyTree = None) -> PyTree:
        """A next value from uniforms `[..., codec.uniforms]`."""
        codec, after = self.codec, obs
        if self.numbers is not None:
            pairs = uniforms[..., : 2 * codec.numbers].reshape(*uniforms.shape[:-1], codec.numbers, 2)
            after = codec.decode(self.numbers.sample(h, pairs, codec.bins), obs)
        given, rest = self._given(h, obs, after), uniforms[..., 2 * codec.numbers :]
        if self.sites is not None:
            own, rest = jnp.split(rest, [1 + codec.sites], axis=-1)
            after = codec.decode_index(self.sites.sample(given, codec.index(obs), own), after)
        pictures = []
        for head, (path, leaf) in zip(self.pictures, codec.pictures, strict=True):
            own, rest = jnp.split(rest, [leaf.uniforms], axis=-1)
            pictures.append(head.sample(given, at(before, path), at(obs, path), own))
        return codec.replace_pictures(pictures, after)

    def central(self, h: Array, obs: PyTree, before: PyTree = None) -> PyTree:
        """The chain run on its own means, then the likeliest categories given them."""
        codec, after = self.codec, obs
        if self.numbers is not None:
            after = codec.decode(self.numbers.central(h), obs)
        given = self._given(h, obs, after)
        if self.sites is not None:
            after = codec.decode_index(self.sites.central(given, codec.index(obs)), after)
        pairs = zip(self.pictures, codec.pictures, strict=True)
        pictures = [head.central(given, at(before, path), at(obs, path)) for head, (path, _) in pairs]
        return codec.replace_pictures(pictures, after)

    def _given(self, h: Array, obs: PyTree, after: PyTree) -> Array:
        """What sites and pictures are drawn given: `h`, the next numbers and their change."""
        if self.numbers is None:
            return h
        return jnp.concatenate([h, self.codec.number_pieces(after), self.codec.encode(after, obs)], axis=-1)
