"""The train step: pure, and importing only jax, flax, optax and numpy, so that it runs on any accelerator machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from worldmodel._types import Array, Int
from worldmodel.codec import StepCodec
from worldmodel.model.step import Params, StepConfig, step_model

TRAINING_BIN_SCALE = 0.1
"""Bins of the training loss relative to the reported likelihood's, so that precision keeps paying."""


class Batch(NamedTuple):
    """Windows of `L` transitions.

    observations `[B, L+1, ...]`, actions `[B, L, ...]`, rewards float32 `[B, L]`, terminated float32 `[B, L]`
    (1 where the transition ended the episode), mask float32 `[B, L]` (1 where the transition exists), last_reward
    float32 `[B]` (what the step before the window paid; NaN where the window begins its episode).
    """

    observations: Array
    actions: Array
    rewards: Array
    terminated: Array
    mask: Array
    last_reward: Array


class TrainState(NamedTuple):
    """Everything the optimiser carries: parameters `[M, ...]`, its own state, the step number."""

    params: Params
    opt_state: optax.OptState
    step: Int[Array, ""]


def member_loss(config: StepConfig, codec: StepCodec, params: Params, batch: Batch) -> tuple[Array, dict[str, Array]]:
    """Loss of one member, and its negative log-likelihood per part in nats per transition.

    The observation's likelihood is weighted by the predicted scale, held constant (the beta-NLL of Seitzer et al.
    2022, arXiv 2203.09168, with beta = 1): gradients stay of order one however sharp the prediction gets.
    """
    model = step_model(config, codec, params)
    before = batch.observations[:, :-1]
    after = batch.observations[:, 1:]
    last_reward = jnp.concatenate([codec.reward.known(batch.last_reward)[:, None], batch.rewards[:, :-1]], axis=1)
    h = model.sequence(model.inputs(before, batch.actions, last_reward))
    observation = model.observation_log_prob(h, before, after, bin_scale=TRAINING_BIN_SCALE)
    weight = model.observation_scale(h, before, after, bin_scale=TRAINING_BIN_SCALE)
    weighted = (observation * jax.lax.stop_gradient(weight)).sum(axis=-1)
    reward = model.reward_log_prob(h, after, batch.rewards, bin_scale=TRAINING_BIN_SCALE)
    logit = model.end_logit(h, after, batch.rewards)
    end = -optax.sigmoid_binary_cross_entropy(logit, batch.terminated)
    count = jnp.maximum(batch.mask.sum(), 1.0)

    def mean(x):
        return -jnp.sum(x * batch.mask) / count

    metrics = {"observation": mean(observation.sum(axis=-1)), "reward": mean(reward), "terminated": mean(end)}
    return mean(weighted) + metrics["reward"] + metrics["terminated"], metrics


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


def make_train_step(
    config: StepConfig, codec: StepCodec, optimizer: optax.GradientTransformation
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]:
    """A jitted step; each member learns from its own share of the batch: `ValueError` unless `M` divides `B`.

    It donates the state: the one passed in is gone.
    """

    def loss_fn(params, batch):
        shares = jax.tree.map(lambda x: x.reshape(config.members, -1, *x.shape[1:]), batch)
        losses, metrics = [], []
        for m in range(config.members):
            own = jax.tree.map(lambda x, m=m: x[m], (params, shares))
            loss, parts = member_loss(config, codec, *own)
            losses.append(loss)
            metrics.append(parts)
        parts = jax.tree.map(lambda *values: jnp.mean(jnp.stack(values)), *metrics)
        return jnp.sum(jnp.stack(losses)), parts

    @partial(jax.jit, donate_argnums=0)
    def train_step(state: TrainState, batch: Batch):
        windows = batch.mask.shape[0]
        if windows % config.members:
            raise ValueError(f"a batch of {windows} windows; a multiple of the {config.members} members is needed")
        (total, parts), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, batch)
        with jax.numpy_dtype_promotion("standard"):  # optax's schedules mix types
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        metrics = {
            "loss": total / config.members,
            "nll": sum(parts.values()),
            **parts,
            "grad_norm": optax.tree.norm(grads),
        }
        return TrainState(params, opt_state, state.step + 1), metrics

    return train_step


def as_batch(window: dict[str, np.ndarray]) -> Batch:
    """The pipeline's dict of arrays as a `Batch`."""
    return Batch(
        jnp.asarray(window["observations"]),
        jnp.asarray(window["actions"]),
        jnp.asarray(window["rewards"], jnp.float32),
        jnp.asarray(window["terminated"], jnp.float32),
        jnp.asarray(window["mask"], jnp.float32),
        jnp.asarray(window["last_reward"], jnp.float32),
    )
