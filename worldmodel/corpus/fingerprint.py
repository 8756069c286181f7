"""What tells one state of a log's files from another."""

from __future__ import annotations

import hashlib
import os
import pathlib
from typing import Any

HASHED_BYTES = 2**30
"""Files of up to this size together are told apart by contents (a second or two), larger ones by size and time."""


def fingerprint(place: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Names the state of a file, or of all files below a folder; None where nothing is at `place`.

    Returns:
      `{"files", "bytes", "sha256"}` over names and contents; beyond `HASHED_BYTES`, `{"files", "bytes", "stat"}`, where
      `stat` is a SHA-256 over names, sizes and times of change.
    """
    place = pathlib.Path(place)
    if not place.exists():
        return None
    files = _files_below(place) if place.is_dir() else [place]
    root = place if place.is_dir() else place.parent
    sizes = [file.stat().st_size for file in files]
    total, by_contents = hashlib.sha256(), sum(sizes) <= HASHED_BYTES
    for file, size in zip(files, sizes, strict=True):
        total.update(f"{file.relative_to(root).as_posix()}\0{size}\0".encode(errors="surrogateescape"))
        if by_contents:
            with open(file, "rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
        else:
            total.update(f"{file.stat().st_mtime_ns}\0".encode())
    return {"files": len(files), "bytes": sum(sizes), "sha256" if by_contents else "stat": total.hexdigest()}


def _files_below(folder: pathlib.Path) -> list[pathlib.Path]:
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [pathlib.Path(root, name) for name in names if not name.startswith(".")]
    return sorted(file for file in found if file.is_file())
