"""Replaying logged episodes through a model: the compiled half of the one-step and the open-loop probe.

`E` episodes or starts, `M` members, `D` dimensions of a flattened observation (numbers, then categories: see
`flatten` of the codecs).
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.codec import StepCodec, TreeCodec
from worldmodel.corpus.columns import Columns
from worldmodel.corpus.windows import rows_of
from worldmodel.model.dynamics import StepDynamics
from worldmodel.spaces import at, map_columns
from worldmodel.training.checkpoint import WorldModel

SAMPLES = 19
"""Sampled observations per transition, for coverage: 20 equal ranks, of which the outer two are the 10% beyond 90%."""


def single_members(world: WorldModel) -> tuple[StepDynamics, list[PyTree]]:
    """The ensemble as a model of one member, and the parameters of each: a smaller program, compiled once.

    A member alone follows its rows as it does in the ensemble.
    """
    dynamics = dataclasses.replace(
        world.dynamics, config=dataclasses.replace(world.dynamics.config, members=1), grouped=False
    )
    members, rest = world.params["members"], {k: v for k, v in world.params.items() if k != "members"}
    count = world.dynamics.members
    return dynamics, [{"members": jax.tree.map(lambda x, m=m: x[m : m + 1], members), **rest} for m in range(count)]


@dataclasses.dataclass(frozen=True)
class Replay:
    """Transitions of `E` episodes side by side, time first; an episode's last one is repeated to the common length `T`.

    obs columns `[T+1, E, ...]`, action columns `[T, E, ...]`, reward float32 `[T, E]`, terminated and real bool
    `[T, E]`, `real` False for the repetitions, episode int64 `[E]` index in the columns, last_reward float32 `[E]` what
    the step before the first paid, NaN where there was none, contexts of the `E` episodes, plain JSON.
    """

    obs: PyTree
    action: PyTree
    reward: np.ndarray
    terminated: np.ndarray
    real: np.ndarray
    episode: np.ndarray
    last_reward: np.ndarray
    contexts: tuple[Any, ...]

    def beginning(self, dynamics: StepDynamics) -> tuple[PyTree, np.ndarray, np.ndarray]:
        """What `StepDynamics.start_at` takes: first observations, what the steps before paid, encoded contexts."""
        return rows(self.obs, 0), self.last_reward, dynamics.codec.context.encode(self.contexts)


def gather(columns: Columns, episodes: np.ndarray, first: np.ndarray, steps: int) -> Replay:
    """`steps` transitions of each of `episodes` `[E]` from transition `first` `[E]` on.

    Times before an episode's start show its first observation, times after its end its last; `real` is False there.
    """
    time = first + np.arange(steps + 1)[:, None]
    lengths = columns.lengths[episodes]
    row = columns.starts[episodes] + np.clip(time[:-1], 0, lengths - 1)
    return Replay(
        obs=rows_of(columns.observations, columns.observation_starts[episodes] + np.clip(time, 0, lengths)),
        action=rows_of(columns.actions, row),
        reward=columns.rewards[row],
        terminated=columns.terminated_rows[row],
        real=(time[:-1] >= 0) & (time[:-1] < lengths),
        episode=episodes,
        last_reward=np.where(
            first > 0, columns.rewards[columns.starts[episodes] + np.maximum(first - 1, 0)], np.float32(np.nan)
        ),
        contexts=tuple(columns.contexts[int(episode)] for episode in episodes),
    )


def flat_observations(world: WorldModel, obs: PyTree) -> np.ndarray:
    """Columns of observations `[N, ...]` as float64 `[N, D]`, laid out as by the codec where they have parts."""
    codec = world.dynamics.codec.observation
    if isinstance(codec, TreeCodec):
        return np.asarray(codec.flatten(obs), np.float64)
    return np.asarray(obs).reshape(len(obs), -1).astype(np.float64)


def rows(columns: PyTree, where: Any) -> PyTree:
    """`column[where]` of every column."""
    return map_columns(lambda column: column[where], columns)


def draw_starts(columns: Columns, steps: int, starts: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Episodes int64 `[n]` and transitions within them `[n]`, `n <= starts`, each with `steps` logged steps to come.

    None is drawn twice; episodes get equal shares as far as they have starts, so that no long episode outweighs all.
    """
    rng = np.random.default_rng(seed)
    places = {int(e): rng.permutation(columns.lengths[e] - steps + 1) for e in np.flatnonzero(columns.lengths >= steps)}
    picked: list[tuple[int, int]] = []
    turn = 0
    while len(picked) < starts and any(turn < len(firsts) for firsts in places.values()):
        ready = [e for e, firsts in places.items() if turn < len(firsts)]
        picked += [(e, int(places[e][turn])) for e in rng.permutation(ready)[: starts - len(picked)].tolist()]
        turn += 1
    episodes, first = np.array(sorted(picked), np.int64).reshape(-1, 2).T
    return episodes, first


class Forced(NamedTuple):
    """What every member said of each transition with everything before it real; `[T, M, E, ...]`.

    prediction float32 `[T, M, E, D]`: central prediction of the observation; reward and end `[T, M, E]`: reward given
    it, and P(end) given both; sampled_end `[T, M, E]`: P(end) given a sampled observation and reward, averaged over
    `SAMPLES`, which is what an imagined episode is exposed to; log_prob `[T, M, E]`: nats of the true observation;
    below, equal int32 `[T, M, E, D]`: how many of `SAMPLES` sampled observations lie below the truth, and on it;
    pixels `[T, M, E]`: share of the pixels of pictures that the central prediction has right, NaN without pictures.
    """

    prediction: Any
    reward: Any
    end: Any
    sampled_end: Any
    log_prob: Any
    below: Any
    equal: Any
    pixels: Any


