"""The train step: pure, and importing only jax, flax, optax and numpy, so that it runs on any accelerator machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from worldmodel._types import Array, Int, PyTree
from worldmodel.codec import StepCodec
from worldmodel.model.language import LanguageConfig
from worldmodel.model.step import Params, StepConfig, StepModel, step_model
from worldmodel.training.precision import bfloat16_products
from worldmodel.training.sharding import Layout
from worldmodel.training.worlds import by_world, map_worlds, member_params, summary

TRAINING_BIN_SCALE = 0.1
"""Bins of the training loss relative to the reported likelihood's, so that precision keeps paying."""


Parts = dict[str, dict[str, Array]]
"""Of every world the parts of its negative log-likelihood."""


class Batch(NamedTuple):
    """Windows of `L` transitions.

    observations columns `[B, L+1, ...]`, actions columns `[B, L, ...]`, rewards float32 `[B, L]`, terminated float32
    `[B, L]` (1 where the transition ended the episode), mask float32 `[B, L]` (1 where the transition exists),
    last_reward float32 `[B]` (what the step before the window paid; NaN where the window begins its episode), context
    float32 `[B, C]` (what holds for the whole episode, encoded).
    """

    observations: PyTree
    actions: PyTree
    rewards: Array
    terminated: Array
    mask: Array
    last_reward: Array
    context: Array

    @property
    def before(self) -> PyTree:
        """Observations that actions were taken at, columns `[B, L, ...]`."""
        return jax.tree.map(lambda x: x[:, :-1], self.observations)

    @property
    def earlier(self) -> PyTree:
        """Observations a step before those, `[B, L, ...]`; the first one stands for the one before the window."""
        return jax.tree.map(lambda x: jnp.concatenate([x[:, :1], x[:, :-2]], axis=1), self.observations)

    @property
    def after(self) -> PyTree:
        """Observations that actions led to, columns `[B, L, ...]`."""
        return jax.tree.map(lambda x: x[:, 1:], self.observations)


TEMPER_RATE, TEMPER_FROM = 1e-2, 0.8
"""Learning rate of the scales' correction, whose unit is a factor of e, and the share of steps before it moves."""


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

    Gradients of numbers are balanced, see `balance`.

    `remat` (see `REMAT`) and `bfloat16` concern the trunk; the heads' likelihoods need float32.
    """
    model = step_model(config, codec, params)
    before, after = batch.before, batch.after
    sequence = model.sequence
    if bfloat16 or remat != "none":
        sequence = partial(_lean_sequence(config, codec, remat, bfloat16), params)
    h = sequence(read(model, batch))
    training: dict[str, Any] = {"bin_scale": TRAINING_BIN_SCALE, "balanced": True}
    observation = model.observation_log_prob(h, before, after, batch.earlier if codec.looks_back else None, **training)
    reward = model.reward_log_prob(h, after, batch.rewards, **training)
    logit = model.end_logit(h, after, batch.rewards)
    end = -optax.sigmoid_binary_cross_entropy(logit, batch.terminated)
    count = jnp.maximum(batch.mask.sum(), 1.0)

    def mean(x):
        return -jnp.sum(x * batch.mask) / count

    metrics = {"observation": mean(observation.sum(axis=-1)), "reward": mean(reward), "terminated": mean(end)}
    return metrics["observation"] + metrics["reward"] + metrics["terminated"], metrics


def read(model: StepModel, batch: Batch) -> Array:
    """What the trunk reads of a batch, `[B, L, F]`."""
    known = model.codec.reward.known(batch.last_reward)
    last_reward = jnp.concatenate([known[:, None], batch.rewards[:, :-1]], axis=1)
    lead = batch.rewards.shape
    context = jnp.broadcast_to(batch.context[:, None], (*lead, batch.context.shape[-1]))
    return model.inputs(batch.before, batch.actions, last_reward, context)


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


def _into_stream_saveable(config: StepConfig | LanguageConfig) -> Callable[..., bool]:
    def saveable(primitive: Any, *operands: Any, **params: Any) -> bool:
        return primitive.name == "dot_general" and operands[1].shape[1:] == (config.trunk.width,)

    return saveable


REMAT: dict[str, Callable[[StepConfig | LanguageConfig], Any]] = {
    "products": lambda config: jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "stream": _into_stream_saveable,
}
"""What the backward pass finds kept: "products" with weights (attention and activations are computed again), or only
those that enter the residual stream ("stream": each block is computed again)."""


def make_optimizer(*, learning_rate: float, warmup: int, steps: int, weight_decay: float, clip: float):
    """AdamW behind a clip of each member's gradient norm, with linear warm-up and a cosine decay to zero.

    What tempers the scales of predictions moves in the last fifth alone, at `TEMPER_RATE`: the rest gets sharper there
    than its own scales can follow. Earlier it would make the scales run ahead of the means.
    """
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, warmup, max(steps, warmup + 1))
    first = round(TEMPER_FROM * steps)
    rest = optax.adamw(schedule, b2=0.99, weight_decay=weight_decay, mask=_decayed)
    late = optax.join_schedules([optax.constant_schedule(0.0), optax.constant_schedule(TEMPER_RATE)], [first])
    temper = optax.adam(late, b2=0.99)
    return optax.chain(clip_by_member_norm(clip), optax.partition({"rest": rest, "temper": temper}, _kinds))


def _kinds(params: Params) -> Any:
    """Which of the two optimisers moves each leaf."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: "temper" if path[-1].key == "temper" else "rest", params)


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


