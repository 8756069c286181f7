"""Encoded images: they stay bytes, decode on sight, and a damaged one is one line."""

import io

import numpy as np
import pytest
from PIL import Image

from worldmodel.images import EncodedImages, decode, encode_png

RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, size=(5, 11, 13, 3)).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_keeps_every_bit(channels):
    image = RNG.integers(0, 256, size=(11, 13, channels)).astype(np.uint8)
    np.testing.assert_array_equal(decode(encode_png(image), (11, 13, channels)), image)


def test_a_column_decodes_what_is_looked_at():
    column = EncodedImages([encode_png(p) for p in PICTURES], (11, 13, 3))
    assert len(column) == 5
    assert column.shape == PICTURES.shape
    assert column.dtype == np.uint8
    np.testing.assert_array_equal(column[2], PICTURES[2])
    np.testing.assert_array_equal(np.asarray(column[1:4]), PICTURES[1:4])
    np.testing.assert_array_equal(np.asarray(column[np.array([4, 0])]), PICTURES[[4, 0]])
    np.testing.assert_array_equal(np.asarray(column, np.float32), PICTURES.astype(np.float32))


def test_slicing_decodes_nothing():
    column = EncodedImages([b"not an image"] * 3, (11, 13, 3))
    assert column[1:].encoded == [b"not an image"] * 2
    assert column[np.array([True, False, True])].shape == (2, 11, 13, 3)


def jpeg() -> bytes:
    file = io.BytesIO()
    Image.fromarray(PICTURES[0]).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not an image", "an image cannot be decoded"),
        (b"", "an image cannot be decoded"),
        (encode_png(PICTURES[0])[:-40], "an image cannot be decoded"),
        (encode_png(PICTURES[0, :9]), "an image is 9x13; the space has 11x13"),
        (jpeg()[:200], "an image"),
    ],
)
def test_damaged_images_are_one_line(data, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        decode(data, (11, 13, 3))
