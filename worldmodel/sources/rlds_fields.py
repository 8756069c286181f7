"""Features of TensorFlow Datasets as spaces, and how their columns are read from an example.

A tree is a `Field`, or a dict of trees where the features are nested.
"""

from __future__ import annotations

import dataclasses
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from worldmodel.images import EncodedImages
from worldmodel.spaces import box, dtype_of, is_image, shape_of

Example = Mapping[str, Any]
"""Flat columns under their names, as `worldmodel.corpus.tf_example` reads them."""
Tree = Any
LeaveOut = Callable[[str, str], None]


@dataclasses.dataclass(frozen=True)
class Field:
    """One feature.

    Attributes:
      name: of its column in an example, e.g. `steps/observation/state`.
      space: JSON of its values; an image whose size the features leave open has None in its shape.
      dtype: of what is stored.
      stored: "numbers", "bytes" or "zlib" (a tensor's memory, one string a step), "image" or "text".
      labels: names of the values of a ClassLabel, where it has any.
    """

    name: str
    space: Mapping[str, Any]
    dtype: np.dtype
    stored: str = "numbers"
    labels: tuple[str, ...] = ()

    @property
    def is_open_image(self) -> bool:
        """An image whose size only the data says."""
        return self.stored == "image" and None in self.space["shape"]

    def read(self, example: Example) -> Any:
        """The column `[N, ...]` of an example; `ValueError` where it does not fit the feature."""
        if self.name not in example:
            raise ValueError(f"lacks {self.name!r}, which features.json names")
        raw: Any = example[self.name]
        if raw is None:  # an empty list may be stored without its kind
            raw = np.zeros(0, self.dtype) if self.stored == "numbers" else []
        if isinstance(raw, np.ndarray) != (self.stored == "numbers"):
            found = raw.dtype if isinstance(raw, np.ndarray) else "bytes"
            raise ValueError(f"{self.name} holds {found}; features.json says {self.stored} of {self.dtype}")
        if self.stored == "text":
            return self._texts(raw)
        if self.stored == "image":
            images = EncodedImages(raw, tuple(self.space["shape"]))
            return images if is_image(self.space) else np.asarray(images)
        values = self._numbers(raw) if isinstance(raw, np.ndarray) else self._memory(raw)
        return values.reshape(-1, *shape_of(self.space)).astype(dtype_of(self.space), copy=False)

    def _texts(self, raw: list[bytes]) -> np.ndarray:
        texts = np.empty(len(raw), np.object_)
        for step, data in enumerate(raw):
            try:
                texts[step] = data.decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{self.name} at step {step} is not UTF-8 ({error.reason})") from None
        return texts

    def _numbers(self, raw: np.ndarray) -> np.ndarray:
        if len(raw) and (raw.dtype.kind == "f") != (self.dtype.kind == "f"):
            raise ValueError(f"{self.name} holds {raw.dtype}; features.json says {self.dtype}")
        size = math.prod(shape_of(self.space))
        if len(raw) % size:
            raise ValueError(f"{self.name} holds {len(raw)} numbers; features.json says {size} a step")
        values = raw.astype(self.dtype, copy=False)  # a uint64 is kept as the int64 of the same bits
        if self.dtype.kind in "iu" and self.dtype.itemsize < 8 and not np.array_equal(values, raw):
            raise ValueError(f"{self.name} holds {raw.min()} to {raw.max()}; features.json says {self.dtype}")
        return values

    def _memory(self, raw: list[bytes]) -> np.ndarray:
        size = math.prod(shape_of(self.space)) * self.dtype.itemsize
        rows = [_inflated(row, size, self.name) for row in raw] if self.stored == "zlib" else raw
        for step, row in enumerate(rows):
            if len(row) != size:
                raise ValueError(f"{self.name} at step {step} has {len(row)} bytes; features.json says {size}")
        return np.frombuffer(b"".join(rows), self.dtype)


def _inflated(data: bytes, size: int, name: str) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, size + 1)  # one byte over shows that there is more
    except zlib.error as error:
        raise ValueError(f"{name} cannot be decompressed ({error})") from None


