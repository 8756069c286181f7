"""The same conversion on Apache Beam: each log, or each range of one, is a unit that some worker writes as one part.

The folder of the corpus must be one that all workers see. A unit that is on disk has a receipt, so that the same call
goes on where a killed one stopped; the manifest is written once, when all units are there. Files of a part hold equal
numbers of episodes, and every episode the bytes that `convert` writes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from worldmodel.corpus.convert import Conversion, destination, holds_result, is_done
from worldmodel.corpus.filters import Tally, select
from worldmodel.corpus.intake import Intake, part_provenance
from worldmodel.corpus.job import AS_IT_IS, Input, Log, Recipe, describe, digest, known_episodes
from worldmodel.corpus.journal import Journal
from worldmodel.corpus.manifest import PARTS, Part, part_folder, sync_folder
from worldmodel.corpus.part import PartWriter
from worldmodel.corpus.read import open_corpus
from worldmodel.corpus.repair import check_codes, find_repairs

WORK = ".beam.writing"
_ANY_SIZE = 2**62


@dataclasses.dataclass(frozen=True)
class Unit:
    """What one worker does at a time.

    Attributes:
      log: index of the log.
      number: of the range in it.
      first: place of the first episode.
      last: place after the last, or None: to the end.
    """

    log: int
    number: int
    first: int
    last: int | None


@dataclasses.dataclass(frozen=True)
class Order:
    """What every worker is told.

    Attributes:
      out: folder of the corpus, which all workers see.
      job: as `describe` gives it.
      recipe: the same.
      uris: of the logs.
      open_log: opens a log by its uri.
      split_by: key by which the corpus is split.
    """

    out: pathlib.Path
    job: Mapping[str, Any]
    recipe: Recipe
    uris: tuple[str, ...]
    open_log: Callable[[str], Log]
    split_by: str


def convert_on_beam(
    inputs: Sequence[Input],
    open_log: Callable[[str], Log],
    out: str | os.PathLike[str],
    recipe: Recipe = AS_IT_IS,
    *,
    append: bool = False,
    ranges: int = 1,
    arguments: Sequence[str] = (),
) -> Conversion:
    """Converts logs as `convert` does, on the workers of a Beam runner.

    Ids must be unique over all logs (or `recipe.prefix_ids` set): workers do not know of each other's.
    `recipe.part_episodes` is the number of episodes of each file; `recipe.part_bytes` has no say.

    Args:
      inputs: the logs, opened here for their specs alone.
      open_log: opens a log by its uri on a worker (is pickled).
      out: folder of the corpus on a file system that all workers see.
      recipe: as in `convert`.
      append: as in `convert`.
      ranges: that a log which says how many episodes it holds is cut into; each is read from the log's beginning.
      arguments: of the pipeline, e.g. `["--runner=DirectRunner", "--direct_num_workers=4"]`.

    Raises:
      ValueError: as `convert`; an id is in two logs; or Beam is not installed.
    """
    beam, pipeline_options = _import_beam()
    check_codes(recipe.fixes)
    out = pathlib.Path(out).absolute()
    job = describe(inputs, recipe)
    units = [unit for index, item in enumerate(inputs) for unit in _units(index, item, recipe, ranges)]
    if is_done(out, job):
        return Conversion(open_corpus(out), (), already=True)
    with destination(out, inputs, recipe, append=append) as writer:
        journal = Journal.begin(out, {**job, "beam": {"ranges": ranges}})
        if not holds_result(writer.manifest, job):  # else a kill came between the manifest and the journal's end
            uris = tuple(item.uri for item in inputs)
            order = Order(out, job, recipe, uris, open_log, writer.manifest.split_by)
            with beam.Pipeline(options=pipeline_options(list(arguments))) as pipeline:
                written = pipeline | beam.Create(units) | beam.Reshuffle() | beam.Map(write_unit, order)
                del written
            receipts = [json.loads(_receipt(order, unit).read_text("utf-8")) for unit in units]
            parts = [Part(**receipt["part"]) for receipt in receipts if receipt["part"]]
            if not parts:
                raise ValueError(f"corpus {out}: no episode to write; every one was left out")
            try:
                writer.publish(*parts)
            except ValueError as error:
                raise ValueError(f"{error} (on Beam, --prefix-ids makes ids of several logs unique)") from error
            for unit, receipt in zip(units, receipts, strict=True):
                tally = Tally.from_json(journal.counts[unit.log]) if unit.log in journal.counts else Tally()
                journal.finish_source(unit.log, tally.plus(Tally.from_json(receipt["counts"])).to_json())
        shutil.rmtree(out / PARTS / WORK, ignore_errors=True)
        journal.remove()
    return Conversion(open_corpus(out), [journal.counts[index] for index in sorted(journal.counts)])


def write_unit(unit: Unit, order: Order) -> None:
    """Writes one unit as a part, and its receipt; nothing where the receipt is there.

    It writes aside and renames, so that a unit that a runner gives to two workers is there once.
    """
    receipt = _receipt(order, unit)
    if receipt.exists():
        return
    recipe, uri = order.recipe, order.uris[unit.log]
    log = order.open_log(uri)
    repairs = find_repairs(log, recipe.fixes, split_by=order.split_by) if recipe.fixes else None
    tally = Tally()
    filters = dataclasses.replace(recipe.filters, first=unit.first, last=unit.last)
    intake = Intake(uri, order.job["logs"][unit.log]["name"], recipe, order.split_by)
    aside = order.out / PARTS / WORK / uuid.uuid4().hex
    name = _part_name(order, unit)
    shards: dict[str, Any] = {"shard_bytes": _ANY_SIZE, "shard_episodes": recipe.part_episodes}
    with PartWriter(aside, name, log.spec, split_by=order.split_by, **shards) as part:
        episodes = select(repairs.applied_to(log) if repairs else log, filters, tally)
        end, _ = intake.fill(part, episodes, tally)
        record = None
        if part.episodes:
            fixed = repairs.to_json() if repairs else {}
            places = unit.first, end or unit.first
            counts = tally.to_json()
            record = part.commit(part_provenance(order.job, unit.log, uri, log.provenance, places, counts, fixed))
    if record is not None:
        target = part_folder(order.out, name)
        try:
            os.rename(part_folder(aside, name), target)
        except OSError:
            if not target.is_dir():  # else another worker was faster, with the same part
                raise
        sync_folder(target.parent)
    shutil.rmtree(aside)
    receipt.parent.mkdir(parents=True, exist_ok=True)
    temporary = receipt.with_suffix(f".{uuid.uuid4().hex}")
    temporary.write_text(
        json.dumps({"part": record and dataclasses.asdict(record), "counts": tally.to_json()}), "utf-8"
    )
    os.replace(temporary, receipt)


def _units(index: int, item: Input, recipe: Recipe, ranges: int) -> list[Unit]:
    first, last = recipe.filters.first, recipe.filters.last
    count = known_episodes(item, recipe)
    if count is None or ranges <= 1:
        return [Unit(index, 0, first, last)]
    edges = [first + count * number // ranges for number in range(ranges + 1)]
    # What the log says may be wrong: the last range goes on to its end.
    ends = [*edges[1:-1], last]
    return [Unit(index, n, begin, end) for n, (begin, end) in enumerate(zip(edges[:-1], ends, strict=True))]


def _part_name(order: Order, unit: Unit) -> str:
    return f"part-{digest(order.job)[:8]}-{unit.log:05d}-{unit.number:05d}"


def _receipt(order: Order, unit: Unit) -> pathlib.Path:
    return order.out / PARTS / WORK / "receipts" / f"{_part_name(order, unit)}.json"


def _import_beam() -> tuple[Any, Any]:
    try:
        import apache_beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ModuleNotFoundError:
        raise ValueError("conversion on Beam needs Apache Beam: pip install 'worldmodel[beam]'") from None
    return apache_beam, PipelineOptions
