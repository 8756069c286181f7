"""Spaces of the arrays of npz files: their dtypes, shapes, and the ranges of whole numbers."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.sources.npz_layout import Layout, parts
from worldmodel.sources.npz_members import Member, Rows, archive
from worldmodel.spaces import box

_SAME_SPACE = {"observations": ("observations", "next_observations", "final_observations"), "actions": ("actions",)}
_BYTES = 2**24
"""Read at once when a range is looked for."""


def spaces_of(role: str, layouts: Sequence[Layout]) -> dict[str, Any]:
    """The space of the array of a role, or of each array by its name.

    Raises:
      ValueError: the files differ in these arrays, or no space holds such values.
    """
    found: dict[str, list[tuple[pathlib.Path, Member]]] = {}
    first = layouts[0].roles[role]
    for layout in layouts:
        for other in _SAME_SPACE[role]:
            tree = layout.roles.get(other)
            if tree is None:
                continue
            for name, member in tree.items() if isinstance(tree, dict) else [("", tree)]:
                found.setdefault(name, []).append((layout.path, member))
            if set(tree if isinstance(tree, dict) else [""]) != set(first if isinstance(first, dict) else [""]):
                names = ", ".join(member.name for member in parts(tree))
                wanted = ", ".join(member.name for member in parts(first))
                raise ValueError(f"{layout.path}: {other} is made of {names}; it must match {wanted}")
    spaces = {name: _space(role, members) for name, members in found.items()}
    return spaces if isinstance(first, dict) else spaces[""]


def _space(role: str, members: list[tuple[pathlib.Path, Member]]) -> dict[str, Any]:
    path, first = members[0]
    for other_path, other in members:
        # Texts of two files differ in the longest, and so in dtype.
        alike = (other.dtype.kind == "U" == first.dtype.kind) or other.dtype.newbyteorder(
            "="
        ) == first.dtype.newbyteorder("=")
        if not alike or other.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"{other_path}: {other.name!r} is {other.dtype} {list(other.shape[1:])} a row; "
                f"{first.name!r} of {path} is {first.dtype} {list(first.shape[1:])}"
            )
    kind, shape = first.dtype.kind, first.shape[1:]
    if kind == "U" and shape == ():
        return {"type": "Text", "max_length": max(member.dtype.itemsize // 4 for _, member in members)}
    if kind == "b":
        return {"type": "MultiBinary", "shape": list(shape)} if shape else {"type": "Discrete", "n": 2, "start": 0}
    if kind == "f" and first.dtype.itemsize <= 8:
        return box(shape, first.dtype.newbyteorder("="))
    if kind not in "iu":
        raise ValueError(f"{path}: {first.name!r} is {first.dtype} {list(shape)} a row; no space holds it")
    if shape and role == "observations":
        return box(shape, first.dtype.newbyteorder("="))
    low, high = _range(members)
    if (high > np.iinfo(np.int64).max).any():
        raise ValueError(f"{path}: {first.name!r} holds {high.max()}; whole numbers up to 2**63 - 1 are read")
    start = np.minimum(low, 0)
    count = [h - s + 1 for h, s in zip(np.ravel(high).tolist(), np.ravel(start).tolist(), strict=True)]
    if not shape:
        return {"type": "Discrete", "n": count[0], "start": int(start)}
    nvec = np.array(count, object).reshape(shape).tolist()
    return {"type": "MultiDiscrete", "nvec": nvec, "start": start.tolist()}


def _range(members: list[tuple[pathlib.Path, Member]]) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest of each number of a row; zeros where there is no row."""
    low = high = None
    for path, member in members:
        with archive(path) as file:
            rows = Rows(file, path, member)
            step = max(1, _BYTES // max(1, member.row_bytes))
            for start in range(0, member.rows, step):
                values = rows.take(min(step, member.rows - start))
                below, above = values.min(axis=0), values.max(axis=0)
                low = below if low is None else np.minimum(low, below)
                high = above if high is None else np.maximum(high, above)
    zeros = np.zeros(members[0][1].shape[1:], members[0][1].dtype)
    return (zeros if low is None else np.asarray(low)), (zeros if high is None else np.asarray(high))
