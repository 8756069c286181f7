"""The train step: pure, and importing only jax, flax, optax and numpy, so that it runs on any accelerator machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from worldmodel._types import Array, Int, PyTree
from worldmodel.codec import StepCodec
from worldmodel.model.step import Params, StepConfig, step_model
from worldmodel.training.precision import bfloat16_products
from worldmodel.training.sharding import Layout

TRAINING_BIN_SCALE = 0.1
"""Bins of the training loss relative to the reported likelihood's, so that precision keeps paying."""


class Batch(NamedTuple):
    """Windows of `L` transitions.

    observations columns `[B, L+1, ...]`, actions columns `[B, L, ...]`, rewards float32 `[B, L]`, terminated float32
    `[B, L]` (1 where the transition ended the episode), mask float32 `[B, L]` (1 where the transition exists),
    last_reward float32 `[B]` (what the step before the window paid; NaN where the window begins its episode).
    """

    observations: PyTree
    actions: PyTree
    rewards: Array
    terminated: Array
    mask: Array
    last_reward: Array


class TrainState(NamedTuple):
    """Everything the optimiser carries: parameters `[M, ...]`, its own state, the step number."""

    params: Params
    opt_state: optax.OptState
    step: Int[Array, ""]


def member_loss(
    config: StepConfig,
    codec: StepCodec,
    params: Params,
    batch: Batch,
    *,
    remat: str = "none",
    bfloat16: bool = False,
) -> tuple[Array, dict[str, Array]]:
    """Loss of one member, and its negative log-likelihood per part in nats per transition.

    The observation's likelihood is weighted as in `LeafHead.objective`.

    `remat` (see `REMAT`) and `bfloat16` concern the trunk; the heads' likelihoods need float32.
    """
    model = step_model(config, codec, params)
    before, after = (jax.tree.map(lambda x, c=c: x[:, c], batch.observations) for c in (np.s_[:-1], np.s_[1:]))
    last_reward = jnp.concatenate([codec.reward.known(batch.last_reward)[:, None], batch.rewards[:, :-1]], axis=1)
    sequence = model.sequence
    if bfloat16 or remat != "none":
        sequence = partial(_lean_sequence(config, codec, remat, bfloat16), params)
    h = sequence(model.inputs(before, batch.actions, last_reward))
    observation = model.observation_log_prob(h, before, after, bin_scale=TRAINING_BIN_SCALE)
    weighted = model.observation_objective(h, before, after, bin_scale=TRAINING_BIN_SCALE)
    reward = model.reward_log_prob(h, after, batch.rewards, bin_scale=TRAINING_BIN_SCALE)
    logit = model.end_logit(h, after, batch.rewards)
    end = -optax.sigmoid_binary_cross_entropy(logit, batch.terminated)
    count = jnp.maximum(batch.mask.sum(), 1.0)

    def mean(x):
        return -jnp.sum(x * batch.mask) / count

    metrics = {"observation": mean(observation.sum(axis=-1)), "reward": mean(reward), "terminated": mean(end)}
    return mean(weighted) + metrics["reward"] + metrics["terminated"], metrics


def _lean_sequence(config: StepConfig, codec: StepCodec, remat: str, bfloat16: bool) -> Callable[..., Array]:
    """`(params, features)` to what the heads read, cheaper in time or memory."""

    def sequence(params, features):
        model = step_model(config, codec, params)
        # What the heads read holds the features as they are: only the trunk's part may be rounded.
        return model.sequence(features)[..., : config.trunk.width]

    run = bfloat16_products(sequence) if bfloat16 else sequence
    if remat != "none":
        run = jax.checkpoint(run, policy=REMAT[remat](config))
    return lambda params, features: jnp.concatenate([run(params, features), features], axis=-1)


def _into_stream_saveable(config: StepConfig) -> Callable[..., bool]:
    def saveable(primitive: Any, *operands: Any, **params: Any) -> bool:
        return primitive.name == "dot_general" and operands[1].shape[1:] == (config.trunk.width,)

    return saveable


REMAT: dict[str, Callable[[StepConfig], Any]] = {
    "products": lambda config: jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "stream": _into_stream_saveable,
}
"""What the backward pass finds kept: "products" with weights (attention and activations are computed again), or only
those that enter the residual stream ("stream": each block is computed again)."""


