"""Counting real steps, so that a report can say how many were taken, and when."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium


class StepLedger:
    """How many real environment steps each phase took; shared by all environments of a run, safe across threads."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, phase: str, steps: int = 1) -> None:
        """Books `steps` on `phase`."""
        with self._lock:
            self._steps[phase] = self._steps.get(phase, 0) + steps

    def count(self, phase: str) -> int:
        """Steps booked on `phase`; 0 where none were."""
        with self._lock:
            return self._steps.get(phase, 0)

    @property
    def total(self) -> int:
        """Steps of all phases."""
        with self._lock:
            return sum(self._steps.values())

    def to_json(self) -> Mapping[str, int]:
        """Steps by phase."""
        with self._lock:
            return dict(self._steps)


@contextlib.contextmanager
def every_step_counted(env: gymnasium.Env, ledger: StepLedger, phase: str) -> Iterator[None]:
    """Books every step of any environment of `env`'s class on `phase` while the body runs, whoever made it.

    What is to take no real step runs under this: a step by way of an environment that nobody wrapped is seen, too.
    """
    kind: Any = type(env.unwrapped)
    original = kind.step

    def step(self: Any, action: Any) -> Any:
        ledger.add(phase)
        return original(self, action)

    kind.step = step
    try:
        yield
    finally:
        kind.step = original


class CountSteps(gymnasium.Wrapper):
    """Books every `step` of the wrapped environment on a phase of the ledger, e.g. "logs" or "evaluation"."""

    def __init__(self, env: gymnasium.Env, ledger: StepLedger, phase: str):
        super().__init__(env)
        self._ledger = ledger
        self._phase = phase

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One real step, counted before it is taken: a step that raises was taken, too."""
        self._ledger.add(self._phase)
        return self.env.step(action)
