"""Boxes of numbers: standardised features, changes to predict, knots for thresholds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import ArrayLike
from worldmodel.spaces import box_bounds

BIN_FRACTION = 1e-3
"""Width of the likelihood's bins in standard deviations of a dimension, for every model that is compared."""

QUANTILES = 16
"""Knots per group of observations in the piecewise-linear encoding."""


@dataclasses.dataclass(frozen=True)
class BoxCodec:
    """Flattens a Box to `D` numbers; predicts the standardised change.

    Attributes (tuples of `D` floats): `low`, `high` bounds (None: unbounded); `mean`, `scale` of the values;
    `delta_mean`, `delta_scale` of the changes; `active`: False where the logs never show a change
    (such a dimension is copied, not predicted); `knots`: per dimension `J` increasing values, for `pieces`.
    """

    shape: tuple[int, ...]
    dtype: str
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    delta_mean: tuple[float, ...]
    delta_scale: tuple[float, ...]
    active: tuple[bool, ...]
    knots: tuple[tuple[float, ...], ...] = ()
    kind: str = "box"

    @property
    def size(self) -> int:
        """Number of features `D`."""
        return len(self.mean)

    @property
    def uniforms(self) -> int:
        """How many uniform numbers a drawn value takes: two for each dimension."""
        return 2 * self.size

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest value per dimension, float32 `[D]`; +-inf where unbounded."""
        low, high = box_bounds({"low": self.low, "high": self.high, "shape": (self.size,)})
        return low.astype(np.float32), high.astype(np.float32)

    @cached_property
    def bins(self) -> np.ndarray:
        """Bin width per dimension in units of the target, float32 `[D]`."""
        return BIN_FRACTION * _float32(self.scale) / _float32(self.delta_scale)

    def flatten(self, value: ArrayLike) -> jax.Array:
        """`[..., *shape]` of any dtype -> float32 `[..., D]`."""
        value = jnp.asarray(value)
        lead = value.shape[: value.ndim - len(self.shape)]
        return value.astype(jnp.float32).reshape(*lead, self.size)

    def features(self, value: ArrayLike) -> jax.Array:
        """`[..., *shape]` -> float32 `[..., D]`, mean 0 and deviation 1 over the logs."""
        return (self.flatten(value) - _float32(self.mean)) / _float32(self.scale)

    @property
    def pieces_size(self) -> int:
        """Number of values that `pieces` returns."""
        return sum(len(knots) - 1 for knots in self.knots)

    def pieces(self, value: ArrayLike) -> jax.Array:
        """Piecewise-linear encoding (Gorishniy et al. 2022, arXiv 2203.05556) of `[..., *shape]`.

        Each dimension becomes `J - 1` numbers in [0, 1], one for each gap between knots: how much of the gap lies
        below the value. Thresholds are easy to learn from it, and it stays constant outside the logs' range.
        """
        knots = _float32(self.knots)
        share = (self.flatten(value)[..., None] - knots[:, :-1]) / np.diff(knots, axis=1)
        return jnp.clip(share, 0.0, 1.0).reshape(*share.shape[:-2], -1)

    def encode(self, following: ArrayLike, current: ArrayLike) -> jax.Array:
        """Standardised change between two values `[..., *shape]`, float32 `[..., D]`."""
        change = self.flatten(following) - self.flatten(current)
        return (change - _float32(self.delta_mean)) / _float32(self.delta_scale)

    def decode(self, target: jax.Array, current: ArrayLike) -> jax.Array:
        """The value `[..., *shape]` that lies `target` `[..., D]` after `current`.

        Its dtype is the space's, or what JAX has of it: 64-bit types become 32-bit ones by default.
        """
        flat = self.flatten(current)
        change = target * _float32(self.delta_scale) + _float32(self.delta_mean)
        low, high = self.bounds
        value = jnp.clip(flat + jnp.where(np.array(self.active), change, 0.0), low, high)
        if np.dtype(self.dtype).kind in "biu":
            value = jnp.round(value)
        return value.reshape(*flat.shape[:-1], *self.shape).astype(jax.dtypes.canonicalize_dtype(self.dtype))

    @classmethod
    def fit(cls, space: Mapping[str, Any], values: Any, following: Any, ends: np.ndarray | None) -> BoxCodec:
        """Statistics of `N` values `[N, *shape]` and of those a step later; without `ends` `[N]` there are no knots."""
        flat = np.asarray(values, np.float64).reshape(len(values), -1)
        after = np.asarray(following, np.float64).reshape(len(values), -1)
        change = after - flat
        deviation, spread = flat.std(axis=0), change.std(axis=0)
        magnitude = np.maximum(1e-6 * np.abs(flat).max(axis=0, initial=0.0), 1e-9)
        moves = np.abs(change).max(axis=0, initial=0.0) > magnitude
        return cls(
            shape=tuple(space["shape"]),
            dtype=space["dtype"],
            low=_bound(space["low"], flat.shape[1]),
            high=_bound(space["high"], flat.shape[1]),
            mean=tuple(map(float, flat.mean(axis=0))),
            scale=tuple(map(float, np.where(deviation > magnitude, deviation, 1.0))),
            delta_mean=tuple(map(float, change.mean(axis=0))),
            delta_scale=tuple(map(float, np.where(spread > magnitude, spread, 1.0))),
            active=tuple(map(bool, moves)),
            knots=() if ends is None else _knots(flat, after, ends),
        )


def _bound(values: Any, size: int) -> tuple[float | None, ...]:
    return tuple(values) if isinstance(values, (list, tuple)) else (values,) * size


def _float32(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)


def _knots(before: np.ndarray, after: np.ndarray, ends: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Quantiles per dimension of all observations, of the last before an end, and of the ends themselves.

    An end is often a threshold on one dimension: the last two groups put knots on both sides of it, and two more
    mark the gap between what was survived and the nearest end beyond, however few ends there are.
    """
    levels = np.linspace(0.0, 1.0, QUANTILES)
    groups = [np.quantile(after, levels, axis=0)]
    if ends.any() and not ends.all():
        groups += [np.quantile(before[ends], levels, axis=0), np.quantile(after[ends], levels, axis=0)]
        for side in (-1.0, 1.0):
            survived = (side * after[~ends]).max(axis=0)
            beyond = np.where(side * after[ends] > survived, side * after[ends], np.inf).min(axis=0)
            groups.append(side * np.stack([survived, np.where(np.isfinite(beyond), beyond, survived)]))
    knots = np.sort(np.concatenate(groups), axis=0).T
    # Equal knots would make gaps of width zero.
    step = np.maximum(1e-5 * after.std(axis=0), 1e-6 * np.maximum(np.abs(after).max(axis=0), 1.0))
    rise = step[:, None] * np.arange(knots.shape[1])
    return tuple(tuple(map(float, row)) for row in np.maximum.accumulate(knots - rise, axis=1) + rise)
