"""Classic control in pure JAX: gymnax's physics behind one small form, so that faults can be planted in any of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array


@dataclasses.dataclass(frozen=True)
class Task:
    """One task; all functions are of one episode. A state is a vector float32 `[D]`.

    Attributes:
      name: of the task.
      physics: names of the parameters that instances vary, each times a factor.
      begin: `(unit [D]) -> state`: where an episode starts, of uniform numbers in [-1, 1].
      step: `(state, action [], factors [P]) -> (state, reward [])`; the action is a category, or a number in [-1, 1].
        Rewards lie in [0, 1].
      ended: `(state) -> bool []`.
      features: `(state) -> [F]`, about as large as 1.
      velocities: which features are velocities.
      better: the state that a simulator's bias pulls to.
      pull: share of the way there in a step, where nothing is left of the physics, `[D]`.
      noise: deviation of a step's noise where nothing is left of the physics, `[D]`.
      push: deviation of the real disturbance at strength 1, `[D]`.
      actions: number of categories; 0: one number.
    """

    name: str
    physics: tuple[str, ...]
    begin: Callable[[Array], Array]
    step: Callable[[Array, Array, Array], tuple[Array, Array]]
    ended: Callable[[Array], Array]
    features: Callable[[Array], Array]
    velocities: tuple[int, ...]
    better: tuple[float, ...]
    pull: tuple[float, ...]
    noise: tuple[float, ...]
    push: tuple[float, ...]
    actions: int

    @property
    def size(self) -> int:
        """Of a state."""
        return len(self.better)

    @property
    def width(self) -> int:
        """Of an observation."""
        return len(self.features(jnp.zeros(self.size)))


def cartpole() -> Task:
    """The pole on a cart: ends where it falls or leaves; every step pays 1."""
    from gymnax.environments.classic_control.cartpole import CartPole, EnvState

    env, own = CartPole(), CartPole().default_params

    def params(factors: Array) -> Any:
        gravity, masspole, length, force = (
            getattr(own, name) * factors[i] for i, name in enumerate(("gravity", "masspole", "length", "force_mag"))
        )
        return own.replace(  # pyright: ignore[reportAttributeAccessIssue]
            gravity=gravity,
            masspole=masspole,
            length=length,
            force_mag=force,
            total_mass=own.masscart + masspole,
            polemass_length=masspole * length,
        )

    def state_of(vector: Array) -> Any:
        return EnvState(x=vector[0], x_dot=vector[1], theta=vector[2], theta_dot=vector[3], time=0)

    def step(vector: Array, action: Array, factors: Array) -> tuple[Array, Array]:
        observed, *_ = env.step_env(None, state_of(vector), action, params(factors))  # pyright: ignore[reportArgumentType]
        return observed, jnp.ones(())

    scale = np.array([2.4, 2.0, 0.21, 2.0], np.float32)
    return Task(
        name="cartpole",
        physics=("gravity", "masspole", "length", "force_mag"),
        begin=lambda unit: 0.05 * unit,
        step=step,
        ended=lambda vector: env.is_terminated(state_of(vector), own),
        features=lambda vector: vector / scale,
        velocities=(1, 3),
        better=(0.0, 0.0, 0.0, 0.0),
        pull=(0.0, 0.0, 0.12, 0.12),
        noise=(0.0, 0.3, 0.0, 0.6),
        push=(0.0, 0.1, 0.0, 0.2),
        actions=2,
    )


def pendulum() -> Task:
    """The pendulum to be swung up: never ends; a step pays 1 upright and still, and near 0 at the worst."""
    from gymnax.environments.classic_control.pendulum import EnvState, Pendulum

    env, own = Pendulum(), Pendulum().default_params

    def step(vector: Array, action: Array, factors: Array) -> tuple[Array, Array]:
        params = own.replace(g=own.g * factors[0], m=own.m * factors[1], l=own.l * factors[2])  # pyright: ignore[reportAttributeAccessIssue]
        state = EnvState(theta=vector[0], theta_dot=vector[1], last_u=jnp.zeros(()), time=0)
        _, after, cost, *_ = env.step_env(None, state, own.max_torque * action, params)  # pyright: ignore[reportArgumentType]
        angle = (after.theta + jnp.pi) % (2 * jnp.pi) - jnp.pi
        return jnp.stack([angle, after.theta_dot]), 1.0 + cost / 16.2736

    return Task(
        name="pendulum",
        physics=("g", "m", "l"),
        begin=lambda unit: unit * jnp.array([jnp.pi, 1.0]),
        step=step,
        ended=lambda vector: jnp.zeros((), bool),
        features=lambda vector: jnp.stack([jnp.cos(vector[0]), jnp.sin(vector[0]), vector[1] / 4.0]),
        velocities=(2,),
        better=(0.0, 0.0),
        pull=(0.1, 0.1),
        noise=(0.2, 1.0),
        push=(0.0, 0.3),
        actions=0,
    )


TASKS: Mapping[str, Callable[[], Task]] = {"cartpole": cartpole, "pendulum": pendulum}
