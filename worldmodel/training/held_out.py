"""How well the model predicts held-out episodes, measured at every checkpoint on the same few windows."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import Params
from worldmodel.training.sharding import Layout
from worldmodel.training.step import Batch, make_evaluation


class HeldOut:
    """Negative log-likelihood in nats per transition, as the training metrics' `nll`, each member on its own windows.

    Args:
      dynamics: the model.
      batches: held-out windows.
      bfloat16: as in training.
      layout: as in training.
    """

    def __init__(
        self, dynamics: StepDynamics, batches: Sequence[Batch], *, bfloat16: bool = False, layout: Layout | None = None
    ):
        self._evaluate = make_evaluation(dynamics.config, dynamics.codec, bfloat16=bfloat16, layout=layout)
        self._batches = batches

    def measure(self, params: Params) -> dict[str, float]:
        """`held_out_nll` and its parts, means over the batches."""
        parts = [self._evaluate(params, batch) for batch in self._batches]
        mean = jax.tree.map(lambda *values: float(jnp.mean(jnp.stack(values))), *parts)
        return {"held_out_nll": sum(mean.values()), **{f"held_out_{name}": value for name, value in mean.items()}}
