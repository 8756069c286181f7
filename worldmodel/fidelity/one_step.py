"""How wrong is one step: errors of a prediction made at the real state and action, against what really followed.

`N` transitions, `D` dimensions, `M` samples. `episode_ids` `[N]` name the episode of each transition: intervals
resample episodes. Without them each transition counts as independent, which logged steps are not.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from worldmodel.fidelity.estimates import (
    Estimate,
    Values,
    clopper_pearson,
    cluster_index,
    cluster_mean_interval,
    cluster_rate_interval,
    cluster_ratio_interval,
    cluster_sums,
    percentile_estimate,
    resample_counts,
    widened,
)


@dataclasses.dataclass(frozen=True)
class OneStepError:
    """Error of the predicted change relative to the spread of the true one.

    Attributes:
      overall: mean over dimensions that change, with interval over episodes.
      per_dimension: float64 `[D]`, NaN where the true change is constant.
      rmse: float64 `[D]`, root mean squared error in units of the observation.
      constant: the dimensions left out of `overall` because their true change has no spread to compare with.
    """

    overall: Estimate
    per_dimension: np.ndarray
    rmse: np.ndarray
    constant: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """The overall estimate with `per_dimension[]` (null where constant), `rmse[]`, `constant_dimensions[]`."""
        out = self.overall.to_json()
        out["per_dimension"] = [None if math.isnan(v) else float(v) for v in self.per_dimension]
        out["rmse"] = [float(v) if math.isfinite(v) else None for v in self.rmse]
        out["constant_dimensions"] = list(self.constant)
        if self.constant:
            left_out = f"dimensions {list(self.constant)} left out: their true change is constant"
            out["why"] = f"{out['why']}; {left_out}" if "why" in out else left_out
        return out


def nrmse(
    prediction: Values,
    target: Values,
    current: Values,
    episode_ids: Values | None = None,
    seed: int = 0,
    *,
    repetitions: int = 1000,
) -> OneStepError:
    """Per dimension `sqrt(mean((prediction - target)^2)) / sd(target - current)`, averaged over dimensions.

    `prediction` (the mean of the predicted next observation), `target` (the real one), `current`: `[N, D]`, in the
    units of the observation and the float type it was recorded in: spread below that type's rounding counts as none.
    About 1 is the scale of predicting no change (exactly: `persistence_nrmse`). ValueError on shapes or non-finite
    observations; a non-finite prediction leaves the estimate null, with the count.
    """
    prediction, target, current = np.asarray(prediction), np.asarray(target), np.asarray(current)
    if target.ndim != 2 or not prediction.shape == target.shape == current.shape:
        shapes = ", ".join(str(list(x.shape)) for x in (prediction, target, current))
        raise ValueError(f"prediction, target and current must share one shape [N, D]; got {shapes}")
    for name, array in (("target", target), ("current", current)):
        if not np.isfinite(array).all():
            raise ValueError(
                f"{name} has a value that is not finite in row {int(np.argwhere(~np.isfinite(array))[0, 0])}"
            )
    index, clusters = cluster_index(episode_ids, len(target))
    if clusters == 0:
        nothing = np.full(target.shape[1], np.nan)
        return OneStepError(Estimate(None, None, None, 0, "no transitions"), nothing, nothing, ())
    change = target.astype(np.float64) - current
    spread, rounding = change.std(axis=0), _rounding(target, current)
    constant = spread <= rounding
    # The spread in a resample needs sums of squares; centred first, they do not cancel.
    change -= change.mean(axis=0)
    error = prediction.astype(np.float64) - target
    broken = ~np.isfinite(error).all(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        rmse = np.sqrt(np.mean(error**2, axis=0))
    ratio = np.where(constant, np.nan, rmse / np.where(constant, 1.0, spread))
    if broken.any() or constant.all():
        why = (
            f"{int(broken.sum())} of {len(target)} predictions are not finite"
            if broken.any()
            else "no dimension changes"
        )
        return OneStepError(
            Estimate(None, None, None, clusters, why), ratio, rmse, tuple(map(int, np.flatnonzero(constant)))
        )
    kept = ~constant
    scaled = [x[:, kept] / spread[kept] for x in (error, change)]
    squares, sums, seconds = (cluster_sums(x, index, clusters) for x in (scaled[0] ** 2, scaled[1], scaled[1] ** 2))
    rows = np.bincount(index, minlength=clusters).astype(np.float64)
    draws = []
    for counts in resample_counts(clusters, repetitions, seed, width=int(kept.sum())):
        drawn = (counts @ rows)[:, None]
        variance = counts @ seconds / drawn - (counts @ sums / drawn) ** 2
        flat = variance <= (rounding[kept] / spread[kept]) ** 2 + 1e-12
        draws.append(
            np.sqrt(np.where(flat, np.nan, counts @ squares / drawn / np.where(flat, 1.0, variance))).mean(axis=1)
        )
    overall = percentile_estimate(float(np.mean(ratio[kept])), np.concatenate(draws), clusters)
    return OneStepError(overall, ratio, rmse, tuple(map(int, np.flatnonzero(constant))))


def _rounding(target: np.ndarray, current: np.ndarray) -> np.ndarray:
    """Spread `[D]` that rounding alone can give to a difference of these arrays."""
    kinds = [np.finfo(x.dtype).eps for x in (target, current) if np.issubdtype(x.dtype, np.floating)]
    scale = np.maximum(np.abs(target).max(axis=0), np.abs(current).max(axis=0)).astype(np.float64)
    return float(max(kinds, default=np.finfo(np.float64).eps)) * scale


def persistence_nrmse(
    target: Values,
    current: Values,
    episode_ids: Values | None = None,
    seed: int = 0,
    *,
    repetitions: int = 1000,
) -> OneStepError:
    """`nrmse` of predicting no change: `sqrt(mean(change^2)) / sd(change)`, never below 1; the floor to beat."""
    return nrmse(current, target, current, episode_ids, seed, repetitions=repetitions)


def reward_mae(prediction: Values, truth: Values, episode_ids: Values | None = None, seed: int = 0) -> Estimate:
    """Mean absolute error of the predicted reward; `prediction`, `truth`: `[N]`, in units of reward."""
    prediction, truth = np.asarray(prediction, np.float64), np.asarray(truth, np.float64)
    if prediction.shape != truth.shape or truth.ndim != 1:
        raise ValueError(f"prediction and truth must both be [N]; got {list(prediction.shape)} and {list(truth.shape)}")
    return cluster_mean_interval(np.abs(prediction - truth), episode_ids, seed)


def termination_scores(
    probability: Values,
    truth: Values,
    threshold: float | int = 0.5,
    episode_ids: Values | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Scores of predicted ends: `probability` `[N]` of ending at each transition, `truth` `[N]` bool.

    Returns estimates `precision, recall, f1` (an end is predicted at `probability >= threshold`), `brier`,
    `false_end_rate{sampled, thresholded}` per non-terminal step (sampled: the mean
    probability), `threshold` and `counts`. Precision, recall and F1 are null where there are no true ends. Rates
    that count events have the hull of the bootstrap over episodes and Clopper-Pearson's interval, because a bootstrap
    that holds no event has no width.
    """
    p, y = np.asarray(probability, np.float64), np.asarray(truth)
    if p.ndim != 1 or p.shape != y.shape:
        raise ValueError(f"probability and truth must both be [N]; got {list(p.shape)} and {list(y.shape)}")
    if not np.isin(y, (0, 1)).all():
        raise ValueError("truth must be boolean: whether the transition was terminal")
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"probability[{int(np.argmin((p >= 0) & (p <= 1)))}] is outside [0, 1]")
    y, said = y.astype(bool), p >= threshold
    hit, ends, goes_on = said & y, int(y.sum()), ~y

    def rate(events: np.ndarray, among: np.ndarray, why: str) -> Estimate:
        return cluster_rate_interval(events, among, episode_ids, seed, why=why)

    no_ends = f"no true ends among {len(y)} transitions"
    if ends:
        precision, recall = rate(y, said, "no end was predicted"), rate(said, y, no_ends)
        f1 = cluster_ratio_interval(2.0 * hit, 1.0 * said + y, episode_ids, seed)
        # F1 = 2J / (1 + J) is monotone in the Jaccard rate J, which counts events.
        low, high = (2 * j / (1 + j) for j in clopper_pearson(int(hit.sum()), int((said | y).sum())))
        f1 = widened(f1, low, high)
    else:
        precision = recall = f1 = Estimate(None, None, None, 0, no_ends)
    all_end = "every transition is a true end" if len(y) else "no transitions"
    sampled = cluster_ratio_interval(p * goes_on, goes_on, episode_ids, seed, why=all_end)
    return {
        "precision": precision.to_json(),
        "recall": recall.to_json(),
        "f1": f1.to_json(),
        "brier": cluster_mean_interval((p - y) ** 2, episode_ids, seed).to_json(),
        "false_end_rate": {"sampled": sampled.to_json(), "thresholded": rate(said, goes_on, all_end).to_json()},
        "threshold": float(threshold),
        "counts": {
            "transitions": len(y),
            "true_ends": ends,
            "predicted_ends": int(said.sum()),
            "hits": int(hit.sum()),
            "false_ends": int((said & ~y).sum()),
        },
    }


