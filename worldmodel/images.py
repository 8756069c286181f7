"""Images that stay as they were encoded until someone looks at them."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclasses.dataclass(frozen=True)
class EncodedImages:
    """A column of `N` PNG or JPEG images; `np.asarray` of it decodes to uint8 `[N, H, W, C]`.

    Attributes:
      encoded: each image's file, `N` of them.
      size: height, width and channels (1, 3 or 4) of every decoded image.
    """

    encoded: Sequence[bytes]
    size: tuple[int, int, int]

    dtype = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(N, H, W, C)` of what decoding gives."""
        return (len(self.encoded), *self.size)

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, index: Any) -> Any:
        """One decoded image for an integer, else the chosen ones, still encoded."""
        if isinstance(index, (int, np.integer)):
            return decode(self.encoded[int(index)], self.size)
        if isinstance(index, slice):
            return EncodedImages(self.encoded[index], self.size)
        rows = np.arange(len(self))[index]
        return EncodedImages([self.encoded[int(i)] for i in rows], self.size)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        images = np.empty(self.shape, np.uint8)
        for i, data in enumerate(self.encoded):
            images[i] = decode(data, self.size)
        return images if dtype is None else images.astype(dtype)


def decode(data: bytes, size: tuple[int, int, int]) -> np.ndarray:
    """A PNG or JPEG file as uint8 `[H, W, C]`; `ValueError` where it is damaged or of another size."""
    from PIL import Image, UnidentifiedImageError

    height, width, channels = size
    try:
        image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
        if (image.height, image.width) != (height, width):  # known before anything is decoded
            raise ValueError(f"an image is {image.height}x{image.width}; the space has {height}x{width}")
        values = np.asarray(image.convert(_MODES[channels]), np.uint8)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"an image cannot be decoded ({error})") from None
    return values.reshape(size)


def encode_gif(frames: Sequence[np.ndarray], seconds: float) -> bytes:
    """Pictures uint8 `[H, W, 3]` of one size as a GIF file that plays for ever, each shown for `seconds`.

    Equal ones in a row become one frame that is shown as long as they.
    """
    from PIL import Image

    file = io.BytesIO()
    first, *others = (Image.fromarray(frame) for frame in frames)
    first.save(file, "GIF", save_all=True, append_images=others, duration=round(1000 * seconds), loop=0)
    return file.getvalue()


def encode_png(image: np.ndarray) -> bytes:
    """uint8 `[H, W, C]` as a PNG file, without loss."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(file, "PNG")
    return file.getvalue()
