"""Logs that tests convert: written to a file, so that they have a state, and read from it."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np

from worldmodel.corpus.job import Input
from worldmodel.trajectory import Spec, Trajectory

BOX = {"type": "Box", "shape": [3], "dtype": "float32", "low": [None] * 3, "high": [None] * 3}
SPEC = Spec(BOX, {"type": "Discrete", "n": 4, "start": -1}, env_id="Toy-v0")


@dataclasses.dataclass(frozen=True)
class ToyLog:
    """`count` episodes that follow from their numbers, `first` onwards; `bad` of them are not valid."""

    count: int
    first: int = 0
    bad: tuple[int, ...] = ()
    spec: Spec = SPEC
    known: bool = True

    @property
    def provenance(self):
        said = {"format": "toy", "licence": "CC0-1.0", "files": ["many"], "left_out": ["the video"]}
        return said | ({"episodes": self.count} if self.known else {})

    def __iter__(self):
        for number in range(self.first, self.first + self.count):
            yield toy_episode(number, bad=number in self.bad)


def toy_episode(number: int, *, bad: bool = False) -> Trajectory:
    """Of 1 to 4 steps, return `number`, one of three tasks, one of two policies."""
    rng = np.random.default_rng(number)
    steps = 1 + number % 4
    return Trajectory(
        observations=rng.normal(size=(steps + 1 - bad, 3)).astype(np.float32),
        actions=rng.integers(-1, 3, steps),
        rewards=np.array([number] + [0] * (steps - 1), np.float32),
        terminated=number % 2 == 0,
        truncated=number % 2 == 1,
        info={"id": f"e{number}", "policy": "ab"[number % 2], "task": f"task-{number % 3}"},
    )


def toy_input(folder: pathlib.Path, name: str, **fields) -> Input:
    """A toy log that lies in `folder / name`."""
    place = folder / name
    place.write_text(json.dumps(fields), "utf-8")
    return Input(f"toy:{name}", open_toy(str(place)), place)


def open_toy(place: str) -> ToyLog:
    """Opens what `toy_input` wrote."""
    fields = json.loads(pathlib.Path(place).read_text("utf-8"))
    return ToyLog(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})
