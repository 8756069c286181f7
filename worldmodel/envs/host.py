"""A batch of simulated episodes behind NumPy arrays: what the Gymnasium environments stand on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.envs.control import Control
from worldmodel.simulator import SimState, Simulator, select_rows
from worldmodel.spaces import map_columns
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trajectory import Trajectory

LEAST_ROWS = 8
"""Smaller batches are padded to this. The order in which a matrix product sums depends on its number of rows, so that
batches of equal size agree to the last bit and others only to float32's rounding: up to eight environments in a batch
are the same, bit for bit, as each of them alone. Eight rows cost no more than one."""


class HostStep(NamedTuple):
    """One step of `B` rows.

    obs columns `[B, ...]` in the space's dtype, reward float64 `[B]`, terminated and truncated bool `[B]`; info:
    log_prob float32 `[B, 3]` (nats of observation, reward and termination), end_probability float32 `[B]`, member int32
    `[B]`, and what `Simulator.trust` and `PerturbedDynamics` add.
    """

    obs: PyTree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: dict[str, np.ndarray]


class HostSimulator:
    """`rows` environments of one world model; every row is ruled by its own random numbers.

    Arguments are not checked here. Attributes: `observation_space`, `action_space` of one environment.
    """

    def __init__(self, model: WorldModel, rows: int, max_episode_steps: int | None, control: Control):
        self.observation_space, self.action_space = model.spec.to_gymnasium()
        self.rows = rows
        self._padding = max(LEAST_ROWS - rows, 0)
        # What a checkpoint restores is bound to its device and a fresh array is not; a mixture would compile twice.
        device = next(iter(jax.tree.leaves(model.params)[0].devices()))
        self._params = jax.device_put(model.params, device)
        self._run = _compiled(control.simulator(model, max_episode_steps))
        self._goes_on = control.perturb is not None and control.perturb.schedule is not None
        self._state: SimState | None = None
        self._obs: PyTree = None
        self._layouts: dict[int, tuple[list[jax.ShapeDtypeStruct], Any]] = {}

    def reset(
        self,
        generators: Sequence[np.random.Generator],
        first: PyTree = None,
        context: np.ndarray | None = None,
        *,
        seeded: np.ndarray,
    ) -> PyTree:
        """Starts an episode in every row, each from its generator; returns obs, columns `[B, ...]`.

        `first`: observations to start at, columns `[B, ...]`; `context`: of the episodes, encoded float32 `[B, C]`.
        What is None is drawn as the logs have it; at a given observation the context is their mean. `seeded`: bool
        `[B]`, rows whose generator is new: nothing of the episode before counts in them.
        """
        before = self._state
        words = self._key_words(generators, np.ones(self.rows, np.bool_))
        context = None if context is None else self._pad(context)
        if first is None:
            self._state, self._obs = self._run.reset(self._params, words, context)
        else:
            first = map_columns(lambda column: self._pad(self._computed(column)), first)
            self._state, self._obs = self._run.start_at(self._params, words, first, context)
        if self._goes_on and before is not None:
            self._state = self._run.follow(self._state, before, self._pad(~seeded))
        return self._to_host(self._obs)

    def reset_rows(self, where: np.ndarray, generators: Sequence[np.random.Generator]) -> PyTree:
        """The same where true (bool `[B]`); other rows go on, and their obs is the present one."""
        words = self._key_words(generators, where)
        self._state, obs = self._run.reset_rows(self._params, self._pad(where), words, self._state, self._obs)
        self._obs = obs
        return self._to_host(obs)

    def observe(self, prefix: Trajectory) -> PyTree:
        """Every row lives through `prefix`, from whose first observation it started; returns obs as `reset`."""
        observations, actions = (map_columns(self._in_every_row, x) for x in (prefix.observations, prefix.actions))
        observations = map_columns(jnp.asarray, observations)
        rewards = self._in_every_row(np.zeros(len(prefix), np.float32) if prefix.rewards is None else prefix.rewards)
        going_on = np.zeros(self.rows + self._padding, np.bool_)
        for t in range(len(prefix)):
            self._obs = map_columns(lambda column, t=t: column[t + 1], observations)
            action = map_columns(lambda column, t=t: column[t], actions)
            self._state = self._run.observe(self._params, self._state, action, self._obs, rewards[t], going_on)
        return self._to_host(self._obs)

    def step(self, action: PyTree) -> HostStep:
        """One step of every row with actions, columns `[B, ...]` of the space."""
        action = map_columns(lambda column: self._pad(self._computed(column)), action)
        self._state, step = self._run.step(self._params, self._state, action)
        self._obs = step.obs
        reward, terminated, truncated, info = jax.tree.map(
            lambda x: np.array(x[: self.rows]),
            jax.device_get((step.reward, step.terminated, step.truncated, step.info)),
        )
        return HostStep(self._to_host(step.obs), reward.astype(np.float64), terminated, truncated, info)

    def leaves(self) -> list[np.ndarray]:
        """Copies of every array that the present episodes are made of; `restore` takes them."""
        assert self._state is not None, "leaves() before reset"
        return [np.array(leaf) for leaf in jax.device_get(jax.tree.leaves(_plain(self._state, self._obs)))]

    def restore(self, leaves: Sequence[np.ndarray]) -> PyTree:
        """Goes back to when `leaves` were taken; returns obs as `reset` does. `ValueError` where they do not fit."""
        wanted, _ = self.layout(self.rows + self._padding)
        kinds = [[(leaf.shape, np.dtype(leaf.dtype)) for leaf in side] for side in (wanted, leaves)]
        if kinds[0] != kinds[1]:
            raise ValueError("the snapshot's arrays are not of these environments")
        self.put(leaves)
        return self._to_host(self._obs)

    def put(self, leaves: Sequence[np.ndarray]) -> None:
        """As `restore`, of leaves that are known to fit."""
        _, built = self.layout(self.rows + self._padding)
        state, self._obs = jax.tree.unflatten(built, [jnp.asarray(leaf) for leaf in leaves])
        self._state = dataclasses.replace(state, key=jax.random.wrap_key_data(state.key, impl="threefry2x32"))

    def layout(self, rows: int) -> tuple[list[jax.ShapeDtypeStruct], Any]:
        """Shapes and dtypes of the `leaves` of so many rows, and how the tree of them is built. Nothing is computed."""
        if rows not in self._layouts:
            built: list[Any] = []

            def flat(params: PyTree, words: Array) -> list[Array]:
                leaves, tree = jax.tree.flatten(_plain(*self._run.reset(params, words)))
                built.append(tree)
                return leaves

            leaves = jax.eval_shape(flat, self._params, jax.ShapeDtypeStruct((rows, 2), np.uint32))
            self._layouts[rows] = leaves, built[0]
        return self._layouts[rows]

    def branch(self, other: HostSimulator) -> PyTree:
        """Every row becomes a branch of the first row of `other` (see `Simulator.branch`); returns obs as `reset`."""
        rows = np.zeros(self.rows + self._padding, np.int32)
        self._state, self._obs = self._run.branch(other._state, other._obs, rows)
        return self._to_host(self._obs)

    def forget(self) -> None:
        """Frees the episodes' memory; the next call must be `reset`."""
        self._state = self._obs = None

    def _key_words(self, generators: Sequence[np.random.Generator], where: np.ndarray) -> np.ndarray:
        words = np.zeros((self.rows + self._padding, 2), np.uint32)
        for row in np.flatnonzero(where).tolist():
            words[row] = generators[row].integers(0, 2**32, size=2, dtype=np.uint32)
        return words

    def _in_every_row(self, column: Any) -> np.ndarray:
        """`[T, ...]` as `[T, B, ...]`, in the dtype that the model computes in."""
        return np.repeat(self._computed(column)[:, None], self.rows + self._padding, axis=1)

    @staticmethod
    def _computed(column: Any) -> np.ndarray:
        """The column in the dtype that the model computes in."""
        values = np.asarray(column)
        return values.astype(jax.dtypes.canonicalize_dtype(values.dtype))

    def _pad(self, rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows, np.repeat(rows[:1], self._padding, axis=0)]) if self._padding else rows

    def _to_host(self, obs: PyTree) -> PyTree:
        return map_columns(self._column_to_host, obs, self.observation_space)

    def _column_to_host(self, column: Array, space: gym.Space) -> np.ndarray:
        values = np.array(column)[: self.rows].astype(space.dtype)
        # The model computes in 32 bits, whose rounding of a float64 bound may lie outside of it.
        if isinstance(space, gym.spaces.Box) and space.dtype == np.float64:
            return np.clip(values, space.low, space.high)
        return values


