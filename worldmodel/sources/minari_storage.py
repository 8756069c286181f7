"""What Minari's ways of keeping episodes have in common."""

from __future__ import annotations

import abc
import dataclasses
import math
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from worldmodel.images import EncodedImages, decode
from worldmodel.sources.files import LONGEST_RECORD
from worldmodel.spaces import dtype_of, is_image, shape_of
from worldmodel.trajectory import Spec

COLUMNS = ("rewards", "terminations", "truncations")


@dataclasses.dataclass(frozen=True)
class Storage(abc.ABC):
    """The files of one dataset.

    Attributes:
      folder: that holds them.
      spec: spaces of the values.
      total: number of episodes that the dataset's metadata counts; no more are read.
      kind: how they are kept: "hdf5", "arrow" or "parquet".
    """

    folder: pathlib.Path
    spec: Spec
    total: int
    kind: str

    @abc.abstractmethod
    def files(self) -> list[pathlib.Path]:
        """Every file of values in the order in which they are read, or a folder where they are many."""

    @abc.abstractmethod
    def count(self) -> int:
        """Number of episodes that are there."""

    @abc.abstractmethod
    def first(self) -> tuple[list[str], Mapping[str, Any]]:
        """Names of the first episode's infos, and its metadata; nothing where there is no episode."""

    @abc.abstractmethod
    def episodes(self) -> Iterator[dict[str, Any]]:
        """Each episode: `observations` of `T+1` rows, `actions` and `COLUMNS` of `T`, and `metadata`."""


def natural(path: pathlib.Path) -> list[Any]:
    """A key that sorts `part-10` after `part-9`."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def stored_images(encoded: Sequence[bytes], space: Mapping[str, Any], where: str) -> Any:
    """A column of images that Minari encoded, as it is; grey ones without a channel axis have to be decoded."""
    shape = shape_of(space)
    if is_image(space):
        height, width, channels = shape
        return EncodedImages(encoded, (height, width, channels))
    if len(shape) != 2 or dtype_of(space) != np.uint8:
        raise ValueError(f"{where} holds bytes; a {space['type']} of shape {shape} is no image")
    if len(encoded) * math.prod(shape) > LONGEST_RECORD:
        raise ValueError(f"{where} decodes to more than {LONGEST_RECORD} bytes in one episode; it is not read")
    images = np.empty((len(encoded), *shape), np.uint8)
    for step, data in enumerate(encoded):
        try:
            images[step] = decode(data, (*shape, 1))[..., 0]
        except ValueError as error:
            raise ValueError(f"{where}, step {step}: {error}") from None
    return images