Codecs = StepCodec | Mapping[str, StepCodec]
"""Of the only world, or of several by name (see `worldmodel.training.worlds`)."""

Batches = Batch | Mapping[str, Batch]
"""Of the only world, or one of each by name, all of as many windows."""

Shares = Mapping[str, Batch]
"""Every world's batch dealt out to the members: every leaf `[M, B/M, ...]`."""


class Objective:
    """The members' losses on their shares of a batch, as a training step or an evaluation needs them.

    Args:
      config: sizes of the model.
      codec: of its values, in the only world or by world.
      accumulate: micro-batches whose gradients are summed; the sum is that of the whole batch.
      remat: "none" or a key of `REMAT`.
      bfloat16: the trunk's products are computed in bfloat16.
      layout: where arrays live; None for one device.
    """

    def __init__(
        self,
        config: StepConfig,
        codec: Codecs,
        *,
        accumulate: int = 1,
        remat: str = "none",
        bfloat16: bool = False,
        layout: Layout | None = None,
    ):
        self.config, self.layout, self._accumulate = config, layout, accumulate
        self._losses = {
            world: partial(member_loss, config, own, remat=remat, bfloat16=bfloat16)
            for world, own in by_world(codec).items()
        }

    def deal(self, batch: Batches) -> Shares:
        """Every member's own share of the batch; `ValueError` unless there is an equal one for each."""
        batch, members = by_world(batch), self.config.members
        for own in batch.values():
            if len(own.mask) % members:
                raise ValueError(f"a batch of {len(own.mask)} windows; a multiple of the {members} members is needed")
        shares = jax.tree.map(lambda x: x.reshape(members, len(x) // members, *x.shape[1:]), batch)
        return shares if self.layout is None else jax.lax.with_sharding_constraint(shares, self.layout.shares)

    def loss(self, params: Params, shares: Shares, weights: Mapping[str, Array] | None = None) -> tuple[Array, Parts]:
        """Sum of the members' losses in all worlds, and the mean over members of each world's parts.

        `weights` `[M]` of each world multiply both.
        """
        if self.layout is not None and self.layout.sizes["members"] > 1:
            losses, parts = jax.vmap(self._member, spmd_axis_name="members")(params, shares)
        else:
            each = []
            for m in range(self.config.members):
                each.append(self._member(*jax.tree.map(lambda x, m=m: x[m], (params, shares))))
            losses, parts = jax.tree.map(lambda *values: jnp.stack(values), *each)
        if weights is not None:
            losses = map_worlds(lambda loss, weight: loss * weight, losses, weights)
            parts = {world: jax.tree.map(lambda x, w=weights[world]: x * w, own) for world, own in parts.items()}
        return jnp.sum(sum(losses.values())), jax.tree.map(jnp.mean, parts)

    def _member(self, params: Params, shares: Shares) -> tuple[dict[str, Array], Parts]:
        """One member's loss in every world, and its parts."""
        said = {world: loss(member_params(params, world), shares[world]) for world, loss in self._losses.items()}
        return {world: loss for world, (loss, _) in said.items()}, {world: parts for world, (_, parts) in said.items()}

    def gradients(self, params: Params, batch: Batches) -> tuple[tuple[Array, Parts], Params]:
        """`((loss, parts), gradients)` of a whole batch, in `accumulate` pieces."""
        differentiate = jax.value_and_grad(self.loss, has_aux=True)
        shares, pieces = self.deal(batch), self._accumulate
        if pieces == 1:
            return differentiate(params, shares)
        # Every `pieces`-th window: a micro-batch is spread over the devices as the batch is.
        split = jax.tree.map(
            lambda x: jnp.moveaxis(x.reshape(len(x), x.shape[1] // pieces, pieces, *x.shape[2:]), 2, 0), shares
        )
        counts = {world: own.mask.sum(axis=range(2, own.mask.ndim)) for world, own in split.items()}
        weights = {world: own / jnp.maximum(own.sum(axis=0), 1.0) for world, own in counts.items()}

        def add(total, piece):
            return jax.tree.map(jnp.add, total, differentiate(params, *piece)), None

        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(differentiate, params, shares))
        return jax.lax.scan(add, zeros, (split, weights))[0]


def make_train_step(
    config: StepConfig,
    codec: Codecs,
    optimizer: optax.GradientTransformation,
    *,
    accumulate: int = 1,
    remat: str = "none",
    bfloat16: bool = False,
    layout: Layout | None = None,
) -> Callable[[TrainState, Batches], tuple[TrainState, dict[str, Array]]]:
    """A jitted step; each member learns from its own share of the batch: `ValueError` unless `M` divides `B`.

    It donates the state: the one passed in is gone. Where loss or gradient is not finite, the state comes back as it
    was, and the metric `skipped` is 1. The other arguments: see `Objective`.
    """
    objective = Objective(config, codec, accumulate=accumulate, remat=remat, bfloat16=bfloat16, layout=layout)

    def train_step(state: TrainState, batch: Batches):
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
            "loss": total / (config.members * len(parts)),
            **summary(parts),
            "grad_norm": norm,
            "skipped": 1.0 - finite.astype(jnp.float32),
        }
        return following, metrics

    return jax.jit(train_step, donate_argnums=0)


def make_evaluation(
    config: StepConfig, codec: Codecs, *, bfloat16: bool = False, layout: Layout | None = None
) -> Callable[[Params, Batches], dict[str, Array]]:
    """A jitted `(params, batch) -> nats`: means over members, each on its share of the batch, as `summary` has them."""
    objective = Objective(config, codec, bfloat16=bfloat16, layout=layout)
    return jax.jit(lambda params, batch: summary(objective.loss(params, objective.deal(batch))[1]))


def as_batch(window: Mapping[str, Any], codec: StepCodec) -> Batch:
    """The pipeline's dict of arrays as a `Batch`; its contexts are encoded."""
    return Batch(
        jax.tree.map(jnp.asarray, window["observations"]),
        jax.tree.map(jnp.asarray, window["actions"]),
        jnp.asarray(window["rewards"], jnp.float32),
        jnp.asarray(window["terminated"], jnp.float32),
        jnp.asarray(window["mask"], jnp.float32),
        jnp.asarray(window["last_reward"], jnp.float32),
        jnp.asarray(codec.context.encode(window["context"])),
    )
