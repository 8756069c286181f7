"""Configurations that were measured, by what they learn: `train/` runs them, and measurements of them start here."""

from __future__ import annotations

import dataclasses

from worldmodel.model.step import StepConfig
from worldmodel.model.transformer import TrunkConfig
from worldmodel.training.config import TrainingConfig
from worldmodel.training.text.config import TEXT_PRESETS, TextConfig

VECTORS = TrainingConfig(
    dataclasses.replace(StepConfig(), members=2), batch_size=16, learning_rate=3e-3, checkpoint_every=2_000
)
"""Of vectors with few dimensions. Two members are the fewest that can disagree, and leave each most of the data."""

RECIPES: dict[str, TrainingConfig] = {
    "cartpole": dataclasses.replace(VECTORS, steps=6_000),
    "pendulum": dataclasses.replace(VECTORS, steps=9_000),
    "hopper": dataclasses.replace(VECTORS, steps=8_000),
    "halfcheetah": dataclasses.replace(VECTORS, steps=6_500),
    "doorkey": TrainingConfig(
        StepConfig(TrunkConfig(window=32), members=1), batch_size=8, length=32, steps=4_000, checkpoint_every=500
    ),
    "breakout": TrainingConfig(
        dataclasses.replace(StepConfig(), members=1), batch_size=4, length=16, steps=6_000, checkpoint_every=500
    ),
}
"""By the name of the file in `train/`. Schedules of vectors fill three minutes of training on 2 CPU cores."""

TEXT_RECIPES: dict[str, TextConfig] = {
    "intercode_sql": dataclasses.replace(
        TEXT_PRESETS["tiny"], steps=1_200, learning_rate=3e-3, checkpoint_every=300, evaluation_batches=16
    ),
}
"""The same of corpora of texts."""