def teacher_forced(world: WorldModel, replay: Replay, seed: int) -> Forced:
    """Runs every member along the real episodes."""
    dynamics, members = single_members(world)
    xs = (rows(replay.obs, np.s_[1:]), replay.action, replay.reward, replay.terminated)
    first = replay.beginning(dynamics)
    keys = jax.random.split(jax.random.key(seed), len(members))
    said = [
        jax.tree.map(np.asarray, _teacher_forced(dynamics, params, key, first, *xs))
        for params, key in zip(members, keys, strict=True)
    ]
    return Forced(*(np.concatenate(parts, axis=1) for parts in zip(*said, strict=True)))


@partial(jax.jit, static_argnums=0)
def _teacher_forced(dynamics: StepDynamics, params: PyTree, key: Array, first: Any, *xs: PyTree) -> Forced:
    count = len(first[1])
    start_key, sample_key = jax.random.split(key)
    state, _ = dynamics.start_at(params, jax.random.split(start_key, count), *first)
    flatten = dynamics.codec.observation.flatten

    def body(state, x):
        (obs, action, reward, terminated), key = x
        central, central_reward, end = dynamics.predict(params, state, action)
        draw = jax.vmap(lambda k: dynamics.advance(params, state, action, k))
        _, drawn, _, _, info = draw(jax.random.split(key, (SAMPLES, count)))
        samples, truth = flatten(drawn), flatten(obs)
        out = Forced(
            prediction=flatten(central),
            reward=central_reward,
            end=end,
            sampled_end=jnp.mean(info["end_probability"], axis=0)[None],
            log_prob=dynamics.score(params, state, action, obs, reward, terminated)[..., 0],
            below=jnp.sum((samples < truth).astype(jnp.int32), axis=0)[None],
            equal=jnp.sum((samples == truth).astype(jnp.int32), axis=0)[None],
            pixels=same_pixels(dynamics.codec, central, jax.tree.map(lambda column: column[None], obs)),
        )
        return dynamics.observe(params, state, action, obs, reward, terminated), out

    return jax.lax.scan(body, state, (xs, jax.random.split(sample_key, len(xs[-1]))))[1]


def same_pixels(codec: StepCodec, one: PyTree, other: PyTree) -> Any:
    """Share of the pixels of all pictures that are the same in both `[...]`; NaN where the codec has no pictures."""
    if not codec.looks_back:
        lead = np.shape(jax.tree.leaves(one)[0])[:2]
        return jnp.full(lead, jnp.nan, jnp.float32)
    space: Any = codec.observation
    pairs = [(at(one, path), at(other, path)) for path, _ in space.pictures]
    same = [(a == b).all(axis=-1).astype(jnp.float32) for a, b in pairs]
    return sum(s.sum(axis=(-2, -1)) for s in same) / sum(s.shape[-2] * s.shape[-1] for s in same)


def open_loop_paths(world: WorldModel, before: Replay, after: Replay, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rollouts of every member from every start, with the logged actions and nothing else.

    Args:
      world: the model.
      before: `P` transitions that lead to each start; those that are not `real` are not shown to the model.
      after: `H` transitions from each start on, of which the model is given the actions.
      seed: of the samples.

    Returns:
      `(central, sampled)` float32 `[H, M, E, D]`: fed with the member's own central predictions, and with its own
      samples. Predicted ends are passed over.
    """
    dynamics, members = single_members(world)
    shown = (rows(before.obs, np.s_[1:]), before.action, before.reward, before.real)
    first = before.beginning(dynamics)
    paths = [
        jax.tree.map(np.asarray, _open_loop(dynamics, params, key, first, shown, after.action))
        for params, key in zip(members, jax.random.split(jax.random.key(seed), len(members)), strict=True)
    ]
    central, sampled = (np.stack(side, axis=1) for side in zip(*paths, strict=True))
    return central, sampled


@partial(jax.jit, static_argnums=0)
def _open_loop(
    dynamics: StepDynamics, params: PyTree, key: Array, first: Any, shown: Any, actions: PyTree
) -> tuple[Array, Array]:
    count = len(first[1])
    start_key, sample_key = jax.random.split(key)
    fresh, _ = dynamics.start_at(params, jax.random.split(start_key, count), *first)
    going_on = jnp.zeros(count, bool)
    flatten = dynamics.codec.observation.flatten

    def condition(state, x):
        obs, action, reward, real = x
        after = dynamics.observe(params, state, action, obs, reward, going_on)
        return dynamics.replace_rows(~real, fresh, after), None

    def central(state, action):
        obs, reward, _ = dynamics.predict(params, state, action)
        obs = jax.tree.map(lambda column: column[0], obs)  # of the one member
        return dynamics.observe(params, state, action, obs, reward[0], going_on), flatten(obs)

    def sampled(state, x):
        action, key = x
        state, obs, *_ = dynamics.advance(params, state, action, jax.random.split(key, count))
        return state, flatten(obs)

    state, _ = jax.lax.scan(condition, fresh, shown)
    keys = jax.random.split(sample_key, len(jax.tree.leaves(actions)[0]))
    return jax.lax.scan(central, state, actions)[1], jax.lax.scan(sampled, state, (actions, keys))[1]
