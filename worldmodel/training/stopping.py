"""What stops a run before its end: the machine is taken away, or the arithmetic is lost."""

from __future__ import annotations

import collections
import json
import math
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np

from worldmodel.training.worlds import ONLY

PATIENCE = 10
"""Steps in a row without a finite loss and gradient after which training stops."""


class Stopped(SystemExit):
    """Training was told to stop (SIGTERM), saved, and did: the process ends with code 0 where nobody catches it.

    Attributes:
      step: training steps taken; the same call resumes there.
    """

    def __init__(self, step: int):
        super().__init__(0)
        self.step = step


class Interruption:
    """Notices SIGTERM while its context is open. Several processes agree on the step at which to stop."""

    def __init__(self):
        self._seen = False
        self._before: Any = None

    def __enter__(self) -> Interruption:
        # Of several processes, JAX's own handler notices; other threads than the main one may not set any.
        self._ours = jax.process_count() == 1 and threading.current_thread() is threading.main_thread()
        if self._ours:
            self._before = signal.signal(signal.SIGTERM, self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def due(self, step: int) -> bool:
        """Whether to stop after this step."""
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            return multihost_utils.reached_preemption_sync_point(step)
        return self._seen

    def _notice(self, number: int, frame: FrameType | None) -> None:
        self._seen = True


class SkippedSteps:
    """Counts steps that the train step skipped because loss or gradient was not finite.

    It looks at a step only when the next one is under way, so that the device need not wait for the host.

    Args:
      run: the run folder, for the batch that training stopped at.
      total: how many there were before.
    """

    def __init__(self, run: Path, total: int = 0):
        self.total, self.in_a_row = total, 0
        self._run = run
        self._unseen: collections.deque[tuple[int, Mapping[str, Any], Mapping[str, Any]]] = collections.deque()

    def watch(self, step: int, windows: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        """Takes note of a step just begun; raises as `settle` about the one before."""
        self._unseen.append((step, windows, metrics))
        while len(self._unseen) > 1:
            self._look()

    def settle(self) -> None:
        """Looks at every step up to now.

        Raises:
          FloatingPointError: `PATIENCE` steps in a row were skipped; the last one's batch is in the run folder.
        """
        while self._unseen:
            self._look()

    def _look(self) -> None:
        step, windows, metrics = self._unseen.popleft()
        if not metrics["skipped"]:
            self.in_a_row = 0
            return
        self.total += 1
        self.in_a_row += 1
        if self.in_a_row < PATIENCE:
            return
        path = self._run / f"not_finite_step_{step}_process_{jax.process_index()}.npz"
        leaves = jax.tree_util.tree_leaves_with_path(dict(windows.get(ONLY, windows)))
        np.savez(path, allow_pickle=False, **{jax.tree_util.keystr(p): _plain(leaf) for p, leaf in leaves})
        lost = {name: float(metrics[name]) for name in ("loss", "grad_norm")}
        name, value = next((item for item in lost.items() if not math.isfinite(item[1])), ("loss", lost["loss"]))
        raise FloatingPointError(
            f"{name} is {value} at step {step}; the last checkpoint in {self._run} is unharmed; {PATIENCE} steps in a "
            f"row were skipped, and the batch of the last is in {path.name}"
        )


def _plain(leaf: Any) -> np.ndarray:
    """An array as it is; objects, which are contexts, as JSON."""
    array = np.asarray(leaf)
    return np.array([json.dumps(value) for value in array]) if array.dtype == np.object_ else array
