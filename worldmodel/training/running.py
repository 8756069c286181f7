"""The steps of a run, whatever it trains: what is logged, measured and saved when, and how it stops and goes on."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from worldmodel._types import PyTree
from worldmodel.training.checkpoint import read_config
from worldmodel.training.loggers import Logger, open_loggers
from worldmodel.training.processes import leads
from worldmodel.training.step import TrainState
from worldmodel.training.stopping import Interruption, SkippedSteps, Stopped
from worldmodel.training.storage import Checkpoints

Report = Callable[[int, Mapping[str, float]], None]
"""Called with the step and its metrics every `log_every` steps."""


class Schedule(Protocol):
    """What of a configuration says when something is due."""

    steps: int
    log_every: int
    checkpoint_every: int
    seed: int


class Running(ABC):
    """Training from where its folder is to the last step.

    A subclass sets `_batches`, an endless iterator whose position can be saved, and how a batch is put on the devices;
    it may set `_measure` (held-out episodes, at every checkpoint) and `_gauge`, both of parameters.

    Args:
      run: the run folder, with its `config.json`.
      config: the schedule; with `gauge_every` where there is a gauge.
      step: the train step.
      state: what it begins with.
    """

    _batches: Any

    def __init__(self, run: Path, config: Any, step: Callable[..., Any], state: TrainState):
        self._run, self._config, self._step, self._state = run, config, step, state
        self._described = read_config(run)
        self._measure: Callable[[PyTree], dict[str, float]] | None = None
        self._gauge: Callable[[PyTree], Mapping[str, float]] | None = None

    @abstractmethod
    def _put(self, windows: Mapping[str, Any]) -> Any:
        """A batch on the devices."""

    def go(self, loggers: Sequence[str], report: Report) -> None:
        """Restores what there is, and trains to the last step."""
        config: Schedule = self._config
        checkpoints = Checkpoints(self._run)
        with contextlib.ExitStack() as stack:
            stack.callback(checkpoints.close)
            step = saved = self._restore(checkpoints)
            logs: list[Logger] = open_loggers(loggers, self._run, step) if leads() else []
            for log in logs:
                stack.callback(log.close)
            interruption = stack.enter_context(Interruption())
            started, first = time.monotonic(), step
            while step < config.steps:
                windows = next(self._batches)
                self._state, metrics = self._step(self._state, self._put(windows))
                step += 1
                self._skipped.watch(step, windows, metrics)
                last, stop = step == config.steps, interruption.due(step)
                shown = last or step % config.log_every == 0
                due = last or step % config.checkpoint_every == 0
                values: dict[str, float] = {}
                if shown or due or stop:
                    self._skipped.settle()
                if shown:
                    values = {name: float(value) for name, value in metrics.items()}
                    values["skipped"] = self._skipped.total
                    values["steps_per_second"] = (step - first) / (time.monotonic() - started)
                if self._gauge is not None and step % self._config.gauge_every == 0:
                    values |= self._gauge(self._state.params)
                # After a skipped step the state may be the one that makes every loss infinite.
                sound = not self._skipped.in_a_row
                score = None
                if due and sound and self._measure is not None:
                    measured = self._measure(self._state.params)
                    values |= measured
                    score = measured["held_out_nll"]
                for log in logs:
                    if values:
                        log.write(step, values)
                if shown and leads():
                    report(step, values)
                if (due or stop) and sound and saved != step:
                    checkpoints.save(step, self._state, self._position(), score=score)
                    saved = step
                if stop and not last:
                    checkpoints.wait()
                    raise Stopped(saved)

    def _restore(self, checkpoints: Checkpoints) -> int:
        found = checkpoints.newest(self._state)
        self._skipped = SkippedSteps(self._run)
        if found is None:
            return 0
        step, self._state, position = found
        self._batches.set_state(position["data"])
        self._skipped = SkippedSteps(self._run, position["skipped"])
        return step

    def _position(self) -> dict[str, Any]:
        """What a checkpoint holds beside the state: nothing random in training has any other source than the seed."""
        return {
            "data": self._batches.get_state(),
            "skipped": self._skipped.total,
            "seed": self._config.seed,
            "config": self._described,
        }
