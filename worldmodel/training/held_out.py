"""How well the model predicts held-out episodes, measured at every checkpoint on the same few windows."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from worldmodel.model.step import Params, StepConfig
from worldmodel.training.sharding import Layout
from worldmodel.training.step import Batches, Codecs, make_evaluation


class HeldOut:
    """Negative log-likelihood in nats per transition, as the training metrics' `nll`, each member on its own windows.

    Args:
      config: sizes of the model.
      codec: of its values, in the only world or by world.
      batches: held-out windows.
      bfloat16: as in training.
      layout: as in training.
    """

    def __init__(
        self,
        config: StepConfig,
        codec: Codecs,
        batches: Sequence[Batches],
        *,
        bfloat16: bool = False,
        layout: Layout | None = None,
    ):
        self._evaluate = make_evaluation(config, codec, bfloat16=bfloat16, layout=layout)
        self._batches = batches

    def measure(self, params: Params) -> dict[str, float]:
        """`held_out_nll`, its parts and those of several worlds, means over the batches."""
        parts = [self._evaluate(params, batch) for batch in self._batches]
        mean = jax.tree.map(lambda *values: float(jnp.mean(jnp.stack(values))), *parts)
        return {f"held_out_{name}": value for name, value in mean.items()}
