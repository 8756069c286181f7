"""A micro-batcher: what many sessions ask for at the same time is done in one call."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple


class _Waiting(NamedTuple):
    kind: str
    item: Any
    future: Future[Any]


class Batcher:
    """Runs `run(kind, items)` in a thread of its own, with as many waiting items of one kind as a call takes.

    It never waits for a batch to fill: while one call runs the next items gather, so that batches grow with the load
    and a lone client pays nothing. Items are served in the order in which they came, kinds too.

    Args:
      run: takes a kind and its items, and returns for each a result, or an exception for its future.
      most: items of one call at most.
    """

    def __init__(self, run: Callable[[str, Sequence[Any]], Sequence[Any]], most: int):
        self._run, self._most = run, most
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.calls, self.items = 0, 0
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    def submit(self, kind: str, item: Any) -> Future[Any]:
        """The result of an item, later; `ValueError` after `close`."""
        future: Future[Any] = Future()
        with self._changed:
            if self._closed:
                raise ValueError("the server is closing")
            self._waiting.append(_Waiting(kind, item, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Finishes what waits, and ends the thread; may be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next():
            self.calls, self.items = self.calls + 1, self.items + len(batch)
            try:
                results = self._run(batch[0].kind, [waiting.item for waiting in batch])
            except Exception as error:  # it belongs to whoever asked: this thread serves all
                results = [error] * len(batch)
            for waiting, result in zip(batch, results, strict=True):
                if waiting.future.set_running_or_notify_cancel():  # else whoever asked has gone
                    if isinstance(result, Exception):
                        waiting.future.set_exception(result)
                    else:
                        waiting.future.set_result(result)

    def _next(self) -> list[_Waiting]:
        """The oldest item and others of its kind, in order; empty once closed and done."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            batch: list[_Waiting] = []
            kept: deque[_Waiting] = deque()
            while self._waiting and len(batch) < self._most:
                waiting = self._waiting.popleft()
                (batch if not batch or waiting.kind == batch[0].kind else kept).append(waiting)
            self._waiting.extendleft(reversed(kept))
            return batch
