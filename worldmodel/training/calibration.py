"""Measures, on episodes that no member was trained on, how much the members disagree about what really happened."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.corpus import Columns, Episodes
from worldmodel.model.dynamics import StepDynamics, StepState
from worldmodel.spaces import map_columns
from worldmodel.training.checkpoint import WorldModel
from worldmodel.training.processes import leader_first
from worldmodel.trust_region import TrustRegion

MOST = 16_384
"""About how many held-out steps are looked at."""

LONGEST = 1_024
"""Steps that are looked at in each episode: its first ones."""

ROWS = 64
"""Episodes that are replayed side by side."""


def calibrated(world: WorldModel, held_out: Episodes) -> WorldModel:
    """A run's last checkpoint with its trust region, taken from the run folder or measured and kept there.

    A model of one member, which has nobody to disagree with, comes back as it is.
    """
    if world.dynamics.members < 2 or world.trust is not None:
        return world
    leader_first(lambda: measure_trust(world, held_out).save(world.run))
    return dataclasses.replace(world, trust=TrustRegion.load(world.run))


def measure_trust(world: WorldModel, held_out: Episodes) -> TrustRegion:
    """The members' disagreement at every step of held-out episodes, each given what really happened before it.

    Episodes are replayed from their first step, as the simulator lives through them: a model that began in their midst
    would know less than it does there.

    Raises:
      ValueError: the model has a single member.
    """
    if world.dynamics.members < 2:
        raise ValueError("trust needs an ensemble: this model has one member, which has nobody to disagree with")
    columns = held_out.sample(MOST)
    order = np.argsort(columns.lengths, kind="stable")  # of like length side by side: little is computed in vain
    chunks = [order[i : i + ROWS] for i in range(0, len(order), ROWS)]
    values = np.concatenate([_disagreement(world, columns, chunk) for chunk in chunks])
    return TrustRegion(np.sort(np.where(np.isnan(values), np.float32(np.inf), values)), world.step)


def _disagreement(world: WorldModel, columns: Columns, episodes: np.ndarray) -> np.ndarray:
    """float32 `[N]`: of every step of at most `ROWS` episodes."""
    rows = np.concatenate([episodes, np.repeat(episodes[:1], ROWS - len(episodes))])
    lengths = np.minimum(columns.lengths[rows], LONGEST)
    codec, params = world.dynamics.codec, world.params

    def at(values: Any, first: np.ndarray, t: np.ndarray) -> Any:
        return map_columns(lambda column: _computed(np.asarray(column[first + t])), values)

    context = codec.context.encode([columns.contexts[i] for i in rows])
    first = at(columns.observations, columns.observation_starts[rows], np.zeros_like(lengths))
    state, _ = world.dynamics.start_at(params, jax.random.split(jax.random.key(0), ROWS), first, context=context)
    found = []
    for step in range(int(lengths.max())):
        now = np.minimum(step, lengths - 1)
        action = at(columns.actions, columns.starts[rows], now)
        obs = at(columns.observations, columns.observation_starts[rows], now + 1)
        reward = columns.rewards[columns.starts[rows] + now]
        state, values = _replay(world.dynamics, params, state, action, obs, reward)
        found.append(values)
    taken = np.arange(len(found)) < lengths[: len(episodes), None]
    return np.asarray(jax.device_get(found)).T[: len(episodes)][taken]


def _computed(column: np.ndarray) -> np.ndarray:
    """In the dtype that the model computes in."""
    return column.astype(jax.dtypes.canonicalize_dtype(column.dtype))


def _replay_step(
    dynamics: StepDynamics, params: PyTree, state: StepState, action: PyTree, obs: PyTree, reward: Array
) -> tuple[StepState, Array]:
    disagreement = dynamics.disagreement(params, state, action)
    following = dynamics.observe(params, state, action, obs, reward, jax.numpy.zeros(len(reward), bool))
    return following, disagreement


_replay = jax.jit(_replay_step, static_argnums=0)
