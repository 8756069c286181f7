"""Episodes on disk by their number: only what is asked for is read and decoded."""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from worldmodel.corpus.columns import Columns
from worldmodel.corpus.index import NAME, Index, IndexBuilder, joined, load_index
from worldmodel.corpus.manifest import Manifest, Part, part_folder
from worldmodel.corpus.split import sample_of_hashes
from worldmodel.spaces import map_columns
from worldmodel.trajectory import Trajectory

SHARD_NAME = "episodes-train.array_record-{:05d}"
OPEN_SHARDS = 64
"""Files held open at once."""
CACHE_BYTES = 64 * 2**20
"""Episodes that stay decoded, by the size of their records."""
_CHUNK = 64

V = TypeVar("V")


class Recent(Generic[V]):
    """The values used last, up to a total weight; safe between threads."""

    def __init__(self, limit: int):
        self._limit, self._total = limit, 0
        self._kept: OrderedDict[int, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: int) -> V | None:
        """The value, which becomes the last used; None where it is not kept."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: int, value: V, weight: int) -> None:
        """Keeps a value, and drops those used longest ago while all weigh more than the limit."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = value, weight
                self._total += weight
            while self._total > self._limit and len(self._kept) > 1:
                self._total -= self._kept.popitem(last=False)[1][1]


class Records:
    """The serialised episodes of shards laid end to end."""

    def __init__(self, files: Sequence[pathlib.Path], lengths: np.ndarray):
        self._files = files
        self._ends = np.cumsum(lengths)
        self._readers: Recent[Any] = Recent(OPEN_SHARDS)

    def read(self, episodes: np.ndarray) -> list[bytes]:
        """The records of these episodes, in their order; `ValueError` where a file is damaged."""
        shards = np.searchsorted(self._ends, episodes, side="right")
        found: list[Any] = [None] * len(episodes)
        for shard in np.unique(shards):
            places = np.flatnonzero(shards == shard)
            first = int(self._ends[shard - 1]) if shard else 0
            file = self._files[shard]
            try:
                records = self._reader(int(shard)).read([int(episodes[i]) - first for i in places])
            except (RuntimeError, ValueError, IndexError, OSError) as error:
                raise ValueError(f"{file}: is damaged ({' '.join(str(error).split())[:200]})") from None
            for place, record in zip(places, records, strict=True):
                found[place] = record
        return found

    def _reader(self, shard: int) -> Any:
        from array_record.python.array_record_module import ArrayRecordReader

        reader = self._readers.get(shard)
        if reader is None:
            options = "readahead_buffer_size:0"  # random access: what follows is not what comes next
            reader = ArrayRecordReader(os.fspath(self._files[shard]), options, file_reader_buffer_size=2**15)
            self._readers.put(shard, reader, 1)
        return reader


