"""Minari's HDF5: groups `episode_<number>` in `main_data.hdf5`, or in several files of such a name."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from worldmodel.sources import hdf5
from worldmodel.sources.minari_storage import COLUMNS, Storage, natural, stored_images
from worldmodel.spaces import dtype_of

if TYPE_CHECKING:
    import h5py


def hdf5_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """`main_data.hdf5`, or the several files of a large dataset, in the order of their numbers."""
    return sorted(folder.glob("main_data*.hdf5"), key=natural)


@dataclasses.dataclass(frozen=True)
class Hdf5Storage(Storage):
    """Groups of one or several files; links from one to another file of the folder (Minari 0.3) are followed."""

    def files(self) -> list[pathlib.Path]:
        """Every file of values, in the order in which they are read."""
        return hdf5_files(self.folder)

    def count(self) -> int:
        """Number of groups that are there; `ValueError` where their numbers leave one out."""
        return sum(len(numbers) for _, numbers in self._numbers())

    def first(self) -> tuple[list[str], Mapping[str, Any]]:
        """Names of the first episode's infos, and its metadata."""
        for path, numbers in self._numbers():
            if numbers:
                with hdf5.open_hdf5(path) as file, self._group(file, numbers[0], path) as (group, place):
                    infos = hdf5.subgroup(group, "infos", place)
                    keys = hdf5.names(infos, place) if infos is not None else []
                    return keys, hdf5.attributes(group, place)
        return [], {}

    def episodes(self) -> Iterator[dict[str, Any]]:
        """Each episode in the order of its number."""
        left = self.total
        for path, numbers in self._numbers():
            with hdf5.open_hdf5(path) as file:
                for number in numbers[:left]:
                    with self._group(file, number, path) as (group, place):
                        yield self._episode(group, place)
            left -= min(left, len(numbers))

    def _numbers(self) -> Iterator[tuple[pathlib.Path, list[int]]]:
        """Each file with the numbers of its episodes, which go on or begin again at 0."""
        count = 0
        for path in self.files():
            with hdf5.open_hdf5(path) as file:
                matches = (re.fullmatch(r"episode_(\d{1,12})", name) for name in hdf5.names(file, path))
                numbers = sorted(int(match[1]) for match in matches if match)
            first = 0 if numbers and numbers[0] == 0 else count
            for expected, number in enumerate(numbers, first):
                if number != expected:
                    raise ValueError(f"{path}: holds episode_{number}, but no episode_{expected}")
            count += len(numbers)
            yield path, numbers

    @contextlib.contextmanager
    def _group(self, file: h5py.File, number: int, path: pathlib.Path) -> Iterator[tuple[Any, pathlib.Path]]:
        """An episode's group, and the file in which it is."""
        name = f"episode_{number}"
        link = hdf5.external(file, name, path)
        if link is None:
            yield _inner(file, name, path), path
            return
        target, name = link
        if pathlib.PurePath(target).name != target:
            raise ValueError(f"{path}: episode_{number} is a link to {target!r}, out of its folder; it is not followed")
        place = self.folder / target
        with hdf5.open_hdf5(place) as other:
            yield _inner(other, name.strip("/"), place), place

    def _episode(self, group: Any, path: pathlib.Path) -> dict[str, Any]:
        episode = {
            "observations": _values(group, "observations", self.spec.observation_space, path),
            "actions": _values(group, "actions", self.spec.action_space, path),
            "metadata": hdf5.attributes(group, path),
        }
        for name in COLUMNS:
            episode[name] = hdf5.read_rows(_present(group, name, path), path)
            if episode[name].dtype.kind not in "biuf":
                raise ValueError(f"{path}: {_path(group, name)!r} holds no numbers")
        return episode


def _path(group: Any, name: str) -> str:
    return f"{group.name}/{name}".strip("/")


def _inner(group: Any, name: str, path: pathlib.Path) -> Any:
    found = hdf5.subgroup(group, name, path)
    if found is None:
        raise ValueError(f"{path}: has no group {_path(group, name)!r}")
    return found


def _present(group: Any, name: str, path: pathlib.Path) -> Any:
    found = hdf5.array(group, name, path)
    if found is None:
        raise ValueError(f"{path}: has no array {_path(group, name)!r}")
    return found


def _values(group: Any, name: str, space: Mapping[str, Any], path: pathlib.Path) -> Any:
    if space["type"] in ("Dict", "Tuple"):
        inner, parts = _inner(group, name, path), space["spaces"]
        if space["type"] == "Dict":
            return {key: _values(inner, key, part, path) for key, part in parts.items()}
        return tuple(_values(inner, f"_index_{i}", part, path) for i, part in enumerate(parts))
    rows = hdf5.read_rows(_present(group, name, path), path)
    if space["type"] != "Text" and _is_encoded(rows, space):
        return stored_images([bytes(row) for row in rows], space, f"{path}: {_path(group, name)}")
    return hdf5.as_kept(rows, dtype_of(space))


def _is_encoded(rows: np.ndarray, space: Mapping[str, Any]) -> bool:
    """Whether rows are files of images: bytes of differing lengths, or `[N, bytes]` where all have one length.

    Older Minaris kept images as arrays, and so do newer ones with `jpeg_encoding=False`.
    """
    of_one_length = space["type"] == "Box" and len(space["shape"]) in (2, 3) and rows.dtype == np.uint8
    return rows.dtype == object or (of_one_length and rows.ndim == 2)
