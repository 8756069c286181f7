"""The train step and the evaluation of a language model on packed rows: pure, jitted, on one device or a mesh.

Parameters carry a leading axis of one member, `[1, ...]`, so that the optimiser, the layout and the checkpoints are
those of every other model here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from worldmodel._types import Array, PyTree
from worldmodel.model.language import LanguageConfig, language_model, target_weights
from worldmodel.model.lora import merge
from worldmodel.training.precision import bfloat16_products
from worldmodel.training.sharding import Layout
from worldmodel.training.step import REMAT, TrainState


class TokenBatch(NamedTuple):
    """Packed rows: tokens int32, weights float32 and segments int32, each `[B, L]` (`codec.text.batches`)."""

    tokens: Array
    weights: Array
    segments: Array


@dataclasses.dataclass(frozen=True)
class Weights:
    """How what is trained becomes the model's parameters: as it is, or as a low-rank change of frozen ones.

    Attributes:
      frozen: parameters `[1, ...]` that stay; None: nothing stays, what is trained are the parameters.
      scale: of the change.
    """

    frozen: PyTree = None
    scale: float = 1.0

    def params(self, trained: PyTree, frozen: PyTree) -> PyTree:
        """The model's parameters without the axis of members; `frozen` is passed in, for `jit`."""
        alone = jax.tree.map(lambda x: x[0], trained)
        if frozen is None:
            return alone
        change = {name.replace(".", "/"): own for name, own in alone.items()}
        return merge(jax.tree.map(lambda x: x[0], frozen), change, scale=self.scale)


def with_member_axis(tree: PyTree) -> PyTree:
    """Every leaf `[1, ...]`."""
    return jax.tree.map(lambda x: x[None], tree)


def make_text_step(
    config: LanguageConfig,
    optimizer: optax.GradientTransformation,
    weights: Weights,
    *,
    accumulate: int = 1,
    remat: str = "none",
    bfloat16: bool = False,
    layout: Layout | None = None,
) -> Callable[[TrainState, TokenBatch], tuple[TrainState, dict[str, Array]]]:
    """A step that donates its state, as `worldmodel.training.step.make_train_step`; arguments as there.

    The loss is the mean negative log-likelihood, in nats, of the tokens learned from, by their weights; taken in
    micro-batches, it is that of the whole batch.
    """

    def loss(trained: PyTree, frozen: PyTree, batch: TokenBatch, whole: Array) -> Array:
        params = weights.params(trained, frozen)
        hidden = _hidden(config, params, batch, remat, bfloat16)
        mean, total = language_model(config, params).loss(batch.tokens, batch.weights, batch.segments, hidden=hidden)
        return mean * total / whole

    def gradients(trained: PyTree, frozen: PyTree, batch: TokenBatch, whole: Array) -> tuple[Array, PyTree]:
        differentiate = jax.value_and_grad(loss)
        if accumulate == 1:
            return differentiate(trained, frozen, batch, whole)
        # Every `accumulate`-th row: a micro-batch is spread over the devices as the batch is.
        pieces = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(-1, accumulate, *x.shape[1:]), 1, 0), batch)

        def add(total: Any, piece: TokenBatch) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, differentiate(trained, frozen, piece, whole)), None

        zeros = jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, trained)
        return jax.lax.scan(add, zeros, pieces)[0]

    def train_step(state: TrainState, frozen: PyTree, batch: TokenBatch) -> tuple[TrainState, dict[str, Array]]:
        learned = target_weights(batch.weights, batch.segments)
        total = jnp.sum(learned)
        value, grads = gradients(state.params, frozen, batch, jnp.where(total > 0.0, total, 1.0))
        with jax.numpy_dtype_promotion("standard"):  # optax's schedules mix types
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(value) & jnp.isfinite(norm)
        following = TrainState(params, opt_state, state.step + 1)
        # A condition, not a choice by element: XLA would fuse that into the update and change its bits.
        following = jax.lax.cond(finite, lambda: following, lambda: state)
        if layout is not None:
            following = jax.lax.with_sharding_constraint(following, layout.state(following))
        metrics = {
            "loss": value,
            "tokens": jnp.sum((learned > 0.0).astype(jnp.float32)),
            "grad_norm": norm,
            "skipped": 1.0 - finite.astype(jnp.float32),
        }
        return following, metrics

    jitted = jax.jit(train_step, donate_argnums=0)
    return lambda state, batch: jitted(state, weights.frozen, batch)


def make_text_scores(
    config: LanguageConfig, weights: Weights, *, bfloat16: bool = False, layout: Layout | None = None
) -> Callable[[PyTree, TokenBatch], tuple[Array, Array]]:
    """A jitted `(trained, batch) -> (log_prob, best)`, each `[B, L]` and whole everywhere: `LanguageModel.scores`."""

    def scores(trained: PyTree, frozen: PyTree, batch: TokenBatch) -> tuple[Array, Array]:
        params = weights.params(trained, frozen)
        hidden = _hidden(config, params, batch, "none", bfloat16)
        return language_model(config, params).scores(batch.tokens, batch.segments, hidden=hidden)

    jitted = jax.jit(scores) if layout is None else jax.jit(scores, out_shardings=layout.replicated)
    return lambda trained, batch: jitted(trained, weights.frozen, batch)


def token_batch(batch: Mapping[str, Any]) -> TokenBatch:
    """What the pipeline gives, as the step takes it."""
    return TokenBatch(batch["tokens"], batch["weights"], batch["segments"])


def _hidden(config: LanguageConfig, params: PyTree, batch: TokenBatch, remat: str, bfloat16: bool) -> Array:
    def run(params: PyTree, tokens: Array, segments: Array) -> Array:
        return language_model(config, params).hidden(tokens, segments)

    if bfloat16:
        run = bfloat16_products(run)
    if remat != "none":
        run = jax.checkpoint(run, policy=REMAT[remat](config))
    return run(params, batch.tokens, batch.segments)
