"""A batch of control tasks with their physics and faults, all of them numbers: one program serves every cell."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldmodel._types import Array
from worldmodel.agents.batch_env import BatchStep
from worldmodel.study.control_task import Task

LATEST = 5
"""Steps by which actions come late where nothing is left of their timing."""

FALSE_ENDS = 0.1
"""Probability of a false end in a step, in the half of the states that has them."""


@struct.dataclass
class World:
    """What sets an episode's rules; leaves `[N, ...]`, of NumPy or JAX.

    factors `[N, P]` of the physics; horizon int32; observation_noise, in units of features; hidden int32, velocities
    that are not seen; disturbance. faults: `1 - fidelity` by kind. What faults hit was drawn with the simulator: rates
    `[N, D]` (about 1) of the pull, plane `[N, F]` that halves the states, taste `[N, F+1]` of the false reward. null:
    nothing moves, whatever is done.
    """

    factors: Any
    horizon: Any
    observation_noise: Any
    hidden: Any
    disturbance: Any
    faults: dict[str, Any]
    rates: Any
    plane: Any
    taste: Any
    null: Any


@struct.dataclass
class Episode:
    """Running episodes: states `[N, D]`, latest actions `[N, LATEST+1]`, steps taken, a key each."""

    vector: Array
    line: Array
    time: Array
    key: Array


@dataclasses.dataclass(frozen=True)
class Interface:
    """What a learner asks of spaces."""

    task: Task

    @property
    def obs_size(self) -> int:
        """Features of an observation."""
        return self.task.width

    @property
    def discrete(self) -> bool:
        """Whether actions are categories."""
        return self.task.actions > 0

    @property
    def action_size(self) -> int:
        """Categories, or numbers of an action."""
        return self.task.actions or 1


@dataclasses.dataclass(frozen=True, eq=False)
class Worlds:
    """`BatchEnv` of `N` worlds."""

    task: Task
    world: World

    @property
    def interface(self) -> Any:
        """See `BatchEnv`."""
        return Interface(self.task)

    def reset(self, params: Any, key: Array) -> tuple[Episode, Array]:
        """See `BatchEnv`."""
        del params
        return jax.vmap(self._begin)(self.world, key)

    def step(self, params: Any, state: Episode, action: Array) -> tuple[Episode, BatchStep]:
        """See `BatchEnv`; rewards are shares of the horizon."""
        del params
        action = action.reshape(action.shape[0])
        after, obs, reward, terminated = jax.vmap(self._step)(self.world, state, action)
        truncated = (after.time >= self.world.horizon) & ~terminated
        keys = jax.vmap(jax.random.split)(after.key)
        fresh, start = jax.vmap(self._begin)(self.world, keys[:, 0])
        over = terminated | truncated
        after = after.replace(key=keys[:, 1])  # pyright: ignore[reportAttributeAccessIssue]
        following = jax.tree.map(lambda new, old: _where(over, new, old), fresh, after)
        return following, BatchStep(_where(over, start, obs), obs, reward, terminated, truncated)

    def _begin(self, world: World, key: Array) -> tuple[Episode, Array]:
        first, seen, own = jax.random.split(key, 3)
        vector = self.task.begin(jax.random.uniform(first, (self.task.size,), minval=-1.0))
        dtype = jnp.int32 if self.task.actions else jnp.float32
        episode = Episode(vector, jnp.zeros(LATEST + 1, dtype), jnp.zeros((), jnp.int32), own)
        return episode, self._seen(world, vector, seen)

    def _step(self, world: World, state: Episode, action: Array) -> tuple[Episode, Array, Array, Array]:
        """One step of one world: episode, observation, reward, terminated."""
        task, fault = self.task, world.faults
        own, pushed, noised, ended, seen = jax.random.split(state.key, 5)
        line = jnp.concatenate([action.astype(state.line.dtype)[None], state.line[:-1]])
        executed = line[jnp.round(fault["delay"] * LATEST).astype(jnp.int32)]
        if not task.actions:
            executed = jnp.clip(executed, -1.0, 1.0)
        vector, reward = task.step(state.vector, executed, world.factors)
        push = jnp.array(task.push) * jax.random.normal(pushed, (task.size,))
        vector = vector + world.disturbance * (1.0 - fault["determinism"]) * push
        before = task.features(state.vector)
        here = (before @ world.plane > 0).astype(jnp.float32)
        pull = (fault["dynamics_bias"] + fault["localised"] * here) * world.rates * jnp.array(task.pull)
        vector = vector + pull * (jnp.array(task.better) - vector)
        noise = jnp.array(task.noise) * jax.random.normal(noised, (task.size,))
        vector = vector + fault["dynamics_noise"] * noise
        vector = jnp.where(world.null, state.vector, vector)
        false_end = jax.random.uniform(ended) < fault["false_ends"] * FALSE_ENDS * here
        terminated = (task.ended(vector) | false_end) & ~world.null
        centred = executed - 0.5 if task.actions else executed
        liked = 0.5 + 0.5 * jnp.tanh(jnp.append(before, centred) @ world.taste)
        reward = (1.0 - fault["reward"]) * reward + fault["reward"] * liked
        reward = jnp.where(world.null, 0.5, reward) / world.horizon
        episode = Episode(vector, line, state.time + 1, own)
        return episode, self._seen(world, vector, seen), reward, terminated

    def _seen(self, world: World, vector: Array, key: Array) -> Array:
        seen = self.task.features(vector)
        hidden = jnp.zeros(len(seen), bool)
        for rank, place in enumerate(self.task.velocities):
            hidden = hidden.at[place].set(world.hidden > rank)
        seen = seen + world.observation_noise * jax.random.normal(key, seen.shape)
        return jnp.clip(jnp.where(hidden, 0.0, seen), -10.0, 10.0)


def _where(over: Array, new: Array, old: Array) -> Array:
    if jnp.issubdtype(new.dtype, jax.dtypes.prng_key):
        data = _where(over, jax.random.key_data(new), jax.random.key_data(old))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(new))
    return jnp.where(over.reshape(-1, *[1] * (new.ndim - 1)), new, old)
