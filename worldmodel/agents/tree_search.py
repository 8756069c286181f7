"""Planning by a search tree over the actions of a Discrete space, with `mctx` (pip install 'worldmodel[mctx]').

Gumbel MuZero (Danihelka et al. 2022, "Policy improvement by planning with Gumbel"), with a model in the place of the
learned one, all actions alike as the prior, and the return of random play as a state's value. A node holds one sampled
outcome of its action, each drawn under a member of its own where the model is an ensemble.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from worldmodel._types import Array, Key, PyTree
from worldmodel.agents.sequences import imagined_return
from worldmodel.simulator import Dynamics, take_rows


@dataclasses.dataclass(frozen=True)
class TreeSearch:
    """How far a tree is grown; a step costs `simulations * (1 + rollout)` imagined ones, times the members.

    Attributes:
      simulations: nodes that are added to the tree.
      rollout: steps of random play that tell a new node's value.
      discount: of a reward a step later.

    Raises:
      ValueError: a number is out of range, or `mctx` is not installed.
    """

    simulations: int = 64
    rollout: int = 20
    discount: float = 0.99

    def __post_init__(self):
        if min(self.simulations, self.rollout) < 1 or not 0 < self.discount <= 1:
            raise ValueError(
                f"simulations {self.simulations}, rollout {self.rollout}, discount {self.discount}: "
                "at least 1, at least 1, and above 0 and at most 1 are needed"
            )
        if importlib.util.find_spec("mctx") is None:
            raise ValueError("tree search needs mctx, which is not installed: pip install 'worldmodel[mctx]'")

    def begin(self, rows: int, actions: int, *, discrete: bool) -> PyTree:
        """How many actions there are, as logits that prefer none, float32 `[rows, K]`; no tree is kept."""
        if not discrete:
            raise ValueError("tree search takes Discrete actions; SequenceSearch takes a Box")
        return jnp.zeros((rows, actions))

    def search(
        self, dynamics: Dynamics, params: PyTree, act: Callable, belief: PyTree, plan: Array, key: Key[Array, " B"]
    ) -> tuple[Array, Array]:
        """As `worldmodel.agents.planner.Search.search`: the action that the tree favours, counted from 0."""

        def one(row: Array, key: Array) -> Array:
            return self._grow(dynamics, params, act, take_rows(dynamics, belief, row[None]), plan.shape[1], key)

        return jax.vmap(one)(jnp.arange(plan.shape[0]), key), plan

    def _grow(
        self, dynamics: Dynamics, params: PyTree, act: Callable, belief: PyTree, actions: int, key: Array
    ) -> Array:
        """The best action of one episode, int32 `[]`."""
        import mctx  # pyright: ignore[reportMissingImports]

        def value(state: PyTree, key: Array) -> Array:
            play, chances = jax.random.split(key)
            drawn = jax.random.randint(play, (self.rollout, 1), 0, actions)
            return imagined_return(dynamics, params, state, act(drawn), chances[None], self.discount)

        def expand(params: PyTree, key: Array, action: Array, node: PyTree) -> tuple[Any, PyTree]:
            member, step, rest = jax.random.split(key, 3)
            state = _drawn_member(dynamics, _unpacked(node), member)
            state, _, reward, end, _ = dynamics.advance(params, state, act(action), step[None])
            following = mctx.RecurrentFnOutput(
                reward=reward,
                discount=jnp.where(end, 0.0, self.discount),
                prior_logits=jnp.zeros((1, actions)),
                value=jnp.where(end, 0.0, value(state, rest)),
            )
            return following, _packed(state)

        at_root, grow = jax.random.split(key)
        # mctx mixes types, and takes a state as a node's arrays `[1, ...]`.
        with jax.numpy_dtype_promotion("standard"):
            root = mctx.RootFnOutput(
                prior_logits=jnp.zeros((1, actions)), value=value(belief, at_root), embedding=_packed(belief)
            )
            found = mctx.gumbel_muzero_policy(
                params, grow, root, expand, num_simulations=self.simulations, gumbel_scale=0.0
            )
        return found.action[0].astype(jnp.int32)


def _packed(state: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[None], state)


def _unpacked(node: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], node)


def _drawn_member(dynamics: Any, state: PyTree, key: Array) -> PyTree:
    """The state of a member drawn anew, where there are several."""
    members = getattr(dynamics, "members", 1)
    if members == 1:
        return state
    member = jax.random.randint(key, state.member.shape, 0, members).astype(state.member.dtype)
    return dataclasses.replace(state, member=member)
