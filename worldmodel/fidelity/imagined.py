"""Imagined episodes that follow real histories: what a simulator promises from there on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.agents.policies import PureFunction
from worldmodel.simulator import replace_rows, select_rows, take_rows


class Imagined(NamedTuple):
    """Returns of `N` histories' imagined episodes, and what a regression of returns learns from.

    returns float64 `[N]`, the mean over `rollouts`; features float32 `[S, F]`, left int32 `[S]` and rest float32 `[S]`:
    states on the way as `features` of `imagine` describes them, steps left there, and return from there on; steps: how
    many were simulated.
    """

    returns: np.ndarray
    features: np.ndarray
    left: np.ndarray
    rest: np.ndarray
    steps: int


def imagine(
    dynamics: Any,
    function: PureFunction,
    params: PyTree,
    policy: PyTree,
    key: Array,
    before: tuple[Any, Any],
    left: np.ndarray,
    *,
    rollouts: int,
    features: Callable[[PyTree], Array],
) -> Imagined:
    """Runs episodes of any `Dynamics` with `start_at` from real histories on.

    `before`: what `start_at` takes, and the real steps from there to each history's end `(obs, action, reward, real)`,
    time first; `left` int32 `[N]`: steps to the time limit; `features`: observations `[B, ...]` -> `[B, F]`.
    """
    longest = int(left.max())
    total, path, steps = _imagine(dynamics, function, rollouts, longest, features, params, policy, key, before, left)
    described, reward, alive = (np.asarray(part) for part in path)
    rest = np.cumsum((reward * alive)[::-1], axis=0, dtype=np.float64)[::-1]
    remaining = np.repeat(left, rollouts) - np.arange(longest)[:, None]
    return Imagined(
        returns=np.asarray(total, np.float64).reshape(-1, rollouts).mean(axis=1),
        features=described[alive],
        left=remaining[alive].astype(np.int32),
        rest=rest[alive].astype(np.float32),
        steps=int(steps),
    )


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _imagine(
    dynamics: Any,
    function: PureFunction,
    rollouts: int,
    longest: int,
    features: Callable[[PyTree], Array],
    params: PyTree,
    policy: PyTree,
    key: Array,
    before: Any,
    left: Array,
) -> tuple[Array, tuple[Array, Array, Array], Array]:
    """Returns `[B]`, each history `rollouts` times over; features, reward, alive by step `[T, B, ...]`; steps taken."""
    state_key, run_key = jax.random.split(key)
    state, obs, again = after_histories(dynamics, rollouts, params, state_key, before)
    keys, left = jax.random.split(run_key, len(again)), left[again]

    def running(carry):
        return jnp.any(carry[2]) & (carry[4] < longest)

    def body(carry):
        state, obs, alive, total, count, path = carry
        now = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, count)))(keys)
        action = function.run(policy, obs, now[:, 0])
        state, after, reward, ended, _ = dynamics.advance(params, state, action, now[:, 1])
        path = jax.tree.map(lambda kept, new: kept.at[count].set(new), path, (features(obs), reward, alive))
        total = total + jnp.where(alive, reward, 0.0)
        return state, after, alive & ~ended & (count + 1 < left), total, count + 1, path

    empty = jax.tree.map(
        lambda x: jnp.zeros((longest, *x.shape), x.dtype), (features(obs), jnp.zeros(len(keys)), left > 0)
    )
    start = (state, obs, left > 0, jnp.zeros(len(keys)), jnp.zeros((), jnp.int32), empty)
    end = jax.lax.while_loop(running, body, start)
    return end[3], end[5], end[5][2].sum()


def after_histories(
    dynamics: Any, rollouts: int, params: PyTree, key: Array, before: Any
) -> tuple[PyTree, PyTree, Array]:
    """State and observation after real histories, each `rollouts` times over, and which row each came from."""
    start, history = before
    count = history[-1].shape[1]
    fresh, obs = dynamics.start_at(params, jax.random.split(key, count), *start)
    (state, obs), _ = jax.lax.scan(partial(_shown, dynamics, params, (fresh, obs)), (fresh, obs), history)
    again = jnp.repeat(jnp.arange(count), rollouts)
    return take_rows(dynamics, state, again), jax.tree.map(lambda column: jnp.asarray(column)[again], obs), again


def _shown(dynamics: Any, params: PyTree, fresh: Any, carry: Any, x: Any) -> tuple[Any, None]:
    obs, action, reward, real = x
    after = dynamics.observe(params, carry[0], action, obs, reward, jnp.zeros_like(real))
    return (replace_rows(dynamics, ~real, fresh[0], after), select_rows(~real, fresh[1], obs)), None
