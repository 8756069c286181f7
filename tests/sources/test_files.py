"""Containers of logs: what is compressed reads as what is not, and what is damaged, endless or no text says so."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worldmodel.sources import files

LINES = b'{"a": 1}\n\n{"b": "\xc3\xa9"}\n'
COMPRESS = {".gz": gzip.compress, ".zst": zstandard.compress, "": bytes}
compressed = pytest.mark.parametrize("ending", [".gz", ".zst"])


def write(folder: Path, ending: str, data: bytes) -> Path:
    path = folder / f"log.jsonl{ending}"
    path.write_bytes(COMPRESS[ending](data))
    return path


def read_all(path: Path) -> bytes:
    with files.open_binary(path) as file:
        return file.read()


@pytest.mark.parametrize("ending", COMPRESS)
def test_lines_have_their_numbers(tmp_path: Path, ending: str):
    path = write(tmp_path, ending, LINES)
    assert list(files.lines(path)) == [(1, '{"a": 1}\n'), (3, '{"b": "é"}\n')]
    assert files.suffix_of(path) == ".jsonl"


@compressed
def test_parts_laid_end_to_end_are_one_file(tmp_path: Path, ending: str):
    path = tmp_path / f"log{ending}"
    path.write_bytes(COMPRESS[ending](b"one\n") + COMPRESS[ending](b"two\n"))
    assert read_all(path) == b"one\ntwo\n"


@compressed
def test_a_cut_or_changed_file_is_named(tmp_path: Path, ending: str):
    data = os.urandom(5000)
    path = write(tmp_path, ending, data)
    whole = path.read_bytes()
    assert read_all(path) == data
    for spoiled in (whole[: len(whole) // 2], whole[:-1], whole[:3], b"\x00" + whole[1:]):
        path.write_bytes(spoiled)
        with pytest.raises(ValueError, match=rf"^{path}: is damaged or of another format \(.+\)$"):
            read_all(path)


@compressed
def test_a_bomb_stops(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "FREE_BYTES", 1000)
    path = write(tmp_path, ending, bytes(2_000_000))
    assert path.stat().st_size * files.MOST_EXPANSION < 2_000_000
    with pytest.raises(ValueError, match=rf"^{path}: grows more than 200-fold when decompressed; it is not read$"):
        read_all(path)
    monkeypatch.setattr(files, "FREE_BYTES", 2_000_000)
    assert read_all(path) == bytes(2_000_000)


def test_a_window_larger_than_memory_allows_is_refused(tmp_path: Path):
    path = tmp_path / "log.zst"
    settings = zstandard.ZstdCompressionParameters(window_log=28)
    compressor = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    path.write_bytes(compressor.compress(bytes(1000)) + compressor.flush())
    with pytest.raises(ValueError, match=rf"^{path}: is damaged or of another format \(.*memory"):
        read_all(path)


def test_a_missing_file_is_no_damaged_one(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"log\.gz"), files.open_binary(tmp_path / "log.gz"):
        pass


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path):
    path = write(tmp_path, "", b"fine\n\xff\xfe\n")
    reading = files.lines(path)
    assert next(reading) == (1, "fine\n")
    with pytest.raises(ValueError, match=rf"^{path}: line 2 is not UTF-8 \(invalid start byte\)$"):
        next(reading)


def test_a_byte_order_mark_is_no_text(tmp_path: Path):
    assert list(files.lines(write(tmp_path, "", b"\xef\xbb\xbfone\n"))) == [(1, "one\n")]


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "LONGEST_RECORD", 100)
    path = write(tmp_path, ".gz", b"x" * 99 + b"\n" + b"y" * 101)
    reading = files.lines(path)
    assert next(reading) == (1, "x" * 99 + "\n")
    with pytest.raises(ValueError, match=rf"^{path}: line 2 is longer than 100 bytes$"):
        next(reading)


@pytest.mark.parametrize("text", ["", "{", "nul", "[1,]", b"\xff", "[" * 200_000, "1" * 5_000])
def test_what_is_not_json_says_where(text: str | bytes):
    with pytest.raises(ValueError, match=r"^log: line 3: is not JSON \(.+\)$") as caught:
        files.json_of(text, "log: line 3")
    assert len(str(caught.value)) < 200


def test_an_error_is_one_short_line():
    error = files.damaged("a.h5", OSError("first\n  second " + "x" * 1000))
    assert str(error).startswith("a.h5: is damaged or of another format (first second xxx")
    assert len(str(error)) < 300
    assert str(files.damaged("a.h5", EOFError())) == "a.h5: is damaged or of another format (EOFError)"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r")), max_size=20),
    ending=st.sampled_from(sorted(COMPRESS)),
)
def test_every_line_that_is_not_blank_comes_back(tmp_path: Path, texts: list[str], ending: str):
    path = write(tmp_path, ending, "".join(f"{text}\n" for text in texts).encode())
    wanted = [(i, f"{text}\n") for i, text in enumerate(texts, 1) if text.strip()]
    found = list(files.lines(path))
    assert [number for number, _ in found] == [number for number, _ in wanted]
    # A byte order mark that begins the file is not text.
    assert [text.removeprefix("﻿") for _, text in found] == [text.removeprefix("﻿") for _, text in wanted]
