"""Residuals of single steps of any `Dynamics` under a policy's values: see `value_residuals`."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.agents.policies import PureFunction
from worldmodel.fidelity.fitted_value import FittedValue
from worldmodel.fidelity.imagined import after_histories

CAUSES = ("reward", "end", "dynamics")
"""What a step can be wrong about, in the order of `Residuals.parts`."""
SAMPLES = 8
"""Next states drawn per visit and member where values are fitted."""


class Transition(NamedTuple):
    """What really happened at `N` visits: action, reward, next obs, whether the episode was over, and steps left."""

    action: PyTree
    reward: np.ndarray
    obs: PyTree
    over: np.ndarray
    left: np.ndarray


def fitted_residuals(
    dynamics: Any,
    value: FittedValue,
    describe: Any,
    params: PyTree,
    key: Array,
    before: tuple[Any, Any],
    transition: Transition,
) -> tuple[np.ndarray, np.ndarray]:
    """Residuals under fitted values, and how far drawn transitions lie from the real one.

    `before` and `transition` as for `imagined_residuals`.

    Returns:
      `(parts float64 [N, 3], distance float64 [N])`; the distance is Euclidean, over what `describe` gives of the next
      state, the reward in standard deviations of the real ones, and the end.
    """
    weights = value.params, value.centre, value.scale, value.mean, value.spread
    parts, distance = _fitted(dynamics, describe, params, weights, key, before, transition)
    return np.asarray(parts, np.float64), np.asarray(distance, np.float64)


@partial(jax.jit, static_argnums=(0, 1))
def _fitted(
    dynamics: Any, describe: Any, params: PyTree, weights: Any, key: Array, before: Any, transition: Transition
) -> tuple[Array, Array]:
    value = FittedValue(*weights, explained=0.0)
    state_key, step_key = jax.random.split(key)
    state, _, _ = after_histories(dynamics, 1, params, state_key, before)
    real = describe(transition.obs)
    after = value(real, transition.left)
    over = jnp.asarray(transition.over).astype(jnp.float32)
    spread = jnp.std(transition.reward)
    spread = jnp.where(spread > 0.0, spread, 1.0)

    def draw(keys):
        _, obs, reward, ended, _ = dynamics.advance(params, state, transition.action, keys)
        ends = ended.astype(jnp.float32)
        seen = describe(obs)
        parts = reward - transition.reward, (over - ends) * after, (1.0 - ends) * (value(seen, transition.left) - after)
        apart = (parts[0] / spread) ** 2 + (over - ends) ** 2 + jnp.sum((seen - real) ** 2, axis=-1)
        return jnp.stack(parts, axis=-1), apart

    parts, squares = jax.lax.map(draw, jax.random.split(step_key, (SAMPLES, len(transition.reward))))
    return parts.mean(axis=0), jnp.sqrt(squares.mean(axis=0))


def imagined_residuals(
    dynamics: Any,
    function: PureFunction,
    params: PyTree,
    policy: PyTree,
    key: Array,
    before: tuple[Any, Any],
    transition: Transition,
    *,
    rollouts: int,
) -> tuple[np.ndarray, int]:
    """Residuals of any `Dynamics` with `start_at`: `(parts float64 [N, 3], simulated steps)`.

    `before`: what `start_at` takes, and the real steps from there to each visit `(obs, action, reward, real)`, time
    first; `transition`: what really happened there.
    """
    pairs = _pairs(dynamics, rollouts, params, key, before, transition)
    continued = partial(_continued, dynamics, function, params, policy)
    promised, first = continued(*pairs.imagined, pairs.keys, jnp.where(pairs.ended, 0, pairs.left))
    after, second = continued(*pairs.observed, pairs.keys, pairs.left)
    parts = _parts(pairs.reward, pairs.ended, promised, after, transition, rollouts)
    return np.asarray(parts, np.float64), int(first) + int(second) + len(pairs.keys)


class _Pairs(NamedTuple):
    imagined: tuple[PyTree, PyTree]
    observed: tuple[PyTree, PyTree]
    reward: Array
    ended: Array
    keys: Array
    left: Array


@partial(jax.jit, static_argnums=(0, 1))
def _pairs(dynamics: Any, rollouts: int, params: PyTree, key: Array, before: Any, transition: Transition) -> _Pairs:
    """Every visit `rollouts` times over, a step further: as the simulator draws it, and as it really went."""
    state_key, step_key, run_key = jax.random.split(key, 3)
    state, _, again = after_histories(dynamics, rollouts, params, state_key, before)
    action, reward, obs, over, left = jax.tree.map(lambda column: jnp.asarray(column)[again], transition)
    keys = jax.random.split(step_key, len(again))
    drawn, drawn_obs, drawn_reward, ended, _ = dynamics.advance(params, state, action, keys)
    observed = dynamics.observe(params, state, action, obs, reward, jnp.zeros_like(over))
    return _Pairs((drawn, drawn_obs), (observed, obs), drawn_reward, ended, jax.random.split(run_key, len(again)), left)


@partial(jax.jit, static_argnums=(0, 1))
def _continued(
    dynamics: Any,
    function: PureFunction,
    params: PyTree,
    policy: PyTree,
    state: PyTree,
    obs: PyTree,
    keys: Array,
    left: Array,
) -> tuple[Array, Array]:
    """Return of every row `[B]` until it ends or has no steps `left` `[B]`; and how many steps all of them took."""

    def running(carry):
        return jnp.any(carry[2])

    def body(carry):
        state, obs, alive, total, count, taken = carry
        now = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, count)))(keys)
        action = function.run(policy, obs, now[:, 0])
        state, obs, reward, ended, _ = dynamics.advance(params, state, action, now[:, 1])
        total, taken = total + jnp.where(alive, reward, 0.0), taken + alive.sum()
        return state, obs, alive & ~ended & (count + 1 < left), total, count + 1, taken

    zero = jnp.zeros((), jnp.int32)
    rest = jax.lax.while_loop(running, body, (state, obs, left > 0, jnp.zeros(len(keys)), zero, zero))
    return rest[3], rest[5]


@partial(jax.jit, static_argnums=5)
def _parts(reward: Array, ended: Array, promised: Array, after: Array, transition: Transition, rollouts: int) -> Array:
    """Means over each visit's pairs, `[N, 3]`: they add up to `r^ + (1-d^) V^(s^') - r - (1-d) V^(s')`."""
    over, ends = jnp.repeat(jnp.asarray(transition.over), rollouts).astype(jnp.float32), ended.astype(jnp.float32)
    parts = (
        reward - jnp.repeat(jnp.asarray(transition.reward), rollouts),
        (over - ends) * after,
        (1.0 - ends) * (promised - after),
    )
    return jnp.stack(parts, axis=-1).reshape(-1, rollouts, len(CAUSES)).mean(axis=1)
