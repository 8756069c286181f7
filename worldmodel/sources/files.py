"""Files of logs: plain, gzip or zstd, bounded and checked, with errors that name the file."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pathlib
import zlib
from collections.abc import Iterator
from typing import IO, Any

import zstandard

COMPRESSED = (".gz", ".zst")
MOST_EXPANSION = 200
"""A compressed file may grow by this factor (and always to `FREE_BYTES`): logs reach 20 to 50."""
FREE_BYTES = 64 * 2**20
_ZSTD_STEP = 2**10
"""Compressed bytes taken at once; they make 32 MiB at most."""
LONGEST_RECORD = 2**30
"""Bytes of one record (a line, an episode) that is read whole."""


def suffix_of(path: pathlib.Path) -> str:
    """The suffix below a compression: `.jsonl` of `a.jsonl.gz`."""
    name = path.name.lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return pathlib.PurePath(name).suffix


@contextlib.contextmanager
def open_binary(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Opens a file for streaming, decompressed where its name ends in .gz or .zst.

    Raises:
      FileNotFoundError, IsADirectoryError: no such file.
      ValueError: while reading: the compression is damaged, or the file grows beyond `MOST_EXPANSION`.
    """
    with contextlib.ExitStack() as stack:
        raw: Any = stack.enter_context(open(path, "rb"))
        name = path.name.lower()
        if name.endswith(COMPRESSED):
            inner: Any = gzip.GzipFile(fileobj=raw) if name.endswith(".gz") else _Zstd(raw)
            raw = io.BufferedReader(_Bounded(inner, path))
        yield raw


class _Zstd:
    """A zstd stream of one frame or more; the library's own reader takes a cut file for one that ended."""

    def __init__(self, raw: IO[bytes]):
        self._raw = raw
        self._context = zstandard.ZstdDecompressor(max_window_size=2**27)
        self._frame: Any = None
        self._waiting = b""
        self._held = memoryview(b"")

    def read(self, size: int) -> memoryview:
        while not self._held:
            data = self._waiting or self._raw.read(_ZSTD_STEP)
            if not data:
                if self._frame is not None:
                    raise EOFError("the file ends before its end marker")
                break
            self._frame = self._frame or self._context.decompressobj()
            self._held = memoryview(self._frame.decompress(data))
            self._waiting = self._frame.unused_data if self._frame.eof else b""
            self._frame = None if self._frame.eof else self._frame
        data, self._held = self._held[:size], self._held[size:]
        return data


class _Bounded(io.RawIOBase):
    """A decompressing stream that stops a bomb and names the file in its errors."""

    def __init__(self, inner: Any, path: pathlib.Path):
        self._inner, self._path = inner, path
        self._left = max(FREE_BYTES, MOST_EXPANSION * os.path.getsize(path))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._inner.read(len(buffer))
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            raise damaged(self._path, error) from None
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"{self._path}: grows more than {MOST_EXPANSION}-fold when decompressed; it is not read")
        buffer[: len(data)] = data
        return len(data)


def lines(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Lines of a UTF-8 text file that are not blank, with their numbers from 1, streaming."""
    with open_binary(path) as file:
        number = 0
        while line := file.readline(LONGEST_RECORD + 1):
            number += 1
            if len(line) > LONGEST_RECORD:
                raise ValueError(f"{path}: line {number} is longer than {LONGEST_RECORD} bytes")
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}: line {number} is not UTF-8 ({error.reason})") from None
            if text.strip():
                yield number, text


def json_of(text: str | bytes, where: str) -> Any:
    """JSON; `ValueError` names `where`. The parser itself bounds the depth."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: is not JSON ({error})") from None


def damaged(path: pathlib.Path | str, error: BaseException) -> ValueError:
    """The one-line error of a file that a library could not read."""
    said = " ".join(str(error).split()) or type(error).__name__
    return ValueError(f"{path}: is damaged or of another format ({said[:200]})")
