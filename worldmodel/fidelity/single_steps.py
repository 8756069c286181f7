"""Errors of a model on held-out logs, one step at a time, with everything before it real.

All intervals resample episodes. "Standard deviations" are those of the training observations, as in the codec.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import special

from worldmodel.codec import BIN_FRACTION, BoxCodec, DiscreteCodec, TreeCodec
from worldmodel.corpus.columns import Columns
from worldmodel.fidelity.effort import QUICK, Effort
from worldmodel.fidelity.ends import ends_of, success_threshold
from worldmodel.fidelity.estimates import Estimate, cluster_mean_interval
from worldmodel.fidelity.invariants import Invariant, violations
from worldmodel.fidelity.one_step import nrmse, persistence_nrmse, reward_mae
from worldmodel.fidelity.replay import SAMPLES, gather, teacher_forced
from worldmodel.fidelity.sampled_steps import sampled_steps
from worldmodel.fidelity.steps import Steps
from worldmodel.spaces import at
from worldmodel.training.checkpoint import WorldModel

MAX_EPISODES = 64
MAX_STEPS = 1000
INTERVAL = "95%, bootstrap over episodes; n = episodes"


def one_step(
    world: WorldModel,
    columns: Columns,
    seed: int = 0,
    *,
    max_episodes: int = MAX_EPISODES,
    max_steps: int = MAX_STEPS,
    effort: Effort = QUICK,
    invariants: Mapping[str, Invariant] | None = None,
) -> dict[str, Any]:
    """How wrong one step is, with everything before it real; plain JSON.

    Reads at most `max_steps` steps of a seeded sample of `max_episodes` episodes, and then says so in `sample`.

    Returns:
      What `step_errors` and `sampled_steps` return, and `termination` as `ends_of`; `invariants` as `violations`, where
      some were given; `interval`: how intervals are formed; `episodes`, `transitions`.
    """
    episodes, sample = _pick_episodes(columns, seed, max_episodes, max_steps)
    steps = int(min(columns.lengths[episodes].max(), max_steps))
    replay = gather(columns, episodes, np.zeros(len(episodes), np.int64), steps)
    above = success_threshold(columns)
    forced = teacher_forced(world, replay, seed, success_above=math.inf if above is None else above)
    found = Steps.of(world.dynamics.codec.observation, replay, forced)
    out = {
        **step_errors(world, found, has_rewards=columns.has_rewards, seed=seed),
        **sampled_steps(found, effort=effort, seed=seed),
        "termination": ends_of(found, above, seed),
        "interval": INTERVAL,
        "episodes": len(episodes),
        "transitions": len(found),
    }
    if invariants:
        out["invariants"] = violations(invariants, found, seed)
    return out if sample is None else {**out, "sample": sample}


def step_errors(world: WorldModel, steps: Steps, *, has_rewards: bool, seed: int) -> dict[str, Any]:
    """Errors of the members' average central prediction, and the likelihood of what happened; plain JSON.

    Returns:
      `nrmse` (averaged over dimensions), `nrmse_per_dim[]`, `persistence_nrmse`; `nll_per_dim`: nats per dimension that
      changes, of the original units, under the members' mixture, `-log P(bin) + log(width)` with a width of 1e-3
      standard deviations; `coverage_90`: share of truths in the central 90% of a member's prediction, averaged over
      members, because one member rules an imagined episode; `reward_mae`, `reward_scale` (standard deviation in the
      training logs, 0 if constant).
      Discrete observations: `accuracy`, nats per observation, and nulls beside `why` for what needs a distance.
      Observations of several parts: distances and coverage are of their numbers; `accuracy` is the share of categories
      predicted rightly, `exact_match` that of observations whose categories all are, `persistence_accuracy` and
      `persistence_exact_match` those of predicting no change; `nll_per_dim` is over numbers and categories that change
      and over all pixels; with pictures, `pixel_accuracy` is the share of their pixels that are predicted rightly, and
      `persistence_pixel_accuracy` that of those which stay.
    """
    codec = steps.codec
    if isinstance(codec, DiscreteCodec):
        out = _categories(steps, seed)
    elif isinstance(codec, TreeCodec):
        out = _parts(codec, steps, seed)
    else:
        out = _numbers(codec, steps, seed)
    if has_rewards:
        reward = reward_mae(steps.said.reward.mean(axis=1), steps.reward, steps.episode, seed)
    else:
        reward = Estimate(None, None, None, 0, "the logs have no rewards")
    scale = world.dynamics.codec.reward
    return {**out, "reward_mae": reward.to_json(), "reward_scale": 0.0 if scale.constant else float(scale.scale)}


def _pick_episodes(columns: Columns, seed: int, most: int, steps: int) -> tuple[np.ndarray, str | None]:
    if columns.episodes <= most and columns.lengths.max() <= steps:
        return np.arange(columns.episodes), None
    rng = np.random.default_rng(seed)
    picked = np.sort(rng.choice(columns.episodes, min(most, columns.episodes), replace=False))
    return picked, f"{len(picked)} of {columns.episodes} episodes, at most {steps} steps of each"


def _numbers(codec: BoxCodec | TreeCodec, steps: Steps, seed: int) -> dict[str, Any]:
    """Errors of the continuous dimensions, which come first."""
    ids, said = steps.episode, steps.said
    active = np.array(codec.numbers_active if isinstance(codec, TreeCodec) else codec.active)
    own = np.s_[..., : len(active)]
    before, after, prediction = steps.before[own], steps.after[own], said.prediction[own]
    error = nrmse(prediction.mean(axis=1), after, before, ids, seed)
    floor = persistence_nrmse(after, before, ids, seed)
    out = {
        "nrmse": error.overall.to_json(),
        "nrmse_per_dim": error.to_json()["per_dimension"],
        "persistence_nrmse": floor.overall.to_json(),
    }
    if not active.any():
        nothing = Estimate(None, None, None, 0, "no dimension of the training observations changes").to_json()
        return {**out, "nll_per_dim": nothing, "coverage_90": nothing}
    width = np.log(BIN_FRACTION * np.array(codec.scale)[active])
    count = _dimensions(codec)
    per_dim = width.mean() if count == len(width) else width.sum() / count
    nll = cluster_mean_interval(-_mixture(steps) / count + per_dim, ids, seed)
    inside = np.mean(np.abs(pit_places(steps, seed)[own][..., active] - 0.5) <= 0.45, axis=(1, 2))
    return {**out, "nll_per_dim": nll.to_json(), "coverage_90": cluster_mean_interval(inside, ids, seed).to_json()}


def pit_places(steps: Steps, seed: int) -> np.ndarray:
    """Where each truth falls in a member's samples `[N, M, D]`.

    The rank form of `one_step.pit`, from counts: the samples themselves would not fit in memory.
    """
    chance = np.random.default_rng(seed).uniform(size=steps.said.below.shape)
    return (steps.said.below + chance * (1 + steps.said.equal)) / (SAMPLES + 1)


def _parts(codec: TreeCodec, steps: Steps, seed: int) -> dict[str, Any]:
    ids, said, numbers = steps.episode, steps.said, codec.numbers
    if any(codec.numbers_active):
        out = _numbers(codec, steps, seed)
    else:
        why = "no number of the observations changes: no distance between categories"
        nothing = Estimate(None, None, None, 0, why).to_json()
        nll = cluster_mean_interval(-_mixture(steps) / max(_dimensions(codec), 1), ids, seed).to_json()
        out = {"nrmse": nothing, "nrmse_per_dim": None, "persistence_nrmse": nothing, "nll_per_dim": nll}
        out["coverage_90"] = nothing
    if codec.sites:
        own = np.s_[..., numbers : numbers + codec.sites]
        before, after = steps.before[own], steps.after[own]
        right, still = said.prediction[own] == after[:, None], before == after
        found = {
            "accuracy": right.mean(axis=(1, 2)),
            "exact_match": right.all(axis=2).mean(axis=1),
            "persistence_accuracy": still.mean(axis=1),
            "persistence_exact_match": still.all(axis=1),
        }
        out |= {name: cluster_mean_interval(value, ids, seed).to_json() for name, value in found.items()}
    if codec.pictures:
        shares = {"pixel_accuracy": said.pixels.mean(axis=1), "persistence_pixel_accuracy": _still_pixels(codec, steps)}
        out |= {name: cluster_mean_interval(value, ids, seed).to_json() for name, value in shares.items()}
    return out


def _still_pixels(codec: TreeCodec, steps: Steps) -> np.ndarray:
    """Share of pixels `[N]` that a step left as they were."""
    shares = np.empty(len(steps))
    for t in np.unique(steps.time):  # all at once would copy every picture
        now = np.flatnonzero(steps.time == t)
        columns = [(at(steps.replay.obs, path)[t : t + 2, steps.place[now]]) for path, _ in codec.pictures]
        same = [(before == after).all(axis=-1) for before, after in columns]
        shares[now] = np.sum([s.sum(axis=(1, 2)) for s in same], axis=0) / sum(s[0].size for s in same)
    return shares


def _dimensions(codec: BoxCodec | TreeCodec) -> int:
    """Over how many dimensions a likelihood is spread."""
    return codec.dimensions if isinstance(codec, TreeCodec) else sum(codec.active)


def _mixture(steps: Steps) -> np.ndarray:
    """Nats `[N]` of the observation under the members' mixture."""
    log_prob = steps.said.log_prob.astype(np.float64)
    return special.logsumexp(log_prob, axis=1) - math.log(log_prob.shape[1])


def _categories(steps: Steps, seed: int) -> dict[str, Any]:
    nothing = Estimate(None, None, None, 0, "observations are categories: no distance between them").to_json()
    right = np.mean(steps.said.prediction == steps.after[:, None], axis=(1, 2))
    return {
        "nrmse": nothing,
        "nrmse_per_dim": None,
        "persistence_nrmse": nothing,
        "accuracy": cluster_mean_interval(right, steps.episode, seed).to_json(),
        "nll_per_dim": cluster_mean_interval(-_mixture(steps), steps.episode, seed).to_json(),
        "coverage_90": nothing,
    }
