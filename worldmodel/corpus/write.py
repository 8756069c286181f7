"""Writing: a part appears by rename or not at all, and belongs to the corpus once the manifest names it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from worldmodel.corpus.index import SPLIT_BY_ID
from worldmodel.corpus.known_ids import KnownIds
from worldmodel.corpus.lock import only_writer
from worldmodel.corpus.manifest import (
    JOURNAL,
    NAME,
    PARTS,
    Manifest,
    Part,
    check_part,
    part_folder,
    read_manifest,
    write_manifest,
)
from worldmodel.corpus.part import PartWriter
from worldmodel.corpus.read import Corpus, open_corpus
from worldmodel.corpus.store import index_of
from worldmodel.trajectory import Spec, Trajectory

__all__ = ["CorpusWriter", "PartWriter", "corpus_writer", "write_corpus"]


def write_corpus(
    path: str | os.PathLike[str],
    spec: Spec,
    trajectories: Iterable[Trajectory],
    *,
    provenance: Mapping[str, Any],
    append: bool = False,
    split_by: str | None = None,
) -> Corpus:
    """Writes `trajectories`, one after the other, as a new part of the corpus at `path`.

    An episode without an `id` in its `info` gets one from its part and place. Memory stays that of one episode.

    Args:
      path: folder of the corpus; made where missing.
      spec: spaces of every episode; when appending, the corpus's own.
      trajectories: consumed once; each is validated against `spec`.
      provenance: plain JSON: what made these episodes.
      append: add a part to an existing corpus (or begin one); else `path` must not hold a corpus.
      split_by: key of `info` whose value decides the split, so that all episodes of one value are on one side; None:
        the corpus's own when appending, else the id.

    Returns:
      The corpus, opened anew.

    Raises:
      ValueError: a corpus is there already and `append` is false, specs differ, an episode is not valid or its id is
        taken, there is no episode, or another writer is at work. What was there stays as it was.
    """
    with (
        corpus_writer(path, spec, provenance=provenance, append=append, split_by=split_by) as corpus,
        corpus.new_part() as part,
    ):
        for trajectory in trajectories:
            part.add(trajectory)
        corpus.publish(part.commit(provenance))
    return open_corpus(path)


@contextlib.contextmanager
def corpus_writer(
    path: str | os.PathLike[str],
    spec: Spec,
    *,
    provenance: Mapping[str, Any],
    append: bool = False,
    split_by: str | None = None,
    continuing: bool = False,
) -> Iterator[CorpusWriter]:
    """Holds the lock of the corpus at `path` and yields its `CorpusWriter`; arguments and errors as `write_corpus`.

    What writers that were killed left unpublished is removed, unless the caller is `continuing` the conversion that
    left it. `provenance` is the corpus's; each part has its own.
    """
    path = pathlib.Path(path)
    if path.exists() and not path.is_dir():
        raise ValueError(f"corpus {path}: is a file; a folder is needed")
    provenance = _plain(provenance, path)
    _refuse_unless(append, path)
    new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        with only_writer(path):
            _refuse_unless(append, path)
            manifest = Manifest(spec, provenance, (), split_by or SPLIT_BY_ID)
            if (path / NAME).exists():
                manifest = read_manifest(path)
                if manifest.spec != Spec.from_json(spec.to_json()):
                    raise ValueError(
                        f"corpus {path}: its spec differs from that of the new episodes; one spec is needed"
                    )
                if split_by not in (None, manifest.split_by):
                    raise ValueError(f"corpus {path}: is split by {manifest.split_by!r}, not by {split_by!r}")
                for part in manifest.parts:
                    check_part(path, part, contents=False)
            if not continuing:
                if (path / JOURNAL).exists():
                    raise ValueError(
                        f"corpus {path}: a conversion into it is not finished; run its command again first"
                    )
                _remove_unnamed(path, manifest)
            yield CorpusWriter(path, manifest)
    finally:
        if not (path / NAME).exists():
            for folder in (path / PARTS, *([path] if new else [])):
                with contextlib.suppress(OSError):  # not there, or not empty: it holds someone else's files
                    folder.rmdir()


class CorpusWriter:
    """The only writer of a corpus, while its `with` block runs (made by `corpus_writer`).

    Attributes:
      path: folder of the corpus.
      manifest: as it is on disk now; its parts' provenance says what is already there (a restart looks here).
    """

    def __init__(self, path: pathlib.Path, manifest: Manifest):
        self.path = path
        self.manifest = manifest
        self._known = KnownIds(lambda part: index_of(path, self.manifest, part))
        for part in manifest.parts:
            self._known.add(part)

    def holds(self, episode_id: str) -> bool:
        """Whether a published part holds an episode of this id; exact, from the indexes alone."""
        return self._known.holds(episode_id)

    def next_name(self, ahead: int = 0) -> str:
        """Name of the next part, e.g. `part-00003`; `ahead`: of the one so many later."""
        return f"part-{len(self.manifest.parts) + ahead:05d}"

    def new_part(self, name: str | None = None, **options: Any) -> PartWriter:
        """A `PartWriter` for the next part, which refuses ids that the corpus holds; options as `PartWriter`."""
        name = name or self.next_name()
        split_by = self.manifest.split_by
        return PartWriter(self.path, name, self.manifest.spec, split_by=split_by, holds=self.holds, **options)

    def publish(self, *parts: Part) -> None:
        """Adds committed parts to the manifest, in this order, in one rename; they are of the corpus from here on.

        Raises:
          FileNotFoundError: a part's folder is not there.
          ValueError: a part is not as it was committed, or its name or an id of it is in the corpus already.
        """
        known = self._known.copy()
        names = {part.name for part in self.manifest.parts}
        for part in parts:
            if part.name in names:
                raise ValueError(f"corpus {self.path}: has a {part.name} already")
            names.add(part.name)
            check_part(self.path, part, contents=False)
            for episode_id in known.add(part):
                raise ValueError(
                    f"corpus {self.path}: {part.name}: id {episode_id!r} is in the corpus already; ids are unique"
                )
        manifest = dataclasses.replace(self.manifest, parts=(*self.manifest.parts, *parts))
        write_manifest(self.path, manifest)
        self.manifest, self._known = manifest, known


def _plain(provenance: Mapping[str, Any], path: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(provenance), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"corpus {path}: provenance is not plain JSON ({error})") from error


def _refuse_unless(append: bool, path: pathlib.Path) -> None:
    if not append and (path / NAME).exists():
        raise ValueError(f"corpus {path}: holds a corpus already; append to it, or name another folder")


def _remove_unnamed(path: pathlib.Path, manifest: Manifest) -> None:
    named = {part_folder(path, part.name) for part in manifest.parts}
    for pattern in ("part-*", ".*.writing"):
        for folder in (path / PARTS).glob(pattern):
            if folder not in named:
                shutil.rmtree(folder)
