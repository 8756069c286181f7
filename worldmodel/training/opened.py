"""Any run folder, opened as what it holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from worldmodel.training import checkpoint
from worldmodel.training.text.model import load_texts


def load(run: str | os.PathLike[str], *, which: Literal["last", "best"] = "last") -> Any:
    """A trained world model: a `WorldModel`, or of a run of texts a `TextWorldModel`.

    Arguments and errors as `worldmodel.training.checkpoint.load`.
    """
    if holds_texts(run):
        return load_texts(run, which=which)
    return checkpoint.load(run, which=which)


def holds_texts(run: str | os.PathLike[str]) -> bool:
    """Whether a folder is the run of a language world model; errors as `read_config`."""
    return checkpoint.read_config(Path(run)).get("kind") == "text"
