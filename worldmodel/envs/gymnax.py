"""A world model behind gymnax 1.0's interface; needs gymnax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

from worldmodel._types import Array, PyTree
from worldmodel.envs.pure import EpisodeState, PureEpisode
from worldmodel.spaces import box_bounds, dtype_of, parts_of, shape_of


@struct.dataclass
class GymnaxParams:
    """The model's parameters, and the time limit."""

    model: Any
    max_steps_in_episode: Any = 2**31 - 1


class SimGymnax(Environment[Any, Any]):
    """`env.reset(key, params)` and `env.step(key, state, action, params)` of a simulated episode.

    Categories count from 0, as gymnax has them, wherever the space itself begins; several side by side are a Box of
    integers.

    Args:
      checkpoint: a run folder, or a loaded `WorldModel`.
      max_episode_steps: as in `SimEnv`; it is a default of `params`, which may be replaced.
      **control: `trust`, `trust_coverage`, `trust_penalty` and `perturb` of `SimEnv`.
    """

    def __init__(self, checkpoint: Any, *, max_episode_steps: int | None = None, **control: Any):
        self._episode = PureEpisode.of(checkpoint, max_episode_steps, **control)
        self._spec = self._episode.model.spec

    @property
    def default_params(self) -> Any:
        """The model's parameters and the time limit of the environment it stands for."""
        return GymnaxParams(self._episode.model.params, self._episode.limit)

    def reset_env(self, key: Array, params: GymnaxParams) -> tuple[PyTree, EpisodeState]:
        """Starts an episode as the logs' ones did."""
        state = self._episode.begin(params.model, key)
        return self._from_zero(state.observation), state

    def step_env(
        self, key: Array, state: EpisodeState, action: PyTree, params: GymnaxParams
    ) -> tuple[PyTree, EpisodeState, Array, Array, dict[str, Array]]:
        """One step; `info` is that of `SimEnv.step`."""
        given = _shifted(self._spec.action_space, action, 1)
        state, info = self._episode.advance(params.model, state, given, key)
        return self._from_zero(state.observation), state, state.reward, state.terminated, info

    def is_truncated(self, state: EpisodeState, params: GymnaxParams) -> Array:
        """The time is up or the step not to be trusted, and it did not end the episode by itself."""
        return self._episode.truncated(state, params.max_steps_in_episode)

    def is_terminated(self, state: EpisodeState, params: GymnaxParams) -> Array:
        """The last step reached a terminal state."""
        del params
        return state.terminated

    def observe(self, key: Array, state: EpisodeState, action: Any, params: GymnaxParams) -> PyTree:
        """The present observation."""
        del key, action, params
        return self._from_zero(state.observation)

    @property
    def name(self) -> str:
        """The environment that the model stands for."""
        return f"Sim({self._spec.env_id or 'logs'})"

    @property
    def num_actions(self) -> int:
        """How many actions there are, or how many numbers an action has."""
        space = self._spec.action_space
        return int(space["n"]) if space["type"] == "Discrete" else self._episode.model.dynamics.codec.action.size

    def action_space(self, params: GymnaxParams | None = None) -> spaces.Space:
        """See the class."""
        del params
        return _space(self._spec.action_space)

    def observation_space(self, params: GymnaxParams | None = None) -> spaces.Space:
        """See the class."""
        del params
        return _space(self._spec.observation_space)

    def _from_zero(self, obs: PyTree) -> PyTree:
        return _shifted(self._spec.observation_space, obs, -1)


def _shifted(space: Mapping[str, Any], value: Any, sign: int) -> Any:
    """The value with every single category moved by where its space begins."""
    if space["type"] == "Dict":
        return {name: _shifted(part, value[name], sign) for name, part in parts_of(space)}
    if space["type"] == "Tuple":
        return tuple(_shifted(part, value[place], sign) for place, part in parts_of(space))
    return jnp.asarray(value) + sign * space["start"] if space["type"] == "Discrete" else value


def _space(space: Mapping[str, Any]) -> spaces.Space:
    kind = space["type"]
    if kind == "Dict":
        return spaces.Dict({name: _space(part) for name, part in parts_of(space)})
    if kind == "Tuple":
        return spaces.Tuple([_space(part) for _, part in parts_of(space)])
    if kind == "Discrete":
        return spaces.Discrete(space["n"])
    if kind == "Box":
        low, high = box_bounds(space)
    elif kind == "MultiDiscrete":
        low = np.asarray(space["start"])
        high = low + np.asarray(space["nvec"]) - 1
    else:
        low, high = np.zeros(space["shape"]), np.ones(space["shape"])
    dtype = jax.dtypes.canonicalize_dtype(dtype_of(space))
    return spaces.Box(jnp.asarray(low, dtype), jnp.asarray(high, dtype), shape_of(space), dtype)
