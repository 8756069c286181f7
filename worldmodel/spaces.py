"""Spaces as plain JSON, and the values that lie in them.

Values of `N` steps are columns, one per leaf of the space:

  `{"type": "Box", "shape": [..], "dtype": "float32", "low": .., "high": ..}`: `[N, *shape]`; `low` and `high` are flat
    lists (null: unbounded) or, all equal, one number. Images (`is_image`) may be `EncodedImages`.
  `{"type": "Discrete", "n": 3, "start": 0}`: integers `[N]`.
  `{"type": "MultiDiscrete", "nvec": [..], "start": [..]}`: integers `[N, *shape]`, nested lists for more axes.
  `{"type": "MultiBinary", "shape": [..]}`: 0 or 1, int8 `[N, *shape]`.
  `{"type": "Text", "max_length": 80}`: an object array `[N]` of `str`; null: of any length.
  `{"type": "Dict", "spaces": {name: space}}`: a dict of columns.
  `{"type": "Tuple", "spaces": [space, ..]}`: a tuple of columns.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from worldmodel.images import EncodedImages

if TYPE_CHECKING:
    import gymnasium

SPACES = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text", "Dict", "Tuple")
LONG_TEXT = 2**31 - 1
"""`max_length` of a Gymnasium Text that stands for one of any length."""
_SHORT_BOUNDS = 256

Path = tuple[str | int, ...]
"""Keys of dicts and places in tuples that lead to a leaf."""


def is_image(space: Mapping[str, Any]) -> bool:
    """A Box of bytes with the axes height, width and 1, 3 or 4 channels."""
    if space["type"] != "Box" or space["dtype"] != "uint8" or len(space["shape"]) != 3:
        return False
    height, width, channels = space["shape"]
    return min(height, width) >= 8 and channels in (1, 3, 4)


def shape_of(space: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of one value of a leaf."""
    if space["type"] == "MultiDiscrete":
        return np.shape(space["nvec"])
    return tuple(space["shape"]) if space["type"] in ("Box", "MultiBinary") else ()


def dtype_of(space: Mapping[str, Any]) -> np.dtype:
    """Dtype in which a leaf's column is kept."""
    kinds = {"Discrete": np.int64, "MultiDiscrete": np.int64, "MultiBinary": np.int8, "Text": np.object_}
    return np.dtype(space["dtype"] if space["type"] == "Box" else kinds[space["type"]])


def parts_of(space: Mapping[str, Any]) -> list[tuple[str | int, Mapping[str, Any]]]:
    """The parts of a Dict by name, or of a Tuple by place."""
    parts = space["spaces"]
    return list(parts.items()) if isinstance(parts, Mapping) else list(enumerate(parts))


