"""How epochs cut episodes into pieces, and in which order: from lengths alone.

An epoch holds every transition exactly once: each episode is cut into pieces of `length`, from a phase drawn anew each
epoch, and the pieces are put in a new order. Phase and order are hashes of (seed, epoch, index), so that any place in
the stream of epochs can be found without walking there.
"""

from __future__ import annotations

import bisect
import dataclasses
import threading
from collections.abc import Callable, Sized
from typing import Generic, TypeVar

import numpy as np

_PHASE, _ORDER = 1, 2
_HASHED_AT_ONCE = 2**16

L = TypeVar("L", bound=Sized)


class Cuts:
    """How each epoch cuts the episodes into pieces, and the endless stream of all pieces in their order.

    Of an epoch it keeps 4 bytes per piece.
    """

    def __init__(self, lengths: np.ndarray, *, length: int, seed: int):
        self._lengths, self._length, self._seed = lengths, length, seed

    def _phases(self, epoch: int) -> np.ndarray:
        return stateless_hash(self._seed, epoch, _PHASE, len(self._lengths)) % np.uint64(self._length)

    def _pieces(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Phase and number of pieces of every episode, int64 `[E]`."""
        phases = self._phases(epoch).astype(np.int64)
        return phases, -(-(self._lengths + phases) // self._length)

    def count(self, epoch: int) -> int:
        """Number of pieces of an epoch."""
        return int(self._pieces(epoch)[1].sum())

    def epoch(self, epoch: int) -> Epoch:
        """The pieces of an epoch."""
        phases, counts = self._pieces(epoch)
        ends = np.cumsum(counts)
        order = np.argsort(stateless_hash(self._seed, epoch, _ORDER, int(ends[-1])), kind="stable")
        return Epoch(order.astype(np.min_scalar_type(len(order))), ends, phases, self._lengths, self._length)


@dataclasses.dataclass(frozen=True)
class Epoch:
    """The pieces of one epoch in their order.

    Attributes:
      order: `[W]`, the pieces, counted through episode by episode.
      ends: int64 `[E]`, of those, how many belong to this episode and the ones before it.
      phases: int64 `[E]`, how much shorter than `length` each episode's first piece is.
      lengths: int64 `[E]`, of the episodes.
      length: of a piece.
    """

    order: np.ndarray
    ends: np.ndarray
    phases: np.ndarray
    lengths: np.ndarray
    length: int

    def __len__(self) -> int:
        return len(self.order)

    def pieces(self, places: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pieces at places of the order: episode, first transition within it, transitions, each int64."""
        numbers = self.order[places].astype(np.int64)
        episode = np.searchsorted(self.ends, numbers, side="right")
        before = np.where(episode > 0, self.ends[episode - 1], 0)
        begin = (numbers - before) * self.length - self.phases[episode]
        offset = np.maximum(begin, 0)
        return episode, offset, np.minimum(begin + self.length, self.lengths[episode]) - offset


class Stream(Generic[L]):
    """The elements of epoch after epoch as one endless stream; safe between threads.

    Args:
      layout: of an epoch, with as many elements as it is long.
      count: that length, where it is cheaper to know than the layout; None where not.
    """

    def __init__(self, layout: Callable[[int], L], count: Callable[[int], int] | None = None):
        self._layout = layout
        self._count = count or (lambda epoch: len(self._epoch(epoch)))
        self._starts = [0]  # place in the stream of each epoch's first element
        self._kept: dict[int, L] = {}
        self._lock = threading.Lock()

    def spans(self, first: int, last: int) -> list[tuple[L, slice]]:
        """Elements `first..last-1` of the stream: the layouts they lie in, and which of each."""
        found = []
        with self._lock:
            while self._starts[-1] <= first:
                self._starts.append(self._starts[-1] + self._count(len(self._starts) - 1))
            epoch = bisect.bisect_right(self._starts, first) - 1
            start = self._starts[epoch]
            while start < last:
                layout = self._epoch(epoch)
                found.append((layout, slice(max(first - start, 0), min(last - start, len(layout)))))
                start += len(layout)
                epoch += 1
        return found

    def _epoch(self, epoch: int) -> L:
        if epoch not in self._kept:
            self._kept[epoch] = self._layout(epoch)
            for old in [known for known in self._kept if known < epoch - 1]:
                del self._kept[old]
        return self._kept[epoch]


def stateless_hash(seed: int, epoch: int, purpose: int, count: int) -> np.ndarray:
    """uint64 `[count]`: element `i` depends on (seed, epoch, purpose, i) only.

    SplitMix64's finaliser (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), chained over the
    key; unlike NumPy's generators, its stream cannot change with a release.
    """
    key = np.zeros(1, np.uint64)
    for word in (seed, epoch, purpose):
        key = _mix(key ^ np.uint64(word % 2**64))
    hashes = np.empty(count, np.uint64)
    for start in range(0, count, _HASHED_AT_ONCE):  # few at a time: the intermediate arrays stay small
        indices = np.arange(start, min(start + _HASHED_AT_ONCE, count), dtype=np.uint64)
        hashes[start : start + _HASHED_AT_ONCE] = _mix(key + indices * np.uint64(0x9E3779B97F4A7C15))
    return hashes


def _mix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