class StoredEpisodes:
    """Some episodes of a corpus, in the order given, read when they are asked for; windows can be cut from them.

    Attributes:
      lengths: int64 `[E]`, transitions per episode.
      has_rewards: every episode's log has rewards.
    """

    def __init__(self, manifest: Manifest, records: Records, index: Index, chosen: np.ndarray):
        self._manifest, self._records, self._index, self._chosen = manifest, records, index, chosen
        self.lengths = index.lengths[chosen]
        self.has_rewards = not bool(np.isnan(index.returns[chosen]).any())
        self._cache: Recent[Trajectory] = Recent(CACHE_BYTES)

    @property
    def episodes(self) -> int:
        """Number of episodes `E`."""
        return len(self._chosen)

    @property
    def transitions(self) -> int:
        """Number of transitions of all episodes."""
        return int(self.lengths.sum())

    @functools.cached_property
    def _coder(self) -> Any:
        from worldmodel.corpus.rlds import EpisodeCoder

        return EpisodeCoder(self._manifest.spec)

    def __getitem__(self, episode: int) -> Trajectory:
        """Episode `episode` of these."""
        return self._decoded(np.array([range(self.episodes)[episode]]))[0]

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode, streaming; what is read is not kept."""
        for start in range(0, self.episodes, _CHUNK):
            for record in self._records.read(self._chosen[start : start + _CHUNK]):
                yield self._coder.decode(record)

    def columns(self) -> Columns:
        """All of these episodes in memory."""
        return Columns.from_trajectories(self)

    def sample(self, transitions: int) -> Columns:
        """All of these episodes in memory, or about `transitions` of them (as `Episodes`)."""
        if self.transitions <= transitions:
            return self.columns()
        chosen = sample_of_hashes(self._index.id_hashes[self._chosen], self.lengths, transitions)
        return StoredEpisodes(self._manifest, self._records, self._index, self._chosen[chosen]).columns()

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of a hash over the parts' checksums and which episodes these are."""
        digest = hashlib.sha256("".join(part.checksum for part in self._manifest.parts).encode())
        digest.update(self._chosen.astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def pieces(
        self, episode: np.ndarray, first: np.ndarray, steps: np.ndarray
    ) -> tuple[Columns, np.ndarray, np.ndarray]:
        """Columns that hold these pieces, and each piece's episode and first transition in them (as `Episodes`)."""
        needed, place = np.unique(episode, return_inverse=True)
        decoded = self._decoded(needed)
        begin = np.maximum(first - 1, 0)  # with the transition before, whose reward a window tells
        ends = first + steps
        pieces = [_cut(decoded[i], int(b), int(e)) for i, b, e in zip(place, begin, ends, strict=True)]
        return Columns.from_trajectories(pieces), np.arange(len(pieces)), first - begin

    def _decoded(self, episodes: np.ndarray) -> list[Trajectory]:
        found = [self._cache.get(int(i)) for i in episodes]
        missing = [place for place, trajectory in enumerate(found) if trajectory is None]
        for place, record in zip(missing, self._records.read(self._chosen[episodes[missing]]), strict=True):
            trajectory = found[place] = self._coder.decode(record)
            self._cache.put(int(episodes[place]), trajectory, len(record))
        return found  # pyright: ignore[reportReturnType]  # none is missing any more


def _cut(whole: Trajectory, begin: int, end: int) -> Trajectory:
    """Transitions `begin..end-1` of an episode, as views."""
    last = end == len(whole)
    return Trajectory(
        observations=map_columns(lambda column: column[begin : end + 1], whole.observations),
        actions=map_columns(lambda column: column[begin:end], whole.actions),
        rewards=None if whole.rewards is None else whole.rewards[begin:end],
        terminated=whole.terminated and last,
        truncated=whole.truncated and last,
        context=whole.context,
    )


def load_store(path: pathlib.Path, manifest: Manifest) -> tuple[Index, Records]:
    """The index and the records of every part of the corpus at `path`; `ValueError` as `index_of`."""
    if not manifest.parts:
        raise ValueError(f"corpus {path}: holds no episode")
    indexes = [index_of(path, manifest, part) for part in manifest.parts]
    files = [
        part_folder(path, part.name) / SHARD_NAME.format(shard)
        for part, index in zip(manifest.parts, indexes, strict=True)
        for shard in range(len(index.shard_lengths))
    ]
    index = joined(indexes)
    return index, Records(files, index.shard_lengths)


def index_of(path: pathlib.Path, manifest: Manifest, part: Part) -> Index:
    """The index of one part; of a part of format version 1, which has none, from its episodes.

    Raises:
      ValueError: it is damaged, or does not say what the manifest says.
    """
    folder = part_folder(path, part.name)
    index = load_index(folder) if (folder / NAME).is_file() else _gather_index(folder, manifest)
    for name in ("episodes", "transitions"):
        held, said = getattr(index, name), getattr(part, name)
        if held != said:
            raise ValueError(f"corpus {path}: {part.name} holds {held} {name}; the manifest says {said}")
    return index


def _gather_index(folder: pathlib.Path, manifest: Manifest) -> Index:
    from array_record.python.array_record_module import ArrayRecordReader

    from worldmodel.corpus.rlds import EpisodeCoder

    files = sorted(folder.glob(SHARD_NAME.format(0).replace("00000", "*")))
    lengths = [ArrayRecordReader(os.fspath(file)).num_records() for file in files]
    records, coder = Records(files, np.array(lengths, np.int64)), EpisodeCoder(manifest.spec)
    builder = IndexBuilder(manifest.split_by)
    for episode in range(sum(lengths)):
        builder.add(coder.decode(records.read(np.array([episode]))[0]))
    return builder.build(lengths)
