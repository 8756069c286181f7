"""Cells in several processes of this machine, one thread each; a process that dies costs its cell, nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, runtime_checkable

from worldmodel.study.cells import Cell, finished_rows
from worldmodel.study.grid import Study
from worldmodel.study.source import Source

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NPROC": "1",  # XLA's own pool is as large as this says
    "JAX_PLATFORMS": "cpu",
    "SDL_VIDEODRIVER": "dummy",
}
"""The environment of a process that computes cells, where it does not say otherwise."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a cell: `rows`, or `error` (one line) and `traceback`; `seconds` of one core."""

    rows: list[dict[str, Any]]
    seconds: float
    error: str | None = None
    traceback: str = ""


@runtime_checkable
class Pool(Protocol):
    """Computes cells, in any order."""

    def __call__(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Outcome]]:
        """Every cell and what became of it, as they finish."""
        ...

    def close(self) -> None:
        """Ends its processes, whatever they are at."""
        ...


def compute(load: Callable[[], Study], cell: Cell) -> Outcome:
    """Runs a cell of the study that `load` returns here; what goes wrong in either is part of the outcome."""
    began = time.perf_counter()
    try:
        study = load()
        began = time.perf_counter()
        measured = study.family(cell.environment).run(cell)
        seconds = time.perf_counter() - began
        return Outcome(finished_rows(cell, measured, seconds), seconds)
    except Exception as error:  # whatever a user's environment or learner raises is kept and shown
        line = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Outcome([], time.perf_counter() - began, line, traceback.format_exc())


@dataclasses.dataclass(frozen=True)
class Here:
    """In this process, one after the other."""

    study: Study

    def __call__(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Outcome]]:
        """See `Pool`."""
        for cell in cells:
            yield cell, compute(lambda: self.study, cell)

    def close(self) -> None:
        """See `Pool`."""


class Processes:
    """In `workers` spawned processes, which last from call to call and end with this one.

    `source` is what they load the study from; a study itself is pickled, so its classes must be importable there.
    """

    def __init__(self, source: Source | Study, workers: int):
        if workers < 1:
            raise ValueError(f"workers is {workers}; at least 1 is needed")
        self._source, self._most = source, workers
        self._workers: list[_Worker] = []

    def __call__(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Outcome]]:
        """See `Pool`."""
        waiting = list(reversed(cells))
        while len(self._workers) < min(self._most, len(waiting)):
            self._workers.append(_Worker(self._source))
        for worker in self._workers[: len(waiting)]:
            worker.begin(waiting.pop())
        while busy := [worker for worker in self._workers if worker.cell is not None]:
            wait([worker.pipe for worker in busy])
            for worker in busy:
                if not worker.pipe.poll():
                    continue
                cell, outcome = worker.take()
                if worker.pipe.closed:
                    self._workers[self._workers.index(worker)] = worker = _Worker(self._source)
                if waiting:
                    worker.begin(waiting.pop())
                yield cell, outcome

    def close(self) -> None:
        """See `Pool`."""
        for worker in self._workers:
            worker.end()
        self._workers = []


class _Worker:
    """One process, and the cell that it is at."""

    def __init__(self, source: Source | Study):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, source), daemon=True)
        self.cell: Cell | None = None
        self._began = 0.0
        with _environment(ONE_THREAD):
            self.process.start()
        theirs.close()

    def begin(self, cell: Cell) -> None:
        self.cell, self._began = cell, time.perf_counter()
        with contextlib.suppress(BrokenPipeError):  # it died while idle: what waits in the pipe is its end
            self.pipe.send(cell.content())

    def take(self) -> tuple[Cell, Outcome]:
        cell, self.cell = self.cell, None
        assert cell is not None
        try:
            return cell, self.pipe.recv()
        except EOFError:
            self.process.join(timeout=10.0)
            code = self.process.exitcode
            why = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
            self.pipe.close()
            return cell, Outcome([], time.perf_counter() - self._began, f"the process that computed it died: {why}")

    def end(self) -> None:
        self.pipe.close()
        if self.process.is_alive():
            self.process.terminate()
        self.process.join(timeout=10.0)


def _work(pipe: Connection, source: Source | Study) -> None:
    """What a process does: cells as they come, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is for the one who started us
    load = loader(source)
    while True:
        try:
            cell = Cell.of(pipe.recv())
        except EOFError:
            return
        try:
            pipe.send(compute(load, cell))
        except BrokenPipeError:
            return


def loader(source: Source | Study) -> Callable[[], Study]:
    """What returns the study, loaded once."""
    return functools.cache(source.load) if isinstance(source, Source) else lambda: source


class _environment:
    """Variables set while the body runs, where they are not set already."""

    def __init__(self, wanted: Mapping[str, str]):
        self._new = [name for name in wanted if name not in os.environ]
        self._wanted = wanted

    def __enter__(self) -> None:
        os.environ.update({name: self._wanted[name] for name in self._new})

    def __exit__(self, *_: object) -> None:
        for name in self._new:
            del os.environ[name]
