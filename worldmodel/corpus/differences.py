"""How two pieces of plain JSON differ, for people."""

from __future__ import annotations

import json
from typing import Any

_LONGEST = 80


def differences(one: Any, other: Any, *, names: tuple[str, str] = ("there", "here"), place: str = "") -> list[str]:
    """`action_space.n is 2 there, 3 here`, one line for each value that differs; empty where none does."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other})
        pairs = [(f"{place}.{key}" if place else key, one.get(key), other.get(key)) for key in keys]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(f"{place}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        return [] if one == other else [f"{place} is {_short(one)} {names[0]}, {_short(other)} {names[1]}"]
    return [line for name, a, b in pairs for line in differences(a, b, names=names, place=name)]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
