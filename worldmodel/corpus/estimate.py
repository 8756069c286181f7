"""What a conversion will take, from a sample of it that is really converted."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from worldmodel.corpus.job import AS_IT_IS, Input, Recipe, common_spec, known_episodes
from worldmodel.corpus.manifest import part_folder
from worldmodel.corpus.part import PartWriter

BLOCKS = 10
"""Neighbouring episodes are alike, so intervals are over blocks of them."""
_HEAD = 20
_LATER_SHARE = 0.25
_BLOCK = 2**16
"""ArrayRecord files are whole blocks of this size, and 1 to 2 of them hold no record."""
_UNKNOWN = "the log does not say how many episodes it holds; --of N says it"


@dataclasses.dataclass(frozen=True)
class Sample:
    """The beginning of a log, read one by one; `N` episodes.

    Attributes:
      transitions: float64 `[N]`; 0 for an episode that is left out.
      kept: bool `[N]`.
      read_seconds: float64 `[N]`.
      bytes: float64 `[N]`, serialised; NaN for an episode that was only read.
      write_seconds: float64 `[N]`; NaN likewise.
      close_seconds: of closing a part, and more for each byte in it.
      disk_bytes: of a part without episodes, and on disk (compressed) for each serialised byte in it.
      disk_error: how far the latter may be off.
      whole: the log ended within the sample.
    """

    transitions: np.ndarray
    kept: np.ndarray
    read_seconds: np.ndarray
    bytes: np.ndarray
    write_seconds: np.ndarray
    close_seconds: tuple[float, float]
    disk_bytes: tuple[float, float]
    disk_error: float
    whole: bool


def estimate(
    inputs: Sequence[Input],
    recipe: Recipe = AS_IT_IS,
    *,
    seconds: float = 20.0,
    of: int | None = None,
    out: str | os.PathLike[str] = ".",
    seed: int = 0,
) -> dict[str, Any]:
    """Converts the first 20 episodes of each log and a random quarter of the next, and says what the whole will take.

    Reads on for `seconds` in all, or to the end. The lint, where `recipe.fixes` asks for it, is not in the hours.

    Args:
      inputs: the logs; their specs must agree.
      recipe: how they would be converted.
      seconds: that the sample may take.
      of: episodes of the whole job, where the logs given are only a part of it or do not say how many they hold.
      out: where the corpus would lie; the sample is written beside it and removed.
      seed: of the choice of episodes.

    Returns:
      Estimates `{"mean", "lo", "hi", "n"}` of `episodes` (kept), `transitions`, `bytes` (on disk), `hours` (of one
      process) and `shards`, null beside "why" where the number of episodes is not known;
      `sample{read, written, seconds}`; and `free_bytes` where the corpus would lie.

    Raises:
      ValueError: the specs differ, an episode of the sample is not valid, or a log holds none.
    """
    common_spec(inputs)
    began = time.monotonic()
    place = _existing(pathlib.Path(out).absolute())
    samples = []
    for index, item in enumerate(inputs):
        with tempfile.TemporaryDirectory(prefix=".estimate-", dir=place) as folder:
            share = (seconds - (time.monotonic() - began)) / (len(inputs) - index)
            samples.append(_sample(item, recipe, pathlib.Path(folder), share, seed))
    totals = _totals(inputs, recipe, samples, of)
    result: dict[str, Any] = {}
    if totals is None:
        result = {name: _null(_UNKNOWN) for name in ("episodes", "transitions", "bytes", "hours", "shards")}
    else:
        rows = [_of_log(sample, total, recipe, exact=of is None) for sample, total in zip(samples, totals, strict=True)]
        result = {name: _sum([row[name] for row in rows]) for name in rows[0]}
    result["sample"] = {
        "read": sum(len(sample.kept) for sample in samples),
        "written": int(sum(np.isfinite(sample.bytes).sum() for sample in samples)),
        "seconds": round(time.monotonic() - began, 1),
    }
    result["free_bytes"] = shutil.disk_usage(place).free
    return result


def _sample(item: Input, recipe: Recipe, folder: pathlib.Path, seconds: float, seed: int) -> Sample:
    rng = np.random.default_rng(seed)
    rows: list[tuple[float, bool, float, float, float]] = []
    closed: list[_Closed] = []
    with PartWriter(folder, "first", item.log.spec) as first, PartWriter(folder, "rest", item.log.spec) as rest:
        end = time.perf_counter() + max(seconds, 0.0)
        before = time.perf_counter()
        whole = True
        for index, trajectory in enumerate(item.log):
            read = time.perf_counter()
            if recipe.filters.last is not None and index >= recipe.filters.last:
                break
            if index < recipe.filters.first:
                before = time.perf_counter()
                continue
            kept = recipe.filters.reason_against(trajectory) is None
            steps, size, written = float(len(trajectory)) if kept else 0.0, math.nan, math.nan
            if kept and (len(rows) < _HEAD or rng.random() < _LATER_SHARE):
                where = f"{item.uri}: episode {index} ({trajectory.info.get('id')})"
                if not first.episodes:  # libraries are imported and tables built now, which is not to be counted
                    first.add(trajectory, where=where)
                began, bytes_before = time.perf_counter(), rest.bytes
                rest.add(trajectory, where=where)
                size, written = float(rest.bytes - bytes_before), time.perf_counter() - began
            rows.append((steps, kept, read - before, size, written))
            before = time.perf_counter()
            if before > end:
                whole = False
                break
        for part in (first, rest):
            if part.episodes:
                began = time.perf_counter()
                name = part.commit({}).name
                closed.append(_Closed.of(part.bytes, time.perf_counter() - began, part_folder(folder, name)))
    if not rows:
        raise ValueError(f"{item.uri}: holds no episode; there is nothing to estimate")
    transitions, kept, read_seconds, sizes, write_seconds = (np.array(column) for column in zip(*rows, strict=True))
    return Sample(transitions, kept, read_seconds, sizes, write_seconds, *_costs(closed), whole)


@dataclasses.dataclass(frozen=True)
class _Closed:
    """A part of the sample: its serialised bytes, the seconds of closing it, and its files on disk."""

    size: float
    seconds: float
    records: float
    beside: float

    @classmethod
    def of(cls, size: int, seconds: float, folder: pathlib.Path) -> _Closed:
        files = {file.name: file.stat().st_size for file in folder.iterdir()}
        records = sum(size for name, size in files.items() if "array_record" in name)
        return cls(float(size), seconds, float(records), float(sum(files.values()) - records))


def _costs(closed: list[_Closed]) -> tuple[tuple[float, float], tuple[float, float], float]:
    """`close_seconds`, `disk_bytes` and `disk_error` of a `Sample`, from a part of one episode and one of many."""
    if not closed:
        return (0.0, 0.0), (0.0, 1.0), 0.0
    one, many = closed
    more = many.size - one.size
    seconds = max(0.0, many.seconds - one.seconds) / more if more > 0 else 0.0
    beside = (many.beside - one.beside) / more if more > 0 else 0.0
    each = max(0.0, many.records - 1.5 * _BLOCK) / many.size + beside
    return (one.seconds, seconds), (one.beside + 1.5 * _BLOCK, each), 0.5 * _BLOCK / many.size


def _totals(inputs: Sequence[Input], recipe: Recipe, samples: list[Sample], of: int | None) -> list[float] | None:
    """Episodes of each log that the filters look at; None where unknown."""
    counts = [
        len(sample.kept) if sample.whole else known_episodes(item, recipe)
        for item, sample in zip(inputs, samples, strict=True)
    ]
    known = [float(count) for count in counts if count is not None]
    if of is None:
        return known if len(known) == len(counts) else None
    if len(known) < len(counts) or not sum(known):
        return [of / len(counts)] * len(counts)
    return [of * count / sum(known) for count in known]


def _of_log(sample: Sample, total: float, recipe: Recipe, *, exact: bool) -> dict[str, dict[str, Any]]:
    """The quantities of a whole log of `total` episodes; those that were counted to the end have no spread."""
    every = np.arange(len(sample.kept))
    blocks = np.array_split(every, BLOCKS if len(every) >= 2 * BLOCKS else len(every))
    columns = zip(_per_episode(sample, every), *(_per_episode(sample, block) for block in blocks), strict=True)
    episodes, transitions, size, spent = (_scaled(mean, np.array(parts), total) for mean, *parts in columns)
    if sample.whole and exact:
        episodes, transitions = (row | {"lo": row["mean"], "hi": row["mean"]} for row in (episodes, transitions))
    fixed, per_byte = sample.close_seconds
    shards: dict[str, Any] = {"n": len(blocks)}
    hours: dict[str, Any] = {"n": len(blocks)}
    on_disk: dict[str, Any] = {"n": len(blocks)}
    for key in ("mean", "lo", "hi"):
        parts = None if size[key] is None else _shards(episodes[key], size[key], recipe)
        shards[key] = parts
        hours[key] = None if parts is None else (spent[key] + fixed * parts + per_byte * size[key]) / 3600
        beside, each = sample.disk_bytes
        each = max(0.0, each + {"mean": 0.0, "lo": -sample.disk_error, "hi": sample.disk_error}[key])
        on_disk[key] = None if parts is None else beside * parts + each * size[key]
    return {"episodes": episodes, "transitions": transitions, "bytes": on_disk, "hours": hours, "shards": shards}


def _per_episode(sample: Sample, block: np.ndarray) -> tuple[float, float, float, float]:
    """Means over a block's episodes: share that is kept, transitions, bytes, and seconds of reading and writing."""
    written = np.isfinite(sample.bytes)
    inside = written[block]
    chosen = block[inside] if sample.transitions[block[inside]].any() else np.flatnonzero(written)
    steps = max(float(sample.transitions[chosen].sum()), 1.0)
    transitions = float(sample.transitions[block].mean())
    size, seconds = (float(column[chosen].sum()) / steps for column in (sample.bytes, sample.write_seconds))
    spent = float(sample.read_seconds[block].mean()) + seconds * transitions
    return float(sample.kept[block].mean()), transitions, size * transitions, spent


