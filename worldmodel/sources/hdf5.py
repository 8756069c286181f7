"""HDF5 files of strangers: opened for reading only, bounded, and never followed out of the file.

HDF5 can point at other files (external links, external and virtual storage), hold references, and declare arrays far
larger than the file. None of that is followed or read. Nothing in HDF5 is unpickled: `h5py` has no such thing.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from worldmodel.sources.files import (
    COMPRESSED,
    FREE_BYTES,
    LONGEST_RECORD,
    MOST_EXPANSION,
    damaged,
    open_binary,
)

if TYPE_CHECKING:
    import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n"
SUFFIXES = (".hdf5", ".h5")
_BLOCK = 256
"""Values of variable length that are read at once: they may all point at one large object in the file."""

# What h5py raises for damaged files: it translates the C library's errors into whichever of these fits.
_RAISED = (OSError, RuntimeError, KeyError, TypeError, ValueError, OverflowError, MemoryError, AttributeError)


@contextlib.contextmanager
def open_hdf5(path: pathlib.Path) -> Iterator[h5py.File]:
    """Opens a file for reading; .gz and .zst are unpacked into a temporary file, bounded, as HDF5 needs random access.

    Raises:
      FileNotFoundError, IsADirectoryError: no such file.
      ValueError: it is no HDF5 file, or damaged.
    """
    import h5py

    with contextlib.ExitStack() as stack:
        plain = path
        if path.name.lower().endswith(COMPRESSED):
            packed = stack.enter_context(open_binary(path))
            unpacked = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".hdf5"))
            shutil.copyfileobj(packed, unpacked, 2**20)
            unpacked.flush()
            plain = pathlib.Path(unpacked.name)
        with open(plain, "rb") as file:  # says plainly that there is no such file, which h5py does not
            if file.read(len(SIGNATURE)) != SIGNATURE:
                raise ValueError(f"{path}: is not an HDF5 file")
        try:
            opened = h5py.File(plain, "r")
        except _RAISED as error:
            raise damaged(path, error) from None
        stack.callback(_close, opened)
        yield opened


def _close(file: h5py.File) -> None:
    # Closing a damaged file can fail; whatever was wrong with it has been said by then.
    with contextlib.suppress(*_RAISED):
        file.close()


def names(group: h5py.Group, path: pathlib.Path) -> list[str]:
    """Names of what lies in a group, sorted."""
    try:
        found: list[Any] = list(group)  # a name that is not UTF-8 comes as bytes
        return sorted(name if isinstance(name, str) else name.decode("utf-8", "replace") for name in found)
    except _RAISED as error:
        raise damaged(path, error) from None


def member(group: h5py.Group, name: str, path: pathlib.Path) -> h5py.Group | h5py.Dataset | None:
    """What a group holds under a name, None where nothing; `ValueError` for a link that leaves the file."""
    import h5py

    try:
        link = group.get(name, getlink=True)
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise _Refused(f"{path}: {name!r} is a link to elsewhere ({type(link).__name__}); it is not followed")
        found = group[name]
    except _Refused as error:
        raise ValueError(str(error)) from None
    except _RAISED as error:
        raise damaged(path, error) from None
    if not isinstance(found, (h5py.Group, h5py.Dataset)):
        raise ValueError(f"{path}: {name!r} is a {type(found).__name__}; a group or an array is needed")
    return found


def subgroup(group: h5py.Group, name: str, path: pathlib.Path) -> h5py.Group | None:
    """The group under a name, None where nothing is there; errors as `member`, and `ValueError` for an array."""
    import h5py

    found = member(group, name, path)
    if isinstance(found, h5py.Dataset):
        raise ValueError(f"{path}: {name!r} is an array; a group is needed")
    return found


def external(group: h5py.Group, name: str, path: pathlib.Path) -> tuple[str, str] | None:
    """File and name that a link to another file leads to, None where `name` is no such link."""
    import h5py

    try:
        link = group.get(name, getlink=True)
    except _RAISED as error:
        raise damaged(path, error) from None
    return (str(link.filename), str(link.path)) if isinstance(link, h5py.ExternalLink) else None


class _Refused(Exception):
    """Ours, told apart from what the library raises."""


def array(group: h5py.Group, name: str, path: pathlib.Path) -> h5py.Dataset | None:
    """The array under a name, None where nothing is there.

    It holds bools, integers, floats, fixed or variable strings, or variable lists of bytes.

    Raises:
      ValueError: a group, another dtype, values kept outside the file, or far more values than the file could hold.
    """
    import h5py

    found = member(group, name, path)
    if found is None:
        return None
    if not isinstance(found, h5py.Dataset):
        raise ValueError(f"{path}: {name!r} is a group; an array is needed")
    try:
        shape, dtype = found.shape, found.dtype
        text, listed = h5py.check_string_dtype(dtype), h5py.check_vlen_dtype(dtype)
        outside = found.is_virtual or found.external
        chunk = found.chunks
    except _RAISED as error:
        raise damaged(path, error) from None
    if shape is None or not (dtype.kind in "biufS" or text is not None or listed == np.uint8):
        raise ValueError(f"{path}: {name!r} holds {dtype}; numbers, strings or bytes are needed")
    if outside:
        raise ValueError(f"{path}: {name!r} keeps its values outside the file; they are not read")
    size = math.prod(shape) * dtype.itemsize
    if size > max(FREE_BYTES, MOST_EXPANSION * _file_size(group)):
        raise ValueError(f"{path}: {name!r} declares {size} bytes, {MOST_EXPANSION} times the file; it is not read")
    if chunk and math.prod(chunk) * dtype.itemsize > LONGEST_RECORD:
        raise ValueError(f"{path}: {name!r} is kept in chunks of more than {LONGEST_RECORD} bytes; it is not read")
    return found


def _file_size(group: h5py.Group | h5py.Dataset) -> int:
    return int(group.file.id.get_filesize())


def row_bytes(dataset: h5py.Dataset) -> int:
    """Bytes of one row, a pointer for each value of variable length."""
    return math.prod(dataset.shape[1:]) * dataset.dtype.itemsize


def read_rows(dataset: h5py.Dataset, path: pathlib.Path, start: int = 0, stop: int | None = None) -> np.ndarray:
    """Rows of an array: numbers, `str` in an object array, or `bytes` in an object array.

    Raises:
      ValueError: the file is damaged, text is not UTF-8, or the rows are more than `LONGEST_RECORD` bytes.
    """
    import h5py

    name = str(dataset.name).lstrip("/")
    if not dataset.shape:
        raise ValueError(f"{path}: {name!r} is a single value; an array with a row for each step is needed")
    stop = dataset.shape[0] if stop is None else stop
    _bound((stop - start) * row_bytes(dataset), name, path)
    if dataset.dtype.kind in "biuf":
        return _read(dataset, path, start, stop)
    if len(dataset.shape) != 1:
        raise ValueError(f"{path}: {name!r} has shape {dataset.shape}; strings and bytes need one axis")
    _check_lengths(dataset, path)
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    values, total = np.empty(stop - start, object), 0
    for first in range(start, stop, _BLOCK):
        for i, value in enumerate(_read(dataset, path, first, min(first + _BLOCK, stop)), first):
            raw = bytes(value)
            total += len(raw)
            values[i - start] = _text(raw, f"{path}: {name!r}, row {i}") if is_text else raw
        _bound(total, name, path)
    return values


def single_text(dataset: h5py.Dataset, path: pathlib.Path) -> str | None:
    """The text of an array without axes, None where it holds something else."""
    import h5py

    if dataset.shape or h5py.check_string_dtype(dataset.dtype) is None:
        return None
    try:
        return bytes(dataset[()]).decode("utf-8", "replace")
    except _RAISED as error:
        raise damaged(path, error) from None


def _check_lengths(dataset: h5py.Dataset, path: pathlib.Path) -> None:
    """Refuses values of variable length that are longer than the file: the library makes room before it looks.

    On disk such a value is its length, where it lies and its number there, unless a filter hides it.
    """
    pointer = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])
    if dataset.dtype.kind != "O" or dataset.id.get_create_plist().get_nfilters():
        return
    try:
        if dataset.chunks:
            chunks = [dataset.id.get_chunk_info(i) for i in range(dataset.id.get_num_chunks())]
            places = [(chunk.byte_offset, chunk.size) for chunk in chunks]
        else:
            places = [(dataset.id.get_offset(), dataset.id.get_storage_size())]
        with open(dataset.file.filename, "rb") as file:
            for offset, size in places:
                if not offset:
                    continue
                file.seek(offset)
                raw = file.read(min(size, LONGEST_RECORD))
                lengths = np.frombuffer(raw[: len(raw) - len(raw) % pointer.itemsize], pointer)["length"]
                if lengths.max(initial=0) > _file_size(dataset):
                    raise _Refused("a value is longer than the file")
    except (*_RAISED, _Refused) as error:
        raise damaged(path, error) from None


def _read(dataset: h5py.Dataset, path: pathlib.Path, start: int, stop: int) -> np.ndarray:
    try:
        return dataset[start:stop]
    except _RAISED as error:
        raise damaged(path, error) from None


def _bound(size: int, name: str, path: pathlib.Path) -> None:
    if size > LONGEST_RECORD:
        raise ValueError(f"{path}: {name!r} holds more than {LONGEST_RECORD} bytes in one episode; it is not read")


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 ({error.reason})") from None


def attributes(group: h5py.Group, path: pathlib.Path) -> dict[str, Any]:
    """A group's attributes as plain JSON; what is none is left out."""
    found: dict[str, Any] = {}
    try:
        for name in group.attrs:
            found[str(name)] = group.attrs[name]
    except _RAISED as error:
        raise damaged(path, error) from None
    plain = {name: plain_of(value) for name, value in found.items()}
    return {name: value for name, value in plain.items() if value is not None}


def plain_of(value: Any) -> Any:
    """A NumPy value as plain JSON, None where it is none."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.floating) and value.dtype.itemsize > 8:  # which `tolist` leaves as it is
        return plain_of(float(value))
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype.kind in "biufSU":
        return plain_of(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain_of(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (bool, int, float, str)) else None


def as_kept(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`values` in the dtype their space keeps, where that changes none of their meaning; else as they are."""
    if values.dtype == dtype or values.dtype == object:
        return values
    if values.dtype.kind in "biu" and dtype.kind in "biu":
        kept = values.astype(dtype)
        return kept if np.array_equal(kept, values) else values
    if values.dtype.kind in "biuf" and dtype.kind == "f":
        with np.errstate(over="ignore"):  # what overflows is infinite, and found so
            return values.astype(dtype)
    return values
