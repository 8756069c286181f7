"""`rlds:DIR`: TensorFlow Datasets in RLDS form (Ramos et al. 2021, "RLDS"), Open X-Embodiment's among them.

Files of ArrayRecord and of TFRecord are read, both without TensorFlow. An episode ends by its last row: `is_terminal`
means terminated, `is_last` alone that a limit cut it, neither that the log was cut. Which row's action and reward are
read: see `worldmodel.sources.rlds_steps`.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from worldmodel.corpus.tf_example import columns_of_example
from worldmodel.sources import tfrecord
from worldmodel.sources.files import damaged, json_of
from worldmodel.sources.rlds_fields import with_image_sizes
from worldmodel.sources.rlds_steps import Steps, steps_of_features
from worldmodel.trajectory import Spec, Trajectory, suggest

_INFO, _FEATURES = "dataset_info.json", "features.json"
_OPTIONS = {"instruction": ("context", "observation"), "final_reward": ("padding", "add")}
_NO_READ_AHEAD = "readahead_buffer_size:0,max_parallelism:0"


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of a split.

    Attributes:
      path: the file.
      kind: "array_record" or "tfrecord".
      split: name of the split.
      episodes: how many it holds, as `dataset_info.json` says.
    """

    path: pathlib.Path
    kind: str
    split: str
    episodes: int

    def records(self) -> Iterator[bytes]:
        """Every record, streaming; `ValueError` where the file is damaged."""
        return tfrecord.records(self.path) if self.kind == "tfrecord" else _array_records(self.path)


@dataclasses.dataclass(frozen=True)
class RldsSource:
    """A dataset; iterating yields its episodes, streaming.

    Attributes:
      spec: as the features say; integers that are no ClassLabel are Boxes.
      provenance: format, place, name, files, licence, episodes, left_out.
      shards: the files read, in order.
      steps: what each feature becomes.
    """

    spec: Spec
    provenance: Mapping[str, Any]
    shards: tuple[Shard, ...]
    steps: Steps

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode; `ValueError` where a file is damaged, or does not hold what the dataset says."""
        name = self.provenance["name"]
        index, split = 0, None
        for shard in self.shards:
            index, split = (index if shard.split == split else 0), shard.split
            count = 0
            for count, record in enumerate(shard.records(), 1):
                if count > shard.episodes:
                    break
                info = {"id": f"{name}-{split}-{index:06d}", "source": name, "split": split}
                try:
                    yield self.steps.trajectory(columns_of_example(record), info)
                except ValueError as error:
                    raise ValueError(f"{shard.path}: episode {index} of {split!r}: {error}") from None
                index += 1
            if count != shard.episodes:
                found = "more" if count > shard.episodes else str(count)
                raise ValueError(f"{shard.path}: holds {found} episodes; {_INFO} says {shard.episodes}")


def open_source(
    place: str, *, split: str | None = None, instruction: str = "context", final_reward: str = "padding"
) -> RldsSource:
    """Opens a dataset; only its descriptions are read (and one episode, where they leave the size of images open).

    Args:
      place: the folder with `dataset_info.json` and `features.json`, or one above it with a single such folder below.
      split: the split to read; None reads every one whose files are all there, one after the other, and names the
        others in `left_out`. An episode's `info` says which it is of.
      instruction: where texts that instruct ("language" or "instruction" in their name) go: "context", which needs
        them to stay the same over an episode, or "observation".
      final_reward: RLDS says that the reward of an episode's last row is "padding", so it is not read, and noted as
        `info["final_reward"]` where it is not 0. Many robot datasets mark success there: "add" adds it to the reward
        of the last transition.

    Raises:
      FileNotFoundError: no dataset there, or a file of the split is missing.
      ValueError: several datasets there, an unknown split, another file format, or damaged descriptions.
    """
    for name, value in (("instruction", instruction), ("final_reward", final_reward)):
        if value not in _OPTIONS[name]:
            raise ValueError(f"{name} is {value!r}{suggest(value, _OPTIONS[name])}; allowed are {_OPTIONS[name]}")
    folder = _dataset_folder(pathlib.Path(place))
    info = _dataset_info(folder)
    try:
        steps = steps_of_features(info.features, instruction=instruction, final_reward=final_reward)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    shards, not_there = _shards(folder, info, split)
    steps = _with_image_sizes(folder, steps, shards)
    provenance = {
        "format": "rlds",
        "place": place,
        "name": info.full_name.replace("/", "-"),
        "files": [os.fspath(shard.path) for shard in shards],
        "episodes": sum(shard.episodes for shard in shards),
        "left_out": [*steps.left_out, *not_there],
    }
    if info.redistribution_info.license:
        provenance["licence"] = info.redistribution_info.license
    return RldsSource(spec=steps.spec, provenance=provenance, shards=shards, steps=steps)


def recognise(path: pathlib.Path) -> bool:
    """A folder with the two descriptions of a TFDS dataset in it, or one or two levels below."""
    try:
        return bool(_datasets_below(path))
    except OSError:
        return False


def _datasets_below(path: pathlib.Path) -> list[pathlib.Path]:
    """The nearest folders that hold a dataset: `path` itself, else its children, else theirs."""
    for pattern in ("", "*/", "*/*/"):
        found = sorted(file.parent for file in path.glob(pattern + _FEATURES) if (file.parent / _INFO).is_file())
        if found:
            return found
    return []


def _dataset_folder(path: pathlib.Path) -> pathlib.Path:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such folder")
    if not path.is_dir():
        raise ValueError(f"{path}: is a file; name the folder that holds {_INFO} and {_FEATURES}")
    found = _datasets_below(path)
    if not found:
        raise FileNotFoundError(f"{path}: holds no TFDS dataset; that is a folder with {_INFO} and {_FEATURES}")
    if len(found) > 1:
        raise ValueError(f"{path}: holds {len(found)} datasets; name one: {', '.join(map(str, found[:20]))}")
    return found[0]


def _dataset_info(folder: pathlib.Path) -> Any:
    """The dataset's `tfds.core.DatasetInfo`."""
    import tensorflow_datasets as tfds

    features = json_of((folder / _FEATURES).read_bytes(), os.fspath(folder / _FEATURES))
    json_of((folder / _INFO).read_bytes(), os.fspath(folder / _INFO))
    for name in _class_names(features):
        # TFDS imports whatever module is named.
        if not name.startswith("tensorflow_datasets."):
            raise ValueError(f"{folder / _FEATURES}: has a feature of class {name!r}; read are those of TFDS itself")
    try:
        info: Any = tfds.builder_from_directory(os.fspath(folder)).info
    except Exception as error:  # TFDS builds what the files say, and raises whatever that leads to
        raise damaged(folder / _FEATURES, error) from None
    return info


