"""One simulated episode as pure functions of a key, without a batch axis: what the adapters to JAX's interfaces share.

`jax.vmap` makes a batch of it, and the products of the batch are as large as if it had been one from the start.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldmodel._types import Array, PyTree
from worldmodel.envs.check import open_world_model, step_limit
from worldmodel.training.checkpoint import WorldModel


@struct.dataclass
class EpisodeState:
    """A running episode.

    Attributes:
      dynamics: what the model remembers.
      observation: the present one, of the space.
      reward: float32 `[]` of the last step, 0 at the start.
      terminated: bool `[]`, the last step reached a terminal state.
      time: int32 `[]`, steps taken.
    """

    dynamics: Any
    observation: PyTree
    reward: Array
    terminated: Array
    time: Array


@dataclasses.dataclass(frozen=True)
class PureEpisode:
    """Starts and steps one episode of a world model.

    Attributes:
      model: the world model.
      max_episode_steps: steps after which an episode is truncated; None: never.
    """

    model: WorldModel
    max_episode_steps: int | None

    @classmethod
    def of(cls, checkpoint: Any, max_episode_steps: int | None = None) -> PureEpisode:
        """Of a run folder or a loaded model; the limit is read as by `SimEnv`."""
        model = open_world_model(checkpoint)
        return cls(model, step_limit(max_episode_steps, model.spec))

    @property
    def limit(self) -> int:
        """The time limit as a number: far away where there is none."""
        return 2**31 - 1 if self.max_episode_steps is None else self.max_episode_steps

    def begin(self, params: PyTree, key: Array, context: Array | None = None) -> EpisodeState:
        """The state of a new episode, from one key, also of the old kind.

        `context` float32 `[C]`, encoded; None: drawn as logged.
        """
        dynamics, obs = self.model.dynamics.initial(
            params, _typed(key)[None], None if context is None else context[None]
        )
        nothing, no = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.bool_)
        return EpisodeState(dynamics, _first(obs), nothing, no, jnp.zeros((), jnp.int32))

    def advance(
        self, params: PyTree, state: EpisodeState, action: PyTree, key: Array
    ) -> tuple[EpisodeState, dict[str, Array]]:
        """The state after an action of the space, and what the model says of the step (`info` of `SimEnv.step`)."""
        action = jax.tree.map(lambda a: jnp.asarray(a)[None], action)
        advance = self.model.dynamics.advance
        dynamics, obs, reward, terminated, info = advance(params, state.dynamics, action, _typed(key)[None])
        following = EpisodeState(dynamics, _first(obs), reward[0], terminated[0], state.time + 1)
        return following, _first(info)

    def truncated(self, state: EpisodeState) -> Array:
        """Bool `[]`: the time is up."""
        return (state.time >= self.limit) & ~state.terminated


def _typed(key: Array) -> Array:
    """The key, also of the old kind, whose two words are bare numbers."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def _first(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], tree)
