"""A known environment in the place of a learned model: what a probe is tried on, with a fault planted or without."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from worldmodel._types import Array, Bool, PyTree
from worldmodel.corpus.columns import Columns
from worldmodel.envs.true_dynamics import TrueDynamics
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import StepConfig
from worldmodel.simulator import select_rows
from worldmodel.training.checkpoint import WorldModel
from worldmodel.training.claim import codec_of
from worldmodel.trajectory import Spec


@dataclasses.dataclass(frozen=True)
class KnownDynamics(StepDynamics):
    """A `TrueDynamics` with the face of a learned model of one member; `params["members"]` are the environment's.

    Central predictions are draws: the same as the truth where no chance decides. It has no density: scores are NaN.

    Attributes:
      known: the environment.
    """

    known: TrueDynamics = None  # pyright: ignore[reportAssignmentType] (the fields before it have defaults)

    def initial(self, params: PyTree, key: Array, context: Any = None) -> tuple[Any, PyTree]:
        """As `Dynamics.initial`: the environment's own beginnings."""
        return self.known.initial(_own(params), key)

    def start_at(
        self, params: PyTree, key: Array, obs: PyTree, last_reward: Any = None, context: Any = None
    ) -> tuple[Any, PyTree]:
        """Starts every row at a given observation, columns `[B, ...]`."""
        return self.known.start_at(_own(params), key, obs)

    def replace_rows(self, where: Bool[Array, " B"], fresh: Any, state: Any) -> Any:
        """`fresh` where true, `state` elsewhere."""
        return select_rows(where, fresh, state)

    def take_rows(self, state: Any, rows: Array) -> Any:
        """The episodes of `rows` int `[N]`, which may repeat."""
        return jax.tree.map(lambda leaf: leaf[rows], state)

    def advance(
        self, params: PyTree, state: Any, action: PyTree, key: Array, *, uncertainty: bool = False
    ) -> tuple[Any, PyTree, Array, Array, dict[str, Array]]:
        """As `Dynamics.advance`."""
        state, obs, reward, end, info = self.known.advance(_own(params), state, action, key, uncertainty=uncertainty)
        return state, obs, reward, end, {**info, "end_probability": end.astype(jnp.float32)}

    def predict(self, params: PyTree, state: Any, action: PyTree) -> tuple[PyTree, Array, Array]:
        """One draw, as `StepDynamics.predict` gives its central prediction."""
        keys = jax.random.split(jax.random.key(0), len(jax.tree.leaves(action)[0]))
        _, obs, reward, end, _ = self.known.advance(_own(params), state, action, keys)
        return jax.tree.map(lambda x: x[None], obs), reward[None], end.astype(jnp.float32)[None]

    def score(self, params: PyTree, state: Any, action: PyTree, obs: PyTree, reward: Array, terminated: Array) -> Array:
        """NaN `[1, B, 3]`."""
        return jnp.full((1, len(reward), 3), jnp.nan, jnp.float32)

    def observe(self, params: PyTree, state: Any, action: PyTree, obs: PyTree, reward: Array, terminated: Array) -> Any:
        """The state that is seen."""
        return self.known.observe(_own(params), state, action, obs, reward, terminated)

    def disagreement(self, params: PyTree, state: Any, action: PyTree) -> Array:
        """Nobody disagrees."""
        return jnp.zeros(len(jax.tree.leaves(action)[0]), jnp.float32)


def known_world(spec: Spec, known: TrueDynamics, params: PyTree, columns: Columns) -> WorldModel:
    """The environment as a `WorldModel`, for `wm.probe` and all that a learned one is put to.

    Args:
      spec: of the environment that it stands for.
      known: its dynamics, faults planted or not; every observation must tell the whole state.
      params: the environment's.
      columns: logs, whose observations and rewards set the units.
    """
    config = StepConfig(members=1)
    # Two positions: the shortest history that is no special case.
    config = dataclasses.replace(config, trunk=dataclasses.replace(config.trunk, window=2))
    dynamics = KnownDynamics(config, codec_of(spec, columns), known=known)
    starts = jax.tree.map(lambda column: jnp.asarray(column[columns.observation_starts]), columns.observations)
    members = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], params)
    return WorldModel(spec, dynamics, {"members": members, "starts": starts}, Path(f"known {spec.env_id}"), 0)


def _own(params: PyTree) -> PyTree:
    """The environment's parameters, of the one member."""
    return jax.tree.map(lambda leaf: leaf[0], params["members"])
