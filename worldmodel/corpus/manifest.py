"""`manifest.json`: the one file that says which parts make up a corpus.

A part exists for readers only once the manifest names it, and the manifest is replaced in one rename, so that a
writer killed at any instant leaves the previous corpus as it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from worldmodel.spaces import is_image, leaves
from worldmodel.trajectory import Spec

FORMAT = "worldmodel-corpus"
VERSION = 2
"""Version 1 had no indexes and kept images as plain tensors; it is still read, but for images."""
NAME = "manifest.json"
PARTS = "parts"
JOURNAL = "conversion.jsonl"
"""Lies beside the manifest while a conversion is not finished."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One immutable dataset of a corpus.

    Attributes:
      name: folder below `parts/`, e.g. `part-00000`.
      episodes: number of episodes.
      transitions: number of transitions over all episodes.
      bytes: size of all its files together.
      checksum: SHA-256 over names and contents of its files (`checksum_of`).
      provenance: where its episodes came from, plain JSON.
    """

    name: str
    episodes: int
    transitions: int
    bytes: int
    checksum: str
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a corpus is made of.

    Attributes:
      spec: of every episode.
      provenance: of the first write.
      parts: in order.
      split_by: key of `info` whose value decides the split, so that episodes of one value stay together.
    """

    spec: Spec
    provenance: Mapping[str, Any]
    parts: tuple[Part, ...]
    split_by: str = "id"


def part_folder(path: pathlib.Path, name: str) -> pathlib.Path:
    """Where the part `name` of the corpus at `path` lies."""
    return path / PARTS / name


def read_manifest(path: pathlib.Path) -> Manifest:
    """Reads `path/manifest.json`.

    Raises:
      FileNotFoundError: no folder at `path`, or no manifest in it (nothing was written, or not to its end).
      ValueError: the file is not a manifest, is damaged, or has another format version.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"corpus {path}: no such folder")
    file = path / NAME
    if not file.is_file() and (path / JOURNAL).is_file():
        raise FileNotFoundError(
            f"corpus {path}: its conversion is not finished; run the same `worldmodel data convert` again to go on"
        )
    if not file.is_file():
        raise FileNotFoundError(f"corpus {path}: holds no {NAME}; it is no corpus, or was not written to its end")
    try:
        data = json.loads(file.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"corpus {path}: {NAME} is not JSON ({error})") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"corpus {path}: {NAME} is not a manifest of format {FORMAT!r}")
    version = data.get("version")
    if version not in (1, VERSION):
        raise ValueError(f"corpus {path}: has format version {version!r}; this release reads versions 1 to {VERSION}")
    try:
        parts = tuple(Part(**part) for part in data["parts"])
        manifest = Manifest(Spec.from_json(data["spec"]), data["provenance"], parts, data.get("split_by", "id"))
    except (KeyError, TypeError) as error:
        raise ValueError(f"corpus {path}: {NAME} is damaged ({error})") from error
    spaces = (manifest.spec.observation_space, manifest.spec.action_space)
    if version == 1 and any(is_image(leaf) for space in spaces for _, leaf in leaves(space)):
        raise ValueError(f"corpus {path}: has images in format version 1, which is not read; write it anew")
    return manifest


def write_manifest(path: pathlib.Path, manifest: Manifest) -> None:
    """Replaces `path/manifest.json` in one rename."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "spec": manifest.spec.to_json(),
        "provenance": dict(manifest.provenance),
        "split_by": manifest.split_by,
        "parts": [dataclasses.asdict(part) for part in manifest.parts],
    }
    temporary = path / f".{NAME}.writing"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=2, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path / NAME)
    sync_folder(path)


def sync_folder(path: pathlib.Path) -> None:
    """Makes renames inside `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_of(folder: pathlib.Path) -> int:
    """Bytes of all files in `folder`."""
    return sum(file.stat().st_size for file in folder.iterdir())


def checksum_of(folder: pathlib.Path) -> str:
    """SHA-256 over the sorted names, sizes and contents of the files in `folder`, in hex."""
    total = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        total.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with open(file, "rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()


def check_part(path: pathlib.Path, part: Part, *, contents: bool) -> None:
    """Raises unless the files of `part` are those the manifest names.

    Args:
      path: folder of the corpus.
      part: what the manifest says.
      contents: also compare the checksum (reads every byte); else only presence and size.

    Raises:
      FileNotFoundError: the part's folder is missing.
      ValueError: size or checksum differ.
    """
    folder = part_folder(path, part.name)
    if not folder.is_dir():
        raise FileNotFoundError(f"corpus {path}: {part.name} is missing, though {NAME} names it")
    size = size_of(folder)
    if size != part.bytes:
        raise ValueError(f"corpus {path}: {part.name} holds {size} bytes; {NAME} says {part.bytes}: a file was cut")
    if contents and checksum_of(folder) != part.checksum:
        raise ValueError(f"corpus {path}: {part.name} differs from its checksum in {NAME}: a file was changed")