def _plain(state: SimState, obs: PyTree) -> tuple[SimState, PyTree]:
    """Both, with the keys' words in the place of the keys."""
    return dataclasses.replace(state, key=jax.random.key_data(state.key)), obs


class _Compiled(NamedTuple):
    reset: Callable[..., Any]
    step: Callable[..., Any]
    reset_rows: Callable[..., Any]
    branch: Callable[..., Any]
    start_at: Callable[..., Any]
    observe: Callable[..., Any]
    follow: Callable[..., Any]


@lru_cache(maxsize=32)
def _compiled(simulator: Simulator) -> _Compiled:
    """The simulator's functions, compiled once per batch size however many environments use them."""

    def reset(params: PyTree, words: Array, context: Array | None = None) -> tuple[SimState, PyTree]:
        return simulator.reset(params, jax.random.wrap_key_data(words, impl="threefry2x32"), context)

    def start_at(params: PyTree, words: Array, obs: PyTree, context: Array | None) -> tuple[SimState, PyTree]:
        return simulator.start_at(params, jax.random.wrap_key_data(words, impl="threefry2x32"), obs, context)

    def reset_rows(params: PyTree, where: Array, words: Array, state: SimState, obs: PyTree) -> tuple[SimState, PyTree]:
        # Rows that go on have no words, and the first of a group lends its own to the others.
        words = jnp.where(where[:, None], words, jax.random.key_data(state.key))
        fresh, fresh_obs = reset(params, words)
        return simulator.replace_rows(where, fresh, state), select_rows(where, fresh_obs, obs)

    def branch(state: SimState, obs: PyTree, rows: Array) -> tuple[SimState, PyTree]:
        return simulator.branch(state, rows), jax.tree.map(lambda column: column[rows], obs)

    def follow(fresh: SimState, before: SimState, where: Array) -> SimState:
        dynamics: Any = simulator.dynamics  # a PerturbedDynamics: nothing else goes on
        return dataclasses.replace(fresh, dynamics=dynamics.follow(where, fresh.dynamics, before.dynamics))

    functions = reset, simulator.step, reset_rows, branch, start_at, simulator.observe, follow
    return _Compiled(*map(jax.jit, functions))
