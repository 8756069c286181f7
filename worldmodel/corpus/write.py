"""Writing: a part appears by rename or not at all."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from worldmodel.corpus.lock import only_writer
from worldmodel.corpus.manifest import (
    NAME,
    PARTS,
    Manifest,
    Part,
    check_part,
    checksum_of,
    part_folder,
    read_manifest,
    size_of,
    sync_folder,
    write_manifest,
)
from worldmodel.corpus.read import Corpus, open_corpus
from worldmodel.trajectory import Spec, Trajectory

DATASET = "episodes"
SPLIT = "train"  # what RLDS readers ask for; it holds every episode, our own split is by episode id
SHARD_BYTES = 256 * 2**20


def write_corpus(
    path: str | os.PathLike[str],
    spec: Spec,
    trajectories: Iterable[Trajectory],
    *,
    provenance: Mapping[str, Any],
    append: bool = False,
) -> Corpus:
    """Writes `trajectories`, one after the other, as a new part of the corpus at `path`.

    An episode without an `id` in its `info` gets one from its part and place. Memory stays that of one episode.

    Args:
      path: folder of the corpus; made where missing.
      spec: spaces of every episode; when appending, the corpus's own.
      trajectories: consumed once; each is validated against `spec`.
      provenance: plain JSON: what made these episodes.
      append: add a part to an existing corpus (or begin one); else `path` must not hold a corpus.

    Returns:
      The corpus, opened anew.

    Raises:
      ValueError: a corpus is there already and `append` is false, specs differ, an episode is not valid or its id is
        taken, there is no episode, or another writer is at work. What was there stays as it was.
    """
    path = pathlib.Path(path)
    if path.exists() and not path.is_dir():
        raise ValueError(f"corpus {path}: is a file; a folder is needed")
    try:
        provenance = json.loads(json.dumps(dict(provenance), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"corpus {path}: provenance is not plain JSON ({error})") from error
    _refuse_unless(append, path)
    path.mkdir(parents=True, exist_ok=True)
    with only_writer(path):
        _refuse_unless(append, path)
        manifest = Manifest(spec, provenance, ())
        taken: set[str] = set()
        if (path / NAME).exists():
            manifest = read_manifest(path)
            if manifest.spec != Spec.from_json(spec.to_json()):
                raise ValueError(f"corpus {path}: its spec differs from that of the new episodes; one spec is needed")
            for part in manifest.parts:
                check_part(path, part, contents=False)
            taken = {str(trajectory.info["id"]) for trajectory in open_corpus(path)}
        part = _write_part(path, f"part-{len(manifest.parts):05d}", spec, trajectories, taken, provenance)
        write_manifest(path, dataclasses.replace(manifest, parts=(*manifest.parts, part)))
    return open_corpus(path)


def _refuse_unless(append: bool, path: pathlib.Path) -> None:
    if not append and (path / NAME).exists():
        raise ValueError(f"corpus {path}: holds a corpus already; append to it, or name another folder")


def _write_part(
    path: pathlib.Path,
    name: str,
    spec: Spec,
    trajectories: Iterable[Trajectory],
    taken: set[str],
    provenance: Mapping[str, Any],
) -> Part:
    target = part_folder(path, name)
    temporary = path / PARTS / f".{name}.writing"
    # Either can be left by a writer that was killed; the manifest names neither.
    for leftover in (temporary, target):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        episodes, transitions = _write_dataset(temporary, spec, _named(trajectories, name, taken), path)
        for file in temporary.iterdir():
            with open(file, "rb") as stream:
                os.fsync(stream.fileno())
        sync_folder(temporary)
        size, checksum = size_of(temporary), checksum_of(temporary)
        os.rename(temporary, target)
        sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Part(name, episodes, transitions, size, checksum, provenance)


def _named(trajectories: Iterable[Trajectory], part: str, taken: set[str]) -> Iterator[Trajectory]:
    """Gives every episode an id, and refuses one that is taken (the split and the resumption go by id)."""
    for index, trajectory in enumerate(trajectories):
        name = str(trajectory.info.get("id", f"{part}-{index:06d}"))
        if name in taken:
            raise ValueError(f"episode {index}: its id {name!r} is in the corpus already; ids are unique")
        taken.add(name)
        yield dataclasses.replace(trajectory, info={**trajectory.info, "id": name})


def _write_dataset(
    folder: pathlib.Path, spec: Spec, trajectories: Iterator[Trajectory], path: pathlib.Path
) -> tuple[int, int]:
    """Writes a TFDS dataset of ArrayRecord files into `folder`; returns its numbers of episodes and transitions."""
    import tensorflow_datasets as tfds
    from array_record.python.array_record_module import ArrayRecordWriter
    from etils import epath
    from tensorflow_datasets.core import dataset_info
    from tensorflow_datasets.core.splits import SplitDict

    from worldmodel.corpus.rlds import EpisodeCoder

    first = next(trajectories, None)
    if first is None:
        raise ValueError(f"corpus {path}: no episode to write; at least one is needed")
    coder = EpisodeCoder(spec)
    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(folder),
        dataset_name=DATASET,
        split=SPLIT,
        filetype_suffix="array_record",
        template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}",
    )
    shard_lengths: list[int] = []
    transitions = total_bytes = shard_bytes = 0
    writer = None
    try:
        for index, trajectory in enumerate(itertools.chain([first], trajectories)):
            where = f"episode {index} ({trajectory.info['id']})"
            trajectory.validate(spec, where=where)
            record = coder.encode(trajectory, where=where)
            if writer is None or shard_bytes >= SHARD_BYTES:
                if writer is not None:
                    writer.close()
                shard = template.sharded_filepath(shard_index=len(shard_lengths), num_shards=None)
                writer = ArrayRecordWriter(os.fspath(shard), "group_size:1")
                shard_lengths.append(0)
                shard_bytes = 0
            writer.write(record)
            shard_lengths[-1] += 1
            shard_bytes += len(record)
            total_bytes += len(record)
            transitions += len(trajectory)
    finally:
        if writer is not None:
            writer.close()
    identity = dataset_info.DatasetIdentity(
        name=DATASET, version=tfds.core.Version("1.0.0"), data_dir=os.fspath(folder), module_name=__name__
    )
    info = tfds.core.DatasetInfo(builder=identity, features=coder.features, description=f"Episodes of {spec.env_id}.")
    info.set_file_format(tfds.core.FileFormat.ARRAY_RECORD)
    split = tfds.core.SplitInfo(
        name=SPLIT, shard_lengths=shard_lengths, num_bytes=total_bytes, filename_template=template
    )
    info.set_splits(SplitDict([split]))
    info.write_to_directory(folder)
    return sum(shard_lengths), transitions
