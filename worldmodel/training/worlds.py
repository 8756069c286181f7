"""Several environments in one model: a trunk that all share, and for each world its own way in and its own heads.

Parameters are `{"trunk": ..., "worlds": {name: {"embed": ..., "observation": ..., ...}}}`; with a single world, which
needs no name, they are its model's alone. Whatever there is one of for each world is a dict by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from worldmodel.codec import StepCodec
from worldmodel.model.step import Params, StepConfig, init_params

ONLY = ""
"""Name of a world that is the only one."""

T = TypeVar("T")


def by_world(value: T | Mapping[str, T]) -> Mapping[str, T]:
    """A dict by name: itself, or of what belongs to the only world."""
    return value if isinstance(value, dict) else {ONLY: value}  # pyright: ignore[reportReturnType]


def member_params(params: Params, world: str) -> Params:
    """The parameters of one world's model."""
    return {**params["worlds"][world], "trunk": params["trunk"]} if world else params


def init_worlds(config: StepConfig, codecs: Mapping[str, StepCodec], seed: int) -> Params:
    """Fresh parameters of all members and worlds; the trunk is the first world's."""
    own = {name: dict(init_params(config, codec, seed)) for name, codec in codecs.items()}
    if ONLY in own:
        return own[ONLY]
    trunks = [params.pop("trunk") for params in own.values()]
    return {"trunk": trunks[0], "worlds": own}


def summary(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Parts of each world's negative log-likelihood as one dict: `nll`, the parts, and of several worlds `nll/name`.

    Of several worlds, `nll` and its parts are means over them.
    """
    names = list(next(iter(parts.values())))
    mean = {name: sum(each[name] for each in parts.values()) / len(parts) for name in names}
    each = {f"nll/{world}": sum(own.values()) for world, own in parts.items() if world}
    return {"nll": sum(mean.values()), **mean, **each}


class Streams:
    """Endless iterators of batches side by side: one of each world at every step."""

    def __init__(self, sources: Mapping[str, Any]):
        self._sources = sources

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        return {name: next(source) for name, source in self._sources.items()}

    def get_state(self) -> Any:
        """JSON: the position of every iterator; of an only world, its own."""
        if ONLY in self._sources:
            return self._sources[ONLY].get_state()
        return {name: source.get_state() for name, source in self._sources.items()}

    def set_state(self, state: Any) -> None:
        """The inverse of `get_state`."""
        for name, source in self._sources.items():
            source.set_state(state[name] if name else state)


def map_worlds(function: Callable[..., T], *values: Mapping[str, Any]) -> dict[str, T]:
    """`function` of what each world has in every one of `values`."""
    return {name: function(*(value[name] for value in values)) for name in values[0]}
