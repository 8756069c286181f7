"""Replaying logged episodes through a model: the compiled half of the one-step and the open-loop probe.

`E` episodes or starts, `M` members, `D` dimensions of a flattened observation (numbers, then categories: see
`flatten` of the codecs).
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.codec import DiscreteCodec, SpaceCodec, StepCodec, TreeCodec
from worldmodel.corpus.columns import Columns
from worldmodel.corpus.windows import rows_of
from worldmodel.model.dynamics import StepDynamics
from worldmodel.spaces import at, map_columns
from worldmodel.training.checkpoint import WorldModel

SAMPLES = 19
"""Sampled observations per transition, for coverage: 20 equal ranks, of which the outer two are the 10% beyond 90%."""

SCORED = 8
"""Of which so many are scored by CRPS: its fair form has no bias in their number, and pairs are dear."""

DRAWN = 2
"""And so many are kept: what two samples and a product of their errors need."""

CHUNK = 64
"""Steps of a replay that are compiled together."""


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

    def at(self, places: np.ndarray) -> Replay:
        """Some of its episodes, which may repeat."""
        if np.array_equal(places, np.arange(len(self.episode))):
            return self
        own = (slice(None), places)
        return Replay(
            obs=rows(self.obs, own),
            action=rows(self.action, own),
            reward=self.reward[own],
            terminated=self.terminated[own],
            real=self.real[own],
            episode=self.episode[places],
            last_reward=self.last_reward[places],
            contexts=tuple(self.contexts[int(place)] for place in places),
        )


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
    it, and P(end) given both; log_prob `[T, M, E]`: nats of the true observation; pixels `[T, M, E]`: share of the
    pixels of pictures that the central prediction has right, NaN without pictures.

    Of `SAMPLES` sampled transitions: sampled_end `[T, M, E]`: their mean P(end), which is what an imagined episode is
    exposed to; sampled_success `[T, M, E]`: the mean of P(end) where the reward was above `success_above`; below, equal
    int32 `[T, M, E, D]`: how many observations lie below the truth, and on it; crps, width `[T, M, E]`: fair CRPS (of
    the first `SCORED`) and distance of the outermost two, in standard deviations, means over the numbers that change,
    NaN without any.

    The first `DRAWN` of them whole: drawn, columns `[T, M, E, DRAWN, ...]`, None where there are pictures; drawn_reward
    and drawn_end (P(end)) `[T, M, E, DRAWN]`.
    """

    prediction: Any
    reward: Any
    end: Any
    log_prob: Any
    pixels: Any
    sampled_end: Any
    sampled_success: Any
    below: Any
    equal: Any
    crps: Any
    width: Any
    drawn: Any
    drawn_reward: Any
    drawn_end: Any


def teacher_forced(
    world: WorldModel, replay: Replay, seed: int, *, success_above: float | int = math.inf, batch: int | None = None
) -> Forced:
    """Runs every member along the real episodes.

    `CHUNK` steps at a time, and `batch` episodes at once (None: all), so that one program serves replays of any size.
    """
    dynamics, members = single_members(world)
    count = len(replay.episode)
    width = batch or count
    above = np.float32(success_above)
    said = []
    for params, key in zip(members, jax.random.split(jax.random.key(seed), len(members)), strict=True):
        blocks = []
        for index, first in enumerate(range(0, count, width)):
            places = np.minimum(np.arange(first, first + width), count - 1)
            block = _forced_block(dynamics, params, jax.random.fold_in(key, index), replay.at(places), above)
            blocks.append(jax.tree.map(lambda x, own=count - first: x[:, :, :own], block))
        said.append(jax.tree.map(lambda *some: np.concatenate(some, axis=2), *blocks))
    return jax.tree.map(lambda *some: np.concatenate(some, axis=1), *said)


