"""Hashes of rows and of runs of rows, vectorised; equal for values that differ by rounding only."""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Any

import numpy as np

from worldmodel.images import EncodedImages
from worldmodel.spaces import column_list

_BASE = 0x9E3779B97F4A7C15
_ROUNDED_BITS = 14
"""Low bits of a float32's mantissa that do not count: 9 of 23 are kept, steps of 0.2%."""


def hash_rows(observations: Any, actions: Any) -> np.ndarray:
    """uint64 `[T]`: one hash of observation and action of each transition; floats count to three digits."""
    columns = [*column_list(observations), *column_list(actions)]
    steps = min(len(column) for column in columns)
    total = np.zeros(steps, np.uint64)
    for place, column in enumerate(columns):
        total += mix(_hash_column(column, steps) + np.uint64(place + 1))
    return mix(total)


def running(rows: np.ndarray) -> np.ndarray:
    """uint64 `[T]`: hash of the rows up to and with each."""
    return mix(np.cumsum(rows * powers(len(rows)), dtype=np.uint64))


def mix(values: np.ndarray) -> np.ndarray:
    """Spreads every bit over all (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def powers(count: int) -> np.ndarray:
    """uint64 `[count]`: powers of an odd base, modulo 2**64."""
    size = 1 << max(count - 1, 1).bit_length()
    return _powers(size)[:count]


@functools.lru_cache(maxsize=32)
def _powers(size: int) -> np.ndarray:
    return np.cumprod(np.full(size, _BASE, np.uint64), dtype=np.uint64)


def _hash_column(column: Any, steps: int) -> np.ndarray:
    if isinstance(column, EncodedImages):
        return _hash_bytes(column.encoded[:steps])
    values = np.asarray(column)[:steps]
    if values.dtype == np.object_:
        return _hash_bytes([str(row).encode("utf-8", "surrogatepass") for row in values])
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinity, like any other
            numbers = np.ascontiguousarray(values, np.float32) + np.float32(0.0)  # one zero, not two
        bits = numbers.view(np.uint32).astype(np.uint64)
        codes = (bits + np.uint64(1 << (_ROUNDED_BITS - 1))) >> np.uint64(_ROUNDED_BITS)
    elif values.dtype.kind in "iub":
        codes = values.astype(np.int64).view(np.uint64)
    else:
        return _hash_bytes([np.ascontiguousarray(row).tobytes() for row in values])
    flat = codes.reshape(steps, math.prod(codes.shape[1:]))
    return (mix(flat + np.uint64(_BASE)) * powers(flat.shape[1])).sum(axis=1, dtype=np.uint64)


def _hash_bytes(rows: Any) -> np.ndarray:
    return np.array([int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), "little") for row in rows], np.uint64)
