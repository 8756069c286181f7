"""Reading: episodes one by one, or all of a split as flat columns."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from worldmodel.corpus.columns import Columns
from worldmodel.corpus.manifest import Manifest, Part, check_part, part_folder, read_manifest
from worldmodel.corpus.split import SPLITS, held_out_mask
from worldmodel.trajectory import Spec, Trajectory, suggest

_CHUNK = 64


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

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode in the order written; `ValueError` where a part's contents are not what was written."""
        for part in self.manifest.parts:
            yield from self._read_part(part)

    def columns(self, split: str | None = None) -> Columns:
        """All episodes of a split in memory.

        Args:
          split: "train", "held_out" (a tenth of the episodes, chosen by their id), or None for all.

        Raises:
          ValueError: no such split, it is empty (a corpus of one episode holds none out), or a part is damaged.
        """
        if split is not None and split not in SPLITS:
            raise ValueError(f"split {split!r} is unknown{suggest(split, SPLITS)}; known are {', '.join(SPLITS)}")
        episodes = list(self)
        if split is not None:
            mask = held_out_mask([str(episode.info["id"]) for episode in episodes])
            wanted = mask if split == "held_out" else ~mask
            episodes = [episodes[i] for i in np.flatnonzero(wanted)]
            if not episodes:
                raise ValueError(f"corpus {self.path}: {self.episodes} episode(s) leave none for split {split!r}")
        return Columns.from_trajectories(episodes)

    def _read_part(self, part: Part) -> Iterator[Trajectory]:
        import tensorflow_datasets as tfds

        from worldmodel.corpus.rlds import EpisodeCoder

        check_part(self.path, part, contents=True)
        builder: Any = tfds.builder_from_directory(os.fspath(part_folder(self.path, part.name)))
        source = builder.as_data_source(split="train")
        if len(source) != part.episodes:
            raise ValueError(
                f"corpus {self.path}: {part.name} holds {len(source)} episodes; the manifest says {part.episodes}"
            )
        coder = EpisodeCoder(self.spec)
        transitions = 0
        for start in range(0, len(source), _CHUNK):
            for example in source.__getitems__(list(range(start, min(start + _CHUNK, len(source))))):
                trajectory = coder.decode(example)
                transitions += len(trajectory)
                yield trajectory
        if transitions != part.transitions:
            raise ValueError(
                f"corpus {self.path}: {part.name} holds {transitions} transitions; the manifest says {part.transitions}"
            )


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
