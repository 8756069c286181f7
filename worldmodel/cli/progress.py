"""Progress on stderr: a bar where it is a terminal, a line now and then where it is not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from worldmodel.corpus.convert import Progress as Converted
    from worldmodel.study.runner import Progress as Studied

console = Console(stderr=True)


class TrainingBar:
    """Shows loss, steps per second and time left; used as a context, called with step and metrics."""

    def __init__(self, steps: int, *, label: str = "training", every: float = 10.0):
        self._bar = Progress(
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}  {task.fields[rate]:.0f} steps/s"),
            TimeRemainingColumn(),
            console=console,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("", total=steps, loss=float("nan"), rate=0.0)
        self._label, self._steps, self._every, self._last = label, steps, every, time.monotonic()

    def __enter__(self) -> TrainingBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows a step's metrics."""
        rate = metrics["steps_per_second"]
        self._bar.update(self._task, completed=step, loss=metrics["loss"], rate=rate)
        now = time.monotonic()
        if not sys.stderr.isatty() and (now - self._last >= self._every or step == self._steps):
            self._last = now
            left = (self._steps - step) / max(rate, 1e-9)
            progress = f"{self._label} {step}/{self._steps}"
            console.print(
                f"{progress}  loss {metrics['loss']:.3f}  {rate:.0f} steps/s  {left:.0f} s left",
                highlight=False,
            )


class ConversionBar:
    """Shows episodes, steps, MB and time left; used as a context, called with a `corpus.convert.Progress`.

    Args:
      expected: episodes of each log; None where it does not say.
    """

    def __init__(self, expected: Sequence[int | None], *, every: float = 10.0):
        self._expected = expected
        known = [count for count in expected if count is not None]
        self._bar = Progress(
            TextColumn("converting"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("episodes, {task.fields[steps]:,} steps, {task.fields[megabytes]:,.0f} MB"),
            TimeRemainingColumn(),
            console=console,
            disable=not sys.stderr.isatty(),
        )
        total = sum(known) if len(known) == len(expected) else None
        self._task = self._bar.add_task("", total=total, steps=0, megabytes=0.0)
        self._total, self._every, self._began = total, every, time.monotonic()
        self._last = self._began

    def __enter__(self) -> ConversionBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __call__(self, progress: Converted) -> None:
        """Shows how far the conversion has come."""
        before = [count or 0 for count in self._expected[: progress.log]]
        done = sum(before) + progress.place + 1
        megabytes = progress.bytes / 1e6
        self._bar.update(self._task, completed=done, steps=progress.transitions, megabytes=megabytes)
        now = time.monotonic()
        if not sys.stderr.isatty() and now - self._last >= self._every:
            self._last = now
            rate = progress.kept / (now - self._began)
            left = "" if self._total is None else f", {max(0, self._total - done) / rate:.0f} s left"
            of = "" if self._total is None else f" of {self._total:,}"
            self.say(
                f"converting {done:,}{of} episodes, {progress.transitions:,} steps, {megabytes:,.0f} MB, "
                f"{rate:,.0f} episodes/s{left}"
            )


class EpisodeBar:
    """Shows episodes, steps and time left where stderr is a terminal; as a context, what to call with both counts."""

    def __init__(self, label: str, episodes: int):
        self._bar = Progress(
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("episodes, {task.fields[steps]:,} steps"),
            TimeRemainingColumn(),
            console=console,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("", total=episodes, steps=0)

    def __enter__(self) -> Callable[[int, int], None]:
        self._bar.start()
        return lambda done, steps: self._bar.update(self._task, completed=done, steps=steps)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


class CellBar:
    """Shows a study's cells and the time left; used as a context, called with a `study.runner.Progress`.

    A failed cell is named on a line of its own.
    """

    def __init__(self, workers: int, *, every: float = 10.0):
        self._bar = Progress(
            TextColumn("cells"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]} left  {task.fields[cell]}", markup=False),
            console=console,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("", total=None, left="?", cell="")
        self._workers, self._every, self._last = workers, every, time.monotonic()

    def __enter__(self) -> CellBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __call__(self, progress: Studied) -> None:
        """Shows how far the study has come."""
        left = _duration(progress.core_seconds_left / self._workers)
        done, total = progress.done, progress.total
        self._bar.update(self._task, completed=done, total=total, left=left, cell=str(progress.cell))
        if progress.outcome.error is not None:
            self.say(f"failed: {progress.cell}: {progress.outcome.error}")
        now = time.monotonic()
        if not sys.stderr.isatty() and (now - self._last >= self._every or done == total):
            self._last = now
            self.say(f"cells {done}/{total}, about {left} left; last: {progress.cell}")


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )
