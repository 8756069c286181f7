"""Pretraining that goes on: from another run's parameters, on new logs, with some of the old ones replayed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from worldmodel.codec import StepCodec
from worldmodel.corpus import Episodes
from worldmodel.model.step import Params, StepConfig
from worldmodel.training.checkpoint import load, model_from_config, read_config
from worldmodel.trajectory import Spec


@dataclasses.dataclass(frozen=True)
class Continuation:
    """Where a new run begins.

    Attributes:
      run: folder of the run whose last parameters and codec are taken; it is left as it is.
      replay: transitions it learned from, to be seen again so that they are not forgotten; None for none.
      fraction: share of the windows that are replayed.
    """

    run: Path
    replay: Episodes | None = None
    fraction: float = 0.25

    def __post_init__(self):
        if not 0.0 < self.fraction < 1.0:
            raise ValueError(f"replay fraction {self.fraction}; a share between 0 and 1 is needed")
        if self.replay is not None and not self.replay.has_rewards:
            raise ValueError("an episode of the replayed logs has no rewards; training needs them in every episode")

    def codec(self, spec: Spec, model: StepConfig) -> StepCodec:
        """That of the old run; `ValueError` where its spaces or the size of its model differ from these."""
        before, dynamics = model_from_config(read_config(self.run))
        for role in ("observation_space", "action_space"):
            if getattr(before, role) != getattr(spec, role):
                raise ValueError(f"{self.run} was trained on another {role.replace('_', ' ')}; continue on the same")
        if dynamics.config != model:
            raise ValueError(f"{self.run} has another model: {dynamics.config} there, {model} here")
        return dynamics.codec

    def params(self) -> Params:
        """The old run's last parameters, `[M, ...]`."""
        return load(self.run).params["members"]

    def describe(self) -> dict[str, Any]:
        """For `config.json`: the old run by its folder and logs, the share replayed."""
        logs = read_config(self.run)["training"].get("logs")
        replayed = (
            None if self.replay is None else {"fraction": self.fraction, "transitions": int(self.replay.lengths.sum())}
        )
        return {"run": str(self.run), "logs": logs, "replay": replayed}