def _forced_block(dynamics: StepDynamics, params: PyTree, key: Array, replay: Replay, above: np.float32) -> Forced:
    """One member along all episodes of a replay, `[T, 1, E, ...]`."""
    steps = len(replay.real)
    chunk = min(CHUNK, steps)
    chunks = -(-steps // chunk)
    xs = (rows(replay.obs, np.s_[1:]), replay.action, replay.reward, replay.terminated)
    start_key, sample_key = jax.random.split(key)
    state = _begin(dynamics, params, jax.random.split(start_key, len(replay.episode)), replay.beginning(dynamics))
    parts = []
    for index, keys in enumerate(jax.random.split(sample_key, (chunks, chunk))):
        x = rows(xs, np.minimum(np.arange(index * chunk, (index + 1) * chunk), steps - 1))
        state, part = _teacher_forced(dynamics, params, above, state, x, keys)
        parts.append(jax.tree.map(np.asarray, part))
    return jax.tree.map(lambda *some: np.concatenate(some)[:steps], *parts)


@partial(jax.jit, static_argnums=0)
def _begin(dynamics: StepDynamics, params: PyTree, keys: Array, first: Any) -> PyTree:
    return dynamics.start_at(params, keys, *first)[0]


@partial(jax.jit, static_argnums=0)
def _teacher_forced(
    dynamics: StepDynamics, params: PyTree, success_above: Array, state: PyTree, xs: PyTree, keys: Array
) -> tuple[PyTree, Forced]:
    codec: Any = dynamics.codec.observation
    flatten, scale = codec.flatten, _scale_of_numbers(codec)

    def body(state, x):
        (obs, action, reward, terminated), key = x
        central, central_reward, end = dynamics.predict(params, state, action)
        draw = jax.vmap(lambda k: dynamics.advance(params, state, action, k))
        _, drawn, drawn_reward, _, info = draw(jax.random.split(key, (SAMPLES, len(reward))))
        samples, truth = flatten(drawn), flatten(obs)
        succeeded = jnp.where(drawn_reward > success_above, info["end_probability"], 0.0)
        crps, width = _scores(samples, truth, scale)
        out = Forced(
            prediction=flatten(central),
            reward=central_reward,
            end=end,
            log_prob=dynamics.score(params, state, action, obs, reward, terminated)[..., 0],
            pixels=same_pixels(dynamics.codec, central, jax.tree.map(lambda column: column[None], obs)),
            sampled_end=jnp.mean(info["end_probability"], axis=0)[None],
            sampled_success=jnp.mean(succeeded, axis=0)[None],
            below=jnp.sum((samples < truth).astype(jnp.int32), axis=0)[None],
            equal=jnp.sum((samples == truth).astype(jnp.int32), axis=0)[None],
            crps=crps[None],
            width=width[None],
            drawn=None if dynamics.codec.looks_back else jax.tree.map(_first_drawn, drawn),
            drawn_reward=_first_drawn(drawn_reward),
            drawn_end=_first_drawn(info["end_probability"]),
        )
        return dynamics.observe(params, state, action, obs, reward, terminated), out

    return jax.lax.scan(body, state, (xs, keys))


def _first_drawn(samples: Array) -> Array:
    """`[SAMPLES, E, ...]` -> `[1, E, DRAWN, ...]`."""
    return jnp.moveaxis(samples[:DRAWN], 0, 1)[None]


def _scale_of_numbers(codec: SpaceCodec) -> np.ndarray:
    """Standard deviations float32 `[D]` of the numbers, infinite where they never change (and for categories)."""
    if isinstance(codec, DiscreteCodec):
        return np.full(1, np.inf, np.float32)
    active, scale = (codec.numbers_active if isinstance(codec, TreeCodec) else codec.active), codec.scale
    return np.where(active, np.asarray(scale, np.float32), np.float32(np.inf)).astype(np.float32)


def _scores(samples: Array, truth: Array, scale: np.ndarray) -> tuple[Array, Array]:
    """Fair CRPS and width `[E]` of samples `[SAMPLES, E, D]`; see `Forced`."""
    kept = np.flatnonzero(np.isfinite(scale))
    if len(kept) == 0:
        nothing = jnp.full(truth.shape[0], jnp.nan, jnp.float32)
        return nothing, nothing
    x, y = (side[..., kept] / scale[kept] for side in (samples, truth))
    width = jnp.mean(jnp.max(x, axis=0) - jnp.min(x, axis=0), axis=-1)
    few = x[:SCORED]
    apart = sum(jnp.sum(jnp.abs(few[i + 1 :] - few[i]), axis=0) for i in range(SCORED - 1)) / (SCORED * (SCORED - 1))
    return jnp.mean(jnp.mean(jnp.abs(few - y), axis=0) - apart, axis=-1), width


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
