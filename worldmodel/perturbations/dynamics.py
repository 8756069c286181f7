"""A world that is disturbed: perturbations around any dynamics, which is itself a dynamics."""

from __future__ import annotations

import dataclasses
from typing import Any

from flax import struct

from worldmodel._types import Array, Bool, Float, Key, PyTree
from worldmodel.codec import StepCodec
from worldmodel.perturbations.composition import Perturbations, PerturbationState
from worldmodel.simulator import replace_rows, select_rows, take_rows


@struct.dataclass
class PerturbedState:
    """`B` running episodes: the world's own state, and that of what disturbs it."""

    world: PyTree
    perturbations: PerturbationState


@dataclasses.dataclass(frozen=True)
class PerturbedDynamics:
    """See `Dynamics`. The world draws as it would undisturbed: at strength 0 every bit is the same.

    An episode's first observation, and what `observe` is told, are undisturbed. `score` is that of the world for
    the action that reached it. `info` of a step has also `strength`, float32 `[B]`.

    Attributes:
      dynamics: the world.
      perturbations: what disturbs it.
      codec: of the world's values.
    """

    dynamics: Any
    perturbations: Perturbations
    codec: StepCodec

    def initial(self, params: PyTree, key: Key[Array, " B"], context: Any = None) -> tuple[PerturbedState, PyTree]:
        """See `Dynamics`."""
        return self._begun(key, *self.dynamics.initial(params, key, context))

    def start_at(
        self, params: PyTree, key: Key[Array, " B"], obs: PyTree, context: Any = None
    ) -> tuple[PerturbedState, PyTree]:
        """As `StepDynamics.start_at`."""
        return self._begun(key, *self.dynamics.start_at(params, key, obs, context=context))

    def advance(
        self, params: PyTree, state: PerturbedState, action: PyTree, key: Key[Array, " B"], *, uncertainty: bool = False
    ) -> tuple[PerturbedState, PyTree, Array, Array, dict[str, Array]]:
        """See `Dynamics`; `info` is of what really happened in the world."""
        own, executed = self.perturbations.act(self.codec, state.perturbations, action)
        world, obs, reward, terminated, info = self.dynamics.advance(
            params, state.world, executed, key, uncertainty=uncertainty
        )
        info = {**info, "strength": own.strength}
        own, obs, reward = self.perturbations.sense(self.codec, own, obs, reward)
        return PerturbedState(world, own), obs, reward, terminated, info

    def score(
        self, params: PyTree, state: PerturbedState, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> Float[Array, "members B parts"]:
        """See `Dynamics`."""
        return self.dynamics.score(params, state.world, action, obs, reward, terminated)

    def observe(
        self, params: PyTree, state: PerturbedState, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> PerturbedState:
        """See `Dynamics`."""
        world = self.dynamics.observe(params, state.world, action, obs, reward, terminated)
        return PerturbedState(world, self.perturbations.live(self.codec, state.perturbations, action, obs, reward))

    def replace_rows(self, where: Bool[Array, " B"], fresh: PerturbedState, state: PerturbedState) -> PerturbedState:
        """Rows of `fresh` where true; a progressive strength goes on from the episode before."""
        return PerturbedState(
            replace_rows(self.dynamics, where, fresh.world, state.world),
            self.perturbations.replace_rows(where, fresh.perturbations, state.perturbations),
        )

    def follow(self, where: Bool[Array, " B"], fresh: PerturbedState, before: PerturbedState) -> PerturbedState:
        """`fresh` in every row; where true, at the strength that the row's episode in `before` earned."""
        own = self.perturbations.replace_rows(where, fresh.perturbations, before.perturbations)
        return PerturbedState(fresh.world, select_rows(where, own, fresh.perturbations))

    def take_rows(self, state: PerturbedState, rows: Array) -> PerturbedState:
        """The episodes of `rows` int `[N]`, which may repeat."""
        return PerturbedState(
            take_rows(self.dynamics, state.world, rows), self.perturbations.take_rows(state.perturbations, rows)
        )

    def _begun(self, key: Key[Array, " B"], world: PyTree, obs: PyTree) -> tuple[PerturbedState, PyTree]:
        return PerturbedState(world, self.perturbations.begin(self.codec, key, obs)), obs
