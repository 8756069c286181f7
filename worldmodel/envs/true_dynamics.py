"""A known environment behind the `Dynamics` protocol: the perfect model that a learned one is compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium.experimental.functional import FuncEnv

from worldmodel._types import Array, Float, Key, PyTree
from worldmodel.trajectory import Spec


@dataclasses.dataclass(frozen=True)
class TrueDynamics:
    """A functional Gymnasium environment, natively batched; its `params` are the environment's.

    The state of `B` episodes is the environment's, columns `[B, ...]`. There is no density: `score` is refused.

    Attributes:
      env: pure functions of one episode.
      state_of: observation -> state, of one episode: what `observe` and `start_at` know of it.
    """

    env: FuncEnv
    state_of: Callable[[Any], Any]

    def initial(self, params: PyTree, key: Key[Array, " B"], context: Any = None) -> tuple[PyTree, PyTree]:
        """As `Dynamics.initial`; there is no context."""
        del context
        state = jax.vmap(lambda k: self.env.initial(k, params))(key)
        return state, self._observation(params, state)

    def start_at(
        self, params: PyTree, key: Key[Array, " B"], obs: PyTree, context: Any = None
    ) -> tuple[PyTree, PyTree]:
        """Starts every row at a given observation, columns `[B, ...]`."""
        del params, key, context
        return jax.vmap(self.state_of)(obs), obs

    def advance(
        self, params: PyTree, state: PyTree, action: PyTree, key: Key[Array, " B"], *, uncertainty: bool = False
    ) -> tuple[PyTree, PyTree, Float[Array, " B"], Array, dict[str, Array]]:
        """As `Dynamics.advance`; a known world is never in doubt."""

        def one(state, action, key):
            following = self.env.transition(state, action, key, params)
            reward = self.env.reward(state, action, following, key, params)
            end = self.env.terminal(following, key, params)
            return following, jnp.asarray(reward, jnp.float32), jnp.asarray(end, bool)

        with jax.numpy_dtype_promotion("standard"):  # Gymnasium mixes types
            state, reward, end = jax.vmap(one)(state, action, key)
        info = {"disagreement": jnp.zeros_like(reward)} if uncertainty else {}
        return state, self._observation(params, state), reward, end, info

    def score(
        self, params: PyTree, state: PyTree, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> Array:
        """Refused."""
        raise ValueError("true dynamics have no density; score needs a learned model")

    def observe(
        self, params: PyTree, state: PyTree, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> PyTree:
        """The state that is seen."""
        del params, state, action, reward, terminated
        return jax.vmap(self.state_of)(obs)

    def _observation(self, params: PyTree, state: PyTree) -> PyTree:
        return jax.vmap(lambda s: self.env.observation(s, None, params))(state)


def _pendulum(kwargs: Mapping[str, Any]) -> tuple[FuncEnv, Any]:
    from gymnasium.envs.phys2d.pendulum import PendulumFunctional, PendulumParams

    return PendulumFunctional(), PendulumParams(**kwargs)


def _cartpole(kwargs: Mapping[str, Any]) -> tuple[FuncEnv, Any]:
    from gymnasium.envs.phys2d.cartpole import CartPoleFunctional, CartPoleParams

    params = CartPoleParams(**kwargs)
    # Gymnasium's functional form adds the pole's mass to its length where CartPole-v1 multiplies them.
    return CartPoleFunctional(), params.replace(polemass_length=params.masspole * params.length)  # pyright: ignore[reportAttributeAccessIssue]


def _angle_and_speed(obs: Array) -> Array:
    return jnp.stack([jnp.arctan2(obs[1], obs[0]), obs[2]])


# Environment id -> its functional form and parameters, and the state that an observation shows.
KNOWN: dict[str, tuple[Callable[[Mapping[str, Any]], tuple[FuncEnv, Any]], Callable[[Any], Any]]] = {
    "CartPole-v1": (_cartpole, lambda obs: obs),
    "Pendulum-v1": (_pendulum, _angle_and_speed),
}


def true_dynamics(spec: Spec) -> tuple[TrueDynamics, PyTree]:
    """The dynamics of the environment that `spec` names, and their parameters; `ValueError` where none are known.

    The environment's arguments become parameters of the same name (`g` of Pendulum).
    """
    name = (spec.env_id or "").rpartition(":")[2]
    if name not in KNOWN:
        known = ", ".join(KNOWN)
        raise ValueError(f"the true dynamics of {spec.env_id or 'unnamed logs'} are not known; known are {known}")
    build, state_of = KNOWN[name]
    try:
        env, params = build(spec.env_kwargs)
    except TypeError as error:
        raise ValueError(f"the true dynamics of {spec.env_id} do not take its arguments: {error}") from None
    return TrueDynamics(env, state_of), params
