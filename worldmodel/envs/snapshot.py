"""A moment of simulated episodes, kept: to come back to it, in this process or another, and go on in the same bits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from worldmodel.training.checkpoint import WorldModel, describe

_HASHED = 2**14
"""Numbers of every array of weights that tell one model from another."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What `SimEnv.snapshot` and `SimVectorEnv.snapshot` give, and `restore` takes. It is changed by no later step.

    Attributes:
      model: names the world model that it belongs to.
      leaves: arrays of the simulator's state and the present observation.
      ended: bool `[B]`, the row's episode is over.
      generators: states of the rows' NumPy generators, from which the next resets are drawn.
      seeds: what the generators were made from.
    """

    model: str
    leaves: tuple[np.ndarray, ...]
    ended: np.ndarray
    generators: tuple[Mapping[str, Any], ...]
    seeds: tuple[int, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an npz, whole or not at all."""
        path = Path(path)
        told = {"model": self.model, "generators": self.generators, "seeds": self.seeds}
        arrays: dict[str, Any] = {f"leaf_{i}": leaf for i, leaf in enumerate(self.leaves)}
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with open(temporary, "wb") as file:
            np.savez(file, told=np.frombuffer(json.dumps(told).encode(), np.uint8), ended=self.ended, **arrays)
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Snapshot:
        """The inverse of `save`; `FileNotFoundError`, or `ValueError` where the file is no snapshot."""
        try:
            with np.load(path, allow_pickle=False) as file:
                told = json.loads(file["told"].tobytes())
                leaves = tuple(file[f"leaf_{i}"] for i in range(len(file.files) - 2))
                return cls(told["model"], leaves, file["ended"], tuple(told["generators"]), tuple(told["seeds"]))
        except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: is no snapshot ({' '.join(str(error).split())[:200]})") from None

    def check(self, model: WorldModel, rows: int) -> None:
        """`ValueError` unless it is one of `rows` environments of this model."""
        if self.model != name_of(model):
            raise ValueError("the snapshot is of another world model")
        if len(self.ended) != rows:
            raise ValueError(f"the snapshot is of {len(self.ended)} environments, not of {rows}")

    def new_generators(self) -> list[np.random.Generator]:
        """Generators that go on where those of the snapshot stood."""
        made = []
        for state in self.generators:
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = state
            made.append(generator)
        return made


def taken(
    model: WorldModel,
    leaves: Sequence[np.ndarray],
    ended: Any,
    generators: Sequence[np.random.Generator],
    seeds: Sequence[int],
) -> Snapshot:
    """A snapshot of `B` rows."""
    states = tuple(json.loads(json.dumps(generator.bit_generator.state)) for generator in generators)
    return Snapshot(name_of(model), tuple(leaves), np.array(ended, np.bool_), states, tuple(map(int, seeds)))


def name_of(model: WorldModel) -> str:
    """16 hexadecimal digits that tell this model from others: its description, its step, and some of its weights."""
    digest = hashlib.sha256()
    told = describe(model.spec, model.dynamics.codec, model.dynamics.config, {})
    digest.update(json.dumps([told, model.step], sort_keys=True).encode())
    for leaf in jax.tree.leaves(model.params["members"]):
        digest.update(np.asarray(leaf).reshape(-1)[:_HASHED].tobytes())
    return digest.hexdigest()[:16]
