"""Parquet files of a LeRobotDataset: batches of rows, and their columns as NumPy."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from worldmodel.images import EncodedImages
from worldmodel.sources.files import FREE_BYTES, MOST_EXPANSION, damaged
from worldmodel.sources.lerobot_meta import Feature
from worldmodel.spaces import dtype_of, shape_of

BATCH = 256
"""Rows that are decoded at once."""
_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError)


def batches(path: pathlib.Path, columns: list[str] | None = None, rows: int | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of the rows of a file, of all columns or of those named.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is damaged, lacks a column, has not as many `rows` as it should, or is a bomb.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file, though the dataset's meta names it")
    try:
        file = pq.ParquetFile(path)
        names = list(file.schema_arrow.names)
        found = file.metadata.num_rows
        size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
    except _ERRORS as error:
        raise damaged(path, error) from None
    with file:
        for name in columns or ():
            if name not in names:
                raise ValueError(f"{path}: lacks the column {name!r}; it has {', '.join(names)}")
        if rows is not None and found != rows:
            raise ValueError(f"{path}: holds {found} rows; the dataset's list of episodes says {rows}")
        if size > max(FREE_BYTES, MOST_EXPANSION * path.stat().st_size):
            raise ValueError(f"{path}: grows more than {MOST_EXPANSION}-fold when decompressed; it is not read")
        source = file.iter_batches(BATCH, columns=columns)
        while True:
            try:
                batch = next(source, None)
            except _ERRORS as error:
                raise damaged(path, error) from None
            if batch is None:
                return
            yield batch


def tables(path: pathlib.Path, columns: list[str], lengths: list[int]) -> Iterator[pa.Table]:
    """The rows of a file, cut into tables of these `lengths`, which are all of its rows; errors as `batches`."""
    source = batches(path, columns, rows=sum(lengths))
    waiting: list[pa.RecordBatch] = []
    for length in lengths:
        held = sum(len(batch) for batch in waiting)
        while held < length:
            batch = next(source, None)
            if batch is None:
                raise ValueError(f"{path}: ends {length - held} rows before it should")
            waiting.append(batch)
            held += len(batch)
        table = pa.Table.from_batches(waiting) if waiting else pa.table({name: [] for name in columns})
        yield table.slice(0, length)
        waiting = table.slice(length).to_batches()


def integers(table: pa.Table, name: str, where: str) -> np.ndarray:
    """A column of whole numbers, int64 `[N]`; `ValueError` where it is none."""
    values = table.column(name).to_numpy()
    if len(values) and values.dtype.kind not in "iu":
        raise ValueError(f"{where}: {name!r} holds {table.column(name).type}, or nulls; whole numbers are needed")
    return values.astype(np.int64)


def column_of(feature: Feature, table: pa.Table, where: str) -> Any:
    """Rows of a feature as a column of its space.

    Raises:
      ValueError: a row is not of the feature's shape or kind; `where` names the place.
    """
    space = feature.space
    array = pa.concat_arrays(table.column(feature.key).chunks)
    if feature.encoded:
        return _images(feature, array, where)
    if space["type"] == "Text":
        texts = np.empty(len(array), np.object_)
        texts[:] = array.to_pylist()
        return texts
    shape = shape_of(space)
    level = array
    for size in shape if shape != (1,) or _is_list(array.type) else ():  # a shape [1] is stored as plain numbers
        if not _is_list(level.type) or (level.value_lengths().to_numpy(zero_copy_only=False) != size).any():
            raise ValueError(f"{where}: {feature.key!r} is {array.type}, not in every row of shape {list(shape)}")
        level = level.flatten()
    values = level.to_numpy(zero_copy_only=False)  # a null is NaN among floats
    wanted = np.dtype(np.bool_) if space["type"] == "MultiBinary" else dtype_of(space)
    if not np.can_cast(values.dtype, wanted, "same_kind") or (values.dtype == np.bool_) != (wanted == np.bool_):
        nulls = f" with {level.null_count} nulls" if level.null_count else ""
        raise ValueError(f"{where}: {feature.key!r} holds {level.type}{nulls}; meta/info.json says {wanted}")
    with np.errstate(over="ignore"):  # infinite it is: the lint finds it
        return values.astype(dtype_of(space), copy=False).reshape(len(array), *shape)


def _images(feature: Feature, array: pa.Array, where: str) -> EncodedImages:
    if pa.types.is_struct(array.type) and array.type.get_field_index("bytes") >= 0:
        array = array.field("bytes")
    if not pa.types.is_binary(array.type):
        raise ValueError(f"{where}: {feature.key!r} is {array.type}; bytes of images are needed")
    if array.null_count:
        raise ValueError(f"{where}: {feature.key!r} has {array.null_count} rows that name an image and do not hold it")
    height, width, channels = shape_of(feature.space)
    return EncodedImages(array.to_pylist(), (height, width, channels))


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
