"""Spaces of every kind: JSON and back, the layout of their values, and every value that lies outside is named."""

import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.images import EncodedImages, encode_png
from worldmodel.spaces import (
    box,
    check_space,
    check_values,
    columns_of,
    is_image,
    leaves,
    map_columns,
    space_from_json,
    space_to_json,
    steps_of,
)

LEAVES = st.one_of(
    st.builds(spaces.Discrete, st.integers(1, 9), start=st.integers(-5, 5)),
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.just(spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [-2, 3]])),
    st.sampled_from([3, (2, 5)]).map(spaces.MultiBinary),
    st.builds(spaces.Text, st.integers(1, 30), min_length=st.just(0), charset=st.just("abc")),
    st.sampled_from([((), np.float64), ((2, 3), np.float32), ((4,), np.int16), ((8, 9, 3), np.uint8)]).map(
        lambda kind: spaces.Box(np.full(kind[0], 0, kind[1]), np.full(kind[0], 99, kind[1]), kind[0], kind[1])
    ),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=4,
)


def column(space, values):
    """Samples of a Gymnasium space as columns."""
    if isinstance(space, spaces.Dict):
        return {k: column(s, [v[k] for v in values]) for k, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(column(s, [v[i] for v in values]) for i, s in enumerate(space.spaces))
    return np.array(values, object) if isinstance(space, spaces.Text) else np.stack([np.asarray(v) for v in values])


@given(SPACES)
def test_json_keeps_the_space_and_its_samples_lie_inside(space):
    data = space_to_json(space, "observation")
    assert json.loads(json.dumps(data)) == data
    back = space_from_json(data)
    assert space_to_json(back, "observation") == data
    space.seed(0)
    values = column(space, [space.sample() for _ in range(3)])
    check_values(data, values, "observation")
    assert steps_of(values) == 3
    assert [path for path, _ in leaves(data)] == [path for path, _, _ in columns_of(data, values)]
    doubled = map_columns(lambda a, b: np.concatenate([a, b]), values, values)
    assert steps_of(doubled) == 6


def test_paths_of_leaves():
    space = spaces.Dict({"arm": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(3)]), "say": spaces.Text(5)})
    assert [path for path, _ in leaves(space_to_json(space, "action"))] == ["arm/0", "arm/1", "say"]
    assert [path for path, _ in leaves({"type": "Discrete", "n": 2, "start": 0})] == [""]


PAIR = {
    "type": "Dict",
    "spaces": {"n": {"type": "Discrete", "n": 3, "start": 1}, "t": {"type": "Text", "max_length": 2}},
}
WORDS = np.array(["ab", "c"], object)


@pytest.mark.parametrize(
    ("space", "values", "message"),
    [
        (PAIR, {"n": np.array([1, 4]), "t": WORDS}, r"here: action 'n' at step 1 is 4, outside 1\.\.3"),
        (PAIR, {"n": np.array([1, 2]), "t": np.array(["ab", "cde"], object)}, "here: action 't' at step 1 has 3 char"),
        (
            PAIR,
            {"n": np.array([1, 2]), "t": np.array(["ab", None], object)},
            "here: action 't' at step 1 is a NoneType",
        ),
        (PAIR, {"n": np.array([1, 2])}, r"here: action: values are \['n'\]; the space has the keys \['n', 't'\]"),
        (PAIR, np.zeros(2), "here: action: values are ndarray; the space has the keys"),
        ({"type": "Tuple", "spaces": [PAIR]}, (), "here: action: values are a tuple of 0; the space is a tuple of 1"),
        (
            {"type": "MultiDiscrete", "nvec": [2, 3], "start": [0, 0]},
            np.array([[1, 2], [1, 3]]),
            r"here: action at step 1 is 3, outside its MultiDiscrete \[2, 3\]",
        ),
        (
            {"type": "MultiBinary", "shape": [2]},
            np.array([[0, 1], [0, 2]]),
            r"here: action at step 1 is 2, outside 0\.\.1",
        ),
        (
            {"type": "MultiBinary", "shape": [2]},
            np.zeros((2, 2)),
            "here: action has dtype float64; a MultiBinary space",
        ),
        (box((2,), np.float32), EncodedImages([b""], (8, 8, 3)), r"here: action has shape \(8, 8, 3\)"),
    ],
)
def test_values_outside(space, values, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        check_values(space, values, "action", where="here")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"type": "Graph"}, "action space Graph is not supported; supported are Box, Discrete, .*Tuple"),
        ({}, "action space None is not supported"),
        ("Box", "action space None is not supported"),
        ({"type": "Box", "shape": [2]}, "action space Box lacks 'dtype'"),
        ({"type": "Dict", "spaces": {}}, "action space Dict is empty"),
        ({"type": "Dict", "spaces": {"a/b": PAIR}}, "action space has a key 'a/b'"),
        ({"type": "Dict", "spaces": {"a": {"type": "Discrete", "n": 2}}}, "action 'a' space Discrete lacks 'start'"),
    ],
)
def test_bad_space_json(data, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        check_space(data, "action")


def test_images_are_held_to_their_shape_and_not_decoded():
    space = box((8, 9, 3), np.uint8)
    assert is_image(space)
    assert space["low"] == [0] * 216
    assert box((80, 90, 3), np.uint8)["high"] == 255
    assert not is_image(box((8, 9, 2), np.uint8))
    assert not is_image(box((8, 9, 3), np.float32))
    check_values(space, EncodedImages([b"never opened"], (8, 9, 3)), "observation")
    picture = np.zeros((8, 9, 3), np.uint8)
    check_values(space, np.asarray(EncodedImages([encode_png(picture)], (8, 9, 3))), "observation")


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"^columns of \[2, 3\] steps; one length is needed$"):
        steps_of({"a": np.zeros(2), "b": np.zeros(3)})
