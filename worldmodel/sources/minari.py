"""`minari:DATASET`: a dataset of Farama's Minari, from version 0.4 on, kept as HDF5, Arrow or Parquet.

Minari keeps whole episodes: `T+1` observations, `T` actions, rewards, terminations and truncations. Where a step is
both terminated and truncated, the task outweighs the clock. Images that Minari kept as JPEG (its default, and lossy)
stay as they are.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from worldmodel.sources import hdf5
from worldmodel.sources.files import json_of
from worldmodel.sources.minari_hdf5 import Hdf5Storage, hdf5_files
from worldmodel.sources.minari_storage import Storage
from worldmodel.sources.minari_tables import TableStorage
from worldmodel.spaces import space_to_json
from worldmodel.trajectory import Spec, Trajectory, suggest

METADATA = "metadata.json"
STORAGES: dict[str, type[Storage]] = {"hdf5": Hdf5Storage, "arrow": TableStorage, "parquet": TableStorage}
_MOST_METADATA = 64 * 2**20
_READ = ("id", "seed", "total_steps")


@dataclasses.dataclass(frozen=True)
class MinariSource:
    """Episodes of a Minari dataset, in the order of their numbers."""

    spec: Spec
    provenance: Mapping[str, Any]
    storage: Storage
    dataset: str
    policy: str | None

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode; `ValueError` names the file and the episode that cannot be read."""
        for index, episode in enumerate(self.storage.episodes()):
            yield self._trajectory(index, episode)

    def _trajectory(self, index: int, episode: Mapping[str, Any]) -> Trajectory:
        ends = {name: np.asarray(episode[name], bool) for name in ("terminations", "truncations")}
        for name, flags in ends.items():
            if flags[:-1].any():
                raise ValueError(
                    f"{self.storage.folder}: episode {index}: {name} is true at step {int(np.argmax(flags))} of "
                    f"{len(flags)}; an episode ends at its last step only"
                )
        terminated, truncated = (bool(flags[-1:].any()) for flags in ends.values())
        with np.errstate(over="ignore"):  # what overflows is infinite, and found so
            rewards = episode["rewards"].astype(np.float32)
        info: dict[str, Any] = {"id": f"{self.dataset}/{index}", "source": f"minari:{self.dataset}"}
        if self.policy is not None:
            info["policy"] = self.policy
        metadata = episode["metadata"]
        if isinstance(metadata.get("seed"), int):
            info["seed"] = metadata["seed"]
        if options := _options(metadata):
            info["options"] = options
        return Trajectory(
            observations=episode["observations"],
            actions=episode["actions"],
            rewards=rewards,
            terminated=terminated,
            truncated=truncated and not terminated,
            info=info,
        )


def open_source(place: str) -> MinariSource:
    """Opens a dataset: its folder, the `data` folder in it, or its id below Minari's local root.

    The root is `MINARI_DATASETS_PATH`, or `~/.minari/datasets`. Only metadata is read. `info` of an episode holds
    Minari's `seed`, its reset `options` (flat, `a/b` for nested ones), and as `policy` the dataset's algorithm.

    Raises:
      FileNotFoundError: no such dataset; the nearest id is named.
      ValueError: metadata or files are damaged, a space is not supported, or episodes are missing.
    """
    folder = _data_folder(place)
    metadata = _metadata(folder)
    dataset = str(metadata.get("dataset_id") or folder.parent.name)
    where = f"{folder}: its metadata"
    env_id, env_kwargs, limit = _environment(metadata, where)
    spec = Spec(
        observation_space=_space(metadata, "observation", where),
        action_space=_space(metadata, "action", where),
        env_id=env_id,
        env_kwargs=env_kwargs,
        max_episode_steps=limit,
    )
    total = metadata.get("total_episodes")
    if not isinstance(total, int) or total < 0:
        raise ValueError(f"{where} has total_episodes {total!r}; a whole number is needed")
    kind = metadata.get("data_format", "hdf5")
    if kind not in STORAGES:
        raise ValueError(
            f"{where} has data_format {kind!r}{suggest(str(kind), STORAGES)}; read are {', '.join(STORAGES)}"
        )
    storage = STORAGES[kind](folder, spec, total, kind)
    found = storage.count()
    if found < total:
        raise ValueError(f"{folder}: holds {found} episodes; its metadata counts {total}")
    policy = metadata.get("algorithm_name")
    provenance = {
        "format": "minari",
        "place": place,
        "files": [str(path) for path in storage.files()],
        "episodes": total,
        "dataset": dataset,
        **{
            name: metadata[name]
            for name in ("minari_version", "author", "author_email", "code_permalink", "license")
            if isinstance(metadata.get(name), (str, list))
        },
        "left_out": _left_out(storage, found, metadata),
    }
    return MinariSource(spec, provenance, storage, dataset, policy if isinstance(policy, str) else None)


def recognise(path: pathlib.Path) -> bool:
    """A dataset's folder, or the `data` folder in it."""
    return any(
        (folder / METADATA).is_file() and (hdf5_files(folder) or (folder / "0" / METADATA).is_file())
        for folder in (path / "data", path)
        if folder.is_dir()
    )


