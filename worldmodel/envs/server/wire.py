"""Values of spaces as JSON, both ways: what goes over the wire.

A Discrete is a number, a Box, MultiDiscrete or MultiBinary (nested) lists of numbers, a Text a string, a Dict an
object, a Tuple a list of its parts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from worldmodel.spaces import box, box_bounds, check_values, dtype_of, map_columns, parts_of, shape_of
from worldmodel.trajectory import Spec, Trajectory, suggest

FEW = 32
"""So many choices of a Discrete are listed one by one, which makes a menu of them where a form is drawn."""


def to_json(space: Mapping[str, Any], value: Any) -> Any:
    """One value of a space (in JSON form) as JSON; a number that is not finite as None."""
    kind = space["type"]
    if kind == "Dict":
        return {name: to_json(part, value[name]) for name, part in parts_of(space)}
    if kind == "Tuple":
        return [to_json(part, value[place]) for place, part in enumerate(space["spaces"])]
    return str(value) if kind == "Text" else plain(np.asarray(value))


def plain(value: Any) -> Any:
    """NumPy values, and mappings and sequences of them, as JSON; numbers that are not finite as None."""
    if isinstance(value, (np.ndarray, np.generic)):
        finite = value.dtype.kind != "f" or bool(np.isfinite(value).all())
        return value.tolist() if finite else plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def whole(value: Any) -> bool:
    """Whether JSON that `plain` made holds no None: every number was finite."""
    if isinstance(value, Mapping):
        return all(map(whole, value.values()))
    return all(map(whole, value)) if isinstance(value, list) else value is not None


def columns_from_json(space: Mapping[str, Any], values: Sequence[Any], name: str) -> Any:
    """JSON of `N` values of a space as columns of its dtypes, see `worldmodel.spaces`.

    Raises:
      ValueError: they are not built as the space is, or lie outside of it; the message begins with `name`.
    """
    columns = _columns(space, values, name)
    check_values(space, columns, "value", where=name)
    return _cast(space, columns)


def _columns(space: Mapping[str, Any], values: Sequence[Any], name: str) -> Any:
    kind = space["type"]
    if kind == "Dict":
        keys = set(space["spaces"])
        for value in values:
            if not isinstance(value, Mapping) or set(value) != keys:
                found = sorted(value) if isinstance(value, Mapping) else type(value).__name__
                raise ValueError(f"{name} is {found}; an object with the keys {sorted(keys)} is needed")
        return {
            key: _columns(part, [value[key] for value in values], f"{name} {key!r}") for key, part in parts_of(space)
        }
    if kind == "Tuple":
        parts = space["spaces"]
        for value in values:
            if not isinstance(value, list) or len(value) != len(parts):
                found = f"{len(value)} parts" if isinstance(value, list) else type(value).__name__
                raise ValueError(f"{name} is {found}; a list of {len(parts)} is needed")
        return tuple(
            _columns(part, [value[place] for value in values], f"{name} {place!r}") for place, part in enumerate(parts)
        )
    if kind == "Text":
        return np.array(values, dtype=np.object_)
    try:
        column = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} cannot be read as one array: its parts differ in shape") from None
    if column.dtype.kind not in ("biuf" if kind == "MultiBinary" else "iuf"):
        raise ValueError(f"{name} has dtype {column.dtype}; numbers are needed for a {kind}")
    return column


def _cast(space: Mapping[str, Any], columns: Any) -> Any:
    if space["type"] in ("Dict", "Tuple"):
        parts = {key: _cast(part, columns[key]) for key, part in parts_of(space)}
        return parts if space["type"] == "Dict" else tuple(parts.values())
    return columns.astype(dtype_of(space))


PREFIX = ("observations", "actions", "rewards", "context")
"""Names in the JSON of a prefix; `rewards` and `context` may be left out."""


def prefix_from_json(spec: Spec, data: Any) -> Trajectory:
    """A prefix as a `Trajectory`: `{"observations": [T+1 values], "actions": [T values], "rewards": [T numbers]}`."""
    name = "reset option 'prefix'"
    if not isinstance(data, Mapping):
        raise ValueError(f"{name} is a {type(data).__name__}; an object with the keys {', '.join(PREFIX)} is needed")
    for key in data:
        if key not in PREFIX:
            raise ValueError(f"{name} has the key {key!r}; known are {', '.join(PREFIX)}{suggest(key, PREFIX)}")
    for key in PREFIX[:2]:
        if not isinstance(data.get(key), list) or not data[key]:
            raise ValueError(f"{name} needs {key!r}, a list of at least one value")
    rewards = data.get("rewards")
    if rewards is not None:
        if not isinstance(rewards, list):
            raise ValueError(f"{name}: 'rewards' is a {type(rewards).__name__}; a list is needed")
        rewards = columns_from_json(box((), np.float32), rewards, f"{name}, rewards")
    return Trajectory(
        columns_from_json(spec.observation_space, data["observations"], f"{name}, observations"),
        columns_from_json(spec.action_space, data["actions"], f"{name}, actions"),
        rewards,
        False,
        False,
        context=data.get("context"),
    )


def start_from_json(spec: Spec, data: Any) -> Any:
    """One observation to start at, from JSON."""
    columns = columns_from_json(spec.observation_space, [data], "reset option 'start'")
    return map_columns(lambda column: column[0], columns)


def schema(space: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema of the space's values as they go over the wire."""
    kind = space["type"]
    if kind == "Dict":
        parts = {name: schema(part) for name, part in parts_of(space)}
        return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    if kind == "Tuple":
        parts = [schema(part) for part in space["spaces"]]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    if kind == "Text":
        limit = space.get("max_length")
        return {"type": "string"} | ({} if limit is None else {"maxLength": limit})
    if kind == "Discrete":
        low, high = space["start"], space["start"] + space["n"] - 1
        listed = {"enum": list(range(low, high + 1))} if space["n"] <= FEW else {}
        return {"type": "integer", "minimum": low, "maximum": high, **listed}
    return _array(shape_of(space), _element(space))


def _element(space: Mapping[str, Any]) -> dict[str, Any]:
    """Of one number; bounds that are not the same for all are left to the error that names them."""
    if space["type"] == "MultiBinary":
        return {"type": "integer", "minimum": 0, "maximum": 1}
    if space["type"] == "MultiDiscrete":
        low = np.asarray(space["start"])
        bounds = low, low + np.asarray(space["nvec"]) - 1
    else:
        bounds = box_bounds(space)
    element: dict[str, Any] = {"type": "number" if dtype_of(space).kind == "f" else "integer"}
    for word, bound in zip(("minimum", "maximum"), bounds, strict=True):
        values = np.unique(bound)
        if values.size == 1 and np.isfinite(values[0]):
            element[word] = values[0].item()
    return element


def _array(shape: tuple[int, ...], element: dict[str, Any]) -> dict[str, Any]:
    for size in reversed(shape):
        element = {"type": "array", "items": element, "minItems": size, "maxItems": size}
    return element


def object_of(text: str | bytes, what: str) -> dict[str, Any]:
    """The JSON object that a message is; `ValueError` for anything else, however it is broken."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply; a JSON object is needed") from None
    except ValueError as error:
        raise ValueError(f"{what} is not JSON ({error}); a JSON object is needed") from None
    if not isinstance(data, dict):
        raise ValueError(f"{what} is a JSON {_JSON_NAMES[type(data)]}; a JSON object is needed")
    return data


_JSON_NAMES = {list: "list", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}
