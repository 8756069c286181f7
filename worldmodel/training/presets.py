"""Sizes to begin from, each a whole `TrainingConfig`; `worldmodel train CORPUS --preset small` takes one."""

from __future__ import annotations

from typing import Any

from worldmodel.model.step import StepConfig
from worldmodel.model.transformer import TrunkConfig
from worldmodel.training.config import TrainingConfig


def _trunk(width: int, layers: int, window: int) -> TrunkConfig:
    heads = width // 64
    return TrunkConfig(width, layers, heads, kv_heads=heads // 2, mlp=3 * width, window=window)


def _heads(width: int) -> dict[str, Any]:
    return {"chain_hidden": width, "head_hidden": 2 * width, "components": 4, "members": 1}


PRESETS: dict[str, TrainingConfig] = {
    "default": TrainingConfig(),
    "debug": TrainingConfig(
        StepConfig(TrunkConfig(16, 1, 2, 1, 16, window=8), chain_hidden=8, components=2, head_hidden=16, members=2),
        steps=100,
        batch_size=8,
        length=16,
        warmup=10,
        checkpoint_every=50,
        log_every=10,
    ),
    "tiny": TrainingConfig(
        StepConfig(TrunkConfig(32, 2, 4, 2, 64), chain_hidden=16, head_hidden=32, members=3), steps=1_000
    ),
    "small": TrainingConfig(
        StepConfig(_trunk(256, 4, window=64), **_heads(32)),
        steps=10_000,
        batch_size=64,
        length=64,
        learning_rate=1e-3,
        warmup=500,
        checkpoint_every=1_000,
    ),
    "25m": TrainingConfig(
        StepConfig(_trunk(512, 8, window=128), **_heads(64)),
        steps=50_000,
        batch_size=128,
        length=128,
        learning_rate=6e-4,
        warmup=1_000,
        checkpoint_every=2_000,
    ),
    "85m": TrainingConfig(
        StepConfig(_trunk(768, 12, window=256), **_heads(64)),
        steps=100_000,
        batch_size=256,
        length=256,
        learning_rate=4e-4,
        warmup=2_000,
        checkpoint_every=2_000,
        precision="bfloat16",
    ),
    "300m": TrainingConfig(
        StepConfig(_trunk(1_024, 24, window=256), **_heads(128)),
        steps=200_000,
        batch_size=512,
        length=256,
        learning_rate=3e-4,
        warmup=2_000,
        checkpoint_every=2_000,
        precision="bfloat16",
        remat="products",
    ),
    "1b": TrainingConfig(
        StepConfig(_trunk(2_048, 20, window=512), **_heads(128)),
        steps=200_000,
        batch_size=1_024,
        length=512,
        learning_rate=2e-4,
        warmup=2_000,
        checkpoint_every=1_000,
        precision="bfloat16",
        remat="stream",
    ),
}
"""From a check of the plumbing to a pod. From `small` on a preset is one model; add `--config.model.members 3` for an
ensemble, whose disagreement is the simulator's own measure of doubt."""
