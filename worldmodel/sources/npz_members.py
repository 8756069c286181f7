"""Arrays of an npz file, row by row: sizes are checked before anything is read, and nothing is unpickled.

A member of an npz file is compressed, or begins anywhere in the file, so it cannot be mapped into memory. It can be
read as a stream: each member has a stream of its own, and memory holds only the rows asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import lzma
import math
import pathlib
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

import numpy as np

from worldmodel.sources.files import FREE_BYTES, MOST_EXPANSION, damaged

_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, SyntaxError, MemoryError),
    *(OSError, EOFError, ValueError, TypeError, LookupError, RuntimeError, OverflowError),
)
"""What `zipfile` and NumPy's parser of headers raise where a file is damaged."""


@dataclasses.dataclass(frozen=True)
class Member:
    """One array, known by its header alone.

    Attributes:
      name: its key in the npz file.
      dtype: of native byte order once read.
      shape: `[rows, ...]`, or `[]`.
      fortran: stored column by column; such an array is read whole.
      header: bytes before the values.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool
    header: int

    @property
    def rows(self) -> int:
        """Length of the leading axis; 1 for a single value."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def members(path: pathlib.Path) -> tuple[dict[str, Member], list[str]]:
    """The arrays of a file by their key, and a line for each member that is none or is pickled.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is damaged, or a bomb: it declares more than `MOST_EXPANSION` times its own bytes.
    """
    found: dict[str, Member] = {}
    left_out = []
    total = 0
    with archive(path) as file:
        for entry in file.infolist():
            name = entry.filename.removesuffix(".npy")
            if name == entry.filename:
                left_out.append(f"{name}: is no array")
                continue
            with _guarded(path, name), file.open(entry) as stream:
                member = _header(stream, name)
            if member.dtype.hasobject:
                left_out.append(f"{name}: holds pickled objects; nothing is unpickled")
                continue
            size = member.header + math.prod(member.shape) * member.dtype.itemsize
            if size != entry.file_size:
                raise ValueError(
                    f"{path}: {name!r} holds {entry.file_size} bytes; its header says {member.dtype} "
                    f"{list(member.shape)}, {size} bytes"
                )
            found[name] = member
            total += size
    if total > max(FREE_BYTES, MOST_EXPANSION * path.stat().st_size):
        raise ValueError(f"{path}: grows more than {MOST_EXPANSION}-fold when decompressed; it is not read")
    return found, left_out


def _header(stream: IO[bytes], name: str) -> Member:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"npy version {version}; read are 1.0 and 2.0")
    shape, fortran, dtype = readers[version](stream)
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {shape}")
    return Member(name, dtype, shape, fortran and len(shape) > 1, stream.tell())


@contextlib.contextmanager
def archive(path: pathlib.Path) -> Iterator[zipfile.ZipFile]:
    """The file, opened; `ValueError` where it is no npz file."""
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(open(path, "rb"))
        with _guarded(path):
            file = stack.enter_context(zipfile.ZipFile(raw))
        yield file


@contextlib.contextmanager
def _guarded(path: pathlib.Path, name: str = "") -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        raise damaged(f"{path}: {name!r}" if name else path, error) from None


class Rows:
    """The rows of one member of an opened file, from the first to the last."""

    def __init__(self, file: zipfile.ZipFile, path: pathlib.Path, member: Member):
        self._path, self._member = path, member
        self._whole: np.ndarray | None = None
        self._taken = 0
        with _guarded(path, member.name):
            self._stream = file.open(f"{member.name}.npy")
            self._stream.read(member.header)
        if member.fortran:
            values = self._read(member.rows)
            self._whole = values.reshape(member.shape[::-1]).transpose()

    def take(self, count: int) -> np.ndarray:
        """The next `count` rows, `[count, ...]`; `ValueError` where the file ends before or is damaged."""
        start, self._taken = self._taken, self._taken + count
        if self._whole is not None:
            return np.ascontiguousarray(self._whole[start : self._taken])
        return self._read(count).reshape(count, *self._member.shape[1:])

    def _read(self, count: int) -> np.ndarray:
        wanted = count * self._member.row_bytes
        with _guarded(self._path, self._member.name):
            data = self._stream.read(wanted)
            if len(data) != wanted:
                raise EOFError(f"ends after {self._taken} of {self._member.rows} rows")
        dtype = self._member.dtype
        if dtype.itemsize == 0:  # empty strings
            return np.zeros(count * math.prod(self._member.shape[1:]), dtype)
        return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))

    def close(self) -> None:
        """Closes the stream."""
        self._stream.close()


def whole(path: pathlib.Path, member: Member) -> np.ndarray:
    """All of one array, `[rows, ...]`; for small ones."""
    with archive(path) as file:
        rows = Rows(file, path, member)
        values = rows.take(member.rows)
        rows.close()
    return values
