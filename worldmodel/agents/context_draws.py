"""Contexts of which parts are drawn anew for every world.

JSON, in which `{"uniform": [low, high]}` is a number between two, and `{"choice": [..]}` one of several values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

DRAWS = ("uniform", "choice")


def check_draws(context: Any, name: str = "") -> None:
    """`ValueError` where a draw is not one: bounds that are no two ascending numbers, or nothing to choose from."""
    if not isinstance(context, Mapping):
        return
    kind = _kind(context)
    if kind is None:
        for key, part in context.items():
            check_draws(part, f"{name}/{key}" if name else str(key))
        return
    given = context[kind]
    if kind == "choice" and not (isinstance(given, list) and given):
        raise ValueError(f"context {name!r}: choice is {given!r}; a list of at least one value is needed")
    if kind == "uniform":
        numbers = isinstance(given, list) and len(given) == 2 and all(_is_number(bound) for bound in given)
        if not numbers or given[0] > given[1]:
            raise ValueError(f"context {name!r}: uniform is {given!r}; [low, high] is needed")


def drawn(context: Any, rng: np.random.Generator) -> Any:
    """The context with every draw made, in the order of its keys."""
    if not isinstance(context, Mapping):
        return context
    kind = _kind(context)
    if kind == "uniform":
        return float(rng.uniform(*context[kind]))
    if kind == "choice":
        return context[kind][int(rng.integers(len(context[kind])))]
    return {key: drawn(part, rng) for key, part in context.items()}


def merged(below: Any, above: Any) -> Any:
    """`above` laid over `below`: key by key where both are dicts, else whichever is not None, `above` first."""
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return {key: merged(below.get(key), above.get(key)) for key in {**below, **above}}
    return below if above is None else above


def _kind(context: Mapping[str, Any]) -> str | None:
    """Which draw a dict stands for; None for a dict that is one."""
    return next((kind for kind in DRAWS if set(context) == {kind}), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
