"""Language world models: from a corpus of agents' logs to a run that imagines what they would have read."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldmodel.training.text.config import TEXT_PRESETS, TextConfig
    from worldmodel.training.text.model import TextWorldModel, load_texts
    from worldmodel.training.text.run import train_texts

_HOME = {
    "TEXT_PRESETS": "worldmodel.training.text.config",
    "TextConfig": "worldmodel.training.text.config",
    "TextWorldModel": "worldmodel.training.text.model",
    "load_texts": "worldmodel.training.text.model",
    "train_texts": "worldmodel.training.text.run",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'worldmodel.training.text' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
