"""What the `meta` folder of a LeRobotDataset says: its features, tasks, and which file holds which episode."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from worldmodel.sources.files import FREE_BYTES, json_of, lines
from worldmodel.spaces import box, check_space, is_image

VERSIONS = ("v2.0", "v2.1", "v3.0")
DATA_PATHS = {
    "v2": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "v3": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
_NUMBERS = ("float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
_COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_ENDS = ("next.reward", "next.done", "next.success")


@dataclasses.dataclass(frozen=True)
class Feature:
    """A column of the data files: its `key`, and the `space` of one value; `shape` is that of one row in the file."""

    key: str
    space: Mapping[str, Any]
    shape: tuple[int, ...]
    encoded: bool = False


@dataclasses.dataclass(frozen=True)
class Meta:
    """`meta/info.json`, checked.

    Attributes:
      folder: of the dataset.
      version: `v2.0`, `v2.1` or `v3.0`.
      info: the file itself.
      observations, actions: features by the name that each has in its space; one alone is the space itself.
      ends: features of reward and end that are there.
      left_out: a line for each feature that is not read.
    """

    folder: pathlib.Path
    version: str
    info: Mapping[str, Any]
    observations: Mapping[str, Feature]
    actions: Mapping[str, Feature]
    ends: Mapping[str, Feature]
    left_out: tuple[str, ...]

    def data_file(self, **numbers: int) -> pathlib.Path:
        """Where the rows of a chunk and file (v3) or episode (v2) are."""
        template = self.info.get("data_path") or DATA_PATHS[self.version[:2]]

        def number(match: re.Match[str]) -> str:
            if match[1] not in numbers:
                raise ValueError(f"{self.folder}: meta/info.json: data_path {template!r} asks for {match[1]!r}")
            return f"{numbers[match[1]]:0{int(match[2] or 1)}d}"

        name = re.sub(r"\{(\w+)(?::0(\d)d)?\}", number, template) if isinstance(template, str) else "/"
        if "{" in name or pathlib.PurePath(name).is_absolute() or ".." in pathlib.PurePath(name).parts:
            raise ValueError(f"{self.folder}: meta/info.json: data_path {template!r} is no path inside the dataset")
        return self.folder / name


@dataclasses.dataclass(frozen=True)
class Episode:
    """One line of the list of episodes: number, rows, and the file that holds them."""

    index: int
    length: int
    file: pathlib.Path


def read_meta(folder: pathlib.Path) -> Meta:
    """Reads `meta/info.json`.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is damaged or of a version that is not read, or has no observation or action that is.
    """
    path = folder / "meta" / "info.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: holds no meta/info.json; it is no LeRobotDataset")
    if path.stat().st_size > FREE_BYTES:
        raise ValueError(f"{path}: is larger than {FREE_BYTES} bytes")
    info = json_of(path.read_bytes(), str(path))
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if version not in VERSIONS:
        raise ValueError(f"{path}: codebase_version is {version!r}; read are {', '.join(VERSIONS)}")
    if not isinstance(info.get("features"), dict):
        raise ValueError(f"{path}: has no 'features'")
    left_out: list[str] = []
    found: dict[str, Feature] = {}
    for key, feature in info["features"].items():
        if key in _COUNTERS:
            continue
        if not key.startswith(("observation.", "action.")) and key not in ("observation", "action", *_ENDS):
            left_out.append(f"{key}: is neither an observation, nor an action, nor a reward or end")
            continue
        read = _feature(key, feature, path)
        if isinstance(read, Feature):
            found[key] = read
        else:
            left_out.append(f"{key}: {read}")
    groups = {}
    for role in ("observation", "action"):
        groups[role] = {k.removeprefix(f"{role}."): f for k, f in found.items() if k.partition(".")[0] == role}
        if not groups[role]:
            raise ValueError(f"{path}: names no {role} that is read; features are {', '.join(info['features'])}")
        try:
            check_space({"type": "Dict", "spaces": {name: f.space for name, f in groups[role].items()}}, role)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    ends = {key: found[key] for key in _ENDS if key in found}
    for key, feature in ends.items():
        if feature.shape != (1,) or feature.space["type"] == "Text":
            raise ValueError(f"{path}: feature {key!r} is no single number a row")
    return Meta(folder, version, info, groups["observation"], groups["action"], ends, tuple(left_out))


def _feature(key: str, data: Any, path: pathlib.Path) -> Feature | str:
    """A feature, or why it is not read."""
    shape = data.get("shape") if isinstance(data, dict) else None
    if not isinstance(shape, list) or not all(isinstance(n, int) and 0 < n < 2**31 for n in shape):
        raise ValueError(f"{path}: feature {key!r} has the shape {shape!r}; a list of sizes is needed")
    dtype, size = data.get("dtype"), tuple(shape)
    if dtype == "video":
        return "is a video; videos are not read"
    if dtype == "image":
        names = data.get("names")
        first = str(names[0]) if isinstance(names, list) and names else ""
        if len(size) == 3 and (first.startswith("channel") or (size[0] in (1, 3, 4) and size[2] not in (1, 3, 4))):
            size = (*size[1:], size[0])
        space = box(size, np.uint8)
        return Feature(key, space, size, encoded=True) if is_image(space) else f"is no image of a shape {shape}"
    if dtype == "string":
        space = {"type": "Text", "max_length": None}
    elif dtype == "bool":
        space = {"type": "MultiBinary", "shape": list(size)}
    elif dtype in _NUMBERS:
        space = box(size, dtype)
    else:
        return f"has the dtype {dtype!r}, which is not read"
    if dtype == "string" and size != (1,):
        return f"holds {list(size)} texts a row; one is read"
    return Feature(key, space, size)


def tasks(meta: Meta) -> dict[int, str]:
    """Text of each task by its number; empty where the dataset lists none."""
    path = meta.folder / "meta" / ("tasks.parquet" if meta.version == "v3.0" else "tasks.jsonl")
    if not path.is_file():
        return {}
    if path.suffix == ".jsonl":
        rows = (json_of(text, f"{path}: line {number}") for number, text in lines(path))
    else:  # pandas wrote it: the text is the index
        from worldmodel.sources.lerobot_parquet import batches

        rows = (row for batch in batches(path) for row in batch.to_pylist())
    found = {}
    for row in rows:
        text = (
            next((row[k] for k in ("task", "__index_level_0__") if k in row), None) if isinstance(row, dict) else None
        )
        if not isinstance(text, str) or not isinstance(row.get("task_index"), int):
            raise ValueError(f"{path}: {str(row)[:80]} is no task with its task_index")
        found[row["task_index"]] = text
    return found


def episodes(meta: Meta) -> Iterator[Episode]:
    """Every episode with its file, in the order of the dataset's list, streaming."""
    chunks = meta.info.get("chunks_size", 1000)
    if not isinstance(chunks, int) or chunks < 1:
        raise ValueError(f"{meta.folder}: meta/info.json: chunks_size is {chunks!r}; a number from 1 is needed")
    for where, row in _episode_rows(meta):
        index, length = _number(row, "episode_index", where), _number(row, "length", where)
        if meta.version == "v3.0":
            chunk, file = _number(row, "data/chunk_index", where), _number(row, "data/file_index", where)
            path = meta.data_file(chunk_index=chunk, file_index=file)
        else:
            path = meta.data_file(episode_chunk=index // chunks, episode_index=index)
        yield Episode(index, length, path)


def _number(row: Any, name: str, where: str) -> int:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError(f"{where}: {name} is {str(value)[:80]}; a number from 0 is needed")
    return value


def _episode_rows(meta: Meta) -> Iterator[tuple[str, Any]]:
    path = meta.folder / "meta" / ("episodes" if meta.version == "v3.0" else "episodes.jsonl")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such {'file' if path.suffix else 'folder'}; it lists the episodes")
    if path.suffix:
        for number, text in lines(path):
            where = f"{path}: line {number}"
            yield where, json_of(text, where)
        return
    from worldmodel.sources.lerobot_parquet import batches

    files = sorted(path.glob("*/*.parquet"))
    if not files:
        raise FileNotFoundError(f"{path}: holds no parquet file; it lists the episodes")
    columns = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    for file in files:
        number = itertools.count()
        for batch in batches(file, columns):
            yield from ((f"{file}: row {next(number)}", row) for row in batch.to_pylist())