def _shards(episodes: float, size: float, recipe: Recipe) -> float:
    return float(max(1, math.ceil(episodes / recipe.part_episodes), math.ceil(size / recipe.part_bytes)))


def _scaled(mean: float, blocks: np.ndarray, total: float) -> dict[str, Any]:
    """`total` times the mean, with its 95% interval by Student's t over blocks; never below zero."""
    n = len(blocks)
    if n == 1:
        return {"mean": mean * total, "lo": None, "hi": None, "n": 1}
    half = float(special.stdtrit(n - 1, 0.975) * blocks.std(ddof=1) / math.sqrt(n))
    return {"mean": mean * total, "lo": max(0.0, mean - half) * total, "hi": (mean + half) * total, "n": n}


def _sum(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of independent estimates: variances add."""
    mean, n = math.fsum(row["mean"] for row in rows), sum(row["n"] for row in rows)
    if any(row["lo"] is None for row in rows):
        return {"mean": mean, "lo": None, "hi": None, "n": n, "why": "an interval needs two episodes of every log"}
    low = math.sqrt(math.fsum((row["mean"] - row["lo"]) ** 2 for row in rows))
    high = math.sqrt(math.fsum((row["hi"] - row["mean"]) ** 2 for row in rows))
    return {"mean": mean, "lo": mean - low, "hi": mean + high, "n": n}


def _null(why: str) -> dict[str, Any]:
    return {"mean": None, "lo": None, "hi": None, "n": 0, "why": why}


def _existing(place: pathlib.Path) -> pathlib.Path:
    return next(folder for folder in (place, *place.parents) if folder.is_dir())
