"""The step model: one position per environment step.

Position t reads `(o_t, a_t, r_{t-1})` and the episode's context, and predicts `o_{t+1}`, then `r_t` given `o_{t+1}`,
then `terminated_t` given both.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from worldmodel._types import Array, Float, PyTree
from worldmodel.codec import BoxCodec, StepCodec, TreeCodec
from worldmodel.model.heads import (
    CategoricalHead,
    ChainHead,
    LeafHead,
    Perceptron,
)
from worldmodel.model.params import Params, Skeleton, filled, skeleton
from worldmodel.model.reward import RewardHead
from worldmodel.model.transformer import Dense, LayerCache, Trunk, TrunkConfig
from worldmodel.model.tree import TreeHead, TreeReader

PARTS = ("observation", "reward", "terminated")
"""Order of the last axis of every log-probability."""


@dataclasses.dataclass(frozen=True)
class StepConfig:
    """Size of a step model: the trunk, the heads, the number of ensemble members."""

    trunk: TrunkConfig = TrunkConfig()
    chain_hidden: int = 32
    components: int = 2
    head_hidden: int = 64
    members: int = 3
    chain: bool = True
    """Each number of the next observation is drawn given those before it; without, independently."""

    def __post_init__(self):
        if min(self.chain_hidden, self.components, self.head_hidden, self.members) < 1:
            raise ValueError("chain_hidden, components, head_hidden and members must be at least 1")
        if self.trunk.window is None:
            raise ValueError("a step model needs a window: how long its episodes get is not known beforehand")

    @property
    def window(self) -> int:
        """Steps that attention sees, the present one included."""
        assert self.trunk.window is not None
        return self.trunk.window


class Draw(NamedTuple):
    """One sampled transition of `B` rows: decoded values, the end's probability and nats `[B, 3]`."""

    obs: PyTree
    reward: Array
    terminated: Array
    end_probability: Array
    log_prob: Array


