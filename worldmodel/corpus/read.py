"""Reading: episodes one by one, by their number, or all of a split as flat columns."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from worldmodel.corpus.columns import Columns
from worldmodel.corpus.index import Index
from worldmodel.corpus.manifest import Manifest, check_part, read_manifest
from worldmodel.corpus.split import SPLITS, held_out_of_hashes
from worldmodel.corpus.store import Records, StoredEpisodes, load_store
from worldmodel.trajectory import Spec, Trajectory, suggest

IN_MEMORY_BYTES = 2**30
"""A corpus of at most this size is trained on from memory."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A corpus on disk as its manifest was when it was opened; iterating yields every `Trajectory`, streaming.

    Attributes:
      path: its folder.
      manifest: spec, provenance and parts.
    """

    path: pathlib.Path
    manifest: Manifest

    @property
    def spec(self) -> Spec:
        """Spaces and limits of the environment that the episodes come from."""
        return self.manifest.spec

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What made the first episodes; each later part has its own in `manifest.parts`."""
        return self.manifest.provenance

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return sum(part.episodes for part in self.manifest.parts)

    @property
    def transitions(self) -> int:
        """Number of transitions."""
        return sum(part.transitions for part in self.manifest.parts)

    @property
    def index(self) -> Index:
        """Lengths, returns, ends, policies and ids of every episode, without reading one; `ValueError` if damaged."""
        return self._store[0]

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode in the order written; `ValueError` where a part's contents are not what was written."""
        index, records = self._store
        first = 0
        for part in self.manifest.parts:
            check_part(self.path, part, contents=True)
            yield from StoredEpisodes(self.manifest, records, index, np.arange(first, first + part.episodes))
            first += part.episodes

    def split(self, name: str) -> np.ndarray:
        """Bool `[E]`: the episodes of a split.

        Args:
          name: "train", or "held_out": a tenth of the episodes, chosen by their id (or by the manifest's `split_by`).
        """
        if name not in SPLITS:
            raise ValueError(f"split {name!r} is unknown{suggest(name, SPLITS)}; known are {', '.join(SPLITS)}")
        mask = held_out_of_hashes(self.index.split_hashes)
        return mask if name == "held_out" else ~mask

    def stored(self, split: str | None = None, *, keep: np.ndarray | None = None) -> StoredEpisodes:
        """Episodes on disk, by their number and for `window_batches`; none is read yet.

        Checksums of parts are not compared, which would read them whole; every record has its own.

        Args:
          split: "train", "held_out", or None for all.
          keep: bool `[E]`: of those, only these (see `index`); None for all.

        Raises:
          ValueError: no such split, or there is no such episode (a corpus of one episode holds none out).
        """
        chosen = np.ones(self.index.episodes, np.bool_) if split is None else self.split(split)
        if not chosen.any():
            raise ValueError(f"corpus {self.path}: {self.episodes} episode(s) leave none for split {split!r}")
        if keep is not None:
            chosen = chosen & keep
            if not chosen.any():
                raise ValueError(f"corpus {self.path}: none of its {self.episodes} episode(s) is to be kept")
        return StoredEpisodes(self.manifest, self._store[1], self.index, np.flatnonzero(chosen))

    def held(self, split: str | None = None, *, keep: np.ndarray | None = None) -> Columns | StoredEpisodes:
        """A split for training: `columns` of a corpus of up to a gibibyte, else `stored`; arguments as there."""
        small = sum(part.bytes for part in self.manifest.parts) <= IN_MEMORY_BYTES
        return self.columns(split, keep=keep) if small else self.stored(split, keep=keep)

    def columns(self, split: str | None = None, *, keep: np.ndarray | None = None) -> Columns:
        """All episodes of a split in memory; arguments and errors as `stored`, and `ValueError` for a damaged part."""
        for part in self.manifest.parts:
            check_part(self.path, part, contents=True)
        return self.stored(split, keep=keep).columns()

    @functools.cached_property
    def _store(self) -> tuple[Index, Records]:
        return load_store(self.path, self.manifest)


def open_corpus(path: str | os.PathLike[str]) -> Corpus:
    """Opens the corpus in the folder `path`; checks that its parts are there and of the right size.

    Raises:
      FileNotFoundError: no folder, no manifest (not written to its end), or a part is missing.
      ValueError: the manifest is damaged or of another format version, or a part was cut.
    """
    path = pathlib.Path(path)
    manifest = read_manifest(path)
    for part in manifest.parts:
        check_part(path, part, contents=False)
    return Corpus(path, manifest)
