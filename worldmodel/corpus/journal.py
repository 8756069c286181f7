"""`conversion.jsonl`: how far an unfinished conversion has come.

The first line is the job; every further one a fact that is on disk for good: a part, or the end of a source. Lines are
only added, each synced before the work goes on, so that whatever a kill leaves is a whole journal and perhaps one line
that was cut short, which is dropped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from worldmodel.corpus.differences import differences
from worldmodel.corpus.manifest import JOURNAL, Part, sync_folder


@dataclasses.dataclass
class Journal:
    """The journal of the conversion in the folder `path`.

    Attributes:
      path: folder of the corpus.
      job: what is converted and how, plain JSON.
      parts: the parts written, in order.
      places: of each source that was begun, the place of its first episode that is in no part yet.
      counts: of each source that was begun, what was counted before that place.
      finished: sources that were read to their end.
      notes: what else was found out of a source.
    """

    path: pathlib.Path
    job: Mapping[str, Any]
    parts: list[Part] = dataclasses.field(default_factory=list)
    places: dict[int, int] = dataclasses.field(default_factory=dict)
    counts: dict[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    finished: set[int] = dataclasses.field(default_factory=set)
    notes: dict[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def begin(cls, path: pathlib.Path, job: Mapping[str, Any]) -> Journal:
        """Continues the journal in `path`, or starts one.

        Raises:
          ValueError: the journal there is of another job, or is damaged.
        """
        file = path / JOURNAL
        journal = cls(path, json.loads(json.dumps(job, allow_nan=False)))
        data = file.read_bytes() if file.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if not lines:  # nothing there, or a kill before the first line was out
            temporary = path / f".{JOURNAL}.writing"
            with open(temporary, "wb") as stream:
                stream.write(_line({"job": journal.job}))
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, file)
            sync_folder(path)
            return journal
        try:
            entries = [json.loads(line) for line in lines]
            found = entries[0]["job"]
            for entry in entries[1:]:
                journal._absorb(entry)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"corpus {path}: {JOURNAL} is damaged ({error}); delete it and convert anew") from None
        odd = differences(found, journal.job)
        if odd:
            raise ValueError(
                f"corpus {path}: another conversion was begun here and is not finished: {'; '.join(odd)}; run that "
                f"command again, name another folder, or delete {JOURNAL} to give it up"
            )
        if len(whole) < len(data):
            os.truncate(file, len(whole))
        return journal

    def add_part(self, part: Part, source: int, place: int, counts: Mapping[str, Any]) -> None:
        """Notes that `part` is on disk, ends before episode `place` of `source`, and what was counted so far."""
        self._append({"part": dataclasses.asdict(part), "source": source, "place": place, "counts": dict(counts)})

    def finish_source(self, source: int, counts: Mapping[str, Any]) -> None:
        """Notes that `source` was read to its end, and what was counted in it."""
        self._append({"source": source, "counts": dict(counts)})

    def add_note(self, source: int, note: Mapping[str, Any]) -> None:
        """Keeps what was costly to find out of `source`."""
        self._append({"note": dict(note), "source": source})

    def remove(self) -> None:
        """Ends the conversion; the manifest names everything by now."""
        (self.path / JOURNAL).unlink(missing_ok=True)
        sync_folder(self.path)

    def _append(self, entry: dict[str, Any]) -> None:
        with open(self.path / JOURNAL, "ab") as stream:
            before = stream.tell()
            try:
                stream.write(_line(entry))
                stream.flush()
                os.fsync(stream.fileno())
            except OSError:
                os.truncate(self.path / JOURNAL, before)
                raise
        self._absorb(entry)

    def _absorb(self, entry: Mapping[str, Any]) -> None:
        source = int(entry["source"])
        if "note" in entry:
            self.notes[source] = entry["note"]
            return
        self.counts[source] = entry["counts"]
        if "part" in entry:
            self.parts.append(Part(**entry["part"]))
            self.places[source] = int(entry["place"])
        else:
            self.finished.add(source)


def unfinished(path: pathlib.Path) -> bool:
    """A conversion into the folder `path` was begun and has not ended."""
    return (path / JOURNAL).is_file()


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, allow_nan=False).encode() + b"\n"
