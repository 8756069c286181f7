"""Reading logs of any format: `read(uri)` gives a `Source` of `Trajectory`s.

A format is one module of this room with a function `open_source(place)`, and one line in `FORMATS`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from worldmodel.trajectory import Spec, Trajectory, suggest

FORMATS = {
    "corpus": "worldmodel.sources.corpus",
}
DEFAULT = "corpus"


@runtime_checkable
class Source(Protocol):
    """Logs that can be read, streaming, as often as needed."""

    @property
    def spec(self) -> Spec:
        """Spaces and limits of the environment."""
        ...

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode, one by one."""
        ...


def read(uri: str) -> Source:
    """Opens logs named `FORMAT:PLACE`; a bare `PLACE` is the folder of a corpus.

    Raises:
      ValueError: unknown format, or the logs are damaged.
      FileNotFoundError: nothing at `PLACE`.
    """
    match = re.match(r"([A-Za-z][A-Za-z0-9_+-]*):(.*)", uri, re.DOTALL)
    kind, place = match.groups() if match else (DEFAULT, uri)
    if kind not in FORMATS:
        raise ValueError(
            f"format {kind!r} of {uri!r} is unknown{suggest(kind, FORMATS)}; "
            f"known are {', '.join(f'{name}:PLACE' for name in FORMATS)}"
        )
    if not place:
        raise ValueError(f"{uri!r} names no place; write {kind}:PLACE")
    return importlib.import_module(FORMATS[kind]).open_source(place)