def crps_fair(samples: Values, truth: Values) -> np.ndarray:
    """CRPS of an ensemble, unbiased in its size: `E|X - y| - sum_{i != j} |X_i - X_j| / (2 M (M - 1))` -> `[N]`.

    `samples` `[M, N]`, `truth` `[N]`, in the same units, which are the score's (Ferro 2014). May be negative.
    """
    x, y = _ensemble(samples, truth)
    if len(x) < 2:
        raise ValueError(f"the fair CRPS needs at least 2 samples; got {len(x)}")
    return np.abs(x - y).mean(0) - _pair_sum(x) / (len(x) * (len(x) - 1))


def crps_ensemble(samples: Values, truth: Values) -> np.ndarray:
    """CRPS of the ensemble's empirical distribution (V-form, divisor `2 M^2`) -> `[N]`; shapes as in `crps_fair`.

    Above the CRPS of the distribution sampled from, the more so the smaller M: use it where the samples *are* the
    forecast.
    """
    x, y = _ensemble(samples, truth)
    return np.abs(x - y).mean(0) - _pair_sum(x) / len(x) ** 2


def _pair_sum(x: np.ndarray) -> np.ndarray:
    """`sum_{i < j} |x_i - x_j|` over the first axis, by sorting."""
    rank = 2.0 * np.arange(1, len(x) + 1) - len(x) - 1
    return rank @ np.sort(x, axis=0)


