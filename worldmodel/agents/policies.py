"""Policies of graded strength: what a panel ranks in simulation and in reality."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, Key, PyTree
from worldmodel.agents.batch_env import Interface
from worldmodel.agents.ppo import LearnedPolicy, TrainingResult
from worldmodel.simulator import Policy
from worldmodel.spaces import box_bounds
from worldmodel.trajectory import Spec

MAX_SNAPSHOTS = 6
MIN_PANEL = 8
NOISE_LEVELS = (0.1, 0.3, 0.5, 0.8, 0.2, 0.65)
"""Shares of random actions, the first wanted first."""


@dataclasses.dataclass(frozen=True, eq=False)
class PureFunction:
    """`run(params, obs [B, ...], keys [B]) -> action [B, ...]`.

    Two with the same `same` count as one to a compiler: policies that differ in their parameters alone compile once.
    """

    run: Callable[[PyTree, Array, Array], Array]
    same: Hashable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PureFunction) and self.same == other.same

    def __hash__(self) -> int:
        return hash(self.same)


@dataclasses.dataclass(frozen=True, eq=False)
class NoisedPolicy:
    """Acts as `policy`, but uniformly at random with probability `epsilon`, each row by its own key."""

    policy: Policy
    epsilon: float
    interface: Interface

    @property
    def params(self) -> PyTree:
        """Parameters of the policy, and `epsilon`."""
        return {"policy": as_function(self.policy)[1], "epsilon": np.float32(self.epsilon)}

    def __call__(self, obs: Array, key: Key[Array, " B"], *, params: PyTree = None) -> Array:
        """Environment observations `[B, ...]` -> actions `[B, ...]`."""
        function, own = as_function(self)
        return function.run(own if params is None else params, obs, key)


def as_function(policy: Policy) -> tuple[PureFunction, PyTree]:
    """A policy as a pure function and the parameters to call it with, `()` where it has none.

    A policy with an attribute `params` must take them as a keyword of that name, too.
    """
    if isinstance(policy, NoisedPolicy):
        base, params = as_function(policy.policy)
        spec = policy.interface.spec
        run = _noise(base, spec)
        same = ("noised", base.same, str(spec.action_space))
        return PureFunction(run, same), {"policy": params, "epsilon": np.float32(policy.epsilon)}
    if hasattr(policy, "params"):
        call: Any = policy

        def with_params(params: PyTree, obs: Array, key: Array) -> Array:
            return call(obs, key, params=params)

        # The closure keeps alive what it is known by, so that no other object can take its place in memory.
        same = (id(policy.interface), id(policy.network)) if isinstance(policy, LearnedPolicy) else id(policy)
        return PureFunction(with_params, ("with params", same)), call.params
    return PureFunction(lambda _, obs, key: policy(obs, key), ("plain", id(policy))), ()


def noised(policy: Policy, epsilon: float | int, interface: Interface) -> NoisedPolicy:
    """`policy` with a uniform action of the space in its place with probability `epsilon`.

    Raises:
      ValueError: `epsilon` is outside [0, 1], or actions are an unbounded Box.
    """
    if not 0.0 <= epsilon <= 1.0:
        raise ValueError(f"epsilon is {epsilon}; a probability between 0 and 1 is needed")
    check_bounded(interface.spec)
    return NoisedPolicy(policy, float(epsilon), interface)


def random_policy(spec: Spec) -> Policy:
    """Every action of the space alike; `ValueError` for an unbounded Box."""
    check_bounded(spec)
    return lambda obs, key: _uniform_action(spec, key)


def graded_panel(result: TrainingResult) -> Mapping[str, Policy]:
    """8 to 12 policies by name, from weak to strong: training's snapshots, the last one with noise, and random.

    They differ in parameters alone, so that all of them compile once.
    """
    final = result.policies[-1]
    count = min(len(result.policies), MAX_SNAPSHOTS)
    picks = np.unique(np.linspace(0, len(result.policies) - 1, count).round().astype(int))
    levels = sorted(NOISE_LEVELS[: max(4, MIN_PANEL - 1 - count)], reverse=True)
    interface = final.interface
    panel = {"random": noised(final, 1.0, interface)}
    panel |= {f"final, {level:.0%} random": noised(final, level, interface) for level in levels}
    names = _step_names([int(result.steps[i]) for i in picks[:-1]])
    # Noise of probability zero changes no action; it makes the snapshots the same function as the rest.
    panel |= {name: noised(result.policies[i], 0.0, interface) for name, i in zip(names, picks[:-1], strict=True)}
    return {**panel, "final": noised(final, 0.0, interface)}


def noise_ladder(policy: LearnedPolicy) -> Mapping[str, Policy]:
    """Eight policies by name out of one, from uniformly random to itself."""
    levels = (1.0, *sorted(NOISE_LEVELS, reverse=True), 0.0)
    return {f"{level:.0%} random": noised(policy, level, policy.interface) for level in levels}


def _step_names(steps: list[int]) -> list[str]:
    short = [f"after {n / 1e6:.3g}M steps" if n >= 1e6 else f"after {n / 1e3:.0f}k steps" for n in steps]
    return (
        short
        if len(set(short)) == len(short) and min(steps, default=1000) >= 1000
        else [f"after {n} steps" for n in steps]
    )


def _noise(base: PureFunction, spec: Spec) -> Callable[[PyTree, Array, Array], Array]:
    def run(params: PyTree, obs: Array, key: Array) -> Array:
        keys = jax.vmap(lambda k: jax.random.split(k, 3))(key)
        action = jnp.asarray(base.run(params["policy"], obs, keys[:, 0]))
        astray = jax.vmap(jax.random.uniform)(keys[:, 1]) < params["epsilon"]
        uniform = _uniform_action(spec, keys[:, 2]).astype(action.dtype)
        return jnp.where(astray.reshape(-1, *[1] * (action.ndim - 1)), uniform, action)

    return run


def _uniform_action(spec: Spec, key: Array) -> Array:
    space = spec.action_space
    if space["type"] == "Discrete":
        return jax.vmap(lambda k: jax.random.randint(k, (), space["start"], space["start"] + space["n"]))(key)
    low, high = (bound.astype(np.float32) for bound in box_bounds(space))
    share = jax.vmap(lambda k: jax.random.uniform(k, low.shape))(key)
    if np.issubdtype(np.dtype(space["dtype"]), np.integer):
        return jnp.floor(low + (high - low + 1) * share).astype(space["dtype"])
    return jnp.asarray(low + (high - low) * share).astype(space["dtype"])


def check_bounded(spec: Spec) -> None:
    """`ValueError` where actions are a Box without bounds."""
    if spec.action_space["type"] == "Box" and not all(np.isfinite(b).all() for b in box_bounds(spec.action_space)):
        raise ValueError("action space is a Box without bounds; finite low and high are needed")
