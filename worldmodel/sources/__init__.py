"""Reading logs of any format: `read(uri)` gives a `Source` of `Trajectory`s.

A format is one module of this room, named in `FORMATS`, with two functions: `open_source(place, **options)`, and
`recognise(place)`, true where names and first bytes say that the path is of this format.
"""

from __future__ import annotations

import importlib
import inspect
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from worldmodel.trajectory import Spec, Trajectory, suggest

FORMATS = {
    name: f"worldmodel.sources.{name}"
    for name in ("corpus", "rlds", "minari", "d4rl", "lerobot", "npz", "chat", "otel", "gymnasium")
}
"""Where each format is read, in the order in which a place without a prefix is recognised."""


@runtime_checkable
class Source(Protocol):
    """Logs that can be read, streaming, as often as needed."""

    @property
    def spec(self) -> Spec:
        """Spaces and limits of the environment."""
        ...

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Plain JSON: `format`, `place`, and where known `files`, `checksum`, `licence`, `episodes`, `left_out`.

        `left_out` is a list of lines, each naming something of the log that is not read, and why.
        """
        ...

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode, one by one, in the same order each time."""
        ...


def read(uri: str, **options: Any) -> Source:
    """Opens logs named `FORMAT:PLACE`, or `PLACE` alone where the format can be recognised.

    Args:
      uri: where the logs are.
      options: what the format's reader takes, e.g. `split="val"`.

    Raises:
      ValueError: unknown format or option, a format that is not recognised, or damaged logs.
      FileNotFoundError: nothing at `PLACE`.
    """
    match = re.match(r"([A-Za-z][A-Za-z0-9_+-]+):(.*)", uri, re.DOTALL)
    kind, place = match.groups() if match else (None, uri)
    if kind is not None and kind not in FORMATS:
        raise ValueError(f"format {kind!r} of {uri!r} is unknown{suggest(kind, FORMATS)}; known are {_known()}")
    if not place:
        raise ValueError(f"{uri!r} names no place; write {kind}:PLACE")
    kind = kind or recognise(place)
    open_source = importlib.import_module(FORMATS[kind]).open_source
    known = list(inspect.signature(open_source).parameters)[1:]
    for name in options:
        if name not in known:
            allowed = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ValueError(f"{kind}: option {name!r} is unknown{suggest(name, known)}; {allowed}")
    return open_source(place, **options)


def recognise(place: str) -> str:
    """The format of the logs at a path; `ValueError` where it is none that is known."""
    path = pathlib.Path(place)
    if not path.exists():
        raise FileNotFoundError(f"{place}: no such file or folder")
    for kind, module in FORMATS.items():
        if importlib.import_module(module).recognise(path):
            return kind
    raise ValueError(f"{place}: its format is not recognised; name it, as {_known()}")


def _known() -> str:
    return ", ".join(f"{name}:PLACE" for name in FORMATS)