def _ensemble(samples: Values, truth: Values) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(samples, np.float64), np.asarray(truth, np.float64)
    if x.ndim != 2 or len(x) == 0 or x.shape[1:] != y.shape:
        raise ValueError(f"samples must be [M, N] and truth [N]; got shapes {list(x.shape)} and {list(y.shape)}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("samples and truth must be finite; a sample that broke cannot be ranked")
    return x, y


def pit(samples: Values, truth: Values, *, seed: int = 0) -> np.ndarray:
    """Where the truth falls in its forecast -> `[N]` in (0, 1), uniform if the truth is exchangeable with the samples.

    `samples` `[M, N]`, `truth` `[N]`. Rank form `(below + U (1 + equal)) / (M + 1)`: exact for any M, and for discrete
    values too.
    """
    x, y = _ensemble(samples, truth)
    u = np.random.default_rng(seed).uniform(size=len(y))
    return ((x < y).sum(0) + u * (1 + (x == y).sum(0))) / (len(x) + 1)


def coverage(
    samples: Values,
    truth: Values,
    level: float | int,
    *,
    episode_ids: Values | None = None,
    seed: int = 0,
) -> Estimate:
    """Share of truths inside the central `level` interval of their forecast, by `pit`; `level` itself if calibrated.

    `samples` `[M, N]`, `truth` `[N]`, `0 < level < 1`. By rank and not by sample quantiles, so a small M is no bias.
    """
    if not 0 < level < 1:
        raise ValueError(f"coverage level is {level}; it must lie between 0 and 1")
    u = pit(samples, truth, seed=seed)
    return cluster_mean_interval(np.abs(u - 0.5) <= level / 2, episode_ids, seed)
