"""Pictures as patches and back, whatever their sides; what is no picture, and what is too large."""

import dataclasses

import numpy as np
import pytest

from worldmodel.codec import GridCodec, PictureCodec, StepCodec, check_spec, fit_codec
from worldmodel.spaces import box
from worldmodel.trajectory import Spec


def pictures(shape, colours, count=30, seed=0):
    """Random pictures of so many colours, or of all levels, and each a step later, where a tenth of pixels changed."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 256, size=(colours or 1, shape[-1])).astype(np.uint8)

    def fresh(size):
        if not colours:
            return rng.integers(0, 256, size=(*size, shape[-1])).astype(np.uint8)
        return table[rng.integers(0, colours, size=size)]

    before = fresh((count, *shape[:2]))
    changed = rng.random(size=(count, *shape[:2], 1)) < 0.1
    return before, np.where(changed, fresh((count, *shape[:2])), before)


def fitted(shape, colours):
    before, after = pictures(shape, colours)
    return PictureCodec.fit(box(shape, "uint8", 0.0, 255.0), before, after), before


@pytest.mark.parametrize("shape", [(40, 40, 3), (33, 47, 1), (96, 96, 3), (84, 84, 1), (50, 20, 4)])
@pytest.mark.parametrize("colours", [0, 2, 32])
def test_there_and_back(shape, colours):
    codec, before = fitted(shape, colours)
    few = len(np.unique(before.reshape(-1, shape[-1]), axis=0))
    assert len(codec.colours) == (few if few <= 32 else 0)
    values = codec.encode(before)
    assert values.shape == (30, codec.patches, codec.values)
    assert values.dtype == (np.int32 if codec.colours else np.float32)
    back = codec.decode(values)
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, before)
    assert codec.pixels == np.prod(shape[:2]) * (1 if codec.colours else shape[2])
    assert codec.patches <= 144
    assert 0.88 < codec.stays < 0.95 or colours == 2


def test_patches_are_squares_in_reading_order():
    codec, _ = fitted((40, 40, 1), 2)
    picture = np.zeros((40, 40, 1), np.uint8) + np.uint8(codec.colours[0])
    picture[4:8, 8:12] = codec.colours[1]  # second row of patches, third in it
    marked = np.asarray(codec.encode(picture))
    assert (marked[12] == 1).all()
    assert (np.delete(marked, 12, axis=0) == 0).all()


def test_brightness_of_patches_leaves_out_what_hangs_over_the_edge():
    codec, _ = fitted((33, 47, 1), 0)
    np.testing.assert_allclose(codec.flatten(np.full((2, 33, 47, 1), 51, np.uint8)), 51.0, rtol=1e-6)


def test_a_colour_never_seen_is_the_nearest_one():
    codec, before = fitted((40, 40, 3), 4)
    near = np.clip(before.astype(int) + 1, 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(codec.decode(codec.encode(near)), before)


def columns_of(shape, colours):
    before, after = pictures(shape, colours, count=600)
    return before, after, np.zeros(600, int), np.zeros(600, np.float32), np.zeros(600, bool)


def spec_of(shape):
    return Spec(box(shape, "uint8", 0.0, 255.0), {"type": "Discrete", "n": 2, "start": 0})


def test_a_small_board_is_a_grid_and_a_small_photograph_is_not():
    kinds = {}
    for colours in (5, 0):
        codec = fit_codec(spec_of((10, 10, 3)), *columns_of((10, 10, 3), colours))
        kinds[colours] = type(codec.observation.leaves[0])
        assert StepCodec.from_json(codec.to_json()) == codec
        assert codec.looks_back == (colours == 0)
    assert kinds == {5: GridCodec, 0: PictureCodec}


def test_too_large_a_picture_is_refused_and_says_what_helps():
    with pytest.raises(
        ValueError, match=r"picture of 210x160 pixels; supported are at most 96x96: .*ResizeObservation"
    ):
        check_spec(spec_of((210, 160, 3)))
    check_spec(spec_of((96, 96, 4)))
    with pytest.raises(ValueError, match="action space is a Box of shape"):
        check_spec(dataclasses.replace(spec_of((96, 96, 3)), action_space=spec_of((96, 96, 3)).observation_space))
