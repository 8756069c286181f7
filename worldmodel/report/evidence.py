"""What the pictures of a report need beside its numbers: one imagined and one real rollout."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The same policy from the same start, once in the simulator and once in reality.

    The two may end at different steps (`T` and `T'`).

    Attributes:
      imagined_obs: float `[T+1, D]`, in units of the environment.
      real_obs: float `[T'+1, D]`.
      obs_names: `D` names of the dimensions; None: `obs[0]`, `obs[1]`, ...
      imagined_rewards, real_rewards: float `[T]` and `[T']`, or None.
      imagined_frames, real_frames: uint8 pictures `[H, W, 3]` of one size, each `frame_every` steps, the first of step
        0; None: traces are animated instead.
      frame_every: steps between two frames.
      imagined_end, real_end: how the rollout ended ("terminated", "time limit"), or None where it just stops.
      step_seconds: duration of a step in the environment's own time, in seconds, or None.
    """

    imagined_obs: np.ndarray
    real_obs: np.ndarray
    obs_names: Sequence[str] | None = None
    imagined_rewards: np.ndarray | None = None
    real_rewards: np.ndarray | None = None
    imagined_frames: Sequence[np.ndarray] | None = None
    real_frames: Sequence[np.ndarray] | None = None
    frame_every: int = 1
    imagined_end: str | None = None
    real_end: str | None = None
    step_seconds: float | int | None = None

    def __post_init__(self) -> None:
        for name in ("imagined_obs", "real_obs"):
            value = np.asarray(getattr(self, name), dtype=np.float64)
            if value.ndim != 2 or len(value) < 2 or value.shape[1] < 1:
                raise ValueError(
                    f"evidence.{name} has shape {value.shape}; (T+1, D) with T and D of 1 or more is needed"
                )
            object.__setattr__(self, name, value)
        dims = self.real_obs.shape[1]
        if self.imagined_obs.shape[1] != dims:
            raise ValueError(f"evidence.imagined_obs has {self.imagined_obs.shape[1]} dimensions, real_obs {dims}")
        if len(self.names) != dims:
            raise ValueError(f"evidence.obs_names has {len(self.names)} names for {dims} dimensions")
        if self.frame_every < 1:
            raise ValueError(f"evidence.frame_every is {self.frame_every}; 1 or more is needed")
        if (self.imagined_frames is None) != (self.real_frames is None):
            raise ValueError("evidence has frames of one side only; both are needed, or neither")
        for side, obs in (("imagined", self.imagined_obs), ("real", self.real_obs)):
            self._check_side(side, len(obs) - 1)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the `D` dimensions."""
        if self.obs_names is None:
            return tuple(f"obs[{i}]" for i in range(self.real_obs.shape[1]))
        return tuple(self.obs_names)

    @property
    def frames(self) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]] | None:
        """Imagined and real frames, or None."""
        if self.imagined_frames is None or self.real_frames is None:
            return None
        return self.imagined_frames, self.real_frames

    def _check_side(self, side: str, steps: int) -> None:
        rewards, frames = getattr(self, f"{side}_rewards"), getattr(self, f"{side}_frames")
        if rewards is not None and np.shape(rewards) != (steps,):
            raise ValueError(f"evidence.{side}_rewards has shape {np.shape(rewards)}; ({steps},) is needed")
        if frames is None:
            return
        wanted = steps // self.frame_every + 1
        if len(frames) != wanted:
            raise ValueError(
                f"evidence.{side}_frames has {len(frames)} frames; {wanted} are needed "
                f"({steps} steps, one frame each {self.frame_every})"
            )
        shapes = {np.shape(frame) for pictures in self.frames or () for frame in pictures}
        first = next(iter(shapes))
        if len(shapes) > 1 or len(first) != 3 or first[2] != 3 or any(f.dtype != np.uint8 for f in frames):
            raise ValueError(f"evidence.{side}_frames: uint8 pictures [H, W, 3] of one size are needed, got {shapes}")
