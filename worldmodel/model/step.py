"""The step model: one position per environment step.

Position t reads `(o_t, a_t, r_{t-1})` and predicts `o_{t+1}`, then `r_t` given `o_{t+1}`, then `terminated_t`
given both.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from worldmodel._types import Array, Float
from worldmodel.codec import StepCodec
from worldmodel.model.heads import (
    CategoricalHead,
    ChainHead,
    Perceptron,
    logistic_mixture_log_prob,
    logistic_mixture_mean,
    logistic_mixture_sample,
)
from worldmodel.model.transformer import Dense, LayerCache, Trunk, TrunkConfig

PARTS = ("observation", "reward", "terminated")
"""Order of the last axis of every log-probability."""

Params = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class StepConfig:
    """Size of a step model: the trunk, the heads, the number of ensemble members."""

    trunk: TrunkConfig = TrunkConfig()
    chain_hidden: int = 32
    components: int = 2
    head_hidden: int = 64
    members: int = 3

    def __post_init__(self):
        if min(self.chain_hidden, self.components, self.head_hidden, self.members) < 1:
            raise ValueError("chain_hidden, components, head_hidden and members must be at least 1")


class Draw(NamedTuple):
    """One sampled transition of `B` rows: decoded values, the end's probability and nats `[B, 3]`."""

    obs: Array
    reward: Array
    terminated: Array
    end_probability: Array
    log_prob: Array


