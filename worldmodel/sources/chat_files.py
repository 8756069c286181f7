"""Records of JSON and JSONL files, one by one: also those of one big JSON value are never in memory together."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from worldmodel.sources import files

LINES = (".jsonl", ".ndjson")
VALUES = (".json", ".traj")
_CHUNK = 2**20
_MOST_LISTED = 1000
_SPACE = re.compile(r"[ \t\n\r]*")


def log_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Every JSON and JSONL file below a folder, sorted; hidden ones are none."""
    found = (p for p in folder.rglob("*") if files.suffix_of(p) in LINES + VALUES and p.is_file())
    return sorted(p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts))


def heads(path: pathlib.Path, suffixes: Sequence[str] = LINES + VALUES) -> Iterator[bytes]:
    """The first bytes of a log file, or of some of a folder's, for recognising; unreadable ones are passed over."""
    if path.is_dir():
        below = itertools.islice(((p, n) for p, _, names in os.walk(path) for n in sorted(names)), _MOST_LISTED)
        candidates = [pathlib.Path(parent, name) for parent, name in below]
    else:
        candidates = [path]
    readable = (p for p in candidates if files.suffix_of(p) in suffixes)
    for file in itertools.islice(readable, 20):
        with contextlib.suppress(OSError, ValueError), files.open_binary(file) as stream:
            yield stream.read(2**16)


def records(path: pathlib.Path, known: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Where each record is (for errors) and the record, streaming.

    A line of a JSONL file is a record. A JSON file is one record if `known` says so of it; else each of its elements
    is one, of a list or of an object whose keys name the records. A list of messages is one record.

    Raises:
      ValueError: the file is not JSON, or cut; its message names the line or the record.
    """
    if files.suffix_of(path) in LINES:
        for number, text in files.lines(path):
            where = f"{path}: line {number}"
            yield where, files.json_of(text, where)
        return
    elements = _elements(path)
    first = next(elements, None)
    if first is None:
        return
    key, value = first
    apart = isinstance(value, dict) and known(value)
    if isinstance(key, str) and not apart:
        yield f"{path}", dict(itertools.chain([first], elements))
    elif isinstance(key, int) and is_message(value) and not apart:
        yield f"{path}", [value, *(v for _, v in elements)]
    else:
        for name, element in itertools.chain([first], elements):
            yield f"{path}: record {name}", element


def is_message(value: Any) -> bool:
    """An object that says who speaks."""
    return isinstance(value, dict) and ("role" in value or ("from" in value and "value" in value))


def _elements(path: pathlib.Path) -> Iterator[tuple[str | int, Any]]:
    """The elements of the one list or object of a JSON file, with their index or key."""
    with files.open_binary(path) as binary:
        text = _Text(path, io.TextIOWrapper(binary, encoding="utf-8-sig"))
        opening = text.next_sign()
        if opening not in ("[", "{"):
            raise files.damaged(path, ValueError("no JSON list or object; lines of JSON are read from a .jsonl file"))
        closing = "]" if opening == "[" else "}"
        for index in itertools.count():
            sign = text.peek()
            if sign == closing and index == 0:
                text.next_sign()
                break
            key: str | int = index
            if opening == "{":
                key = text.value()
                if not isinstance(key, str) or text.next_sign() != ":":
                    raise text.error("a key and a colon are needed")
            yield key, text.value()
            sign = text.next_sign()
            if sign == closing:
                break
            if sign != ",":
                raise text.error(f"',' or '{closing}' is needed" if sign else "the file was cut")
        if text.peek():
            raise text.error("more follows the JSON value; lines of JSON are read from a .jsonl file")


class _Text:
    """A cursor over a text file of which one value at a time is in memory."""

    def __init__(self, path: pathlib.Path, stream: io.TextIOWrapper):
        self._path, self._stream = path, stream
        self._buffer, self._at, self._before, self._ended = "", 0, 0, False
        self._decoder = json.JSONDecoder()

    def error(self, said: str) -> ValueError:
        """The error of what stands at the cursor."""
        return files.damaged(self._path, ValueError(f"{said}, at character {self._before + self._at}"))

    def _more(self) -> None:
        """Reads on: as much again as is not yet used, so that a long value is not parsed too often."""
        left = len(self._buffer) - self._at
        if left > files.LONGEST_RECORD:
            raise self.error(f"a record is longer than {files.LONGEST_RECORD} characters")
        try:
            data = self._stream.read(max(_CHUNK, left))
        except UnicodeDecodeError as error:
            raise files.damaged(self._path, ValueError(f"not UTF-8: {error.reason}")) from None
        self._before += self._at
        self._buffer, self._at, self._ended = self._buffer[self._at :] + data, 0, not data

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            space = _SPACE.match(self._buffer, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._buffer) or self._ended:
                return self._buffer[self._at : self._at + 1]
            self._more()

    def next_sign(self) -> str:
        """The next character that is no space, passed."""
        sign = self.peek()
        self._at += len(sign)
        return sign

    def value(self) -> Any:
        """The next JSON value, passed."""
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                # Cut by the buffer's end, unless the fault lies well before it.
                unfinished = error.pos > len(self._buffer) - 16 or error.msg.startswith("Unterminated string")
                if self._ended or not unfinished:
                    raise self.error(f"{error.msg}, {error.pos - self._at} characters on") from None
            except (ValueError, RecursionError) as error:  # a number of very many digits; nested too deeply
                raise self.error(str(error)) from None
            else:
                if end < len(self._buffer) or self._ended:  # a number may go on
                    self._at = end
                    return value
            self._more()
