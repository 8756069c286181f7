"""A world model behind Gymnasium's functional interface and behind Brax's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnasium.experimental.functional import FuncEnv

from worldmodel._types import Array, PyTree
from worldmodel.envs.pure import EpisodeState, PureEpisode


class SimFuncEnv(FuncEnv):
    """`gymnasium.experimental.functional.FuncEnv` of a simulated episode: pure functions of state and key.

    `params` of every function are the model's; None for those it was loaded with. Time limits are left to the caller,
    as in every functional environment: `state.time` counts the steps.

    Args:
      checkpoint: a run folder, or a loaded `WorldModel`.
      **control: `trust`, `trust_coverage`, `trust_penalty` and `perturb` of `SimEnv`. "truncate" is left to the
        caller as time limits are: `state.trust["outside"]`, which is also in `transition_info`.
    """

    def __init__(self, checkpoint: Any, **control: Any):
        self._episode = PureEpisode.of(checkpoint, **control)
        self.observation_space, self.action_space = self._episode.model.spec.to_gymnasium()
        super().__init__()

    def get_default_params(self, **kwargs: Any) -> PyTree:
        """The model's parameters."""
        del kwargs
        return self._episode.model.params

    def initial(self, rng: Array, params: PyTree = None) -> EpisodeState:
        """A new episode's state."""
        return self._episode.begin(self._or_own(params), rng)

    def transition(self, state: EpisodeState, action: PyTree, rng: Array, params: PyTree = None) -> EpisodeState:
        """The state after an action."""
        return self._episode.advance(self._or_own(params), state, action, rng)[0]

    def observation(self, state: EpisodeState, rng: Array, params: PyTree = None) -> PyTree:
        """What is seen in a state."""
        del rng, params
        return state.observation

    def reward(
        self, state: EpisodeState, action: PyTree, next_state: EpisodeState, rng: Array, params: PyTree = None
    ) -> Array:
        """What the step to `next_state` paid, float32 `[]`."""
        del state, action, rng, params
        return next_state.reward

    def terminal(self, state: EpisodeState, rng: Array, params: PyTree = None) -> Array:
        """Whether the step to this state ended the episode, bool `[]`."""
        del rng, params
        return state.terminated

    def transition_info(
        self, state: EpisodeState, action: PyTree, next_state: EpisodeState, params: PyTree = None
    ) -> dict[str, Array]:
        """Whether the step to `next_state` is to be trusted, where that is asked for."""
        del state, action, params
        return next_state.trust

    def _or_own(self, params: PyTree) -> PyTree:
        return self._episode.model.params if params is None else params


@struct.dataclass
class BraxState:
    """What Brax's environments pass on: `pipeline_state`, `obs`, float32 `reward` and `done`, `metrics`, `info`."""

    pipeline_state: EpisodeState
    obs: PyTree
    reward: Array
    done: Array
    metrics: dict[str, Array]
    info: dict[str, Any]


class SimBrax:
    """`reset(rng)` and `step(state, action)` as Brax's training loops and wrappers call them.

    `done` is 1 where the episode ended by itself, the time was up or a step was not to be trusted; `info["truncation"]`
    is 1 for the latter two. `metrics` has float32 `disagreement` and `outside` where trust is not ignored. A step after
    the end goes on from the last state: Brax's own wrappers reset.

    Args:
      checkpoint: a run folder, or a loaded `WorldModel`, of one Box or Discrete each.
      max_episode_steps: as in `SimEnv`.
      **control: `trust`, `trust_coverage`, `trust_penalty` and `perturb` of `SimEnv`.
    """

    def __init__(self, checkpoint: Any, *, max_episode_steps: int | None = None, **control: Any):
        self._episode = PureEpisode.of(checkpoint, max_episode_steps, **control)

    def reset(self, rng: Array) -> BraxState:
        """A new episode."""
        begin, go_on = jax.random.split(rng)
        state = self._episode.begin(self._episode.model.params, begin)
        zero = jnp.zeros((), jnp.float32)
        return BraxState(state, state.observation, zero, zero, _metrics(state), {"rng": go_on, "truncation": zero})

    def step(self, state: BraxState, action: PyTree) -> BraxState:
        """One step; its chances come from the key in `info`."""
        key, go_on = jax.random.split(state.info["rng"])
        following, _ = self._episode.advance(self._episode.model.params, state.pipeline_state, action, key)
        truncated = self._episode.truncated(following).astype(jnp.float32)
        done = jnp.maximum(following.terminated.astype(jnp.float32), truncated)
        info = {**state.info, "rng": go_on, "truncation": truncated}
        return BraxState(
            following, following.observation, following.reward, done, state.metrics | _metrics(following), info
        )

    @property
    def observation_size(self) -> int:
        """Numbers of an observation."""
        return self._episode.model.dynamics.codec.observation.size

    @property
    def action_size(self) -> int:
        """Numbers of an action, or how many actions there are."""
        return self._episode.model.dynamics.codec.action.size

    @property
    def backend(self) -> str:
        """What moves the world."""
        return "worldmodel"

    @property
    def unwrapped(self) -> SimBrax:
        """Itself."""
        return self


def _metrics(state: EpisodeState) -> dict[str, Array]:
    return {name: value.astype(jnp.float32) for name, value in state.trust.items()}