class StepModel(nnx.Module):
    """Trunk and heads of one ensemble member."""

    def __init__(self, config: StepConfig, codec: StepCodec, *, rng: np.random.Generator):
        self.config, self.codec = config, codec
        # What a Box or a Discrete alone is read by holds no weights.
        self.reader = TreeReader(codec.observation, rng=rng) if isinstance(codec.observation, TreeCodec) else None
        read = self._read
        inputs = read.size + codec.action.size + 1 + codec.context.size
        self.embed = Dense(inputs, config.trunk.width, rng=rng, bias=0.0)
        self.trunk = Trunk(config.trunk, rng=rng)
        width = config.trunk.width + inputs
        self.observation = _observation_head(config, codec, width, rng)
        sizes: dict[str, Any] = {"hidden": config.head_hidden, "components": config.components}
        self.reward = RewardHead(width + read.size, codec.reward, **sizes, rng=rng)
        odds = codec.end_rate / (1.0 - codec.end_rate)
        self.end = Perceptron(width + read.pieces_size + 1, config.head_hidden, 1, rng=rng, bias=math.log(odds))

    def inputs(
        self, obs: PyTree, action: PyTree, last_reward: Array, context: Array | None = None
    ) -> Float[Array, "... F"]:
        """Features of raw observation, action, the reward before it and the encoded context (None: the logs' mean).

        Any leading axes.
        """
        if context is None:
            context = jnp.zeros((*jnp.shape(last_reward), self.codec.context.size), jnp.float32)
        parts = (
            self._read.features(obs),
            self.codec.action.features(action),
            self.codec.reward.encode(last_reward)[..., None],
            context,
        )
        return jnp.concatenate(parts, axis=-1)

    @property
    def _read(self) -> Any:
        return self.reader or self.codec.observation

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

    @property
    def _said(self) -> LeafHead | TreeHead:
        """The observation's head between values of its space."""
        if isinstance(self.observation, TreeHead):
            return self.observation
        codec: Any = self.codec.observation  # a tree has a TreeHead
        return LeafHead(codec, self.observation)

    def observation_log_prob(
        self,
        h: Array,
        obs: PyTree,
        next_obs: PyTree,
        before: PyTree = None,
        *,
        bin_scale: float = 1.0,
        balanced: bool = False,
    ) -> Array:
        """Nats per dimension `[..., D]`, 0 for one that never changes; of a tree, all sites are one, each picture is.

        `before` is the observation before `obs` where the codec `looks_back`, else None. `bin_scale` and `balanced` are
        for training, see `worldmodel.model.heads`.
        """
        return self._said.log_prob(h, obs, next_obs, before, bin_scale=bin_scale, balanced=balanced)

    def reward_log_prob(
        self, h: Array, next_obs: PyTree, reward: Array, *, bin_scale: float = 1.0, balanced: bool = False
    ) -> Array:
        """Nats `[...]` of the reward given the next observation; 0 where the logs hold a single value."""
        if self.codec.reward.constant:
            return jnp.zeros(reward.shape, jnp.float32)
        return self.reward.log_prob(self._led(h, next_obs), reward, bin_scale=bin_scale, balanced=balanced)

    def reward_sample(self, h: Array, next_obs: PyTree, uniforms: Float[Array, "... 2"]) -> Array:
        """A reward in its own units, `[...]`."""
        return self.reward.sample(self._led(h, next_obs), uniforms)

    def reward_mean(self, h: Array, next_obs: PyTree) -> Array:
        """The expected reward in its own units, `[...]`."""
        return self.reward.mean(self._led(h, next_obs))

    def _led(self, h: Array, next_obs: PyTree) -> Array:
        return jnp.concatenate([h, self._read.features(next_obs)], axis=-1)

    def end_logit(self, h: Array, next_obs: PyTree, reward: Array) -> Array:
        """Log-odds `[...]` that the transition ended the episode, given where it led and what it paid."""
        encoded = self.codec.reward.encode(reward)[..., None]
        pieces = self._read.pieces(next_obs)
        return self.end(jnp.concatenate([h, pieces, encoded], axis=-1))[..., 0]

    def log_prob(
        self, h: Array, obs: PyTree, next_obs: PyTree, reward: Array, terminated: Array, before: PyTree = None
    ) -> Float[Array, "... 3"]:
        """Nats of the three parts; terminated is float, 1 where the transition ended the episode."""
        logit = self.end_logit(h, next_obs, reward)
        end = terminated * jax.nn.log_sigmoid(logit) + (1.0 - terminated) * jax.nn.log_sigmoid(-logit)
        parts = (
            self.observation_log_prob(h, obs, next_obs, before).sum(axis=-1),
            self.reward_log_prob(h, next_obs, reward),
            end,
        )
        return jnp.stack(parts, axis=-1)

    def draw(self, h: Array, obs: PyTree, uniforms: Float[Array, "... U"], before: PyTree = None) -> Draw:
        """Samples in the order of `PARTS`, each given the values already drawn, as decoded."""
        next_obs = self._said.sample(h, obs, uniforms[..., :-3], before)
        reward = self.reward_sample(h, next_obs, uniforms[..., -3:-1])
        end_probability = jax.nn.sigmoid(self.end_logit(h, next_obs, reward))
        terminated = uniforms[..., -1] < end_probability
        log_prob = self.log_prob(h, obs, next_obs, reward, terminated.astype(jnp.float32), before)
        return Draw(next_obs, reward, terminated, end_probability, log_prob)

    def mean(self, h: Array, obs: PyTree, before: PyTree = None) -> tuple[PyTree, Array, Array]:
        """Central prediction: next observation, reward given it, probability of an end given both."""
        next_obs = self._said.central(h, obs, before)
        reward = self.reward_mean(h, next_obs)
        return next_obs, reward, jax.nn.sigmoid(self.end_logit(h, next_obs, reward))


def _observation_head(
    config: StepConfig, codec: StepCodec, width: int, rng: np.random.Generator
) -> ChainHead | CategoricalHead | TreeHead:
    observation = codec.observation
    sizes: dict[str, Any] = {"hidden": config.chain_hidden, "components": config.components, "chain": config.chain}
    if isinstance(observation, TreeCodec):
        return TreeHead(width, observation, outer=config.head_hidden, **sizes, rng=rng)
    if isinstance(observation, BoxCodec):
        return ChainHead(width, observation.size, **sizes, rng=rng)
    return CategoricalHead(width, observation.size, rng=rng)


def step_model(config: StepConfig, codec: StepCodec, params: Params) -> StepModel:
    """The module of one member around its parameters (no leading axis)."""
    return filled(_skeleton(config, codec), params)


def abstract_params(config: StepConfig, codec: StepCodec) -> Params:
    """What `init_params` gives as shapes and dtypes alone."""
    member = nnx.to_pure_dict(_skeleton(config, codec)[1])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((config.members, *x.shape), x.dtype), member)


def init_params(config: StepConfig, codec: StepCodec, seed: int) -> Params:
    """Fresh parameters of all members, each leaf with a leading axis `[members]`."""
    members = []
    for sequence in np.random.SeedSequence(seed).spawn(config.members):
        model = StepModel(config, codec, rng=np.random.default_rng(sequence))
        members.append(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *members)


@cache
def _skeleton(config: StepConfig, codec: StepCodec) -> Skeleton:
    return skeleton(lambda: StepModel(config, codec, rng=np.random.default_rng(0)))
