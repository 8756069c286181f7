"""Packed rows of samples: batch `i` follows from (seed, `i`) alone, so that a run resumes exactly.

An epoch holds every sample once, in an order drawn anew; best-fit puts samples into rows. No sample is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from worldmodel.codec.text.shards import Samples
from worldmodel.corpus.epochs import Stream, stateless_hash
from worldmodel.corpus.packing import best_fit

_ORDER, _ROWS = 1, 3


class TokenBatches:
    """An endless iterator of batches of `B` rows of `L` tokens, and random access to any of them.

    A batch holds:

      tokens: int32 `[B, L]`; 0 where padded.
      weights: float32 `[B, L]`, what each counts as a target; 0 for what is given and where padded.
      kinds: uint8 `[B, L]`, each token's `Kind`.
      segments: int32 `[B, L]`, which sample of the row, from 1; 0 where padded.

    Args:
      samples: to learn from; none is longer than a row.
      length: of a row, `L`.
      rows: `B`.
      seed: of order.
      shard: (index, count) of this process among those that share the stream: it gets batches index, index + count, ..

    Raises:
      ValueError: there is no such shard, or a sample is longer than a row.
    """

    def __init__(self, samples: Samples, *, length: int, rows: int, seed: int, shard: tuple[int, int] = (0, 1)):
        if not 0 <= shard[0] < shard[1]:
            raise ValueError(f"shard {shard[0]} of {shard[1]} is none; shards are counted from 0 to {shard[1] - 1}")
        if samples.lengths.max() > length:
            raise ValueError(f"a sample of {samples.lengths.max()} tokens; a row has {length}")
        self._samples, self._length, self._rows, self._seed, self._shard = samples, length, rows, seed, shard
        self._stream = Stream(self._pack)
        self._place = 0

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        index, count = self._shard
        self._place += 1
        return self[(self._place - 1) * count + index]

    def get_state(self) -> dict[str, Any]:
        """JSON: how many batches were given."""
        return {"batches": self._place}

    def set_state(self, state: dict[str, Any]) -> None:
        """The inverse of `get_state`."""
        self._place = int(state["batches"])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Batch `index` of the stream."""
        shape = (self._rows, self._length)
        batch: dict[str, Any] = {
            "tokens": np.zeros(shape, np.int32),
            "weights": np.zeros(shape, np.float32),
            "kinds": np.zeros(shape, np.uint8),
            "segments": np.zeros(shape, np.int32),
        }
        row = 0
        for packed, inside in self._stream.spans(index * self._rows, (index + 1) * self._rows):
            for numbers in packed[inside]:
                self._fill(batch, row, numbers)
                row += 1
        return batch

    def _fill(self, batch: dict[str, Any], row: int, numbers: np.ndarray) -> None:
        start = 0
        for segment, number in enumerate(numbers, 1):
            ids, kinds, weights = self._samples.sample(int(number))
            here = slice(start, start + len(ids))
            batch["tokens"][row, here], batch["kinds"][row, here] = ids, kinds
            batch["weights"][row, here], batch["segments"][row, here] = weights, segment
            start += len(ids)

    def _pack(self, epoch: int) -> list[np.ndarray]:
        """The rows of an epoch, each the numbers of its samples."""
        count = len(self._samples)
        order = np.argsort(stateless_hash(self._seed, epoch, _ORDER, count), kind="stable")
        row = best_fit(self._samples.lengths[order], self._length)
        rows = int(row.max()) + 1
        # Within a group the longest samples open the first rows; a hash puts the rows in another order.
        moved = np.empty(rows, np.int64)
        moved[np.argsort(stateless_hash(self._seed, epoch, _ROWS, rows), kind="stable")] = np.arange(rows)
        place = moved[row]
        by_row = order[np.argsort(place, kind="stable")]
        return np.split(by_row, np.cumsum(np.bincount(place, minlength=rows))[:-1])