def _data_folder(place: str) -> pathlib.Path:
    root = pathlib.Path(os.environ.get("MINARI_DATASETS_PATH") or pathlib.Path.home() / ".minari" / "datasets")
    for path in (pathlib.Path(place), root / place):
        for folder in (path / "data", path):
            if (folder / METADATA).is_file() or (folder.is_dir() and hdf5_files(folder)):
                return folder
    near = suggest(place, _local_ids(root)) if re.fullmatch(r"[-\w/]+", place) else ""
    raise FileNotFoundError(f"{place}: is no folder of a Minari dataset, and no id below {root}{near}")


def _local_ids(root: pathlib.Path) -> list[str]:
    found = []
    for folder, inside, _ in os.walk(root):
        if "data" in inside:
            found.append(os.path.relpath(folder, root))
            inside.clear()
    return sorted(found)


def _metadata(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / METADATA
    if not path.exists():  # before Minari 0.5
        with hdf5.open_hdf5(hdf5_files(folder)[0]) as file:
            return hdf5.attributes(file, path)
    if path.stat().st_size > _MOST_METADATA:
        raise ValueError(f"{path}: is larger than {_MOST_METADATA} bytes; it is not read")
    metadata = json_of(path.read_bytes(), str(path))
    if not isinstance(metadata, dict):
        raise ValueError(f"{path}: holds a {type(metadata).__name__}; an object is needed")
    return metadata


def _environment(metadata: Mapping[str, Any], where: str) -> tuple[str | None, dict[str, Any], int | None]:
    """Id, arguments and time limit of the environment; nothing of it is imported."""
    data = metadata.get("env_spec")
    if data is None:
        return None, {}, None
    spec = json_of(data, f"{where}, env_spec") if isinstance(data, str) else data
    if not isinstance(spec, dict) or not isinstance(spec.get("id"), str):
        raise ValueError(f"{where} has an env_spec without an id")
    kwargs, limit = spec.get("kwargs") or {}, spec.get("max_episode_steps")
    if not isinstance(kwargs, dict) or not (limit is None or isinstance(limit, int)):
        raise ValueError(f"{where} has an env_spec with kwargs {kwargs!r:.80} and max_episode_steps {limit!r:.80}")
    return spec["id"], {name: value for name, value in kwargs.items() if name != "render_mode"}, limit


def _space(metadata: Mapping[str, Any], role: str, where: str) -> dict[str, Any]:
    text = metadata.get(f"{role}_space")
    if text is None:
        raise ValueError(f"{where} has no {role}_space; without it the values cannot be laid out")
    data = json_of(text, f"{where}, {role}_space") if isinstance(text, str) else text
    try:
        space = _gymnasium_space(data)
    # Gymnasium checks its arguments with assert; NumPy and look-ups raise the others.
    except (AssertionError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{where} has a {role}_space that is none ({type(error).__name__}: {said[:120]})") from None
    try:
        return space_to_json(space, role)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _gymnasium_space(data: Mapping[str, Any]) -> Any:
    """The space that Minari wrote as JSON."""
    from gymnasium import spaces

    kind = data["type"]
    if kind == "Dict":
        return spaces.Dict({name: _gymnasium_space(part) for name, part in data["subspaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_gymnasium_space(part) for part in data["subspaces"]])
    if kind == "Box":
        low, high = (np.array(data[name], data["dtype"]) for name in ("low", "high"))
        if low.shape != tuple(data["shape"]) or high.shape != low.shape:
            raise ValueError(f"bounds of shapes {low.shape} and {high.shape} for {data['shape']}")
        return spaces.Box(low, high, dtype=low.dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(data["nvec"]), dtype=data["dtype"], start=np.array(data["start"]))
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Text":
        return spaces.Text(data["max_length"], min_length=data["min_length"], charset=data["charset"])
    raise ValueError(f"{kind!r} is unknown")


def _options(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Reset options, flat: HDF5 keeps them so, Arrow nested."""
    flat = {name[8:]: value for name, value in metadata.items() if name.startswith("options/")}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, part in value.items():
                add(f"{prefix}/{name}" if prefix else name, part)
        else:
            flat[prefix] = value

    add("", metadata.get("options") or {})
    return flat


def _left_out(storage: Storage, found: int, metadata: Mapping[str, Any]) -> list[str]:
    lines = []
    infos, episode = storage.first()
    if infos:
        lines.append(f"infos of each step ({', '.join(infos)}): a trajectory has no place for them")
    others = sorted(name for name in episode if name not in _READ and name.partition("/")[0] != "options")
    if others:
        lines.append(f"metadata of each episode ({', '.join(others)}): no key of info is meant for it")
    if found > storage.total:
        lines.append(f"{found - storage.total} episodes beyond the {storage.total} that the dataset's metadata counts")
    if metadata.get("eval_env_spec"):
        lines.append("eval_env_spec: the spec is that of the environment the logs come from")
    return lines
