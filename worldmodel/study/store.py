"""A study's folder: what was measured, cell by cell, under the hash of each cell's content.

study.json        the study as it was last started, with the keys of its cells
registration.json what was to be asked, as it stood before the first cell
results.jsonl     one line per deployed policy; a cell's lines are appended together when it is done
cells/KEY.json    each cell's content and rows, written whole or not at all
failures/KEY.json a failed cell's content and traceback; it is tried again at the next start
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from worldmodel.study.cells import VERSION, Cell
from worldmodel.study.grid import Study
from worldmodel.study.preregistration import register
from worldmodel.training.checkpoint import write_json

RESULTS, DESCRIPTION, REGISTRATION = "results.jsonl", "study.json", "registration.json"


class Store:
    """One study's folder. Whoever writes holds its lock (`worldmodel.corpus.lock.only_writer`)."""

    def __init__(self, path: Path):
        self.path = path
        self.results = path / RESULTS

    def check(self, study: Study) -> None:
        """`ValueError` where the folder is another study's."""
        if (self.path / DESCRIPTION).exists():
            found = self.description()["name"]
            if found != study.name:
                raise ValueError(f"{self.path} holds the study {found!r}, not {study.name!r}; give another folder")

    def claim(self, study: Study) -> None:
        """Writes what the study is and, before the first cell, what it asks; mends what a kill left behind."""
        described = {**study.to_json(), "cells": [cell.key for cell in study.cells()]}
        for folder in ("cells", "failures"):
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        write_json(self.path / DESCRIPTION, described)
        self._mend()
        if not self.done() and not (self.path / REGISTRATION).exists():
            register(study.registration, self.path / REGISTRATION, rows=self.results)

    def description(self) -> dict[str, Any]:
        """`study.json`; `ValueError` where there is none, or none that can be read."""
        file = self.path / DESCRIPTION
        if not file.is_file():
            raise ValueError(f"{self.path} holds no study; `worldmodel study RECIPE --out {self.path}` makes one")
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{file} is no JSON: {error}") from None

    def done(self) -> set[str]:
        """Keys of cells that are finished."""
        return {file.stem for file in (self.path / "cells").glob("*.json") if not file.name.startswith(".")}

    def failed(self) -> dict[str, dict[str, Any]]:
        """Failures by key: `cell` (in words), `content`, `error` (one line), `traceback`."""
        files = sorted((self.path / "failures").glob("*.json"))
        return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files if file.name[0] != "."}

    def rows(self, keys: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Rows of the cells `keys` that are finished, in that order; None: of the study as it was last started."""
        wanted = self.description()["cells"] if keys is None else keys
        done = self.done()
        return [row for key in wanted if key in done for row in self._cell(key)["rows"]]

    def levels(self) -> dict[str, float | None]:
        """The level of fidelity of every finished cell, around which its simulators may be spread."""
        return {key: self._cell(key)["content"]["fidelity"] for key in self.done()}

    def seconds(self) -> Iterator[tuple[Cell, float]]:
        """Every finished cell and the core-seconds it took; not those whose content meant something else once."""
        for key in sorted(self.done()):
            found = self._cell(key)
            if found["content"].get("version") == VERSION:
                yield Cell.of(found["content"]), found["seconds"]

    def add(self, cell: Cell, rows: Sequence[Mapping[str, Any]], seconds: float) -> None:
        """Keeps a finished cell."""
        self._write(self.path / "cells", cell, {"content": cell.content(), "seconds": seconds, "rows": list(rows)})
        (self.path / "failures" / f"{cell.key}.json").unlink(missing_ok=True)
        with self.results.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))

    def add_failure(self, cell: Cell, error: str, traceback: str) -> None:
        """Keeps why a cell failed."""
        self._write(
            self.path / "failures",
            cell,
            {"cell": str(cell), "content": cell.content(), "error": error, "traceback": traceback},
        )

    def _write(self, folder: Path, cell: Cell, content: dict[str, Any]) -> None:
        write_json(folder / f"{cell.key}.json", content)

    def _cell(self, key: str) -> dict[str, Any]:
        return json.loads((self.path / "cells" / f"{key}.json").read_text(encoding="utf-8"))

    def _mend(self) -> None:
        """Makes the lines those of the finished cells again, after a kill between the two or within a line."""
        text = self.results.read_text(encoding="utf-8") if self.results.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        counts: dict[str, int] = {}
        order: list[str] = []
        for line in whole.splitlines():
            key = json.loads(line)["cell"]
            order += [] if key in counts else [key]
            counts[key] = counts.get(key, 0) + 1
        done = self.done()
        lines = {key: self._cell(key)["rows"] for key in done if counts.get(key) is None}
        torn = {key for key in counts if key not in done or counts[key] != len(self._cell(key)["rows"])}
        if whole == text and not torn:
            fresh = [row for key in sorted(lines) for row in lines[key]]
            with self.results.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in fresh))
            return
        keys = [*(key for key in order if key in done), *sorted(lines)]
        temporary = self.results.with_name(f".{RESULTS}.writing")
        rows = [row for key in keys for row in self._cell(key)["rows"]]
        temporary.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows), encoding="utf-8")
        temporary.replace(self.results)
