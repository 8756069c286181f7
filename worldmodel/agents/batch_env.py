"""Environments as the policy learner sees them: natively batched, resetting themselves, flat float observations.

Observations are standardised by the logs' statistics and actions lie in [-1, 1] (or are categories), so that one
learner configuration serves every environment, simulated or real.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from worldmodel._types import Array, Key, PyTree
from worldmodel.agents.counting import CountSteps, StepLedger
from worldmodel.agents.record import rebuild_env
from worldmodel.codec import StepCodec, column_shapes
from worldmodel.simulator import SimState, Simulator
from worldmodel.spaces import box_bounds, map_columns
from worldmodel.trajectory import Spec


class BatchStep(NamedTuple):
    """One step of `N` environments.

    obs float32 `[N, F]` begins a new episode where one ended; final_obs `[N, F]` is what the action led to; reward
    float32 `[N]`; terminated and truncated bool `[N]`.
    """

    obs: Array
    final_obs: Array
    reward: Array
    terminated: Array
    truncated: Array


@runtime_checkable
class BatchEnv(Protocol):
    """`N` environments that reset themselves."""

    @property
    def interface(self) -> Interface:
        """What the learner sees of spaces."""
        ...

    def reset(self, params: PyTree, key: Key[Array, " N"]) -> tuple[PyTree, Array]:
        """Returns `(state, obs [N, F])`."""
        ...

    def step(self, params: PyTree, state: PyTree, action: Array) -> tuple[PyTree, BatchStep]:
        """Returns `(state, step)`; action is the learner's, `[N]` or `[N, A]`."""
        ...


@dataclasses.dataclass(frozen=True)
class Interface:
    """How a learner's observations and actions relate to the environment's."""

    spec: Spec
    codec: StepCodec

    @property
    def obs_size(self) -> int:
        """Number of observation features `F`."""
        return self.codec.observation.size

    @property
    def discrete(self) -> bool:
        """Whether actions are categories."""
        return self.spec.action_space["type"] == "Discrete"

    @property
    def action_size(self) -> int:
        """Number of categories, or of action dimensions."""
        return self.codec.action.size

    def observe(self, obs: PyTree) -> Array:
        """Observation, columns `[N, ...]` -> features `[N, F]`, at most ten deviations from the logs' mean."""
        return jnp.clip(self.codec.observation.features(obs), -10.0, 10.0)

    def act(self, action: Array) -> Array:
        """Learner's action -> the environment's, as `environment_action`."""
        return environment_action(self.spec.action_space, action)


def environment_action(space: Mapping[str, Any], action: Array) -> Array:
    """A category from 0, or numbers `[N, A]` clipped to [-1, 1] -> an action of the space, `[N, ...]`.

    Raises:
      ValueError: the space is a Box without finite bounds, or neither a Box nor Discrete.
    """
    if space["type"] == "Discrete":
        return jnp.asarray(action + space["start"], jnp.int32)
    if space["type"] != "Box":
        raise ValueError(f"the action space is {space['type']}; a policy learner takes Discrete or Box")
    low, high = (bound.astype(np.float32) for bound in box_bounds(space))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError("the action space is a Box without bounds; a policy learner needs finite low and high")
    share = (jnp.clip(action.reshape(-1, *low.shape), -1.0, 1.0) + 1.0) / 2.0
    value = jnp.asarray(low + (high - low) * share)
    dtype = jax.dtypes.canonicalize_dtype(space["dtype"])
    return value.astype(dtype) if jnp.issubdtype(dtype, jnp.floating) else jnp.round(value).astype(dtype)


@dataclasses.dataclass(frozen=True)
class SimulatedBatch:
    """The simulator as a `BatchEnv`; `params` are the dynamics' own."""

    interface: Interface
    simulator: Simulator

    def reset(self, params: PyTree, key: Key[Array, " N"]) -> tuple[SimState, Array]:
        """See `BatchEnv`."""
        state, obs = self.simulator.reset(params, key)
        return state, self.interface.observe(obs)

    def step(self, params: PyTree, state: SimState, action: Array) -> tuple[SimState, BatchStep]:
        """See `BatchEnv`."""
        state, step = self.simulator.step(params, state, self.interface.act(action))
        state, obs = self.simulator.reset_rows(params, step.terminated | step.truncated, state, step.obs)
        final, start = self.interface.observe(step.obs), self.interface.observe(obs)
        return state, BatchStep(start, final, step.reward, step.terminated, step.truncated)


class RealBatch:
    """Real Gymnasium environments on the host as a `BatchEnv` without a state; every step is counted in a ledger."""

    def __init__(self, interface: Interface, num_envs: int, *, ledger: StepLedger, phase: str, seed: int):
        import gymnasium as gym

        self.interface = interface

        def make() -> gym.Env:
            return CountSteps(rebuild_env(interface.spec), ledger, phase)

        self._envs = gym.vector.SyncVectorEnv([make] * num_envs, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
        self._seed = seed
        self._obs_shape = column_shapes(interface.spec.observation_space, (num_envs,))
        flag = jax.ShapeDtypeStruct((num_envs,), bool)
        reward = jax.ShapeDtypeStruct((num_envs,), jnp.float32)
        self._step_shape = (self._obs_shape, self._obs_shape, reward, flag, flag)

    def reset(self, params: PyTree, key: Key[Array, " N"]) -> tuple[None, Array]:
        """See `BatchEnv`; seeded at construction, the key is not used."""
        del params, key
        obs = io_callback(self._host_reset, self._obs_shape, ordered=True)
        return None, self.interface.observe(obs)

    def step(self, params: PyTree, state: None, action: Array) -> tuple[None, BatchStep]:
        """See `BatchEnv`."""
        del params, state
        result = io_callback(self._host_step, self._step_shape, self.interface.act(action), ordered=True)
        obs, final, reward, terminated, truncated = result
        observe = self.interface.observe
        return None, BatchStep(observe(obs), observe(final), reward, terminated, truncated)

    def close(self) -> None:
        """Closes the environments."""
        self._envs.close()

    def _host_reset(self) -> Any:
        obs, _ = self._envs.reset(seed=self._seed)
        return self._columns(obs)

    def _host_step(self, action: Array) -> Any:
        obs, reward, terminated, truncated, info = self._envs.step(np.asarray(action))
        final, ended = map_columns(np.array, obs), terminated | truncated
        for row in np.flatnonzero(ended):
            map_columns(lambda column, last, row=row: column.__setitem__(row, last), final, info["final_obs"][row])
        return (
            self._columns(obs),
            self._columns(final),
            np.asarray(reward, np.float32),
            np.asarray(terminated, bool),
            np.asarray(truncated & ~terminated, bool),
        )

    def _columns(self, obs: Any) -> Any:
        return map_columns(lambda column, shape: np.asarray(column, shape.dtype), obs, self._obs_shape)