def _class_names(features: Any) -> Iterator[str]:
    stack = [features]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield from (value[key] for key in ("pythonClassName", "type") if isinstance(value.get(key), str))
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)


def _shards(folder: pathlib.Path, info: Any, split: str | None) -> tuple[tuple[Shard, ...], list[str]]:
    """The files to read, and a line for every split that is left out."""
    kind = info.file_format.value
    if kind not in ("array_record", "tfrecord"):
        raise ValueError(f"{folder}: its files are {kind}; array_record and tfrecord are read")
    known = list(info.splits)
    if split is not None and split not in known:
        raise ValueError(f"{folder}: split {split!r} is unknown{suggest(split, known)}; known are {', '.join(known)}")
    shards: list[Shard] = []
    not_there: list[str] = []
    for name in known if split is None else [split]:
        lengths = info.splits[name].shard_lengths
        try:
            paths = [folder / pathlib.Path(path).name for path in info.splits[name].filepaths] if lengths else []
        except Exception as error:  # TFDS formats the template of names that the file holds
            raise damaged(folder / _INFO, error) from None
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            line = f"split {name!r}: {len(missing)} of its {len(paths)} files are missing, the first is {missing[0]}"
            if split is not None:
                raise FileNotFoundError(f"{folder}: {line}")
            not_there.append(line)
        else:
            shards += [Shard(path, kind, name, int(n)) for path, n in zip(paths, lengths, strict=True)]
    if not_there and not shards:
        raise FileNotFoundError(f"{folder}: {'; '.join(not_there)}")
    return tuple(shards), not_there


def _with_image_sizes(folder: pathlib.Path, steps: Steps, shards: tuple[Shard, ...]) -> Steps:
    """Fills in sizes of images that the features leave open, from the first episode."""
    if not steps.has_open_images:
        return steps
    record = next((record for shard in shards for record in shard.records()), None)
    example = {} if record is None else columns_of_example(record)
    try:
        return dataclasses.replace(
            steps,
            observation=with_image_sizes(steps.observation, example),
            action=with_image_sizes(steps.action, example),
        )
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def _array_records(path: pathlib.Path) -> Iterator[bytes]:
    from array_record.python.array_record_module import ArrayRecordReader

    try:
        reader = ArrayRecordReader(os.fspath(path), _NO_READ_AHEAD)
        try:
            for _ in range(reader.num_records()):
                yield reader.read()
        finally:
            reader.close()
    except (RuntimeError, ValueError, IndexError) as error:
        raise damaged(path, error) from None
