"""Regions of the state space in which a simulator's steps are certified: the data and the predicate, without the fit.

Found and judged by `worldmodel.fidelity.certified_states`, used by the simulator.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, Bool, Float

FILE = "certificate.json"
"""Name of what a run folder holds of it."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A split at `threshold` of a feature into two subtrees, or a leaf: a region's number."""

    feature: int = -1
    threshold: float = 0.0
    below: Node | None = None
    above: Node | None = None
    region: int = -1

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Node:
        """From the plain JSON that `dataclasses.asdict` makes of it."""
        below, above = (None if data[side] is None else cls.of(data[side]) for side in ("below", "above"))
        return cls(int(data["feature"]), float(data["threshold"]), below, above, int(data["region"]))

    def label(self, features: np.ndarray) -> np.ndarray:
        """Region of each row of `[N, F]`: int64 `[N]`."""
        if self.below is None or self.above is None:
            return np.full(len(features), self.region)
        low = features[:, self.feature].astype(np.float32) <= np.float32(self.threshold)
        return np.where(low, self.below.label(features), self.above.label(features))


@dataclasses.dataclass(frozen=True)
class Region:
    """What is certified of the states that a rule names.

    Attributes:
      rule: in words.
      share: of the steps that judged it.
      episodes: that judged it; the unit of what follows.
      bound: error that a step stays within with probability 1 - risk, see `certify`; None where there are too few
        episodes for one.
      exceeding: share of steps whose error exceeds the tolerance, episodes weighing alike; None without episodes.
      certified: whether the simulator may be trusted there.
    """

    rule: str
    share: float
    episodes: int
    bound: float | None
    exceeding: float | None
    certified: bool


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Where steps of a simulator are certified.

    Of all regions that are, with probability `confidence` over the episodes that judged them: a step that starts there
    errs by more than `tolerance` with a probability of at most `risk`.

    Attributes:
      root: the rules, over the `D` numbers of a flattened observation and then the sizes of those in `signed`.
      signed: which numbers take both signs.
      regions: by number.
      tolerance: error that is allowed, in the unit of `certify`.
      risk: share of steps that may exceed it.
      confidence: of the statement.
      step: training steps of the checkpoint that it was measured of.
    """

    root: Node
    signed: tuple[int, ...]
    regions: tuple[Region, ...]
    tolerance: float
    risk: float
    confidence: float
    step: int

    def label(self, flat: np.ndarray) -> np.ndarray:
        """Region of each state, flattened observations float `[N, D]`: int64 `[N]`."""
        return self.root.label(np.concatenate([flat, np.abs(flat[:, list(self.signed)])], axis=1))

    def outside(self, flat: Float[Array, "B D"]) -> Bool[Array, " B"]:
        """Which states, flattened observations, lie in no certified region.

        A state that is not finite does.
        """
        features = jnp.concatenate([flat, jnp.abs(flat[:, jnp.array(self.signed, int)])], axis=1)

        def certified(node: Node) -> Array:
            if node.below is None or node.above is None:
                return jnp.full(len(flat), self.regions[node.region].certified)
            low = features[:, node.feature] <= np.float32(node.threshold)
            return jnp.where(low, certified(node.below), certified(node.above))

        return ~(certified(self.root) & jnp.isfinite(flat).all(axis=1))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Certificate:
        """The inverse of `to_json`; `KeyError`, `TypeError` or `ValueError` for anything else."""
        found = cls(
            root=Node.of(data["root"]),
            signed=tuple(int(i) for i in data["signed"]),
            regions=tuple(Region(**region) for region in data["regions"]),
            **{name: float(data[name]) for name in ("tolerance", "risk", "confidence")},
            step=int(data["step"]),
        )
        if not all(map(math.isfinite, (found.tolerance, found.risk, found.confidence))):
            raise ValueError("a number is not finite")
        return found

    def save(self, run: Path) -> None:
        """Writes `certificate.json` into a run folder, whole or not at all."""
        temporary = run / f".certificate.{os.getpid()}.json"
        temporary.write_text(json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(temporary, run / FILE)

    @classmethod
    def load(cls, run: Path) -> Certificate | None:
        """The inverse of `save`; None where there is no such file, `ValueError` where it is damaged."""
        path = run / FILE
        if not path.is_file():
            return None
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({' '.join(str(error).split())[:160]})") from None
