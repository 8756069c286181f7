"""Errors of a model on held-out logs: one step, many steps with the logged actions, one imagined episode beside a real.

All intervals resample episodes. "Standard deviations" are those of the training observations, as in the codec.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from worldmodel.agents.counting import StepLedger
from worldmodel.codec import BIN_FRACTION, BoxCodec, DiscreteCodec, SpaceCodec, TreeCodec
from worldmodel.corpus.columns import Columns
from worldmodel.fidelity.estimates import Estimate, cluster_mean_interval, cluster_ratio_interval, median_curve
from worldmodel.fidelity.horizon import divergence_horizon, median_horizon_interval, rmst_interval
from worldmodel.fidelity.noise_reference import PHASE, noise_reference
from worldmodel.fidelity.one_step import nrmse, persistence_nrmse, reward_mae, termination_scores
from worldmodel.fidelity.replay import (
    SAMPLES,
    Forced,
    Replay,
    draw_starts,
    gather,
    open_loop_paths,
    teacher_forced,
)
from worldmodel.spaces import at
from worldmodel.training.checkpoint import WorldModel

MAX_EPISODES = 64
MAX_STEPS = 1000
ENOUGH_EPISODES = 5


def one_step(
    world: WorldModel, columns: Columns, seed: int = 0, *, max_episodes: int = MAX_EPISODES, max_steps: int = MAX_STEPS
) -> dict[str, Any]:
    """How wrong one step is, with everything before it real; plain JSON.

    Reads at most `max_steps` steps of a seeded sample of `max_episodes` episodes, and then says so in `sample`.

    Returns:
      `nrmse` (of the members' average central prediction, averaged over dimensions), `nrmse_per_dim[]`,
      `persistence_nrmse`; `nll_per_dim`: nats per dimension that changes, of the original units, under the members'
      mixture, `-log P(bin) + log(width)` with a width of 1e-3 standard deviations; `coverage_90`: share of truths in
      the central 90% of a member's prediction, averaged over members, because one member rules an imagined episode;
      `reward_mae`, `reward_scale` (standard deviation in the training logs, 0 if constant); `termination`: as
      `termination_scores` of the members' average P(end) given their own central prediction, where `false_end_rate` is
      the mean P(end) of good steps given *sampled* observations, which is what a simulated episode is exposed to, and
      `false_end_rate_thresholded` the share of good steps whose central P(end) is above .5; `simulated_rate` beside
      `logged_rate` are ends per step of any kind: where chance decides, a sampled end is no fault by itself;
      `episodes`, `transitions`.
      Discrete observations: `accuracy`, nats per observation, and nulls beside `why` for what needs a distance.
      Observations of several parts: distances and coverage are of their numbers; `accuracy` is the share of categories
      predicted rightly, `exact_match` that of observations whose categories all are, `persistence_accuracy` and
      `persistence_exact_match` those of predicting no change; `nll_per_dim` is over numbers and categories that change
      and over all pixels; with pictures, `pixel_accuracy` is the share of their pixels that are predicted rightly, and
      `persistence_pixel_accuracy` that of those which stay.
    """
    episodes, sample = _pick_episodes(columns, seed, max_episodes, max_steps)
    steps = int(min(columns.lengths[episodes].max(), max_steps))
    replay = gather(columns, episodes, np.zeros(len(episodes), np.int64), steps)
    forced = teacher_forced(world, replay, seed)
    real, codec = replay.real, world.dynamics.codec
    ids = np.broadcast_to(replay.episode, real.shape)[real]
    if isinstance(codec.observation, DiscreteCodec):
        out = _categories(replay, forced, ids, seed)
    elif isinstance(codec.observation, TreeCodec):
        out = _parts(codec.observation, replay, forced, ids, seed)
    else:
        out = _numbers(codec.observation, _flat(replay.obs), real, forced, ids, seed)
    if columns.has_rewards:
        reward = reward_mae(forced.reward.mean(axis=1)[real], replay.reward[real], ids, seed)
    else:
        reward = Estimate(None, None, None, 0, "the logs have no rewards")
    central, sampled = (np.clip(end.mean(axis=1)[real], 0.0, 1.0) for end in (forced.end, forced.sampled_end))
    ends = termination_scores(central, replay.terminated[real], 0.5, ids, seed)
    rates = ends.pop("false_end_rate")
    ends["simulated_rate"] = cluster_mean_interval(sampled, ids, seed).to_json()
    ends["logged_rate"] = float(replay.terminated[real].mean())
    goes_on = ~replay.terminated[real].astype(bool)
    all_end = "every transition is a true end"
    false_ends = cluster_ratio_interval(sampled * goes_on, goes_on, ids, seed, why=all_end).to_json()
    out |= {
        "reward_mae": reward.to_json(),
        "reward_scale": 0.0 if codec.reward.constant else float(codec.reward.scale),
        "termination": {**ends, "false_end_rate": false_ends, "false_end_rate_thresholded": rates["thresholded"]},
        "episodes": len(episodes),
        "transitions": int(real.sum()),
    }
    return out if sample is None else {**out, "sample": sample}


def _pick_episodes(columns: Columns, seed: int, most: int, steps: int) -> tuple[np.ndarray, str | None]:
    if columns.episodes <= most and columns.lengths.max() <= steps:
        return np.arange(columns.episodes), None
    rng = np.random.default_rng(seed)
    picked = np.sort(rng.choice(columns.episodes, min(most, columns.episodes), replace=False))
    return picked, f"{len(picked)} of {columns.episodes} episodes, at most {steps} steps of each"


def _numbers(
    codec: BoxCodec | TreeCodec, flat: np.ndarray, real: np.ndarray, forced: Forced, ids: np.ndarray, seed: int
) -> dict[str, Any]:
    """Errors of continuous dimensions: `flat` `[T+1, E, D]`, and `forced` of no others."""
    active = np.array(_active_numbers(codec))
    before, after = flat[:-1][real], flat[1:][real]
    error = nrmse(forced.prediction.mean(axis=1)[real], after, before, ids, seed)
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
    nll = cluster_mean_interval(-_mixture(forced)[real] / count + per_dim, ids, seed)
    # The rank form of `one_step.pit`, from counts: the samples themselves would not fit in memory.
    chance = np.random.default_rng(seed).uniform(size=forced.below.shape)
    place = (forced.below + chance * (1 + forced.equal)) / (SAMPLES + 1)
    inside = np.mean(np.abs(place - 0.5)[..., active] <= 0.45, axis=(1, 3))[real]
    return {**out, "nll_per_dim": nll.to_json(), "coverage_90": cluster_mean_interval(inside, ids, seed).to_json()}


def _parts(codec: TreeCodec, replay: Replay, forced: Forced, ids: np.ndarray, seed: int) -> dict[str, Any]:
    real, flat, numbers = replay.real, np.asarray(codec.flatten(replay.obs)), codec.numbers
    if any(codec.numbers_active):
        prediction, below, equal = (x[..., :numbers] for x in (forced.prediction, forced.below, forced.equal))
        own = forced._replace(prediction=prediction, below=below, equal=equal)
        out = _numbers(codec, flat[..., :numbers], real, own, ids, seed)
    else:
        why = "no number of the observations changes: no distance between categories"
        nothing = Estimate(None, None, None, 0, why).to_json()
        count = max(_dimensions(codec), 1)
        nll = cluster_mean_interval(-_mixture(forced)[real] / count, ids, seed).to_json()
        out = {"nrmse": nothing, "nrmse_per_dim": None, "persistence_nrmse": nothing, "nll_per_dim": nll}
        out["coverage_90"] = nothing
    if codec.sites:
        own = np.s_[..., numbers : numbers + codec.sites]
        sites = flat[own]
        right = forced.prediction[own] == sites[1:, None]
        still = sites[:-1] == sites[1:]
        found = {
            "accuracy": right.mean(axis=(1, 3)),
            "exact_match": right.all(axis=3).mean(axis=1),
            "persistence_accuracy": still.mean(axis=2),
            "persistence_exact_match": still.all(axis=2),
        }
        out |= {name: cluster_mean_interval(value[real], ids, seed).to_json() for name, value in found.items()}
    if codec.pictures:
        still = np.stack([_still_pixels(codec, replay.obs, t) for t in range(len(real))])
        shares = {"pixel_accuracy": forced.pixels.mean(axis=1), "persistence_pixel_accuracy": still}
        out |= {name: cluster_mean_interval(value[real], ids, seed).to_json() for name, value in shares.items()}
    return out


def _still_pixels(codec: TreeCodec, obs: Any, t: int) -> np.ndarray:
    """Share of pixels `[E]` that step `t` left as they were."""
    pairs = [(at(obs, path)[t], at(obs, path)[t + 1]) for path, _ in codec.pictures]
    same = [(before == after).all(axis=-1) for before, after in pairs]
    return np.sum([s.sum(axis=(1, 2)) for s in same], axis=0) / sum(s[0].size for s in same)


def _dimensions(codec: BoxCodec | TreeCodec) -> int:
    """Over how many dimensions a likelihood is spread."""
    return codec.dimensions if isinstance(codec, TreeCodec) else sum(codec.active)


def _active_numbers(codec: SpaceCodec) -> tuple[bool, ...]:
    """Which continuous dimensions change, of those there are."""
    if isinstance(codec, DiscreteCodec):
        return ()
    return codec.numbers_active if isinstance(codec, TreeCodec) else codec.active


def _mixture(forced: Forced) -> np.ndarray:
    """Nats `[T, E]` of the observation under the members' mixture."""
    return special.logsumexp(forced.log_prob.astype(np.float64), axis=1) - math.log(forced.log_prob.shape[1])


def _categories(replay: Replay, forced: Forced, ids: np.ndarray, seed: int) -> dict[str, Any]:
    real, truth = replay.real, _flat(replay.obs)[1:]
    nothing = Estimate(None, None, None, 0, "observations are categories: no distance between them").to_json()
    return {
        "nrmse": nothing,
        "nrmse_per_dim": None,
        "persistence_nrmse": nothing,
        "accuracy": cluster_mean_interval(
            np.mean(forced.prediction == truth[:, None], axis=(1, 3))[real], ids, seed
        ).to_json(),
        "nll_per_dim": cluster_mean_interval(-_mixture(forced)[real], ids, seed).to_json(),
        "coverage_90": nothing,
    }


def open_loop(
    world: WorldModel,
    columns: Columns,
    *,
    horizon: int = 50,
    starts: int = 250,
    seed: int = 0,
    threshold: float | int = 0.5,
    ledger: StepLedger | None = None,
) -> dict[str, Any]:
    """How wrong the model is after k steps with the logged actions and nothing else; plain JSON.

    Starts are drawn at random, evenly over the episodes with `horizon` logged steps and within each; the model is
    shown up to a window of real steps before. The error is the root mean square over the dimensions that change, in
    standard deviations. Each member follows its own central predictions, and a start's error is the mean of its
    members' errors, because one member rules an episode of the simulator; `ensemble_error` is that of the members'
    average prediction, `sampled_error` that of rollouts that sample. Predicted ends are passed over. Where fewer than
    `ENOUGH_EPISODES` episodes reach `horizon`, it is shortened, and `note` says so.

    Returns:
      `horizons[]`, `error[], error_lo[], error_hi[]` (median over starts), `ensemble_error[]`, `sampled_error[]`,
      `persistence[]` (the start's own observation), `one_step_noise[]` (the true dynamics with normal noise of the
      model's root mean square error at the first step on every observation; null beside `one_step_noise_why`),
      `divergence_horizon` (mean steps until the error first exceeds `threshold`, restricted to the horizon, with
      `median`, its interval `median_lo, median_hi`, and `median_censored`), `threshold, starts, episodes`.
      Discrete observations: no distance, hence nulls beside `why`. Observations of several parts: distances are of
      their numbers.
    """
    if min(horizon, starts) < 1:
        raise ValueError(f"horizon and starts must be at least 1, not {horizon} and {starts}")
    codec = world.dynamics.codec.observation
    if isinstance(codec, DiscreteCodec) or not any(_active_numbers(codec)):
        categories = isinstance(codec, DiscreteCodec) or any(codec.active)
        kind = "observations are categories" if categories else "no observed dimension changes"
        return {"horizons": None, "error": None, "divergence_horizon": None, "why": f"{kind}: no distance between them"}
    steps, note = _reachable(columns, horizon)
    episodes, first = draw_starts(columns, steps, starts, seed)
    shown = world.dynamics.config.window - 1
    before, after = gather(columns, episodes, first - shown, shown), gather(columns, episodes, first, steps)
    central, sampled = open_loop_paths(world, before, after, seed)
    active, scale = np.array(_active_numbers(codec)), np.array(codec.scale)
    if isinstance(codec, TreeCodec):
        flat = np.asarray(codec.flatten(after.obs))[..., : codec.numbers].astype(np.float64)
        central, sampled = central[..., : codec.numbers], sampled[..., : codec.numbers]
    else:
        flat = _flat(after.obs).astype(np.float64)

    def distance(paths: np.ndarray) -> np.ndarray:
        return _distance((paths - flat[1:, None])[..., active] / scale[active])

    errors = distance(central).mean(axis=1).T
    curve = median_curve(errors, episodes, seed)
    values = curve.to_json()
    out = {
        "horizons": list(range(1, steps + 1)),
        "error": values["mean"],
        "error_lo": values["lo"],
        "error_hi": values["hi"],
        "ensemble_error": _medians(distance(central.mean(axis=1, keepdims=True))),
        "sampled_error": _medians(distance(sampled)),
        "persistence": _medians(distance(np.broadcast_to(flat[0], (steps, 1, *flat[0].shape)))),
        "one_step_noise": None,
        "divergence_horizon": _divergence(errors, threshold, episodes, seed),
        "threshold": float(threshold),
        "starts": len(episodes),
        "episodes": len(np.unique(episodes)),
    }
    noise = np.sqrt(np.mean((central[0].astype(np.float64) - flat[1]) ** 2, axis=(0, 1)))
    book = StepLedger() if ledger is None else ledger
    if isinstance(codec, TreeCodec):
        reference, why = None, "the state cannot be set from an observation of several parts"
    else:
        reference, why = noise_reference(world.spec, after, noise, scale, seed=seed, ledger=book)
    if reference is None:
        out["one_step_noise_why"] = why
    else:
        out["one_step_noise"] = _medians(distance(reference[:, None]))
        out["one_step_noise_steps"] = book.count(PHASE)
    if curve.why is not None:
        out["why"] = curve.why
    return out if note is None else {**out, "note": note}


def _reachable(columns: Columns, horizon: int) -> tuple[int, str | None]:
    enough = min(ENOUGH_EPISODES, math.ceil(columns.episodes / 2))
    reach = int(np.sort(columns.lengths)[-enough])
    if reach >= horizon:
        return horizon, None
    at_full = int(np.sum(columns.lengths >= horizon))
    return reach, (
        f"horizon shortened from {horizon} to {reach} steps: {at_full} of {columns.episodes} held-out episodes are "
        f"{horizon} steps long, and {enough} are needed"
    )


def _divergence(errors: np.ndarray, threshold: float | int, episodes: np.ndarray, seed: int) -> dict[str, Any]:
    times, observed = divergence_horizon(errors, threshold)
    median = median_horizon_interval(times, observed, episodes, seed)
    return {
        **rmst_interval(times, observed, episodes, seed).to_json(),
        "median": median.mean,
        "median_lo": median.lo,
        "median_hi": median.hi,
        "median_censored": median.mean is None,
        "censored": int((~observed).sum()),
        **({} if median.why is None else {"median_why": median.why}),
    }


def _distance(scaled: np.ndarray) -> np.ndarray:
    """Root mean square over the last axis; infinite where a prediction broke."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.nan_to_num(np.sqrt(np.mean(scaled**2, axis=-1)), nan=np.inf, posinf=np.inf)


def _medians(errors: np.ndarray) -> list[float | None]:
    """Median over starts of each row of `[H, M, E]`, members averaged first."""
    return [float(v) if math.isfinite(v) else None for v in np.median(errors.mean(axis=1), axis=1)]


def _flat(obs: np.ndarray) -> np.ndarray:
    """`[T, E, ...]` -> `[T, E, D]`; integers as float64, whose rounding they do not know."""
    flat = obs.reshape(*obs.shape[:2], -1)
    return flat if np.issubdtype(flat.dtype, np.floating) else flat.astype(np.float64)
