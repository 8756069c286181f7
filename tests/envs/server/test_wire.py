"""Spaces over the wire: values there and back, schemas that hold them, errors that name what is allowed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from worldmodel.envs.server.wire import (
    columns_from_json,
    object_of,
    plain,
    prefix_from_json,
    schema,
    start_from_json,
    to_json,
    whole,
)
from worldmodel.spaces import box, map_columns, space_from_json
from worldmodel.trajectory import Spec

SPACES = {
    "box": box((3,), np.float32, -1.0, 1.0),
    "float64": box((2, 2), np.float64),
    "scalar": box((), np.float32, 0.0, 5.0),
    "image": box((8, 9, 3), np.uint8, 0.0, 255.0),
    "discrete": {"type": "Discrete", "n": 5, "start": -2},
    "many": {"type": "Discrete", "n": 500, "start": 0},
    "multi": {"type": "MultiDiscrete", "nvec": [[2, 3], [5, 7]], "start": [[0, 1], [0, 0]]},
    "binary": {"type": "MultiBinary", "shape": [4]},
    "text": {"type": "Text", "max_length": 40},
}
SPACES["nested"] = {
    "type": "Dict",
    "spaces": {"arm": {"type": "Tuple", "spaces": [SPACES["box"], SPACES["discrete"]]}, "say": SPACES["text"]},
}


def samples(name: str, count: int = 3) -> list:
    space = space_from_json(SPACES[name])
    space.seed(1)
    return [space.sample() for _ in range(count)]


def same(a, b) -> None:
    assert str(a) == str(b) if isinstance(a, str) else np.array_equal(a, b)


@pytest.mark.parametrize("name", SPACES)
def test_values_come_back_as_they_went(name):
    values = samples(name)
    sent = json.loads(json.dumps([to_json(SPACES[name], value) for value in values], allow_nan=False))
    columns = columns_from_json(SPACES[name], sent, "value")
    for row, value in enumerate(values):
        map_columns(lambda column, wanted, row=row: same(column[row], wanted), columns, value)


@pytest.mark.parametrize("name", SPACES)
def test_the_schema_holds_the_values_and_says_where_they_end(name):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: OpenEnv brings it")
    told = schema(SPACES[name])
    jsonschema.Draft202012Validator.check_schema(told)
    for value in samples(name):
        jsonschema.validate(to_json(SPACES[name], value), told)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"far": 1e9}, told)


def test_schemas_are_what_they_were_meant_to_be():
    assert schema(SPACES["discrete"]) == {"type": "integer", "minimum": -2, "maximum": 2, "enum": [-2, -1, 0, 1, 2]}
    assert "enum" not in schema(SPACES["many"])
    number = {"type": "number", "minimum": -1.0, "maximum": 1.0}
    assert schema(SPACES["box"]) == {"type": "array", "items": number, "minItems": 3, "maxItems": 3}
    assert schema(SPACES["float64"])["items"]["items"] == {"type": "number"}, "no bound is no bound"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("box", [0.0, 1.0], "it: value has shape (2,); the space has (3,)"),
        ("box", [0.0, 1.0, 2.0], "it: value at step 0 is 2.0, outside its Box"),
        ("box", [0.0, float("nan"), 0.0], "it: value at step 0 is nan, outside its Box"),
        ("box", [0.0, None, 0.0], "it has dtype object; numbers are needed for a Box"),
        ("box", ["0", "1", "2"], "it has dtype <U1; numbers are needed for a Box"),
        ("box", [[0.0], [1.0, 2.0], 3], "it cannot be read as one array: its parts differ in shape"),
        ("image", 10**30, "it has dtype object; numbers are needed for a Box"),
        ("image", np.full((8, 9, 3), 300).tolist(), "it: value at step 0 is 300, outside its Box"),
        ("discrete", 3, "it: value at step 0 is 3, outside -2..2"),
        ("discrete", 1.0, "it: value has dtype float64; a Discrete space takes integers"),
        ("text", 3, "it: value at step 0 is a int; a Text space takes str"),
        ("nested", [1], "it is list; an object with the keys ['arm', 'say'] is needed"),
        ("nested", {"arm": 1, "say": ""}, "it 'arm' is int; a list of 2 is needed"),
        ("nested", {"arm": [[0, 0, 0]], "say": ""}, "it 'arm' is 1 parts; a list of 2 is needed"),
    ],
)
def test_what_is_not_of_the_space_is_named(name, value, message):
    with pytest.raises(ValueError, match=r"^it") as raised:
        columns_from_json(SPACES[name], [value], "it")
    assert str(raised.value) == message


def test_numbers_that_are_not_finite_are_null():
    told = to_json(SPACES["box"], np.array([0.5, np.nan, -np.inf], np.float32))
    assert told == [0.5, None, None] and not whole(told) and whole({"a": [0, ["b"]]})
    assert plain({"a": np.float32("nan"), 3: (np.int64(2), math.inf), "b": np.bool_(True), "c": object}) == {
        "a": None,
        "3": [2, None],
        "b": True,
        "c": str(object),
    }


SPEC = Spec(SPACES["box"], SPACES["discrete"])


def test_a_prefix_is_read_whole():
    told = {"observations": [[0, 0, 0], [0.5, 0, 0], [1, 0, 0]], "actions": [-2, 2], "rewards": [1, 2], "context": "c"}
    prefix = prefix_from_json(SPEC, told).validate(SPEC)
    assert len(prefix) == 2 and prefix.total_reward == 3.0 and prefix.context == "c"
    assert prefix.observations.dtype == np.float32 and prefix.actions.dtype == np.int64
    assert prefix_from_json(SPEC, {name: told[name] for name in ("observations", "actions")}).rewards is None
    assert start_from_json(SPEC, [0, 0, 1]).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "is a list; an object with the keys observations, actions, rewards, context is needed"),
        ({"observation": []}, "has the key 'observation'; known are .* \\(did you mean 'observations'\\?\\)"),
        ({"observations": [[0, 0, 0]]}, "needs 'actions', a list of at least one value"),
        ({"observations": [[0, 0]], "actions": [0]}, ", observations: value has shape \\(2,\\)"),
        ({"observations": [[0, 0, 0]] * 2, "actions": [0], "rewards": ["x"]}, "has dtype <U1; numbers are needed"),
        ({"observations": [[0, 0, 0]] * 2, "actions": [0], "rewards": 1.0}, "'rewards' is a float; a list is needed"),
    ],
)
def test_a_prefix_that_is_none_is_named(data, message):
    with pytest.raises(ValueError, match=f"^reset option 'prefix'.*{message}"):
        prefix_from_json(SPEC, data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not JSON .*; a JSON object is needed"),
        (b"\xff{}", "it is not JSON"),
        ("[" * 100_000, "it is nested too deeply"),
        ("1" * 5_000, "it is not JSON .*digits"),
        ("[1]", "it is a JSON list"),
        ("null", "it is a JSON null"),
        ("true", "it is a JSON boolean"),
    ],
)
def test_what_is_no_object_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        object_of(text, "it")
    assert object_of('{"a": NaN}', "it").keys() == {"a"}
