"""Modules as pure functions of their parameters: a skeleton made once, filled with nested dicts of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx

Params = Mapping[str, Any]
"""Arrays in nested dicts, by the names of a module's attributes."""

Skeleton = tuple[Any, Any]
"""A module's structure, and its parameters as shapes and dtypes."""


def skeleton(make: Callable[[], nnx.Module]) -> Skeleton:
    """Of the module that `make` gives, without computing an array."""
    return nnx.split(nnx.eval_shape(make))


def filled(bones: Skeleton, params: Params) -> Any:
    """The module around these parameters."""
    graph, template = bones
    state = jax.tree.map(lambda leaf: leaf, template)  # a copy: the next line writes into it
    nnx.replace_by_pure_dict(state, dict(params))
    return nnx.merge(graph, state)