def walk(space: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every leaf with the keys that lead to it, `()` for a space that is its own leaf, in the order of the space."""
    if space["type"] in ("Dict", "Tuple"):
        for key, part in parts_of(space):
            yield from walk(part, (*path, key))
    else:
        yield path, space


def leaves(space: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every leaf with its path as one text: `camera/wrist`, `""` for a space that is its own leaf."""
    for path, leaf in walk(space):
        yield "/".join(map(str, path)), leaf


def named(role: str, path: str) -> str:
    """`action 'arm/0'` for people, or the role alone where the space is its own leaf."""
    return f"{role} {path!r}" if path else role


def at(values: Any, path: Path) -> Any:
    """What the keys of a path lead to in values that are built as a space is."""
    for key in path:
        values = values[key]
    return values


def assemble(parts: Sequence[tuple[Path, Any]]) -> Any:
    """Dicts and tuples, nested as the paths say, of what lies at each; the inverse of `at`. Paths are as of `walk`."""
    if parts[0][0] == ():
        return parts[0][1]
    groups: dict[str | int, list[tuple[Path, Any]]] = {}
    for path, part in parts:
        groups.setdefault(path[0], []).append((path[1:], part))
    built = {key: assemble(group) for key, group in groups.items()}
    return built if isinstance(parts[0][0][0], str) else tuple(built.values())


def columns_of(space: Mapping[str, Any], values: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """Every leaf with its path and its column; `ValueError` where values are not built as the space is."""
    where = f" of {path!r}" if path else ""
    if space["type"] == "Dict":
        if not isinstance(values, Mapping) or set(values) != set(space["spaces"]):
            found = sorted(values) if isinstance(values, Mapping) else type(values).__name__
            raise ValueError(f"values{where} are {found}; the space has the keys {sorted(space['spaces'])}")
    elif space["type"] == "Tuple":
        if not isinstance(values, tuple) or len(values) != len(space["spaces"]):
            found = f"{type(values).__name__} of {len(values)}" if hasattr(values, "__len__") else type(values).__name__
            raise ValueError(f"values{where} are a {found}; the space is a tuple of {len(space['spaces'])}")
    else:
        yield path, space, values
        return
    for name, part in parts_of(space):
        yield from columns_of(part, at(values, (name,)), f"{path}/{name}" if path else str(name))


def map_columns(function: Callable[..., Any], values: Any, *others: Any) -> Any:
    """`function` of every column of `values` (and of the same column of `others`), built as `values` is."""
    if isinstance(values, Mapping):
        return {k: map_columns(function, v, *(o[k] for o in others)) for k, v in values.items()}
    if isinstance(values, tuple):
        return tuple(map_columns(function, v, *(o[i] for o in others)) for i, v in enumerate(values))
    return function(values, *others)


def column_list(values: Any) -> list[Any]:
    """Every column of `values`, in order."""
    found: list[Any] = []
    map_columns(found.append, values)
    return found


def steps_of(values: Any) -> int:
    """Length `N` of the columns; `ValueError` where they differ or there is none."""
    lengths = {len(column) for column in column_list(values)}
    if len(lengths) != 1:
        raise ValueError(f"columns of {sorted(lengths)} steps; one length is needed")
    return lengths.pop()


def check_values(space: Mapping[str, Any], values: Any, role: str, *, where: str = "value") -> None:
    """Raises `ValueError` unless `values` lie in the space; `role` names them ("observation", "action").

    Bounds are compared with the tolerance of float32. Encoded images are held to their shape alone.
    """
    try:
        found = list(columns_of(space, values))
    except ValueError as error:
        raise ValueError(f"{where}: {role}: {error}") from None
    for path, leaf, column in found:
        _check_column(leaf, column, named(role, path), where)


def _check_column(space: Mapping[str, Any], column: Any, role: str, where: str) -> None:
    kind, shape = space["type"], shape_of(space)
    values = column if isinstance(column, EncodedImages) else np.asarray(column)
    if tuple(values.shape[1:]) != shape:
        raise ValueError(f"{where}: {role} has shape {tuple(values.shape[1:])}; the space has {shape}")
    if isinstance(values, EncodedImages):
        if not is_image(space):
            raise ValueError(f"{where}: {role} is an encoded image; the space is none")
        return
    if kind == "Text":
        _check_text(space, values, role, where)
        return
    if kind == "Box":
        if not np.issubdtype(values.dtype, np.number) and values.dtype != np.bool_:
            raise ValueError(f"{where}: {role} has dtype {values.dtype}; a Box takes numbers")
        low, high = box_bounds(space)
        slack = 1e-5 * np.maximum(1.0, np.nan_to_num(np.abs(values.astype(np.float64)), nan=0.0, posinf=0.0))
        bad = ~((values >= low - slack) & (values <= high + slack))  # NaN is outside, too
        bounds = "its Box"
    else:
        if not np.issubdtype(values.dtype, np.integer) and not (kind == "MultiBinary" and values.dtype == np.bool_):
            raise ValueError(f"{where}: {role} has dtype {values.dtype}; a {kind} space takes integers")
        low, high = _integer_bounds(space)
        bad = (values < low) | (values > high)
        bounds = f"{low}..{high}" if kind != "MultiDiscrete" else f"its MultiDiscrete {space['nvec']}"
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"{where}: {role} at step {first[0]} is {values[first]}, outside {bounds}")


def _check_text(space: Mapping[str, Any], values: np.ndarray, role: str, where: str) -> None:
    limit = space.get("max_length")
    for step, text in enumerate(values):
        if not isinstance(text, str):
            raise ValueError(f"{where}: {role} at step {step} is a {type(text).__name__}; a Text space takes str")
        if limit is not None and len(text) > limit:
            raise ValueError(f"{where}: {role} at step {step} has {len(text)} characters; the space has {limit}")


def _integer_bounds(space: Mapping[str, Any]) -> tuple[Any, Any]:
    if space["type"] == "MultiBinary":
        return 0, 1
    if space["type"] == "Discrete":
        return space["start"], space["start"] + space["n"] - 1
    low = np.asarray(space["start"], np.int64)
    return low, low + np.asarray(space["nvec"], np.int64) - 1


def box_bounds(space: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds of a Box in JSON form, float64 in its shape; +-inf where unbounded."""

    def bound(values: Any, unbounded: float) -> np.ndarray:
        if not isinstance(values, (list, tuple)):
            return np.full(space["shape"], unbounded if values is None else values, np.float64)
        return np.array([unbounded if v is None else v for v in values], np.float64).reshape(space["shape"])

    return bound(space["low"], -np.inf), bound(space["high"], np.inf)


def check_space(data: Any, role: str) -> None:
    """Raises `ValueError` unless `data` is the JSON of a space that a log can have."""
    kind = data.get("type") if isinstance(data, Mapping) else None
    if kind not in SPACES:
        raise ValueError(f"{role} space {kind} is not supported; supported are {', '.join(SPACES)}")
    needed = {
        "Box": ("shape", "dtype", "low", "high"),
        "Discrete": ("n", "start"),
        "MultiDiscrete": ("nvec", "start"),
        "MultiBinary": ("shape",),
        "Text": (),
    }
    for field in needed.get(kind, ("spaces",)):
        if field not in data:
            raise ValueError(f"{role} space {kind} lacks {field!r}")
    if kind in ("Dict", "Tuple"):
        if not data["spaces"]:
            raise ValueError(f"{role} space {kind} is empty; at least one part is needed")
        for name, part in parts_of(data):
            if isinstance(name, str) and ("/" in name or not name):
                raise ValueError(f"{role} space has a key {name!r}; a key is not empty and has no '/'")
            check_space(part, f"{role} {name!r}")


def space_to_json(space: Any, role: str) -> dict[str, Any]:
    """A `gymnasium.Space` as plain JSON; `ValueError` for one that no log can have."""
    kind = type(space).__name__
    if kind == "Discrete":
        data = {"type": kind, "n": int(space.n), "start": int(space.start)}
    elif kind == "MultiDiscrete":
        data = {"type": kind, "nvec": np.asarray(space.nvec).tolist(), "start": np.asarray(space.start).tolist()}
    elif kind == "MultiBinary":
        data = {"type": kind, "shape": [int(n) for n in space.shape]}
    elif kind == "Text":
        length = int(space.max_length)
        data = {"type": kind, "max_length": None if length >= LONG_TEXT else length}
    elif kind == "Dict":
        data = {"type": kind, "spaces": {k: space_to_json(v, f"{role} {k!r}") for k, v in space.spaces.items()}}
    elif kind == "Tuple":
        data = {"type": kind, "spaces": [space_to_json(v, f"{role} {i!r}") for i, v in enumerate(space.spaces)]}
    elif kind == "Box":
        shape = [int(n) for n in space.shape]
        data = {"type": kind, "shape": shape, "dtype": str(space.dtype)}
        data |= {"low": _bound_to_json(space.low), "high": _bound_to_json(space.high)}
    else:
        data = {"type": kind}
    check_space(data, role)
    return data


def space_from_json(data: Mapping[str, Any]) -> gymnasium.Space:
    """The inverse of `space_to_json` (imports gymnasium)."""
    from gymnasium import spaces

    kind = data["type"]
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(data["nvec"]), start=np.asarray(data["start"]))
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["shape"])
    if kind == "Text":
        limit = data.get("max_length")
        return spaces.Text(LONG_TEXT if limit is None else limit, min_length=0, charset=string.printable)
    if kind == "Dict":
        return spaces.Dict({name: space_from_json(part) for name, part in data["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(part) for part in data["spaces"]])
    dtype = np.dtype(data["dtype"])
    low, high = box_bounds(data)
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)


def box(shape: tuple[int, ...], dtype: Any, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    """A Box in JSON form with one bound for all its numbers; integers without any are bounded by their dtype."""
    kind = np.dtype(dtype)
    if kind.kind in "iu" and low is None and high is None:
        low, high = float(np.iinfo(kind).min), float(np.iinfo(kind).max)
    size = math.prod(shape)

    def bound(value: Any) -> Any:
        return value if size > _SHORT_BOUNDS else [value] * size

    return {"type": "Box", "shape": list(shape), "dtype": str(kind), "low": bound(low), "high": bound(high)}


def _bound_to_json(bound: np.ndarray) -> Any:
    values = [float(v) if np.isfinite(v) else None for v in np.ravel(bound)]
    return values[0] if len(values) > _SHORT_BOUNDS and len(set(values)) == 1 else values
