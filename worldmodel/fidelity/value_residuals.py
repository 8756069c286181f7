"""How much return a simulator would still give where real episodes went: the residuals behind the attribution of a gap.

For a visited step `(s, a)` that paid `r` and led to `s'`, the residual is `Q^(s, a) - r - V^(s')`: what the simulator
promises there less what reality paid and what the simulator promises after it. Its mean over the visits of a policy,
summed over the steps of an episode, is the gap between simulated and real return, up to how episodes begin (Form A of
the value-difference identity: telescope `V^_t(s_t) - V^_{t+1}(s_{t+1})` along real episodes). `Q^` and `V^` are returns
of imagined episodes from the real history; both sides of a pair use the same random numbers, so that what the two have
in common cancels. One imagined pair per step suffices: the residual is linear in it, hence unbiased.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.agents.policies import PureFunction, as_function
from worldmodel.corpus.columns import Columns
from worldmodel.fidelity.replay import gather, rows, single_members
from worldmodel.simulator import DEFAULT_TIME_LIMIT, Policy, select_rows
from worldmodel.training.checkpoint import WorldModel

CAUSES = ("reward", "end", "dynamics")
"""What a step can be wrong about, in the order of `Residuals.parts`."""
MILESTONES = 8
"""Stretches that episodes are divided into."""


class Visits(NamedTuple):
    """`N` visited steps: episode and step int64 `[N]`, weight float64 `[N]`: one over the chance to be among them."""

    episode: np.ndarray
    step: np.ndarray
    weight: np.ndarray


@dataclasses.dataclass(frozen=True)
class Residuals:
    """What a simulator gets wrong about real episodes, in units of return: at `N` visited steps of `E` episodes.

    Attributes:
      visits: which steps.
      parts: float64 `[N, 3]` by cause, see `CAUSES`.
      milestones: int64 `[K+1]` steps, from 0 to the last of the longest episode.
      promised: float64 `[E, K+1]` return that the simulator promises from each milestone on; 0 once an episode is over.
      earned: float64 `[E, K]` what reality paid between milestones.
      simulated_steps: what it cost.
    """

    visits: Visits
    parts: np.ndarray
    milestones: np.ndarray
    promised: np.ndarray
    earned: np.ndarray
    simulated_steps: int

    @property
    def episodes(self) -> int:
        """Number of real episodes `E`, with or without a visit among those drawn."""
        return len(self.promised)


def draw_visits(lengths: np.ndarray, per_episode: int, seed: int) -> Visits:
    """At most `per_episode` steps of every episode, each step of an episode alike, none twice."""
    if per_episode < 1:
        raise ValueError(f"per_episode is {per_episode}; at least 1 is needed")
    rng = np.random.default_rng(seed)
    picks = [np.sort(rng.permutation(length)[:per_episode]) for length in lengths.tolist()]
    counts = np.array([len(pick) for pick in picks])
    return Visits(
        episode=np.repeat(np.arange(len(lengths)), counts),
        step=np.concatenate(picks).astype(np.int64),
        weight=np.repeat(lengths / counts, counts).astype(np.float64),
    )


def draw_milestones(lengths: np.ndarray) -> np.ndarray:
    """`MILESTONES` or fewer stretches of equal length, to the rounding: int64 `[K+1]`, from 0 to the longest length."""
    longest = int(lengths.max())
    return np.unique(np.linspace(0, longest, min(MILESTONES, longest) + 1).round().astype(np.int64))


def price(lengths: np.ndarray, visits: Visits, *, rollouts: int, time_limit: int, members: int = 1) -> int:
    """Simulated steps that `value_residuals` takes at most: every imagined episode to the time limit."""
    pairs = 2 * (time_limit - visits.step - 1) + 1
    milestones = draw_milestones(lengths)[:-1]
    promises = (lengths[:, None] > milestones) * (time_limit - milestones)
    return int(members * rollouts * (pairs.sum() + promises.sum()))


def value_residuals(
    world: WorldModel, policy: Policy, columns: Columns, visits: Visits, *, rollouts: int = 1, seed: int = 0
) -> Residuals:
    """Residuals of a trained model along complete real episodes under `policy`.

    Args:
      world: the simulator; the model is shown up to a window of real steps before each visit, and every member of an
        ensemble gets `rollouts` of its own, because one member rules an imagined episode.
      policy: the one that ran the episodes.
      columns: the real episodes, each to its end or to the time limit.
      visits: see `draw_visits`.
      rollouts: imagined pairs per visit and member, and imagined episodes per milestone and member.
      seed: of the imagined episodes.

    Raises:
      ValueError: an episode was cut before its end, or has no rewards.
    """
    limit = world.spec.max_episode_steps or DEFAULT_TIME_LIMIT
    check_complete(columns, limit)
    dynamics, members = single_members(world)
    function, policy_params = as_function(policy)
    milestones = draw_milestones(columns.lengths)
    reached = np.argwhere(columns.lengths[:, None] > milestones)
    before = _before(dynamics, columns, visits.episode, visits.step)
    passing = _before(dynamics, columns, reached[:, 0], milestones[reached[:, 1]])
    left = (limit - milestones[reached[:, 1]]).astype(np.int32)
    transition = _transition(columns, visits, limit)
    parts, promises, taken = [], [], 0
    for params, key in zip(members, jax.random.split(jax.random.key(seed), len(members)), strict=True):
        keys = jax.random.split(key)
        common = {"rollouts": rollouts}
        own, steps = residuals_of(dynamics, function, params, policy_params, keys[0], before, transition, **common)
        given, more = promises_of(dynamics, function, params, policy_params, keys[1], passing, left, **common)
        parts.append(own)
        promises.append(given)
        taken += steps + more
    promised = np.zeros((columns.episodes, len(milestones)))
    promised[reached[:, 0], reached[:, 1]] = np.mean(promises, axis=0)
    return Residuals(visits, np.mean(parts, axis=0), milestones, promised, _earned(columns, milestones), taken)


def _before(dynamics: Any, columns: Columns, episode: np.ndarray, step: np.ndarray) -> tuple[Any, Any]:
    """What the model is told before step `[N]` of episode `[N]`, as `residuals_of` takes it."""
    shown = dynamics.config.trunk.window - 1
    past = gather(columns, episode, step - shown, shown)
    return past.beginning(dynamics), (rows(past.obs, np.s_[1:]), past.action, past.reward, past.real)


def _earned(columns: Columns, milestones: np.ndarray) -> np.ndarray:
    out = np.zeros((columns.episodes, len(milestones) - 1))
    for episode, (start, length) in enumerate(zip(columns.starts, columns.lengths, strict=True)):
        sums = np.concatenate([[0.0], np.cumsum(columns.rewards[start : start + length], dtype=np.float64)])
        out[episode] = np.diff(sums[np.minimum(milestones, length)])
    return out


class Transition(NamedTuple):
    """What really happened at `N` visits: action, reward, next obs, whether the episode was over, and steps left."""

    action: PyTree
    reward: np.ndarray
    obs: PyTree
    over: np.ndarray
    left: np.ndarray


def _transition(columns: Columns, visits: Visits, limit: int) -> Transition:
    at = gather(columns, visits.episode, visits.step, 1)
    left = (limit - visits.step - 1).astype(np.int32)
    # An environment that stops before the time limit has ended the episode, whatever it calls it.
    over = (visits.step == columns.lengths[visits.episode] - 1) & (left > 0)
    return Transition(rows(at.action, 0), at.reward[0], rows(at.obs, 1), over, left)


def check_complete(columns: Columns, limit: int) -> None:
    """ValueError where an episode was cut: what it would still have earned is not known."""
    cut = ~columns.terminated & ~columns.truncated & (columns.lengths < limit)
    if cut.any():
        raise ValueError(
            f"episode {int(np.argmax(cut))} was cut at step {int(columns.lengths[np.argmax(cut)])}: returns need "
            "episodes that go on to their end"
        )
    if not columns.has_rewards:
        raise ValueError("the real episodes have no rewards: there is no return to attribute")


def residuals_of(
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


def promises_of(
    dynamics: Any,
    function: PureFunction,
    params: PyTree,
    policy: PyTree,
    key: Array,
    before: tuple[Any, Any],
    left: np.ndarray,
    *,
    rollouts: int,
) -> tuple[np.ndarray, int]:
    """Mean return of imagined episodes that follow real histories: `(float64 [N], simulated steps)`.

    `before` as for `residuals_of`; `left` int32 `[N]`: steps to the time limit.
    """
    begun, keys, left = _opened(dynamics, rollouts, params, key, before, left)
    returns, taken = _continued(dynamics, function, params, policy, *begun, keys, left)
    return np.asarray(returns, np.float64).reshape(-1, rollouts).mean(axis=1), int(taken)


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
    state, _, again = _at(dynamics, rollouts, params, state_key, before)
    action, reward, obs, over, left = jax.tree.map(lambda column: jnp.asarray(column)[again], transition)
    keys = jax.random.split(step_key, len(again))
    drawn, drawn_obs, drawn_reward, ended, _ = dynamics.advance(params, state, action, keys)
    observed = dynamics.observe(params, state, action, obs, reward, jnp.zeros_like(over))
    return _Pairs((drawn, drawn_obs), (observed, obs), drawn_reward, ended, jax.random.split(run_key, len(again)), left)


def _shown(dynamics: Any, params: PyTree, fresh: Any, carry: Any, x: Any) -> tuple[Any, None]:
    obs, action, reward, real = x
    after = dynamics.observe(params, carry[0], action, obs, reward, jnp.zeros_like(real))
    return (_replace(dynamics, ~real, fresh[0], after), select_rows(~real, fresh[1], obs)), None


@partial(jax.jit, static_argnums=(0, 1))
def _opened(
    dynamics: Any, rollouts: int, params: PyTree, key: Array, before: Any, left: Array
) -> tuple[tuple[PyTree, PyTree], Array, Array]:
    state_key, run_key = jax.random.split(key)
    state, obs, again = _at(dynamics, rollouts, params, state_key, before)
    return (state, obs), jax.random.split(run_key, len(again)), left[again]


def _at(dynamics: Any, rollouts: int, params: PyTree, key: Array, before: Any) -> tuple[PyTree, PyTree, Array]:
    """State and observation after real histories, each `rollouts` times over, and which row each came from."""
    start, history = before
    count = history[-1].shape[1]
    fresh, obs = dynamics.start_at(params, jax.random.split(key, count), *start)
    (state, obs), _ = jax.lax.scan(partial(_shown, dynamics, params, (fresh, obs)), (fresh, obs), history)
    again = jnp.repeat(jnp.arange(count), rollouts)
    return _take(dynamics, state, again), jax.tree.map(lambda column: jnp.asarray(column)[again], obs), again


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


def _take(dynamics: Any, state: PyTree, picked: Array) -> PyTree:
    take = getattr(dynamics, "take_rows", lambda state, rows: jax.tree.map(lambda leaf: leaf[rows], state))
    return take(state, picked)


def _replace(dynamics: Any, where: Array, new: PyTree, old: PyTree) -> PyTree:
    return getattr(dynamics, "replace_rows", select_rows)(where, new, old)
