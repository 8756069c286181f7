"""The numbers inside a value of a space, and an action at rest. Values are of one episode, without a batch axis."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.codec import BoxCodec, DiscreteCodec, MultiDiscreteCodec, SpaceCodec
from worldmodel.codec.tree import Leaf
from worldmodel.spaces import Path, assemble, at


def count(codec: SpaceCodec) -> int:
    """How many continuous numbers `N` a value has."""
    return sum(leaf.size for _, leaf in _boxes(codec))


def scales(codec: SpaceCodec) -> np.ndarray:
    """Float32 `[N]`: standard deviation of every number in the logs; 0 where they never show it to change."""
    parts = [np.where(leaf.active, leaf.scale, 0.0) for _, leaf in _boxes(codec)]
    return np.concatenate([np.zeros(0), *parts]).astype(np.float32)


def numbers(codec: SpaceCodec, value: PyTree) -> Array:
    """The continuous numbers of a value, float32 `[N]`."""
    return jnp.concatenate([jnp.zeros(0, jnp.float32), *(leaf.flatten(at(value, p)) for p, leaf in _boxes(codec))])


def with_numbers(codec: SpaceCodec, value: PyTree, vector: Array) -> PyTree:
    """The value with other numbers, float32 `[N]`, in the bounds and the dtypes of the space."""
    if isinstance(codec, DiscreteCodec):
        return value
    paths = ((),) if isinstance(codec, BoxCodec) else codec.paths
    parts: dict[Path, PyTree] = {path: at(value, path) for path in paths}
    first = 0
    for path, leaf in _boxes(codec):
        low, high = leaf.bounds
        moved = jnp.clip(vector[first : first + leaf.size], low, high)
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        moved = moved if jnp.issubdtype(dtype, jnp.floating) else jnp.round(moved)
        parts[path] = moved.reshape(leaf.shape).astype(dtype)
        first += leaf.size
    return assemble(list(parts.items()))


def rest_action(codec: SpaceCodec, category: int = 0) -> PyTree:
    """An action that does nothing: numbers zero, or the nearest bound; of categories the one counted `category`."""
    if isinstance(codec, DiscreteCodec):
        return jnp.asarray(codec.start + category, jnp.int32)
    paths, leaves = (((),), (codec,)) if isinstance(codec, BoxCodec) else (codec.paths, codec.leaves)
    return assemble([(path, _rest(leaf, category)) for path, leaf in zip(paths, leaves, strict=True)])


def _rest(leaf: Leaf, category: int) -> Array:
    if isinstance(leaf, BoxCodec):
        low, high = leaf.bounds
        value = np.clip(np.zeros(leaf.size, np.float32), low, high)
    elif isinstance(leaf, MultiDiscreteCodec):
        value = np.asarray(leaf.start) + np.minimum(category, np.asarray(leaf.n) - 1)
    else:
        raise ValueError(f"an action of kind {leaf.kind!r} has no rest")
    return jnp.asarray(value.reshape(leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype))


def _boxes(codec: SpaceCodec) -> tuple[tuple[Path, BoxCodec], ...]:
    if isinstance(codec, BoxCodec):
        return (((), codec),)
    return () if isinstance(codec, DiscreteCodec) else codec.boxes