def tree_of(feature: Any, name: str, leave_out: LeaveOut) -> Tree | None:
    """Fields of a feature and of those nested in it; `leave_out(name, why)` is told of each that cannot be read."""
    import tensorflow_datasets as tfds

    if isinstance(feature, tfds.features.FeaturesDict):
        parts = {key: tree_of(part, f"{name}/{key}", leave_out) for key, part in sorted(feature.items())}
        return {key: part for key, part in parts.items() if part is not None} or None
    found = _field_of(feature, name)
    if isinstance(found, Field):
        return found
    leave_out(name, found)
    return None


def _field_of(feature: Any, name: str) -> Field | str:
    """The field of a feature that nests no other, or why it cannot be read."""
    import tensorflow_datasets as tfds

    f: Any = tfds.features
    if isinstance(feature, f.Image):
        return _image_of(feature, name)
    if not isinstance(feature, f.Tensor):
        return f"is a {type(feature).__name__}; read are Tensor, Image, Text, ClassLabel and dicts of them"
    shape, dtype = tuple(feature.shape), np.dtype(feature.np_dtype)
    if any(size is None for size in shape):
        return f"has the shape {shape}; one that is the same at every step is needed"
    if dtype.kind in "OSU":
        text = Field(name, {"type": "Text", "max_length": None}, np.dtype(np.object_), "text")
        return "is an array of texts; read are single ones" if shape else text
    if dtype.kind not in "biuf" or min(shape, default=1) < 1:
        return f"is {dtype}{list(shape)}; no space holds such values"
    encoding = getattr(feature.to_json_content(), "encoding", "")  # some kinds of Tensor have none
    stored = "numbers" if encoding in ("", "none") else encoding
    if isinstance(feature, f.ClassLabel) and feature.num_classes:
        numbered = [str(i) for i in range(feature.num_classes)]
        labels = () if feature.names == numbered else tuple(feature.names)
        return Field(name, {"type": "Discrete", "n": int(feature.num_classes), "start": 0}, dtype, stored, labels)
    if dtype.kind == "b":
        space = {"type": "MultiBinary", "shape": list(shape)} if shape else {"type": "Discrete", "n": 2, "start": 0}
        return Field(name, space, dtype, stored)
    info = feature.get_tensor_info()
    low, high = (None if bound is None else float(bound) for bound in (info.minimum, info.maximum))
    return Field(name, box(shape, dtype, low, high), dtype, stored)


def _image_of(feature: Any, name: str) -> Field | str:
    shape, dtype = tuple(feature.shape), np.dtype(feature.np_dtype)
    if dtype != np.uint8:
        return f"is an image of {dtype}; read are those of uint8"
    if len(shape) != 3 or shape[2] not in (1, 3, 4):
        return f"is an image of shape {shape}; read are those of 1, 3 or 4 channels"
    if None in shape:
        return Field(name, {"type": "Box", "shape": list(shape), "dtype": "uint8"}, dtype, "image")
    return Field(name, box(shape, dtype), dtype, "image")


def fields_of(tree: Tree) -> Iterator[Field]:
    """Every field of a tree."""
    if isinstance(tree, Field):
        yield tree
    else:
        for part in tree.values():
            yield from fields_of(part)


def space_of(tree: Tree) -> dict[str, Any]:
    """The space of a tree: a Dict where features are nested."""
    if isinstance(tree, Field):
        return dict(tree.space)
    return {"type": "Dict", "spaces": {key: space_of(part) for key, part in tree.items()}}


def values_of(tree: Tree, example: Example) -> Any:
    """The columns of a tree, built as its space is; `ValueError` where they do not fit the features."""
    if isinstance(tree, Field):
        return tree.read(example)
    return {key: values_of(part, example) for key, part in tree.items()}


def with_image_sizes(tree: Tree, example: Example) -> Tree:
    """The tree with every open size of an image as it is in `example`; `ValueError` where there is no image to see."""
    if not isinstance(tree, Field):
        return {key: with_image_sizes(part, example) for key, part in tree.items()}
    if not tree.is_open_image:
        return tree
    encoded = example.get(tree.name)
    if not isinstance(encoded, list) or not encoded:
        raise ValueError(f"{tree.name} holds no image, so its size is unknown")
    shape = (*_size_of_image(encoded[0], tree.name), tree.space["shape"][2])
    return dataclasses.replace(tree, space=box(shape, np.uint8))


def _size_of_image(data: bytes, name: str) -> tuple[int, int]:
    """Height and width as the header of a PNG or JPEG file says."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name}: its first image cannot be read ({error})") from None
    return image.height, image.width
