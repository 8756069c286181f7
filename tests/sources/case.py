"""What the contract test asks of a log format: a fixture written by the format's own library, and what it holds."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from worldmodel.trajectory import Spec, Trajectory

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"


@dataclasses.dataclass(frozen=True)
class Case:
    """One fixture.

    Attributes:
      name: of the test.
      format: key of `worldmodel.sources.FORMATS`.
      path: the file or folder given to `read`.
      spec: what the reader must say of it.
      episodes: makes the trajectories it holds, in order, from what the library was given (not from reading the
        fixture); of `info` only the keys given are compared.
      options: of the reader.
      recognised: the format is found without its prefix.
      left_out: regular expressions, one for each line of `provenance["left_out"]`.
    """

    name: str
    format: str
    path: pathlib.Path
    spec: Spec
    episodes: Callable[[], list[Trajectory]]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    recognised: bool = True
    left_out: tuple[str, ...] = ()
