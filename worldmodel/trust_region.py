"""Where a simulator stays within what held-out data shows: the data and the predicate, without how they are fitted.

A step is outside where the members of the ensemble disagree about it more than they do on all but a share of steps that
really happened and that no member was trained on, or where it leaves the states of a `Certificate`. The bound is a
split-conformal quantile (Vovk et al. 2005; Lei et al. 2018, arXiv 1604.04173): of `n` held-out steps the one of rank
`ceil((n + 1) coverage)`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, Bool, Float, PyTree
from worldmodel.certificate import Certificate
from worldmodel.codec import SpaceCodec
from worldmodel.trajectory import suggest

FILE = "trust.npz"
"""Name of what a run folder holds of its region."""


class Trust(enum.StrEnum):
    """What a simulator does about a step outside: nothing, says it, stops the episode, or lets it cost reward."""

    IGNORE = "ignore"
    INFO = "info"
    TRUNCATE = "truncate"
    PENALISE = "penalise"

    @classmethod
    def of(cls, value: Trust | str) -> Trust:
        """The member of this name; `ValueError` that lists them for another."""
        names = [known.value for known in cls]
        if value not in names:
            near = suggest(value, names) if isinstance(value, str) else ""
            raise ValueError(f"trust is {value!r}; allowed are {', '.join(names)}{near}")
        return cls(value)


@dataclasses.dataclass(frozen=True)
class CertifiedStates:
    """The states that a certificate covers, as the simulator sees them.

    Attributes:
      certificate: what is certified.
      codec: of the observation.
    """

    certificate: Certificate
    codec: SpaceCodec

    def outside(self, obs: PyTree) -> Bool[Array, " B"]:
        """Which observations, columns of `B` rows, lie in no certified region."""
        return self.certificate.outside(self.codec.flatten(obs).astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class TrustRule:
    """What to do about steps on which the members disagree too much, or which leave the certified states.

    Attributes:
      trust: anything but to ignore them.
      threshold: in the unit of `info["disagreement"]` (see `StepDynamics.advance`); None: nobody disagrees.
      penalty: what a step outside costs where it is penalised, in units of reward.
      certified: the states that a step may arrive in; None: any.
    """

    trust: Trust
    threshold: float | None
    penalty: float
    certified: CertifiedStates | None = None

    @property
    def asks_members(self) -> bool:
        """Whether every step needs all members."""
        return self.threshold is not None

    def judge(
        self, obs: PyTree, reward: Float[Array, " B"], terminated: Bool[Array, " B"], info: Mapping[str, Array]
    ) -> tuple[Float[Array, " B"], Bool[Array, " B"], dict[str, Array]]:
        """What a step to `obs` pays, whether it truncates its episode, and its `info` with `outside`, bool `[B]`.

        A step whose disagreement is no number is outside; one that ended the episode by itself truncates nothing.
        """
        outside = jnp.zeros_like(terminated)
        if self.threshold is not None:
            outside = ~(info["disagreement"] <= jnp.float32(self.threshold))
        if self.certified is not None:
            outside = outside | self.certified.outside(obs)
        if self.trust is Trust.PENALISE:
            reward = jnp.where(outside, reward - jnp.float32(self.penalty), reward)
        stops = outside & ~terminated if self.trust is Trust.TRUNCATE else jnp.zeros_like(terminated)
        return reward, stops, {**info, "outside": outside}


@dataclasses.dataclass(frozen=True, eq=False)
class TrustRegion:
    """What the members' disagreement is on steps that really happened.

    Attributes:
      disagreement: float32 `[N]`, increasing, of held-out steps; infinite where it was no number.
      step: training steps of the checkpoint that it was measured of.
    """

    disagreement: np.ndarray
    step: int

    def threshold(self, coverage: float) -> float:
        """The bound that at least a share `coverage` of real steps stays within.

        Raises:
          ValueError: the coverage does not lie between 0 and 1, or is too near to 1 for so few held-out steps.
        """
        if not 0.0 < coverage < 1.0:
            raise ValueError(f"trust_coverage is {coverage}; it must lie between 0 and 1")
        count = len(self.disagreement)
        # 0.99 is a little less than 99/100: without the slack, 100 x 0.99 would be rounded up once too often.
        rank = math.ceil((count + 1) * coverage - 1e-9)
        if rank > count:
            most = count / (count + 1)
            raise ValueError(f"trust_coverage is {coverage}; {count} held-out steps certify at most {most:.6g}")
        bound = float(self.disagreement[rank - 1])
        if bound == math.inf:
            raise ValueError(
                f"trust_coverage is {coverage}; on more held-out steps than that leaves out, the model broke"
            )
        return bound

    def save(self, run: Path) -> None:
        """Writes `trust.npz` into a run folder, whole or not at all."""
        temporary = run / f".trust.{os.getpid()}.npz"
        np.savez(temporary, disagreement=self.disagreement, step=np.int64(self.step))
        os.replace(temporary, run / FILE)

    @classmethod
    def load(cls, run: Path) -> TrustRegion | None:
        """The inverse of `save`; None where there is no such file, `ValueError` where it is damaged."""
        path = run / FILE
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as file:
                region = cls(file["disagreement"], int(file["step"]))
        except (KeyError, ValueError, TypeError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is damaged ({' '.join(str(error).split())[:160]})") from None
        values = region.disagreement
        if values.ndim != 1 or not len(values) or np.isnan(values).any() or (values[1:] < values[:-1]).any():
            raise ValueError(f"{path} is damaged (its values are not increasing)")
        return region
