"""What a training run is made of, as dataclasses: every option is written once, here."""

from __future__ import annotations

import dataclasses
from typing import Literal

from worldmodel.model.step import StepConfig
from worldmodel.training.sharding import parse_mesh

OF_THE_MACHINE = ("mesh", "accumulate", "remat", "evaluation_batches", "gauge_every")
"""Fields that may change between one call and the next: they say how the work is spread or what is looked at."""


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
    mesh: str = ""
    """Devices by axis, as "data=4,fsdp=2": axes data, fsdp, members, tensor; -1 takes those left. Empty: one device."""
    accumulate: int = 1
    """Micro-batches that one step's batch is taken in, one after the other."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the products in the trunk; parameters, optimiser and likelihoods are float32."""
    remat: Literal["none", "products", "stream"] = "none"
    """What the backward pass computes again to save memory: nothing, all but products, all but the residual stream."""
    evaluation_batches: int = 8
    """Batches of held-out windows, the same at every checkpoint, that decide which one is best."""
    gauge_every: int = 0
    """Steps between gauges of plasticity; 0 for none."""

    def __post_init__(self):
        for name in ("steps", "batch_size", "length", "checkpoint_every", "log_every", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"training {name} is {getattr(self, name)}; at least 1 is needed")
        for name in ("evaluation_batches", "gauge_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"training {name} is {getattr(self, name)}; at least 0 is needed")
        if self.batch_size % self.model.members:
            raise ValueError(
                f"batch_size {self.batch_size} cannot be dealt out equally to {self.model.members} members"
            )
        if self.batch_size % (self.model.members * self.accumulate):
            raise ValueError(
                f"batch_size {self.batch_size} cannot be dealt out equally to {self.model.members} members and "
                f"{self.accumulate} micro-batches"
            )
        parse_mesh(self.mesh)
