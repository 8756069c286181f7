"""What a training run is made of, as dataclasses: every option is written once, here."""

from __future__ import annotations

import dataclasses

from worldmodel.model.step import StepConfig


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a world model is trained.

    `batch_size` counts windows of `length` transitions, dealt out equally to the members of the ensemble.
    """

    model: StepConfig = StepConfig()
    steps: int = 2_000
    batch_size: int = 48
    length: int = 32
    learning_rate: float = 2e-3
    warmup: int = 100
    weight_decay: float = 1e-4
    clip: float = 1.0
    checkpoint_every: int = 500
    log_every: int = 50
    seed: int = 0

    def __post_init__(self):
        for name in ("steps", "batch_size", "length", "checkpoint_every", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"training {name} is {getattr(self, name)}; at least 1 is needed")
        if self.batch_size % self.model.members:
            raise ValueError(
                f"batch_size {self.batch_size} cannot be dealt out equally to {self.model.members} members"
            )
