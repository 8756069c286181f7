"""Several corpora in one stream of windows, by weight.

Nothing is drawn: how many of the first `k` windows come from each corpus is a formula of `k`, which follows the weights
all along. It is the one of Grain's `mix`, for a batch at once, as Grain's would make each window by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.corpus.columns import Columns, Episodes
from worldmodel.corpus.windows import ENDLESS, WindowSource, batch_iterator, check_sizes
from worldmodel.spaces import map_columns

_PERIOD = 2**20
"""Windows after which the pattern of corpora repeats."""


def mixed_batches(
    corpora: Sequence[Episodes],
    weights: Sequence[float | int],
    *,
    length: int,
    batch_size: int,
    seed: int,
    shard: tuple[int, int] = (0, 1),
) -> Any:
    """An endless Grain iterator of batches whose windows come from several corpora, by weight.

    Of each corpus the windows come in the order of its own `window_batches`, so that its epochs are exact. A batch is
    as there, with `corpus`, int32 `[B]`: where each window is from.

    Args:
      corpora: `Columns` or corpora on disk, of one spec.
      weights: of their windows, in any unit.
      length: transitions of a window.
      batch_size: windows of a batch.
      seed: of cuts and order.
      shard: as `window_batches`.

    Raises:
      ValueError: a weight is not positive or below a millionth of all, there is not one for each corpus, the corpora
        differ in their spaces, or as `window_batches`.
    """
    source = MixedSource(corpora, weights, length=length, batch_size=batch_size, seed=seed)
    return batch_iterator(source, shard=shard, in_memory=all(isinstance(corpus, Columns) for corpus in corpora))


class MixedSource:
    """Random access to batch `i` of the stream (see `mixed_batches`); a Grain data source."""

    def __init__(
        self,
        corpora: Sequence[Episodes],
        weights: Sequence[float | int],
        *,
        length: int,
        batch_size: int,
        seed: int,
    ):
        check_sizes(length, batch_size)
        if len(corpora) != len(weights) or not corpora:
            raise ValueError(f"{len(corpora)} corpora and {len(weights)} weights; one for each is needed")
        self._shares = _shares(weights)
        self._batch_size = batch_size
        self._sources = [WindowSource(each, length=length, batch_size=1, seed=seed) for each in corpora]
        kinds = [_kind(source[0]) for source in self._sources]
        for place, kind in enumerate(kinds):
            if kind != kinds[0]:
                raise ValueError(f"corpora 0 and {place} differ in their spaces: {kinds[0]} and {kind}")

    def __len__(self) -> int:
        return ENDLESS

    def __repr__(self) -> str:
        return f"MixedSource({self._sources}, shares={self._shares.tolist()}, batch_size={self._batch_size})"

    def __getitem__(self, index: Any) -> dict[str, Any]:
        first = int(index) * self._batch_size
        counts = windows_before(np.arange(first, first + self._batch_size + 1), self._shares)
        corpus = np.diff(counts).argmax(axis=0)
        taken = [
            source.windows(int(own[0]), int(own[-1]))
            for source, own in zip(self._sources, counts, strict=True)
            if own[0] < own[-1]
        ]
        place = np.argsort(np.argsort(corpus, kind="stable"))
        mixed = map_columns(lambda *columns: np.concatenate(columns)[place], *taken)
        return {**mixed, "corpus": corpus.astype(np.int32)}


def windows_before(place: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """int64 `[C, K]`: of the windows before each place `[K]`, how many are of each corpus.

    Each corpus in turn takes its share of what those before it left, rounded up; after a whole period every count is
    exact. `shares` are int64 `[C]` and add up to the period.
    """
    whole, rest = np.divmod(place, _PERIOD)
    remaining = _PERIOD
    counts = np.empty((len(shares), len(place)), np.int64)
    for corpus, share in enumerate(shares.tolist()):
        left = rest * (remaining - share) // remaining
        counts[corpus] = whole * share + rest - left
        rest, remaining = left, remaining - share
    return counts


def _shares(weights: Sequence[float | int]) -> np.ndarray:
    for weight in weights:
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"weight {weight} of a corpus; a positive number is needed")
    shares = np.diff(np.rint(np.cumsum([0.0, *weights]) / sum(weights) * _PERIOD)).astype(np.int64)
    for weight, share in zip(weights, shares.tolist(), strict=True):
        if share < 1:
            raise ValueError(f"weight {weight} is less than a millionth of all weights")
    return shares


def _kind(window: dict[str, Any]) -> Any:
    seen = {name: window[name] for name in ("observations", "actions")}
    return map_columns(lambda column: f"{column.dtype}{list(np.shape(column)[1:])}", seen)
