"""Windows of episodes for training, as a Grain pipeline whose position can be saved.

The pipeline is an endless stream of windows, epoch after epoch (`worldmodel.corpus.epochs`), and batch `i` can be made
without its predecessors. Grain's element is a whole batch: one Python call per window would cost more than the step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from worldmodel.corpus.columns import Columns, Episodes
from worldmodel.corpus.epochs import Cuts, Stream
from worldmodel.images import EncodedImages
from worldmodel.spaces import map_columns

ENDLESS = 2**31 - 1
"""Length of a data source without an end."""


def window_batches(
    episodes: Episodes, *, length: int, batch_size: int, seed: int, shard: tuple[int, int] = (0, 1)
) -> Any:
    """An endless Grain iterator of batches of windows; windows never cross episodes.

    Its `get_state()` is JSON; `set_state()` of it, on an iterator made with the same arguments, continues with the same
    bits. Episodes on disk give the same bits as in memory. `B = batch_size`, `L = length`; a piece shorter than `L` is
    at the left, and padded by repeating its last row:

      observations: columns `[B, L+1, ...]`, row `t+1` follows action `t`; images are decoded.
      actions: columns `[B, L, ...]`.
      rewards: float32 `[B, L]`, of transition `t`; zero where padded.
      terminated: bool `[B, L]`, transition `t` reached a terminal state; false where padded.
      mask: float32 `[B, L]`, one where the transition is real.
      last_reward: float32 `[B]`, what the step before the window paid; NaN where the window begins its episode.
      context: an object array `[B]`, what holds for the window's episode, plain JSON or None.

    Args:
      episodes: `Columns`, or a corpus on disk (`Corpus.stored`).
      length: `L`, transitions.
      batch_size: `B`, windows.
      seed: of cuts and order.
      shard: (index, count) of this process among those that share the stream: it gets batches index, index + count, ..

    Raises:
      ValueError: `length` or `batch_size` is below 1, or there is no such shard.
    """
    source = WindowSource(episodes, length=length, batch_size=batch_size, seed=seed)
    return batch_iterator(source, shard=shard, in_memory=isinstance(episodes, Columns))


def batch_iterator(source: Any, *, shard: tuple[int, int], in_memory: bool) -> Any:
    """A Grain iterator over the batches of `source`, a data source or dataset, that are this shard's."""
    import grain

    index, count = shard
    if not 0 <= index < count:
        raise ValueError(f"shard {index} of {count} is none; shards are counted from 0 to {max(count, 1) - 1}")
    dataset = source if isinstance(source, grain.MapDataset) else grain.MapDataset.source(source)
    if count > 1:
        dataset = dataset[index::count]
    # In memory, reader threads would only contend for the interpreter; from disk they read while others compute.
    threads, ahead = (0, 0) if in_memory else (2, 4)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)))


class WindowSource:
    """Random access to batch `i` of the stream (see `window_batches`); a Grain data source."""

    def __init__(self, episodes: Episodes, *, length: int, batch_size: int, seed: int):
        check_sizes(length, batch_size)
        self._episodes = episodes
        self._length = length
        self._batch_size = batch_size
        self._seed = seed
        cuts = Cuts(episodes.lengths, length=length, seed=seed)
        self._stream = Stream(cuts.epoch, cuts.count)

    def __len__(self) -> int:
        return ENDLESS

    def __repr__(self) -> str:
        return f"WindowSource(length={self._length}, batch_size={self._batch_size}, seed={self._seed})"

    def __getitem__(self, index: Any) -> dict[str, Any]:
        first = int(index) * self._batch_size
        return self.windows(first, first + self._batch_size)

    def windows(self, first: int, last: int) -> dict[str, Any]:
        """Windows `first..last-1` of the stream as one batch."""
        spans = [epoch.pieces(inside) for epoch, inside in self._stream.spans(first, last)]
        episode, offset, length = (np.concatenate(column) for column in zip(*spans, strict=True))
        columns, episode, offset = self._episodes.pieces(episode, offset, length)
        steps = np.arange(self._length)
        mask = steps < length[:, None]
        row = (columns.starts[episode] + offset)[:, None] + np.minimum(steps, length[:, None] - 1)
        observation = (columns.observation_starts[episode] + offset)[:, None] + np.minimum(
            np.arange(self._length + 1), length[:, None]
        )
        return {
            "observations": rows_of(columns.observations, observation),
            "actions": rows_of(columns.actions, row),
            "rewards": np.where(mask, columns.rewards[row], np.float32(0)),
            "terminated": columns.terminated_rows[row] & mask,
            "mask": mask.astype(np.float32),
            "last_reward": np.where(offset > 0, columns.rewards[np.maximum(row[:, 0] - 1, 0)], np.float32(np.nan)),
            "context": contexts_of(columns, episode),
        }


def check_sizes(length: int, batch_size: int) -> None:
    """`ValueError` unless both are at least 1."""
    for name, value in (("length", length), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} of windows is {value}; at least 1 is needed")


def contexts_of(columns: Columns, episode: np.ndarray) -> np.ndarray:
    """The contexts of these episodes, an object array of their shape."""
    contexts = np.empty(len(columns.contexts), np.object_)
    contexts[:] = columns.contexts
    return contexts[episode]


def rows_of(values: Any, rows: np.ndarray) -> Any:
    """The rows `[B, L]` of every column, `[B, L, ...]`; of images, each that occurs is decoded once."""
    return map_columns(lambda column: _rows_of_column(column, rows), values)


def _rows_of_column(column: Any, rows: np.ndarray) -> np.ndarray:
    if not isinstance(column, EncodedImages):
        return column[rows]
    needed, place = np.unique(rows, return_inverse=True)
    return np.asarray(column[needed])[place.reshape(rows.shape)]
