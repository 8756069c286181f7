"""A policy that needs no training: at every step it searches in a model for what to do next.

What really happened is absorbed, so that the model remembers the episode; what was planned is where the next search
begins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from flax import struct

from worldmodel._types import Array, Bool, Key, PyTree
from worldmodel.agents.batch_env import environment_action
from worldmodel.agents.policies import check_bounded
from worldmodel.agents.sequences import SequenceSearch
from worldmodel.simulator import Dynamics, replace_rows, select_rows
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trajectory import Spec


@runtime_checkable
class Search(Protocol):
    """How the next action is found: `SequenceSearch`, `TreeSearch`. Pure, natively batched, hashable."""

    def begin(self, rows: int, actions: int, *, discrete: bool) -> PyTree:
        """The plan of `rows` episodes that begin; leaves `[rows, ...]`."""
        ...

    def search(
        self, dynamics: Dynamics, params: PyTree, act: Callable, belief: PyTree, plan: PyTree, key: Array
    ) -> tuple[Array, PyTree]:
        """The action to take now, as `act` takes it, and the plan to begin the next search with."""
        ...


@struct.dataclass
class PlannerMemory:
    """What a planner carries through `B` episodes: the dynamics' state, and the plan."""

    belief: PyTree
    plan: PyTree


@dataclasses.dataclass(frozen=True)
class Planner:
    """Plans in `dynamics`, learned or true; a `worldmodel.agents.evaluate.PolicyWithMemory`.

    Two of the same dynamics and search count as one to a compiler. Where the model reads a context, it plans in the
    logs' mean of it. Time limits are not looked at.

    Attributes:
      dynamics: where it plans.
      search: how.
      spec: of the environment.
      params: of the dynamics.

    Raises:
      ValueError: actions are neither Discrete nor a bounded Box.
    """

    dynamics: Dynamics
    search: Search
    spec: Spec = dataclasses.field(compare=False)
    params: PyTree = dataclasses.field(compare=False)

    def __post_init__(self):
        if self.spec.action_space["type"] not in ("Discrete", "Box"):
            raise ValueError(f"the action space is {self.spec.action_space['type']}; a planner takes Discrete or Box")
        check_bounded(self.spec)
        self._first_plan(1)  # a search that does not suit these actions says so here

    @classmethod
    def in_model(cls, world: WorldModel, search: Search | None = None) -> Planner:
        """One that plans in a learned model."""
        return cls(world.dynamics, search or SequenceSearch(), world.spec, world.params)

    def begin(self, params: PyTree, obs: PyTree, key: Key[Array, " B"]) -> PlannerMemory:
        """The memory of episodes that begin at observations, columns `[B, ...]`."""
        model: Any = self.dynamics  # the protocol itself cannot start at a given observation
        belief, _ = model.start_at(params, key, obs)
        return PlannerMemory(belief, self._first_plan(key.shape[0]))

    def act(
        self, params: PyTree, memory: PlannerMemory, obs: PyTree, key: Key[Array, " B"]
    ) -> tuple[Array, PlannerMemory]:
        """The environment's actions `[B, ...]`; `obs` is what the memory holds already."""
        del obs
        action, plan = self.search.search(self.dynamics, params, self._act, memory.belief, memory.plan, key)
        return self._act(action), PlannerMemory(memory.belief, plan)

    def observe(
        self, params: PyTree, memory: PlannerMemory, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> PlannerMemory:
        """The memory after a step that really happened."""
        belief = self.dynamics.observe(params, memory.belief, action, obs, reward, terminated)
        return PlannerMemory(belief, memory.plan)

    def replace_rows(self, where: Bool[Array, " B"], fresh: PlannerMemory, memory: PlannerMemory) -> PlannerMemory:
        """Rows of `fresh` where true, of `memory` elsewhere."""
        return PlannerMemory(
            replace_rows(self.dynamics, where, fresh.belief, memory.belief), select_rows(where, fresh.plan, memory.plan)
        )

    def _first_plan(self, rows: int) -> PyTree:
        space = self.spec.action_space
        discrete = space["type"] == "Discrete"
        width = space["n"] if discrete else math.prod(space["shape"])
        return self.search.begin(rows, width, discrete=discrete)

    def _act(self, action: Array) -> Array:
        return environment_action(self.spec.action_space, action)
