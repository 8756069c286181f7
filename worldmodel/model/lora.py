"""Low-rank changes of a model's weights: few numbers to train and to keep (Hu et al. 2021, arXiv 2106.09685).

A change is a tree of its own, `{path: {"down": [in, rank], "up": [rank, out]}}`, that `merge` adds to the weights: a
loss of merged weights, differentiated by the change alone, trains it, and merged weights are saved as any others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array
from worldmodel.model.params import Params
from worldmodel.model.transformer import normal

Change = Mapping[str, Mapping[str, Array]]
"""By path of the weights, as "trunk/blocks/0/qkv/kernel"."""

MAPS = ("qkv", "output", "gate_up", "down")
"""Every map of the trunk's blocks."""


def init_change(params: Params, seed: int, *, rank: int = 8, maps: Sequence[str] = MAPS) -> Change:
    """A change that changes nothing yet: `up` is zero.

    Raises:
      ValueError: the rank is below 1, or a name is no map of the trunk's blocks.
    """
    unknown = sorted(set(maps) - set(MAPS))
    if unknown or not maps:
        raise ValueError(f"maps {unknown or 'none'} cannot be changed; of each block there are {', '.join(MAPS)}")
    if rank < 1:
        raise ValueError(f"a change of rank {rank}; at least 1 is needed")
    rng, change = np.random.default_rng(seed), {}
    for path, kernel in jax.tree_util.tree_leaves_with_path(params):
        name = _name(path)
        if name.startswith("trunk/blocks/") and name.split("/")[-2] in maps and name.endswith("/kernel"):
            size_in, size_out = kernel.shape
            down = normal(rng, (size_in, rank), 1.0 / math.sqrt(size_in))
            change[name] = {"down": down, "up": jnp.zeros((rank, size_out), jnp.float32)}
    return change


def merge(params: Params, change: Change, *, scale: float = 1.0) -> Params:
    """The weights with the change added, `scale` times `down @ up`; `ValueError` where it belongs to other weights."""
    names = {_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    if not set(change) <= names:
        raise ValueError(f"this model has no weights {min(set(change) - names)}, which the change is of")

    def add(path: tuple, weights: Array) -> Array:
        own = change.get(_name(path))
        return weights if own is None else weights + scale * (own["down"] @ own["up"])

    return jax.tree_util.tree_map_with_path(add, params)


def _name(path: tuple) -> str:
    return "/".join(str(key.key) for key in path)
