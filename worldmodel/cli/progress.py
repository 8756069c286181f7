"""Progress on stderr: a bar where it is a terminal, a line now and then where it is not."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
