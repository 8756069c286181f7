"""Any log to a corpus: in parts, each on disk for good before the next is begun.

A journal in the corpus's folder says how far the conversion has come, and the manifest names the new parts in one
rename at the end. Killed at any instant, the same conversion continues; until its end readers see nothing of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from worldmodel.corpus.filters import Tally, select
from worldmodel.corpus.intake import Intake, part_provenance
from worldmodel.corpus.job import AS_IT_IS, Input, Recipe, describe, digest, require_same_spec
from worldmodel.corpus.journal import Journal, unfinished
from worldmodel.corpus.known_ids import KnownIds
from worldmodel.corpus.manifest import NAME, Manifest, read_manifest
from worldmodel.corpus.part import PartWriter
from worldmodel.corpus.read import Corpus, open_corpus
from worldmodel.corpus.repair import Repairs, check_codes, find_repairs
from worldmodel.corpus.store import index_of
from worldmodel.corpus.write import CorpusWriter, corpus_writer

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a conversion has come.

    Attributes:
      log: index of the log that is being read.
      place: place, in that log, of the episode read last.
      kept: episodes kept, in all logs, since this process began.
      transitions: of the episodes kept.
      bytes: of the episodes kept, serialised.
    """

    log: int
    place: int
    kept: int
    transitions: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What came of a conversion.

    Attributes:
      corpus: the corpus, opened.
      counts: of each log, `Tally.to_json`; empty where `already`.
      already: the corpus held the result of this very conversion before; nothing was done.
    """

    corpus: Corpus
    counts: Sequence[Mapping[str, Any]]
    already: bool = False


def convert(
    inputs: Sequence[Input],
    out: str | os.PathLike[str],
    recipe: Recipe = AS_IT_IS,
    *,
    append: bool = False,
    report: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Conversion:
    """Converts logs to a corpus in the folder `out`, or adds them to the one there.

    Called again after a kill it continues; called again after its end it does nothing. An episode whose id is taken
    gets its log's name before it.

    Args:
      inputs: the logs; their specs must agree.
      out: folder of the corpus; made where missing.
      recipe: which episodes, repaired how, in parts of which size.
      append: `out` may hold a corpus already.
      report: called after each episode that is kept.
      say: called with a line where something takes long or goes on from before.

    Raises:
      ValueError: the specs differ, an episode is not valid, no episode is left, `out` holds a corpus (and `append` is
        false) or another unfinished conversion, or another writer is at work there.
      OSError: the disk is full; what was written is kept, and the same call continues.
    """
    out = pathlib.Path(out)
    say = say or (lambda line: None)
    check_codes(recipe.fixes)
    job = describe(inputs, recipe)
    if is_done(out, job):
        return Conversion(open_corpus(out), (), already=True)
    try:
        with destination(out, inputs, recipe, append=append) as writer:
            if holds_result(writer.manifest, job) and not unfinished(out):  # another process has just ended it
                return Conversion(open_corpus(out), (), already=True)
            journal = Journal.begin(out, job)
            if journal.parts:
                say(f"going on after {sum(part.episodes for part in journal.parts):,} episodes written before")
            try:
                run = _Run(writer, journal, recipe, report, say)
                for index, item in enumerate(inputs):
                    run.convert_log(index, item)
                run.publish()
            finally:
                if not journal.parts:  # nothing was begun that could be continued
                    journal.remove()
    except OSError as error:
        if error.errno not in _FULL:
            raise
        hint = "the parts written are kept: make room, and run the same command again"
        raise OSError(error.errno, f"{os.strerror(error.errno)} ({hint})", os.fspath(out)) from error
    return Conversion(open_corpus(out), [journal.counts[index] for index in range(len(inputs))])


def is_done(out: pathlib.Path, job: Mapping[str, Any]) -> bool:
    """The corpus at `out` is what this job makes; `ValueError` where it is one of other spaces."""
    if not (out / NAME).exists():
        return False
    manifest = read_manifest(out)
    if holds_result(manifest, job) and not unfinished(out):
        return True
    require_same_spec(manifest.spec.to_json(), job["spec"], (f"in corpus {out}", "in the new logs"))
    return False


def destination(
    out: pathlib.Path, inputs: Sequence[Input], recipe: Recipe, *, append: bool
) -> contextlib.AbstractContextManager[CorpusWriter]:
    """The corpus at `out`, locked for a conversion that begins or goes on."""
    going_on = unfinished(out)
    return corpus_writer(
        out,
        inputs[0].log.spec,
        provenance={"made_by": "worldmodel data convert", "logs": [item.uri for item in inputs]},
        append=append or going_on,
        split_by=recipe.split_by,
        continuing=going_on,
    )


def holds_result(manifest: Manifest, job: Mapping[str, Any]) -> bool:
    """The corpus holds what this job makes."""
    return any(part.provenance.get("conversion") == digest(job) for part in manifest.parts)


class _Run:
    """One process's work on a conversion."""

    def __init__(
        self,
        writer: CorpusWriter,
        journal: Journal,
        recipe: Recipe,
        report: Callable[[Progress], None] | None,
        say: Callable[[str], None],
    ):
        self._writer, self._journal, self._recipe = writer, journal, recipe
        self._report, self._say = report, say
        self._written = KnownIds(lambda part: index_of(writer.path, writer.manifest, part))
        for part in journal.parts:
            self._written.add(part)
        self._done = Progress(0, 0, 0, 0, 0)
        self._empty: list[str] = []

    def convert_log(self, index: int, item: Input) -> None:
        """Writes what is left to write of one log."""
        journal, recipe = self._journal, self._recipe
        if index in journal.finished:
            return
        place = journal.places.get(index, 0)
        tally = Tally.from_json(journal.counts[index]) if index in journal.counts else Tally()
        repairs = self._repairs(index, item)
        filters = dataclasses.replace(recipe.filters, first=max(recipe.filters.first, place))
        episodes = select(repairs.applied_to(item.log) if repairs else item.log, filters, tally)
        intake = Intake(
            item.uri, journal.job["logs"][index]["name"], recipe, self._writer.manifest.split_by, self._is_taken
        )
        more = True
        while more:
            with self._writer.new_part(self._writer.next_name(len(journal.parts))) as part:
                end, more = intake.fill(part, episodes, tally, is_full=self._is_full, report=self._teller(index))
                if part.episodes:
                    counts, fixed = tally.to_json(), repairs.to_json() if repairs else {}
                    places = place, end or place
                    said = item.log.provenance
                    record = part.commit(part_provenance(journal.job, index, item.uri, said, places, counts, fixed))
                    self._written.add(record)
                    journal.add_part(record, index, places[1], counts)
                place = end or place
        if not tally.kept:
            self._empty.append(f"{item.uri}: {tally.why_none()}")
            self._say(self._empty[-1])
        journal.finish_source(index, tally.to_json())

    def _is_full(self, part: PartWriter) -> bool:
        return part.episodes >= self._recipe.part_episodes or part.bytes >= self._recipe.part_bytes

    def _is_taken(self, name: str) -> bool:
        return self._written.holds(name) or self._writer.holds(name)

    def _teller(self, index: int) -> Callable[[int, int, int], None]:
        def tell(place: int, transitions: int, size: int) -> None:
            done = self._done
            self._done = Progress(index, place, done.kept + 1, done.transitions + transitions, done.bytes + size)
            if self._report is not None:
                self._report(self._done)

        return tell

    def _repairs(self, index: int, item: Input) -> Repairs | None:
        """What of a log is repaired; the lint runs once, its report is kept in the journal."""
        if not self._recipe.fixes:
            return None
        note = self._journal.notes.get(index)
        if note is None:
            self._say(f"{item.uri}: looking for what is to be repaired")
        split_by = self._writer.manifest.split_by
        repairs = find_repairs(item.log, self._recipe.fixes, note, split_by=split_by)
        if note is None:
            self._journal.add_note(index, repairs.report.to_json())
        self._say(f"{item.uri}: repairing {', '.join(repairs.codes) or 'nothing: none of it was found'}")
        return repairs

    def publish(self) -> None:
        """Makes every part one of the corpus's, in one rename."""
        journal = self._journal
        if not journal.parts:
            raise ValueError(f"corpus {self._writer.path}: no episode to write; {'; '.join(self._empty)}")
        published = {part.name for part in self._writer.manifest.parts}
        if journal.parts[-1].name not in published:  # else a kill came between the manifest and the journal's end
            self._writer.publish(*journal.parts)
        journal.remove()
