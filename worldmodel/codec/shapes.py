"""Columns of a space as JAX has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from worldmodel._types import PyTree
from worldmodel.spaces import assemble, dtype_of, shape_of, walk


def column_shapes(space: Mapping[str, Any], lead: tuple[int, ...]) -> PyTree:
    """Shape `[*lead, ...]` and dtype of every column, built as the space is."""

    def column(leaf: Mapping[str, Any]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*lead, *shape_of(leaf)), jax.dtypes.canonicalize_dtype(dtype_of(leaf)))

    return assemble([(path, column(leaf)) for path, leaf in walk(space)])
