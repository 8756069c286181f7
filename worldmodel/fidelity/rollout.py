"""Errors of a model on held-out logs after many steps with the logged actions.

All intervals resample episodes. "Standard deviations" are those of the training observations, as in the codec.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from worldmodel.agents.counting import StepLedger
from worldmodel.codec import DiscreteCodec, SpaceCodec, TreeCodec
from worldmodel.corpus.columns import Columns
from worldmodel.fidelity.estimates import median_curve
from worldmodel.fidelity.horizon import divergence_horizon, median_horizon_interval, rmst_interval
from worldmodel.fidelity.noise_reference import PHASE, noise_reference
from worldmodel.fidelity.replay import draw_starts, gather, open_loop_paths
from worldmodel.training.checkpoint import WorldModel

ENOUGH_EPISODES = 5


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


def _active_numbers(codec: SpaceCodec) -> tuple[bool, ...]:
    """Which continuous dimensions change, of those there are."""
    if isinstance(codec, DiscreteCodec):
        return ()
    return codec.numbers_active if isinstance(codec, TreeCodec) else codec.active


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
