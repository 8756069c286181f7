"""Windows of episodes for training, as a Grain pipeline whose position can be saved.

The pipeline is an endless stream of windows, epoch after epoch. An epoch holds every transition exactly once: each
episode is cut into pieces of `length`, from a phase drawn anew each epoch, and the pieces are put in a new order.
Phase and order are hashes of (seed, epoch, index), so that batch `i` can be made without its predecessors. Grain's
element is a whole batch, because one Python call per window would cost more than the training step.
"""

from __future__ import annotations

import bisect
import dataclasses
import threading
from typing import Any

import numpy as np

from worldmodel.corpus.columns import Columns

_BATCHES = 2**31 - 1
_PHASE, _ORDER = 1, 2


def window_batches(columns: Columns, *, length: int, batch_size: int, seed: int) -> Any:
    """An endless Grain iterator of batches of windows; windows never cross episodes.

    Its `get_state()` is JSON; `set_state()` of it, on an iterator made with the same arguments, continues with the same
    bits. `B = batch_size`, `L = length`; a piece shorter than `L` is at the left, and padded by repeating its last row:

      observations: `[B, L+1, ...]`, row `t+1` follows action `t`.
      actions: `[B, L, ...]`.
      rewards: float32 `[B, L]`, of transition `t`; zero where padded.
      terminated: bool `[B, L]`, transition `t` reached a terminal state; false where padded.
      mask: float32 `[B, L]`, one where the transition is real.
      last_reward: float32 `[B]`, what the step before the window paid; NaN where the window begins its episode.

    Raises:
      ValueError: `length` or `batch_size` is below 1.
    """
    import grain

    source = WindowSource(columns, length=length, batch_size=batch_size, seed=seed)
    # The columns are in memory: reader threads would only contend for the interpreter.
    return iter(
        grain.MapDataset.source(source).to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    )


@dataclasses.dataclass(frozen=True)
class _Epoch:
    """The windows of one epoch in their order, each int64 `[W]`: episode, first transition within it, transitions."""

    episode: np.ndarray
    offset: np.ndarray
    length: np.ndarray


class WindowSource:
    """Random access to batch `i` of the stream (see `window_batches`); a Grain data source."""

    def __init__(self, columns: Columns, *, length: int, batch_size: int, seed: int):
        for name, value in (("length", length), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name} of windows is {value}; at least 1 is needed")
        self._columns = columns
        self._length = length
        self._batch_size = batch_size
        self._seed = seed
        self._starts = [0]  # place in the stream of each epoch's first window
        self._cached: dict[int, _Epoch] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return _BATCHES

    def __repr__(self) -> str:
        return f"WindowSource(length={self._length}, batch_size={self._batch_size}, seed={self._seed})"

    def __getitem__(self, index: Any) -> dict[str, np.ndarray]:
        first = int(index) * self._batch_size
        episode, offset, length = self._windows(first, first + self._batch_size)
        columns = self._columns
        steps = np.arange(self._length)
        mask = steps < length[:, None]
        row = (columns.starts[episode] + offset)[:, None] + np.minimum(steps, length[:, None] - 1)
        observation = (columns.observation_starts[episode] + offset)[:, None] + np.minimum(
            np.arange(self._length + 1), length[:, None]
        )
        return {
            "observations": columns.observations[observation],
            "actions": columns.actions[row],
            "rewards": np.where(mask, columns.rewards[row], np.float32(0)),
            "terminated": columns.terminated_rows[row] & mask,
            "mask": mask.astype(np.float32),
            "last_reward": np.where(offset > 0, columns.rewards[np.maximum(row[:, 0] - 1, 0)], np.float32(np.nan)),
        }

    def _windows(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Windows `first..last-1` of the stream: episode, offset, length, each int64 `[last - first]`."""
        pieces = []
        with self._lock:
            while self._starts[-1] <= first:
                self._starts.append(self._starts[-1] + self._count(len(self._starts) - 1))
            epoch = bisect.bisect_right(self._starts, first) - 1
            start = self._starts[epoch]
            while start < last:
                layout = self._epoch(epoch)
                inside = slice(max(first - start, 0), last - start)
                pieces.append((layout.episode[inside], layout.offset[inside], layout.length[inside]))
                start += len(layout.episode)
                epoch += 1
        episode, offset, length = (np.concatenate(column) for column in zip(*pieces, strict=True))
        return episode, offset, length

    def _phases(self, epoch: int) -> np.ndarray:
        return stateless_hash(self._seed, epoch, _PHASE, self._columns.episodes) % np.uint64(self._length)

    def _pieces(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Phase and number of windows of every episode, int64 `[E]`."""
        phases = self._phases(epoch).astype(np.int64)
        return phases, -(-(self._columns.lengths + phases) // self._length)

    def _count(self, epoch: int) -> int:
        return int(self._pieces(epoch)[1].sum())

    def _epoch(self, epoch: int) -> _Epoch:
        if epoch not in self._cached:
            phases, counts = self._pieces(epoch)
            order = np.argsort(stateless_hash(self._seed, epoch, _ORDER, int(counts.sum())), kind="stable")
            episode = np.repeat(np.arange(len(counts)), counts)[order]
            piece = (np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts))[order]
            begin = piece * self._length - phases[episode]
            offset = np.maximum(begin, 0)
            length = np.minimum(begin + self._length, self._columns.lengths[episode]) - offset
            self._cached[epoch] = _Epoch(episode, offset, length)
            for old in [known for known in self._cached if known < epoch - 1]:
                del self._cached[old]
        return self._cached[epoch]


def stateless_hash(seed: int, epoch: int, purpose: int, count: int) -> np.ndarray:
    """uint64 `[count]`: element `i` depends on (seed, epoch, purpose, i) only.

    SplitMix64's finaliser (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), chained over the
    key; unlike NumPy's generators, its stream cannot change with a release.
    """
    key = np.zeros(1, np.uint64)
    for word in (seed, epoch, purpose):
        key = _mix(key ^ np.uint64(word % 2**64))
    return _mix(key + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _mix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
