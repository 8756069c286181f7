"""Which episode ids the parts of a corpus hold: 12 bytes each, answered exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from worldmodel.corpus.index import Index
from worldmodel.corpus.manifest import Part
from worldmodel.corpus.split import hash_of

_KEPT = 4


class KnownIds:
    """The ids of parts: sorted runs of their hashes, each beside the number of its part.

    Where a hash is found, the ids themselves are compared, in the index of that part.

    Args:
      load: the index of a part.
    """

    def __init__(self, load: Callable[[Part], Index]):
        self._load = load
        self._parts: list[Part] = []
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []  # of falling length, so that they are few
        self._indexes: dict[int, Index] = {}

    def copy(self) -> KnownIds:
        """One that can be added to without changing this."""
        other = KnownIds(self._load)
        other._parts, other._runs = list(self._parts), list(self._runs)
        return other

    def holds(self, episode_id: str) -> bool:
        """Whether a part holds this id."""
        wanted = np.uint64(hash_of(episode_id))
        return any(
            index.id_of(int(episode)) == episode_id
            for index in self._candidates(wanted)
            for episode in np.flatnonzero(index.id_hashes == wanted)
        )

    def add(self, part: Part) -> list[str]:
        """Takes the ids of a part; returns those that were taken before."""
        index = self._load(part)
        known = np.zeros(index.episodes, np.bool_)
        for hashes, _ in self._runs:
            place = np.minimum(np.searchsorted(hashes, index.id_hashes), len(hashes) - 1)
            known |= hashes[place] == index.id_hashes
        again = [name for name in map(index.id_of, np.flatnonzero(known).tolist()) if self.holds(name)]
        run = np.sort(index.id_hashes), np.full(index.episodes, len(self._parts), np.int32)
        while self._runs and len(self._runs[-1][0]) <= 2 * len(run[0]):
            hashes, parts = (np.concatenate(pair) for pair in zip(self._runs.pop(), run, strict=True))
            order = np.argsort(hashes, kind="stable")
            run = hashes[order], parts[order]
        self._runs.append(run)
        self._parts.append(part)
        return again

    def _candidates(self, wanted: np.uint64) -> list[Index]:
        found = []
        for hashes, parts in self._runs:
            first, last = np.searchsorted(hashes, wanted, "left"), np.searchsorted(hashes, wanted, "right")
            found += [self._index(int(number)) for number in np.unique(parts[first:last])]
        return found

    def _index(self, number: int) -> Index:
        if number not in self._indexes:
            while len(self._indexes) >= _KEPT:
                del self._indexes[next(iter(self._indexes))]
            self._indexes[number] = self._load(self._parts[number])
        return self._indexes[number]