class StepModel(nnx.Module):
    """Trunk and heads of one ensemble member."""

    def __init__(self, config: StepConfig, codec: StepCodec, *, rng: np.random.Generator):
        self.config, self.codec = config, codec
        observation, inputs = codec.observation, codec.observation.size + codec.action.size + 1
        self.embed = Dense(inputs, config.trunk.width, rng=rng, bias=0.0)
        self.trunk = Trunk(config.trunk, rng=rng)
        width = config.trunk.width + inputs
        if observation.kind == "box":
            self.observation = ChainHead(
                width, observation.size, hidden=config.chain_hidden, components=config.components, rng=rng
            )
        else:
            self.observation = CategoricalHead(width, observation.size, rng=rng)
        self.reward = Perceptron(width + observation.size, config.head_hidden, 3 * config.components, rng=rng)
        odds = codec.end_rate / (1.0 - codec.end_rate)
        self.end = Perceptron(width + observation.pieces_size + 1, config.head_hidden, 1, rng=rng, bias=math.log(odds))

    def inputs(self, obs: Array, action: Array, last_reward: Array) -> Float[Array, "... F"]:
        """Features of raw observation, action and the reward before it, any leading axes."""
        parts = (
            self.codec.observation.features(obs),
            self.codec.action.features(action),
            self.codec.reward.encode(last_reward)[..., None],
        )
        return jnp.concatenate(parts, axis=-1)

    def sequence(self, features: Float[Array, "B T F"]) -> Float[Array, "B T H"]:
        """What the heads read at every position of a sequence: the trunk's output beside its raw features.

        The trunk's norms lose magnitudes, and a step is mostly linear in them: hence the second part.
        """
        return jnp.concatenate([self.trunk(self.embed(features)), features], axis=-1)

    def position(
        self, features: Float[Array, "B F"], cache: tuple[LayerCache, ...], seen: Array
    ) -> tuple[Float[Array, "B H"], tuple[LayerCache, ...]]:
        """The same for one position over a cache; returns `(h, cache)`."""
        h, cache = self.trunk.step(self.embed(features), cache, seen)
        return jnp.concatenate([h, features], axis=-1), cache

    def observation_log_prob(self, h: Array, obs: Array, next_obs: Array, *, bin_scale: float = 1.0) -> Array:
        """Nats per dimension `[..., D]` of `next_obs`; 0 for a dimension that never changes."""
        codec = self.codec.observation
        target = codec.encode(next_obs, obs)
        return self.observation.log_prob(h, target, codec.bins * bin_scale) * jnp.asarray(codec.active, jnp.float32)

    def observation_scale(self, h: Array, obs: Array, next_obs: Array, *, bin_scale: float = 1.0) -> Array:
        """Predicted scale per dimension `[..., D]` in deviations of a step's change; 1 for categories."""
        codec = self.codec.observation
        return self.observation.scale(h, codec.encode(next_obs, obs), codec.bins * bin_scale)

    def reward_parameters(self, h: Array, next_obs: Array) -> Array:
        """Mixture parameters of the standardised reward, given the next observation."""
        return self.reward(jnp.concatenate([h, self.codec.observation.features(next_obs)], axis=-1))

    def reward_log_prob(self, h: Array, next_obs: Array, reward: Array, *, bin_scale: float = 1.0) -> Array:
        """Nats `[...]` of the reward; 0 where the logs hold a single value."""
        if self.codec.reward.constant:
            return jnp.zeros(reward.shape, jnp.float32)
        parameters = self.reward_parameters(h, next_obs)
        return logistic_mixture_log_prob(
            parameters, self.codec.reward.encode(reward), self.codec.reward.bin * bin_scale
        )

    def end_logit(self, h: Array, next_obs: Array, reward: Array) -> Array:
        """Log-odds `[...]` that the transition ended the episode, given where it led and what it paid."""
        encoded = self.codec.reward.encode(reward)[..., None]
        pieces = self.codec.observation.pieces(next_obs)
        return self.end(jnp.concatenate([h, pieces, encoded], axis=-1))[..., 0]

    def log_prob(
        self, h: Array, obs: Array, next_obs: Array, reward: Array, terminated: Array
    ) -> Float[Array, "... 3"]:
        """Nats of the three parts; terminated is float, 1 where the transition ended the episode."""
        logit = self.end_logit(h, next_obs, reward)
        end = terminated * jax.nn.log_sigmoid(logit) + (1.0 - terminated) * jax.nn.log_sigmoid(-logit)
        parts = (
            self.observation_log_prob(h, obs, next_obs).sum(axis=-1),
            self.reward_log_prob(h, next_obs, reward),
            end,
        )
        return jnp.stack(parts, axis=-1)

    def draw(self, h: Array, obs: Array, uniforms: Float[Array, "... U"]) -> Draw:
        """Samples in the order of `PARTS`, each given the values already drawn, as decoded."""
        codec, lead = self.codec, uniforms.shape[:-1]
        pairs, end_uniform = uniforms[..., :-1].reshape(*lead, -1, 2), uniforms[..., -1]
        target = self.observation.sample(h, pairs[..., :-1, :], codec.observation.bins)
        next_obs = codec.observation.decode(target, obs)
        reward_target = logistic_mixture_sample(
            self.reward_parameters(h, next_obs), pairs[..., -1, :], codec.reward.bin
        )
        reward = codec.reward.decode(reward_target)
        end_probability = jax.nn.sigmoid(self.end_logit(h, next_obs, reward))
        terminated = end_uniform < end_probability
        log_prob = self.log_prob(h, obs, next_obs, reward, terminated.astype(jnp.float32))
        return Draw(next_obs, reward, terminated, end_probability, log_prob)

    def mean(self, h: Array, obs: Array) -> tuple[Array, Array, Array]:
        """Central prediction: next observation, reward given it, probability of an end given both."""
        codec = self.codec
        target = self.observation.central(h)
        next_obs = codec.observation.decode(target, obs)
        reward = codec.reward.decode(logistic_mixture_mean(self.reward_parameters(h, next_obs)))
        return next_obs, reward, jax.nn.sigmoid(self.end_logit(h, next_obs, reward))


def step_model(config: StepConfig, codec: StepCodec, params: Params) -> StepModel:
    """The module of one member around its parameters (no leading axis)."""
    graph, template = _skeleton(config, codec)
    state = jax.tree.map(lambda leaf: leaf, template)  # a copy: the next line writes into it
    nnx.replace_by_pure_dict(state, dict(params))
    return nnx.merge(graph, state)


def init_params(config: StepConfig, codec: StepCodec, seed: int) -> Params:
    """Fresh parameters of all members, each leaf with a leading axis `[members]`."""
    members = []
    for sequence in np.random.SeedSequence(seed).spawn(config.members):
        model = StepModel(config, codec, rng=np.random.default_rng(sequence))
        members.append(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *members)


@cache
def _skeleton(config: StepConfig, codec: StepCodec):
    return nnx.split(nnx.eval_shape(lambda: StepModel(config, codec, rng=np.random.default_rng(0))))
