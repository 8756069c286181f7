"""Pretraining: the pure train step, the loop around it, the run folder."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldmodel.training.calibration import measure_trust
    from worldmodel.training.checkpoint import WorldModel
    from worldmodel.training.config import TrainingConfig
    from worldmodel.training.loop import train, train_together
    from worldmodel.training.opened import load

_HOME = {
    "WorldModel": "worldmodel.training.checkpoint",
    "load": "worldmodel.training.opened",
    "measure_trust": "worldmodel.training.calibration",
    "TrainingConfig": "worldmodel.training.config",
    "train": "worldmodel.training.loop",
    "train_together": "worldmodel.training.loop",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'worldmodel.training' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
