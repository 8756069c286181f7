"""Writing one part: an immutable TFDS dataset of ArrayRecord files, with its index."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from worldmodel.corpus.index import SPLIT_BY_ID, IndexBuilder, save_index
from worldmodel.corpus.manifest import NAME, PARTS, Part, checksum_of, part_folder, read_manifest, size_of, sync_folder
from worldmodel.corpus.store import SHARD_NAME
from worldmodel.trajectory import Spec, Trajectory

DATASET = "episodes"
SPLIT = "train"  # what RLDS readers ask for; it holds every episode, our own split is by a hash
SHARD_BYTES = 256 * 2**20


class PartWriter:
    """Writes one part, episode by episode; a context. It appears by rename at `commit`, or not at all.

    It needs no lock itself: the workers of one conversion may each write a part of another name, and return the `Part`
    to the process that holds the `CorpusWriter` and publishes them. Leaving the block without `commit` removes what was
    written.

    Args:
      path: folder of the corpus.
      name: of the part: a folder below `parts/` that no manifest names.
      spec: spaces of every episode.
      split_by: key of `info` that decides the split; every episode must have it.
      holds: whether an id is taken outside this part; None: none is.
      shard_bytes: a file that has reached this size is followed by the next.
      shard_episodes: or this number of episodes; None for any.

    Attributes:
      episodes: written so far.
      transitions: written so far.
      bytes: of the serialised episodes so far, to say when a part is full.

    Raises:
      ValueError: the manifest names such a part.
    """

    def __init__(
        self,
        path: pathlib.Path,
        name: str,
        spec: Spec,
        *,
        split_by: str = SPLIT_BY_ID,
        holds: Callable[[str], bool] | None = None,
        shard_bytes: int = SHARD_BYTES,
        shard_episodes: int | None = None,
    ):
        from worldmodel.corpus.rlds import EpisodeCoder

        if (path / NAME).exists() and name in [part.name for part in read_manifest(path).parts]:
            raise ValueError(f"corpus {path}: has a {name} already")
        self.episodes = self.transitions = self.bytes = 0
        self._path, self._name, self._spec = path, name, spec
        self._coder, self._index = EpisodeCoder(spec), IndexBuilder(split_by)
        self._holds = holds or (lambda episode_id: False)
        self._limits = shard_bytes, shard_episodes or float("inf")
        self._folder = path / PARTS / f".{name}.writing"
        self._shard_lengths: list[int] = []
        self._shard_bytes = 0
        self._writer: Any = None

    def __enter__(self) -> PartWriter:
        # Left by a writer that was killed.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # what was not committed is removed anyway
            self._close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, trajectory: Trajectory, *, where: str | None = None) -> None:
        """Validates, serialises and writes one episode; without an `id` it gets `<part>-<index>`.

        Raises:
          ValueError: it is not valid or its id is taken; `where` (else the place in the part) leads the message. The
            part stays as it was and can be continued.
          OSError: the file cannot be written.
        """
        place = where or f"episode {self.episodes}"
        name = str(trajectory.info.get("id", f"{self._name}-{self.episodes:06d}"))
        if self._index.holds(name) or self._holds(name):
            raise ValueError(f"{place}: its id {name!r} is in the corpus already; ids are unique")
        trajectory = dataclasses.replace(trajectory, info={**trajectory.info, "id": name})
        place = where or f"{place} ({name})"
        trajectory.validate(self._spec, where=place)
        self._index.check(trajectory, where=place)
        record = self._coder.encode(trajectory, where=place)
        self._write(record)
        self._index.add(trajectory)
        self.episodes += 1
        self.transitions += len(trajectory)
        self.bytes += len(record)

    def commit(self, provenance: Mapping[str, Any]) -> Part:
        """Closes the files, writes metadata and index, syncs, renames into `parts/<name>`.

        Args:
          provenance: plain JSON: what made these episodes.

        Raises:
          ValueError: no episode was added, or `provenance` is not plain JSON.
        """
        if not self.episodes:
            raise ValueError(f"corpus {self._path}: no episode to write; at least one is needed")
        try:
            plain = json.loads(json.dumps(dict(provenance), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ValueError(f"corpus {self._path}: provenance is not plain JSON ({error})") from error
        self._close()
        self._write_info()
        save_index(self._folder, self._index.build(self._shard_lengths))
        for file in self._folder.iterdir():
            with open(file, "rb") as stream:
                os.fsync(stream.fileno())
        sync_folder(self._folder)
        size, checksum = size_of(self._folder), checksum_of(self._folder)
        target = part_folder(self._path, self._name)
        shutil.rmtree(target, ignore_errors=True)  # committed by a writer that was killed before it was published
        os.rename(self._folder, target)
        sync_folder(target.parent)
        return Part(self._name, self.episodes, self.transitions, size, checksum, plain)

    def _write(self, record: bytes) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        most_bytes, most_episodes = self._limits
        try:
            if self._writer is not None and (
                self._shard_bytes >= most_bytes or self._shard_lengths[-1] >= most_episodes
            ):
                self._close()
            if self._writer is None:
                file = self._folder / SHARD_NAME.format(len(self._shard_lengths))
                self._writer = ArrayRecordWriter(os.fspath(file), "group_size:1")
                self._shard_lengths.append(0)
                self._shard_bytes = 0
            self._writer.write(record)
        except RuntimeError as error:
            raise self._not_written(error) from None
        self._shard_lengths[-1] += 1
        self._shard_bytes += len(record)

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
        except RuntimeError as error:
            raise self._not_written(error) from None

    def _not_written(self, error: RuntimeError) -> OSError:
        """ArrayRecord's error, which holds the system's only as words, as the system's."""
        codes = [code for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) if os.strerror(code) in str(error)]
        code = codes[0] if codes else errno.EIO
        return OSError(code, os.strerror(code), os.fspath(self._folder))

    def _write_info(self) -> None:
        """The two JSON files by which TFDS knows a dataset."""
        import tensorflow_datasets as tfds
        from etils import epath
        from tensorflow_datasets.core import dataset_info
        from tensorflow_datasets.core.splits import SplitDict

        folder = os.fspath(self._folder)
        template = tfds.core.ShardedFileTemplate(
            data_dir=epath.Path(folder),
            dataset_name=DATASET,
            split=SPLIT,
            filetype_suffix="array_record",
            template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}",
        )
        identity = dataset_info.DatasetIdentity(
            name=DATASET, version=tfds.core.Version("1.0.0"), data_dir=folder, module_name=__name__
        )
        description = f"Episodes of {self._spec.env_id}."
        info = tfds.core.DatasetInfo(builder=identity, features=self._coder.features, description=description)
        info.set_file_format(tfds.core.FileFormat.ARRAY_RECORD)
        split = tfds.core.SplitInfo(
            name=SPLIT, shard_lengths=self._shard_lengths, num_bytes=self.bytes, filename_template=template
        )
        info.set_splits(SplitDict([split]))
        info.write_to_directory(folder)
