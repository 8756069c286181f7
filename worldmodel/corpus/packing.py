"""Packing: several short pieces of episodes in one row, told apart by segment ids.

Rows of padding cost as much as rows of data. Where episodes are shorter than the window, an epoch's pieces are packed
into rows that best-fit fills. The layout follows from lengths alone, so that any batch of the epoch can be made by
itself and the position is one number; Grain's own packing holds what it has read of the stream instead.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any

import numpy as np

from worldmodel.corpus.columns import Columns, Episodes
from worldmodel.corpus.epochs import Cuts, Epoch, Stream, stateless_hash
from worldmodel.corpus.windows import ENDLESS, batch_iterator, check_sizes, contexts_of, rows_of

_ROWS = 3
_PACKED_AT_ONCE = 4096


def packed_batches(
    episodes: Episodes, *, length: int, batch_size: int, seed: int, shard: tuple[int, int] = (0, 1)
) -> Any:
    """An endless Grain iterator of batches of packed rows; arguments, state and errors as `window_batches`.

    An epoch holds every transition once. `B = batch_size`, `L = length`; what is left of a row is padded by repeating
    its last transition:

      observations: columns `[B, L, ...]`, before each action; images are decoded.
      next_observations: columns `[B, L, ...]`, after it.
      actions: columns `[B, L, ...]`.
      rewards: float32 `[B, L]`; zero where padded.
      terminated: bool `[B, L]`; false where padded.
      mask: float32 `[B, L]`, one where the transition is real.
      last_reward: float32 `[B, L]`, what the step before paid; NaN at an episode's first step and where padded.
      context: an object array `[B, L]`, what holds for the step's episode, plain JSON or None.
      segment: int32 `[B, L]`, which piece of the row, from 1; 0 where padded. No step may attend to another segment.
      position: int32 `[B, L]`, steps since the segment began; 0 where padded.
    """
    source = PackedSource(episodes, length=length, batch_size=batch_size, seed=seed)
    return batch_iterator(source, shard=shard, in_memory=isinstance(episodes, Columns))


class PackedSource:
    """Random access to batch `i` of the stream (see `packed_batches`); a Grain data source."""

    def __init__(self, episodes: Episodes, *, length: int, batch_size: int, seed: int):
        check_sizes(length, batch_size)
        self._episodes = episodes
        self._length = length
        self._batch_size = batch_size
        self._seed = seed
        self._cuts = Cuts(episodes.lengths, length=length, seed=seed)
        self._stream = Stream(self._pack)

    def __len__(self) -> int:
        return ENDLESS

    def __repr__(self) -> str:
        return f"PackedSource(length={self._length}, batch_size={self._batch_size}, seed={self._seed})"

    def __getitem__(self, index: Any) -> dict[str, Any]:
        first = int(index) * self._batch_size
        spans, made = [], 0
        for rows, inside in self._stream.spans(first, first + self._batch_size):
            row, *piece = rows.pieces(inside)
            spans.append((row + made, *piece))
            made += inside.stop - inside.start
        row, episode, begin, steps = (np.concatenate(column) for column in zip(*spans, strict=True))
        columns, episode, begin = self._episodes.pieces(episode, begin, steps)
        return self._lay_out(columns, row, episode, begin, steps)

    def _pack(self, epoch: int) -> _Rows:
        pieces = self._cuts.epoch(epoch)
        row = best_fit(pieces.pieces(slice(None))[2], self._length)
        rows = int(row.max()) + 1
        # Within a group the longest pieces open the first rows; a hash puts the rows in another order.
        place = np.empty(rows, np.int64)
        place[np.argsort(stateless_hash(self._seed, epoch, _ROWS, rows), kind="stable")] = np.arange(rows)
        order = np.argsort(place[row], kind="stable")
        kind = np.min_scalar_type(len(order))
        return _Rows(pieces, order.astype(kind), np.cumsum(np.bincount(place[row], minlength=rows)))

    def _lay_out(
        self, columns: Columns, row: np.ndarray, episode: np.ndarray, begin: np.ndarray, steps: np.ndarray
    ) -> dict[str, Any]:
        """The batch from its pieces, sorted by row."""
        ends = np.searchsorted(row, np.arange(self._batch_size), side="right")  # pieces up to each row's last
        opens = np.concatenate([[0], ends[:-1]])  # each row's first piece
        before = np.cumsum(steps) - steps
        within = np.arange(int(steps.sum())) - np.repeat(before, steps)
        place = np.repeat(row * self._length + before - before[opens[row]], steps) + within
        rows = []
        for starts in (columns.starts, columns.observation_starts):
            first = starts[episode] + begin
            rows.append(self._filled((first + steps - 1)[ends - 1], place, np.repeat(first, steps) + within))
        taken, observed = rows
        zeros = np.zeros(self._batch_size, np.int32)
        segment = self._filled(zeros, place, np.repeat(np.arange(len(row)) - opens[row] + 1, steps))
        known = self._filled(zeros, place, np.repeat(begin, steps) + within > 0) > 0
        mask = segment > 0
        return {
            "observations": rows_of(columns.observations, observed),
            "next_observations": rows_of(columns.observations, observed + 1),
            "actions": rows_of(columns.actions, taken),
            "rewards": np.where(mask, columns.rewards[taken], np.float32(0)),
            "terminated": columns.terminated_rows[taken] & mask,
            "mask": mask.astype(np.float32),
            "last_reward": np.where(known, columns.rewards[np.maximum(taken - 1, 0)], np.float32(np.nan)),
            "context": contexts_of(columns, np.searchsorted(columns.starts, taken, side="right") - 1),
            "segment": segment,
            "position": self._filled(zeros, place, within),
        }

    def _filled(self, padding: np.ndarray, place: np.ndarray, values: np.ndarray) -> np.ndarray:
        """`[B, L]`: each row's padding, and the values of real transitions in their flat places."""
        result = np.repeat(padding, self._length)
        result[place] = values
        return result.reshape(self._batch_size, self._length)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """The packed rows of one epoch.

    Attributes:
      epoch: its pieces.
      order: `[W]`, places in the epoch's order, row by row.
      ends: int64 `[R]`, how many of those this row and the ones before it take.
    """

    epoch: Epoch
    order: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    def pieces(self, inside: slice) -> tuple[np.ndarray, ...]:
        """The pieces of a stretch of rows: row within it, episode, first transition, transitions, each int64."""
        ends = self.ends[inside]
        first = int(self.ends[inside.start - 1]) if inside.start else 0
        row = np.searchsorted(ends, np.arange(first, ends[-1]), side="right")
        return row, *self.epoch.pieces(self.order[first : ends[-1]])


def best_fit(lengths: np.ndarray, capacity: int) -> np.ndarray:
    """int64 `[W]`: the row of each piece, none longer than `capacity`; rows are counted from 0.

    Best-fit decreasing (Johnson 1974), in groups of 4,096 pieces one after the other, so that time stays linear.
    """
    rows = np.empty(len(lengths), np.int64)
    count = 0
    for start in range(0, len(lengths), _PACKED_AT_ONCE):
        group = lengths[start : start + _PACKED_AT_ONCE]
        spaces: list[tuple[int, int]] = []  # what is left of each row, and the row; sorted
        for place in np.argsort(-group, kind="stable").tolist():
            length = int(group[place])
            tightest = bisect.bisect_left(spaces, (length, 0))
            if tightest < len(spaces):
                space, row = spaces.pop(tightest)
            else:
                space, row = capacity, count
                count += 1
            if space > length:
                bisect.insort(spaces, (space - length, row))
            rows[start + place] = row
    return rows
