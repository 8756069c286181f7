"""Policies that a command line names: the behaviours that record logs, and trained ones in a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.agents.batch_env import Interface
from worldmodel.agents.behaviour import Behaviour, parse_behaviour
from worldmodel.agents.past import LinearRule, Past
from worldmodel.agents.policies import PureFunction, as_function
from worldmodel.agents.ppo import LearnedPolicy, load_policy
from worldmodel.codec import check_kinds
from worldmodel.spaces import dtype_of
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trajectory import Spec


@dataclasses.dataclass(frozen=True)
class TrainedPolicy:
    """A trained policy as a family of one; otherwise as `Behaviour`."""

    policy: LearnedPolicy
    name: str
    uses_past: bool = False

    def begin(self, spec: Spec, past: Past | None, rng: np.random.Generator) -> OneByOne:
        """Itself, in every episode."""
        del past, rng
        return OneByOne(self.policy, spec)


class OneByOne:
    """Acts on single observations. It has no probabilities: all of it lies in one action."""

    def __init__(self, policy: LearnedPolicy, spec: Spec):
        self.rule: LinearRule | None = None
        self._function, self._params = as_function(policy)
        self._dtype = dtype_of(spec.action_space)

    def act(self, obs: Any) -> Any:
        """As `worldmodel.agents.behaviour.Policy.act`."""
        row = jax.tree.map(lambda leaf: np.asarray(leaf)[None], obs)
        return np.asarray(_act(self._function, self._params, row))[0].astype(self._dtype)


@partial(jax.jit, static_argnums=0)
def _act(function: PureFunction, params: PyTree, obs: PyTree) -> Array:
    return function.run(params, obs, jax.random.split(jax.random.key(0), 1))  # the mode needs no chance


def named_policies(texts: Sequence[str], world: WorldModel) -> tuple[Behaviour | TrainedPolicy, ...]:
    """Reads `random`, `sticky:P`, `linear:EPS`, `search:EPS`, or the file of a trained policy, `FILE.npz`.

    Raises:
      ValueError: none is named, one is unknown or does not suit the spaces, or the file is of another environment.
      FileNotFoundError: there is no such file.
    """
    space = world.spec.action_space
    if not texts:
        raise ValueError("no policy was named; at least one is needed, e.g. random")
    if space["type"] not in ("Discrete", "Box"):
        raise ValueError(f"the action space is {space['type']}; named policies take Discrete or Box")
    interface = Interface(world.spec, world.dynamics.codec)
    policies = tuple(
        TrainedPolicy(load_policy(Path(text), interface), Path(text).stem)
        if text.endswith(".npz")
        else parse_behaviour(text)
        for text in texts
    )
    for policy in policies:
        policy.begin(world.spec, past_of([policy], world.spec), np.random.default_rng(0))  # refuses the spaces early
    return policies


def past_of(policies: Sequence[Behaviour | TrainedPolicy], spec: Spec) -> Past | None:
    """What the first of the policies that breed from earlier episodes begin with; None where none of them does.

    `ValueError` where one of them does, and observations are neither a Box nor Discrete.
    """
    if not any(policy.uses_past for policy in policies):
        return None
    check_kinds(spec)
    return Past(spec)
