"""How much return a simulator would still give where real episodes went: the residuals behind the attribution of a gap.

For a visited step `(s, a)` that paid `r` and led to `s'`, the residual is `Q^(s, a) - r - V^(s')`: what the simulator
promises there less what reality paid and what the simulator promises after it. Its mean over the visits of a policy,
summed over the steps of an episode, is the gap between simulated and real return, up to how episodes begin (Form A of
the value-difference identity: telescope `V^_t(s_t) - V^_{t+1}(s_{t+1})` along real episodes). Between two milestones of
an episode the sum telescopes to what is promised at the first, less what is earned on the way, less what is promised at
the second: exact for the horizon, at a fraction of the noise.

`V^` is the mean return of imagined episodes. At visits it is "imagined" (episodes from there on; unbiased with a single
pair per visit, because the residual is linear in it, and noisy), or "fitted" (a regression of the returns of those that
start at the milestones; hardly any noise, and zero on average for a perfect simulator whatever the fit).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.agents.policies import as_function
from worldmodel.codec import StepCodec, TreeCodec
from worldmodel.corpus.columns import Columns
from worldmodel.fidelity.fitted_value import fit_value
from worldmodel.fidelity.imagined import imagine
from worldmodel.fidelity.replay import gather, rows, single_members
from worldmodel.fidelity.step_residuals import Transition, fitted_residuals, imagined_residuals
from worldmodel.simulator import DEFAULT_TIME_LIMIT, Policy
from worldmodel.training.checkpoint import WorldModel

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
      parts: float64 `[N, 3]` by cause, see `step_residuals.CAUSES`.
      milestones: int64 `[K+1]` steps, from 0 to the last of the longest episode.
      promised: float64 `[E, K+1]` return that the simulator promises from each milestone on; 0 once an episode is over.
      earned: float64 `[E, K]` what reality paid between milestones.
      simulated_steps: what it cost.
      explained: share of the variance of imagined returns that fitted values explain; None for imagined ones.
      distance: float64 `[N]`, how far imagined next states lie from the real ones, see `fitted_residuals`; None for
        imagined values.
    """

    visits: Visits
    parts: np.ndarray
    milestones: np.ndarray
    promised: np.ndarray
    earned: np.ndarray
    simulated_steps: int
    explained: float | None = None
    distance: np.ndarray | None = None

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


def price(lengths: np.ndarray, *, rollouts: int, time_limit: int, members: int = 1) -> int:
    """Simulated steps behind the promises at milestones, at most: every imagined episode to the time limit."""
    milestones = draw_milestones(lengths)[:-1]
    promises = (lengths[:, None] > milestones) * (time_limit - milestones)
    return int(members * rollouts * promises.sum())


def value_residuals(
    world: WorldModel,
    policy: Policy,
    columns: Columns,
    visits: Visits,
    *,
    rollouts: int = 1,
    values: Literal["fitted", "imagined"] = "fitted",
    seed: int = 0,
) -> Residuals:
    """Residuals of a trained model along complete real episodes under `policy`.

    Args:
      world: the simulator; the model is shown up to a window of real steps before each visit, and every member of an
        ensemble gets its own imagined episodes, because one member rules an imagined episode.
      policy: the one that ran the episodes.
      columns: the real episodes, each to its end or to the time limit.
      visits: see `draw_visits`.
      rollouts: imagined episodes per milestone and member, and pairs per visit and member where values are "imagined".
      values: see above.
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
    passing = _before(dynamics, columns, reached[:, 0], milestones[reached[:, 1]])
    left = (limit - milestones[reached[:, 1]]).astype(np.int32)
    keys = jax.random.split(jax.random.key(seed), (len(members), 2))
    describe = Describe(dynamics.codec)
    imagined = [
        imagine(dynamics, function, own, policy_params, key, passing, left, rollouts=rollouts, features=describe)
        for own, key in zip(members, keys[:, 0], strict=True)
    ]
    promised = np.zeros((columns.episodes, len(milestones)))
    promised[reached[:, 0], reached[:, 1]] = np.mean([own.returns for own in imagined], axis=0)
    taken, explained, distance = sum(own.steps for own in imagined), None, None
    before, transition = _before(dynamics, columns, visits.episode, visits.step), _transition(columns, visits, limit)
    if values == "fitted":
        data = (np.concatenate([getattr(own, name) for own in imagined]) for name in ("features", "left", "rest"))
        value = fit_value(*data, seed=seed)
        explained = value.explained
        both = [
            fitted_residuals(dynamics, value, describe, own, key, before, transition)
            for own, key in zip(members, keys[:, 1], strict=True)
        ]
        each, distance = [parts for parts, _ in both], np.mean([own for _, own in both], axis=0)
    else:
        pairs = [
            imagined_residuals(dynamics, function, own, policy_params, key, before, transition, rollouts=rollouts)
            for own, key in zip(members, keys[:, 1], strict=True)
        ]
        each, taken = [parts for parts, _ in pairs], taken + sum(steps for _, steps in pairs)
    parts = np.mean(each, axis=0)
    return Residuals(visits, parts, milestones, promised, _earned(columns, milestones), taken, explained, distance)


@dataclasses.dataclass(frozen=True)
class Describe:
    """Observations as what values are fitted to: the codec's features; pictures are too many numbers for that."""

    codec: StepCodec

    def __call__(self, obs: PyTree) -> Array:
        """Columns `[B, ...]` -> `[B, F]`."""
        space = self.codec.observation
        if isinstance(space, TreeCodec) and space.pictures:
            return jnp.zeros((len(jax.tree.leaves(obs)[0]), 0), jnp.float32)
        return space.features(obs)


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
