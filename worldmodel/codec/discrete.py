"""Categories: one `Discrete`, several side by side, and the cells of an integer grid.

A *site* is one category of a value. Indices count from 0; what the logs never held has the index `n` of its site.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import ArrayLike

MOST_NUMBERS, MOST_VECTORS = 32, 256
"""Most different cells of a grid whose cells are numbers, or vectors; with more, it is a Box of numbers."""

SEEN_OFTEN = 16
"""How many logged steps there are at least for each different cell: fewer say little of which there are."""

_CHUNK = 1 << 16


@dataclasses.dataclass(frozen=True)
class DiscreteCodec:
    """One-hot features and categorical targets of `Discrete(n, start)`."""

    n: int
    start: int = 0
    kind: str = "discrete"
    active: ClassVar[tuple[bool, ...]] = (True,)
    bins: ClassVar[np.ndarray] = np.ones(1, np.float32)
    uniforms: ClassVar[int] = 2

    @property
    def size(self) -> int:
        """Number of features `n`."""
        return self.n

    def features(self, value: ArrayLike) -> jax.Array:
        """Integers `[...]` -> one-hot float32 `[..., n]`."""
        return jax.nn.one_hot(jnp.asarray(value) - self.start, self.n, dtype=jnp.float32)

    @property
    def pieces_size(self) -> int:
        """Number of values that `pieces` returns."""
        return self.n

    def pieces(self, value: ArrayLike) -> jax.Array:
        """The same as `features`: categories need no thresholds."""
        return self.features(value)

    def flatten(self, value: ArrayLike) -> jax.Array:
        """Integers `[...]` -> float32 `[..., 1]`."""
        return jnp.asarray(value)[..., None].astype(jnp.float32)

    def encode(self, following: ArrayLike, current: ArrayLike) -> jax.Array:
        """Category index of the next value, int32 `[...]`."""
        del current
        return (jnp.asarray(following) - self.start).astype(jnp.int32)

    def decode(self, target: jax.Array, current: ArrayLike) -> jax.Array:
        """Category index -> value of the space, int32 `[...]`."""
        del current
        return (target + self.start).astype(jnp.int32)


class _Sites:
    """What codecs of several sites share; see `MultiDiscreteCodec` for the attributes."""

    shape: tuple[int, ...]
    dtype: str
    stays: tuple[float, ...]

    @property
    def nvec(self) -> tuple[int, ...]:
        """Number of categories of each site."""
        raise NotImplementedError

    @property
    def sites(self) -> int:
        """Number of sites `S`."""
        return len(self.stays)

    @property
    def active(self) -> tuple[bool, ...]:
        """False where the logs never show a change: such a site is copied, not predicted."""
        return tuple(stay < 1.0 for stay in self.stays)

    @property
    def size(self) -> int:
        """Number of features: one for each category of each site."""
        return sum(self.nvec)

    def index(self, value: ArrayLike) -> jax.Array:
        """`[..., *shape]` -> int32 `[..., S]`; `n` of the site for what the logs never held."""
        raise NotImplementedError

    def features(self, value: ArrayLike) -> jax.Array:
        """One-hot per site, float32 `[..., size]`; zeros for what the logs never held."""
        return one_hot(self.index(value), self.nvec)

    def _lead(self, value: jax.Array) -> tuple[int, ...]:
        return value.shape[: value.ndim - len(self.shape)]

    def _finish(self, flat: jax.Array, current: ArrayLike) -> jax.Array:
        """Numbers `[..., S, W]` as a value; sites that never change are as in `current`."""
        now = jnp.asarray(current)
        now = now.reshape(*self._lead(now), self.sites, -1).astype(jnp.int32)
        value = jnp.where(np.array(self.active)[:, None], flat, now)
        return value.reshape(*flat.shape[:-2], *self.shape).astype(jax.dtypes.canonicalize_dtype(self.dtype))


@dataclasses.dataclass(frozen=True)
class MultiDiscreteCodec(_Sites):
    """`MultiDiscrete`, `MultiBinary`, or a `Discrete` beside others: site `s` counts `start[s]`, `start[s] + 1`, ...

    Attributes: `n` categories and `start` of each site; `stays`: share of logged steps in which the site stays as it is
    (1 for one that never changes); `shape` and `dtype` of a value.
    """

    shape: tuple[int, ...]
    dtype: str
    n: tuple[int, ...]
    start: tuple[int, ...]
    stays: tuple[float, ...]
    kind: str = "multi_discrete"

    @property
    def nvec(self) -> tuple[int, ...]:
        """Number of categories of each site."""
        return self.n

    def index(self, value: ArrayLike) -> jax.Array:
        """See the module."""
        value = jnp.asarray(value)
        found = value.reshape(*self._lead(value), self.sites).astype(jnp.int32) - np.array(self.start, np.int32)
        n = np.array(self.n, np.int32)
        return jnp.where((found >= 0) & (found < n), found, n)

    def decode(self, index: jax.Array, current: ArrayLike) -> jax.Array:
        """Indices `[..., S]` -> a value `[..., *shape]`, of the sites that change; others are as in `current`."""
        return self._finish((index + np.array(self.start, np.int32))[..., None], current)

    @classmethod
    def fit(cls, space: Mapping[str, Any], values: Any, following: Any) -> MultiDiscreteCodec:
        """How often `N` values `[N, *shape]` stay as they are a step later."""
        kind = space["type"]
        if kind == "MultiDiscrete":
            n, start, shape = np.ravel(space["nvec"]), np.ravel(space["start"]), np.shape(space["nvec"])
        elif kind == "MultiBinary":
            shape = tuple(space["shape"])
            n, start = np.full(int(np.prod(shape)), 2), np.zeros(int(np.prod(shape)), int)
        else:
            n, start, shape = np.array([space["n"]]), np.array([space["start"]]), ()
        before, after = (np.asarray(x).reshape(len(values), -1, 1) for x in (values, following))
        return cls(
            shape=tuple(map(int, shape)),
            dtype="int8" if kind == "MultiBinary" else "int64",
            n=tuple(map(int, n)),
            start=tuple(map(int, start)),
            stays=_stays(before, after),
        )


@dataclasses.dataclass(frozen=True)
class GridCodec(_Sites):
    """A Box of integers that takes few values: a category per cell, from those that the logs hold.

    A cell is one number; with three axes it is the vector along the last, so that kind, colour and state of a place are
    drawn together.

    Attributes: `shape` and `dtype` of the Box; `cells`: the `n` different cells in lexical order; `stays` per site, as
    in `MultiDiscreteCodec`.
    """

    shape: tuple[int, ...]
    dtype: str
    cells: tuple[tuple[int, ...], ...]
    stays: tuple[float, ...]
    kind: str = "grid"

    @property
    def nvec(self) -> tuple[int, ...]:
        """Number of categories of each site: the same for all."""
        return (len(self.cells),) * self.sites

    @cached_property
    def _table(self) -> np.ndarray:
        return np.array(self.cells, np.int32)

    def index(self, value: ArrayLike) -> jax.Array:
        """See the module."""
        value = jnp.asarray(value)
        cells = value.reshape(*self._lead(value), self.sites, 1, self._table.shape[1]).astype(jnp.int32)
        same = jnp.all(cells == self._table, axis=-1)
        return jnp.where(same.any(axis=-1), jnp.argmax(same, axis=-1), len(self.cells)).astype(jnp.int32)

    def decode(self, index: jax.Array, current: ArrayLike) -> jax.Array:
        """Indices `[..., S]` -> a value `[..., *shape]`, of the sites that change; others are as in `current`."""
        return self._finish(jnp.asarray(self._table)[index], current)

    @classmethod
    def fit(cls, space: Mapping[str, Any], values: Any, following: Any) -> GridCodec | None:
        """The cells of `N` values and of those a step later, or None where they are too many or too rarely seen."""
        shape = tuple(space["shape"])
        if np.dtype(space["dtype"]).kind not in "iu" or not shape:
            return None
        width = shape[-1] if len(shape) == 3 else 1
        before, after = (np.asarray(x).reshape(len(x), -1, width) for x in (values, following))
        few = min(MOST_VECTORS if width > 1 else MOST_NUMBERS, len(before) // SEEN_OFTEN)
        cells = distinct_rows(after, few)
        if cells is not None:  # of what came before, only an episode's first value is not among them
            cells = distinct_rows(np.concatenate([before.reshape(-1, width), cells]), few)
        if cells is None:
            return None
        return cls(shape, str(space["dtype"]), tuple(tuple(map(int, c)) for c in cells), _stays(before, after))


def distinct_rows(cells: np.ndarray, few: int) -> np.ndarray | None:
    """The different rows of `[..., W]` in lexical order, int64; None where there are more than `few`."""
    rows = cells.reshape(-1, cells.shape[-1])
    found = np.zeros((0, rows.shape[1]), np.int64)
    low, high = rows.min(axis=0).astype(np.float64), rows.max(axis=0).astype(np.float64)
    if np.prod(high - low + 1.0) >= 2.0**62:
        return None
    for first in range(0, len(rows), _CHUNK):
        found = np.concatenate([found, rows[first : first + _CHUNK].astype(np.int64)])
        key = np.zeros(len(found), np.int64)
        for column, least, most in zip(found.T, low.astype(np.int64), high.astype(np.int64), strict=True):
            key = key * (most - least + 1) + (column - least)
        found = found[np.unique(key, return_index=True)[1]]
        if len(found) > few:
            return None
    return found


def one_hot(index: jax.Array, nvec: tuple[int, ...]) -> jax.Array:
    """Indices `[..., S]` -> float32 `[..., sum(nvec)]`, the sites side by side; zeros for an index of `n` or more."""
    most = max(nvec)
    hot = (index[..., None] == np.arange(most)).astype(jnp.float32).reshape(*index.shape[:-1], -1)
    if min(nvec) == most:
        return hot
    exists = np.arange(most) < np.array(nvec)[:, None]
    return hot[..., np.flatnonzero(exists)]


def _stays(before: np.ndarray, after: np.ndarray) -> tuple[float, ...]:
    """Share of rows in which each site `[N, S, W]` stays as it is: 1 only where it always does."""
    changes = (before != after).any(axis=-1).sum(axis=0)
    return tuple(1.0 if c == 0 else float(1.0 - c / (len(before) + 1.0)) for c in changes)
