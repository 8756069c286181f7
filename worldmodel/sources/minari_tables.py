"""Minari's Arrow and Parquet: a folder for each episode, with `part-*` files and `metadata.json`."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from worldmodel.sources.files import LONGEST_RECORD, damaged, json_of
from worldmodel.sources.hdf5 import as_kept
from worldmodel.sources.minari_storage import COLUMNS, Storage, natural, stored_images
from worldmodel.spaces import dtype_of, leaves, shape_of

METADATA = "metadata.json"
_MOST_METADATA = 2**20

# What pyarrow raises for damaged files: its own errors derive from these.
_RAISED = (OSError, ValueError, TypeError, KeyError, IndexError, RuntimeError, MemoryError, NotImplementedError)


@dataclasses.dataclass(frozen=True)
class TableStorage(Storage):
    """One table for each episode; all its columns are as long as the observations.

    The padding that the others have after their last step is cut off, by the `total_steps` of the episode's metadata.
    """

    def files(self) -> list[pathlib.Path]:
        """The folder alone: there is a file for each episode."""
        return [self.folder]

    def count(self) -> int:
        """Number of folders that are there."""
        return sum(path.name.isdigit() and path.is_dir() for path in self.folder.iterdir())

    def first(self) -> tuple[list[str], Mapping[str, Any]]:
        """Names of the first episode's infos, and its metadata."""
        if self.total == 0:
            return [], {}
        import pyarrow

        schema = self._table(self._parts(0)[0], rows=False)
        infos = schema.field("infos").type if "infos" in schema.names else None
        keys = [field.name for field in infos] if infos is not None and pyarrow.types.is_struct(infos) else []
        return keys, self._metadata(0)

    def episodes(self) -> Iterator[dict[str, Any]]:
        """Each episode in the order of its number."""
        for number in range(self.total):
            yield self._episode(number)

    def _parts(self, number: int) -> list[pathlib.Path]:
        folder = self.folder / str(number)
        parts = sorted(folder.glob(f"part-*.{self.kind}"), key=natural)
        if not parts:
            raise FileNotFoundError(f"{folder}: holds no part-*.{self.kind} of episode {number}")
        return parts

    def _metadata(self, number: int) -> dict[str, Any]:
        path = self.folder / str(number) / METADATA
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; it holds the episode's number of steps")
        if path.stat().st_size > _MOST_METADATA:
            raise ValueError(f"{path}: is larger than {_MOST_METADATA} bytes; it is not read")
        metadata = json_of(path.read_bytes(), str(path))
        steps = metadata.get("total_steps") if isinstance(metadata, dict) else None
        if not isinstance(steps, int) or steps < 0:
            raise ValueError(f"{path}: total_steps is {steps!r}; a whole number is needed")
        return metadata

    def _table(self, path: pathlib.Path, *, rows: bool = True) -> Any:
        """The table of a file, or only its schema; checked throughout, as its bytes are a stranger's."""
        import pyarrow
        import pyarrow.parquet

        try:
            if self.kind == "parquet":
                file = pyarrow.parquet.ParquetFile(path)
                sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)]
                schema, size = file.schema_arrow, max(sum(sizes), file.metadata.num_rows * self._row_bytes())
                read = file.read
            else:
                file = pyarrow.ipc.open_file(pyarrow.OSFile(str(path)))
                schema, size, read = file.schema, path.stat().st_size, file.read_all
            if not rows or size > LONGEST_RECORD:
                table = None
            else:
                table = read()
                table.validate(full=True)
        except _RAISED as error:
            raise damaged(path, error) from None
        if not rows:
            return schema
        if table is None:
            raise ValueError(f"{path}: holds more than {LONGEST_RECORD} bytes of one episode; it is not read")
        return table

    def _row_bytes(self) -> int:
        spaces = (self.spec.observation_space, self.spec.action_space)
        found = [leaf for space in spaces for _, leaf in leaves(space)]
        return sum(math.prod(shape_of(leaf)) * dtype_of(leaf).itemsize for leaf in found)

    def _episode(self, number: int) -> dict[str, Any]:
        import pyarrow

        folder, metadata = self.folder / str(number), self._metadata(number)
        tables = [self._table(path) for path in self._parts(number)]
        columns = {}
        try:
            table = pyarrow.concat_tables(tables)
            for name in ("observations", "actions", *COLUMNS):
                columns[name] = table.column(name).combine_chunks() if name in table.column_names else None
        except _RAISED as error:
            raise damaged(folder, error) from None
        for name, column in columns.items():
            if column is None:
                raise ValueError(f"{folder}: has no column {name!r}; it has {', '.join(table.column_names)}")
        steps = metadata["total_steps"]
        if steps > table.num_rows:
            raise ValueError(f"{folder}: holds {table.num_rows} rows; its {METADATA} counts {steps} steps")
        number_space = {"type": "Box", "shape": (), "dtype": "float64"}
        return {
            "observations": _values(columns["observations"], self.spec.observation_space, f"{folder}: observations"),
            "actions": _values(columns["actions"][:steps], self.spec.action_space, f"{folder}: actions"),
            "metadata": metadata,
            **{name: _leaf(columns[name][:steps], number_space, f"{folder}: {name}") for name in COLUMNS},
        }


def _values(column: Any, space: Mapping[str, Any], where: str) -> Any:
    if space["type"] in ("Dict", "Tuple"):
        parts = space["spaces"]
        if space["type"] == "Dict":
            return {key: _values(_field(column, key, where), part, f"{where}/{key}") for key, part in parts.items()}
        return tuple(_values(_field(column, str(i), where), part, f"{where}/{i}") for i, part in enumerate(parts))
    return _leaf(column, space, where)


def _field(column: Any, name: str, where: str) -> Any:
    import pyarrow

    if not pyarrow.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
        raise ValueError(f"{where} is {column.type}; a struct with {name!r} is needed")
    return column.flatten()[column.type.get_field_index(name)]


def _leaf(column: Any, space: Mapping[str, Any], where: str) -> Any:
    import pyarrow

    types, shape = pyarrow.types, shape_of(space)
    if column.null_count:
        raise ValueError(f"{where} has {column.null_count} empty values; every step needs one")
    if space["type"] == "Text":
        if not (types.is_string(column.type) or types.is_large_string(column.type)):
            raise ValueError(f"{where} is {column.type}; text is needed")
        texts = np.empty(len(column), object)
        texts[:] = column.to_pylist()
        return texts
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return stored_images(column.to_pylist(), space, where)
    rows, kind = len(column), column.type
    while types.is_fixed_size_list(column.type) or types.is_list(column.type):
        column = column.flatten()
    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)):
        raise ValueError(f"{where} is {kind}; numbers are needed")
    if column.null_count or len(column) != rows * math.prod(shape):
        raise ValueError(f"{where} is {kind} with {len(column)} numbers in {rows} rows; a row has {math.prod(shape)}")
    return as_kept(column.to_numpy(zero_copy_only=False).reshape(rows, *shape), dtype_of(space))
