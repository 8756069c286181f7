"""Changed physics: at every step the world follows one of two models' predictive distributions, drawn anew."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldmodel._types import Array, Bool, Float, Key, PyTree
from worldmodel.model.dynamics import StepDynamics
from worldmodel.simulator import select_rows
from worldmodel.training.checkpoint import WorldModel

_CHOICE = 0x313
"""Folded into a step's key to draw whose step it is: the models' own draws stay theirs."""


@struct.dataclass
class MixedState:
    """`B` running episodes as either model remembers them."""

    first: PyTree
    second: PyTree


@dataclasses.dataclass(frozen=True)
class MixedDynamics:
    """The mixture of two step models of the same spaces; see `Dynamics`.

    Episodes start as the first model's do. Both models see every transition. `params["members"]` holds those of both,
    `{"first": ..., "second": ...}`; what the logs' starts are is the first model's. `info` of a step is that of the
    model it followed, and has `second` bool `[B]`.

    Attributes:
      first: the world.
      second: the other world.
      share: of steps that follow the second one.
    """

    first: StepDynamics
    second: StepDynamics
    share: float

    def initial(self, params: PyTree, key: Key[Array, " B"], context: Any = None) -> tuple[MixedState, PyTree]:
        """See `Dynamics`."""
        one, obs = self.first.initial(_of(params, "first"), key, context)
        return MixedState(one, self._beside(params, key, obs)), obs

    def start_at(
        self, params: PyTree, key: Key[Array, " B"], obs: PyTree, context: Any = None
    ) -> tuple[MixedState, PyTree]:
        """As `StepDynamics.start_at`."""
        one, obs = self.first.start_at(_of(params, "first"), key, obs, context=context)
        return MixedState(one, self._beside(params, key, obs)), obs

    def advance(
        self, params: PyTree, state: MixedState, action: PyTree, key: Key[Array, " B"], *, uncertainty: bool = False
    ) -> tuple[MixedState, PyTree, Array, Array, dict[str, Array]]:
        """See `Dynamics`."""
        _, *one = self.first.advance(_of(params, "first"), state.first, action, key, uncertainty=uncertainty)
        _, *two = self.second.advance(_of(params, "second"), state.second, action, key, uncertainty=uncertainty)
        other = jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, _CHOICE)))(key) < self.share
        obs, reward, terminated, info = select_rows(other, two, one)
        following = self.observe(params, state, action, obs, reward, terminated)
        return following, obs, reward, terminated, {**info, "second": other}

    def score(
        self, params: PyTree, state: MixedState, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> Float[Array, "members B parts"]:
        """Nats of the mixture: of each member of the first model with the second one, the mean of its members.

        The parts add up to the mixture of the whole transition: each is given those before it.
        """
        transition = action, obs, reward, terminated
        one = self.first.score(_of(params, "first"), state.first, *transition)
        two = self.second.score(_of(params, "second"), state.second, *transition)
        one, two = jnp.cumsum(one, axis=-1), jnp.cumsum(two, axis=-1)
        two = jax.nn.logsumexp(two, axis=0) - jnp.log(jnp.float32(self.second.members))
        shares = jnp.log(jnp.asarray([1.0 - self.share, self.share], jnp.float32))
        whole = jnp.logaddexp(one + shares[0], two + shares[1])
        return jnp.diff(whole, axis=-1, prepend=jnp.zeros((*whole.shape[:-1], 1)))

    def observe(
        self, params: PyTree, state: MixedState, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> MixedState:
        """See `Dynamics`."""
        transition = action, obs, reward, terminated
        return MixedState(
            self.first.observe(_of(params, "first"), state.first, *transition),
            self.second.observe(_of(params, "second"), state.second, *transition),
        )

    def replace_rows(self, where: Bool[Array, " B"], fresh: MixedState, state: MixedState) -> MixedState:
        """Rows of `fresh` where true."""
        return MixedState(
            self.first.replace_rows(where, fresh.first, state.first),
            self.second.replace_rows(where, fresh.second, state.second),
        )

    def take_rows(self, state: MixedState, rows: Array) -> MixedState:
        """The episodes of `rows` int `[N]`."""
        return MixedState(self.first.take_rows(state.first, rows), self.second.take_rows(state.second, rows))

    def _beside(self, params: PyTree, key: Key[Array, " B"], obs: PyTree) -> PyTree:
        return self.second.start_at(_of(params, "second"), key, obs)[0]


def mixed(world: WorldModel, other: WorldModel, share: float) -> tuple[MixedDynamics, PyTree]:
    """The dynamics of a world that follows `other` in a `share` of its steps, and their parameters.

    Raises:
      ValueError: they have different spaces, or the share is outside 0 to 1.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share of mixed worlds is {share}; 0 to 1 is allowed")
    for role in ("observation_space", "action_space"):
        own, its = getattr(world.spec, role), getattr(other.spec, role)
        if own != its:
            raise ValueError(f"worlds cannot be mixed: the {role} of {world.run} is {own}, that of {other.run} {its}")
    members = {"first": world.params["members"], "second": other.params["members"]}
    return MixedDynamics(world.dynamics, other.dynamics, float(share)), {**world.params, "members": members}


def _of(params: PyTree, which: str) -> PyTree:
    return {**params, "members": params["members"][which]}
