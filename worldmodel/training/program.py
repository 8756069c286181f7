"""The optimiser and the compiled train step that a configuration asks for."""

from __future__ import annotations

from typing import Any

from worldmodel.training.config import TrainingConfig
from worldmodel.training.sharding import Layout
from worldmodel.training.step import Codecs, make_optimizer, make_train_step


def program(config: TrainingConfig, codec: Codecs, layout: Layout | None = None) -> tuple[Any, Any]:
    """`(optimizer, train_step)`, see `make_optimizer` and `make_train_step`; `layout` is that of `config.mesh`."""
    optimizer = make_optimizer(
        learning_rate=config.learning_rate,
        warmup=config.warmup,
        steps=config.steps,
        weight_decay=config.weight_decay,
        clip=config.clip,
    )
    step = make_train_step(
        config.model,
        codec,
        optimizer,
        accumulate=config.accumulate,
        remat=config.remat,
        bfloat16=config.precision == "bfloat16",
        layout=layout,
    )
    return optimizer, step