def make_optimizer(*, learning_rate: float, warmup: int, steps: int, weight_decay: float, clip: float):
    """AdamW behind a clip of each member's gradient norm, with linear warm-up and a cosine decay to zero."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, warmup, max(steps, warmup + 1))
    return optax.chain(
        clip_by_member_norm(clip),
        optax.adamw(schedule, b2=0.99, weight_decay=weight_decay, mask=_decayed),
    )


def clip_by_member_norm(clip: float) -> optax.GradientTransformation:
    """Scales each member's gradient, leaves `[M, ...]`, to a norm of at most `clip`: no member slows another."""

    def update(updates, state, params=None):
        del params
        squares = (jnp.sum(jnp.square(g), axis=range(1, g.ndim)) for g in jax.tree.leaves(updates))
        factor = jnp.minimum(1.0, clip / jnp.maximum(jnp.sqrt(sum(squares)), 1e-12))
        return jax.tree.map(lambda g: g * factor.reshape(-1, *[1] * (g.ndim - 1)), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _decayed(params: Params) -> Any:
    """True for the weights of products: neither biases nor the gains of norms."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf.ndim > 2 and path[-1].key != "bias", params)


Shares = Batch
"""A batch dealt out to the members: every leaf `[M, B/M, ...]`."""


class Objective:
    """The members' losses on their shares of a batch, as a training step or an evaluation needs them.

    Args:
      config: sizes of the model.
      codec: of its values.
      accumulate: micro-batches whose gradients are summed; the sum is that of the whole batch.
      remat: "none" or a key of `REMAT`.
      bfloat16: the trunk's products are computed in bfloat16.
      layout: where arrays live; None for one device.
    """

    def __init__(
        self,
        config: StepConfig,
        codec: StepCodec,
        *,
        accumulate: int = 1,
        remat: str = "none",
        bfloat16: bool = False,
        layout: Layout | None = None,
    ):
        self.config, self.layout, self._accumulate = config, layout, accumulate
        self._loss = partial(member_loss, config, codec, remat=remat, bfloat16=bfloat16)

    def deal(self, batch: Batch) -> Shares:
        """Every member's own share of the batch; `ValueError` unless there is an equal one for each."""
        windows, members = batch.mask.shape[0], self.config.members
        if windows % members:
            raise ValueError(f"a batch of {windows} windows; a multiple of the {members} members is needed")
        shares = jax.tree.map(lambda x: x.reshape(members, -1, *x.shape[1:]), batch)
        return shares if self.layout is None else jax.lax.with_sharding_constraint(shares, self.layout.shares)

    def loss(self, params: Params, shares: Shares, weights: Array | None = None) -> tuple[Array, dict[str, Array]]:
        """Sum of the members' losses, and the mean over members of each part; `weights` `[M]` multiply both."""
        if self.layout is not None and self.layout.sizes["members"] > 1:
            losses, parts = jax.vmap(self._loss, spmd_axis_name="members")(params, shares)
        else:
            each = []
            for m in range(self.config.members):
                each.append(self._loss(*jax.tree.map(lambda x, m=m: x[m], (params, shares))))
            losses, parts = jax.tree.map(lambda *values: jnp.stack(values), *each)
        if weights is not None:
            losses, parts = jax.tree.map(lambda x: x * weights, (losses, parts))
        return jnp.sum(losses), jax.tree.map(jnp.mean, parts)

    def gradients(self, params: Params, batch: Batch) -> tuple[tuple[Array, dict[str, Array]], Params]:
        """`((loss, parts), gradients)` of a whole batch, in `accumulate` pieces."""
        differentiate = jax.value_and_grad(self.loss, has_aux=True)
        shares, pieces = self.deal(batch), self._accumulate
        if pieces == 1:
            return differentiate(params, shares)
        # Every `pieces`-th window: a micro-batch is spread over the devices as the batch is.
        split = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(len(x), -1, pieces, *x.shape[2:]), 2, 0), shares)
        counts = split.mask.sum(axis=range(2, split.mask.ndim))
        weights = counts / jnp.maximum(counts.sum(axis=0), 1.0)

        def add(total, piece):
            return jax.tree.map(jnp.add, total, differentiate(params, *piece)), None

        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(differentiate, params, shares))
        return jax.lax.scan(add, zeros, (split, weights))[0]


def make_train_step(
    config: StepConfig,
    codec: StepCodec,
    optimizer: optax.GradientTransformation,
    *,
    accumulate: int = 1,
    remat: str = "none",
    bfloat16: bool = False,
    layout: Layout | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]:
    """A jitted step; each member learns from its own share of the batch: `ValueError` unless `M` divides `B`.

    It donates the state: the one passed in is gone. Where loss or gradient is not finite, the state comes back as it
    was, and the metric `skipped` is 1. The other arguments: see `Objective`.
    """
    objective = Objective(config, codec, accumulate=accumulate, remat=remat, bfloat16=bfloat16, layout=layout)

    def train_step(state: TrainState, batch: Batch):
        (total, parts), grads = objective.gradients(state.params, batch)
        with jax.numpy_dtype_promotion("standard"):  # optax's schedules mix types
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(total) & jnp.isfinite(norm)
        following = TrainState(params, opt_state, state.step + 1)
        # A condition, not a choice by element: XLA would fuse that into the update and change its bits.
        following = jax.lax.cond(finite, lambda: following, lambda: state)
        if layout is not None:
            following = jax.lax.with_sharding_constraint(following, layout.state(following))
        metrics = {
            "loss": total / config.members,
            "nll": sum(parts.values()),
            **parts,
            "grad_norm": norm,
            "skipped": 1.0 - finite.astype(jnp.float32),
        }
        return following, metrics

    return jax.jit(train_step, donate_argnums=0)


def make_evaluation(
    config: StepConfig, codec: StepCodec, *, bfloat16: bool = False, layout: Layout | None = None
) -> Callable[[Params, Batch], dict[str, Array]]:
    """A jitted `(params, batch) -> parts`: the mean over members of each one's nats on its share of the batch."""
    objective = Objective(config, codec, bfloat16=bfloat16, layout=layout)
    return jax.jit(lambda params, batch: objective.loss(params, objective.deal(batch))[1])


def as_batch(window: Mapping[str, Any]) -> Batch:
    """The pipeline's dict of arrays as a `Batch`."""
    return Batch(
        jax.tree.map(jnp.asarray, window["observations"]),
        jax.tree.map(jnp.asarray, window["actions"]),
        jnp.asarray(window["rewards"], jnp.float32),
        jnp.asarray(window["terminated"], jnp.float32),
        jnp.asarray(window["mask"], jnp.float32),
        jnp.asarray(window["last_reward"], jnp.float32),
    )
