"""Many environments in one number, by the robust aggregates of Agarwal et al. (2021, arXiv 2108.13264).

World models are resampled within each environment. Returns of different environments must be on one scale first:
`worldmodel.study.transfer.as_efficiency`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import stats

from worldmodel.fidelity.estimates import Curve, Estimate, Values, percentile_estimate
from worldmodel.study.means import WorldModelMeans, levels, over_world_models, the_only


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean of the middle half along the last axis (a quarter of the values, rounded down, is cut at each end)."""
    return np.asarray(stats.trim_mean(values, 0.25, axis=-1))


@over_world_models
def iqm(means: WorldModelMeans, *, arm: str = "simulated", seed: int = 0, repetitions: int = 2000) -> Estimate:
    """Interquartile mean of an arm's units over all environments, with a stratified-bootstrap 95% interval."""
    parts = _by_environment(means, arm, "iqm")
    draws = _resampled(parts, interquartile_mean, seed, repetitions)
    every = np.concatenate(parts)
    return percentile_estimate(
        float(interquartile_mean(every)), draws, len(every), tail_n=min(len(part) for part in parts)
    )


@over_world_models
def performance_profile(
    means: WorldModelMeans, thresholds: Values, *, arm: str = "simulated", seed: int = 0, repetitions: int = 2000
) -> Curve:
    """Share of an arm's units above each threshold `[H]`, environments weighted alike, with pointwise intervals."""
    at = np.asarray(thresholds, np.float64)
    parts = _by_environment(means, arm, "performance_profile")
    share = np.mean([(part[:, None] > at).mean(axis=0) for part in parts], axis=0)
    rng = np.random.default_rng([seed, 8])
    drawn = np.zeros((repetitions, len(at)))
    for part in parts:
        counts = rng.multinomial(len(part), np.full(len(part), 1 / len(part)), repetitions)
        drawn += counts @ (part[:, None] > at) / len(part) / len(parts)
    n, least = sum(len(part) for part in parts), min(len(part) for part in parts)
    found = [percentile_estimate(float(s), drawn[:, i], n, tail_n=least) for i, s in enumerate(share)]
    ends = [[np.nan if v is None else v for v in (e.lo, e.hi)] for e in found]
    low, high = np.array(ends, np.float64).reshape(-1, 2).T
    why = next((e.why for e in found if e.why), None)
    return Curve(at, share, low, high, np.full(len(at), n), why)


@over_world_models
def probability_of_improvement(
    means: WorldModelMeans, arm: str, over: str, *, seed: int = 0, repetitions: int = 2000
) -> Estimate:
    """P(a unit of `arm` beats one of `over`), ties half, averaged over environments; `n` counts the units of both."""
    first, second = (_by_environment(means, name, "probability_of_improvement") for name in (arm, over))
    if len(first) != len(second):
        raise ValueError(f"arms {arm!r} and {over!r} were not run in the same environments")
    rng = np.random.default_rng([seed, 9])
    point, drawn = 0.0, np.zeros(repetitions)
    for x, y in zip(first, second, strict=True):
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        point += float(wins.mean()) / len(first)
        a = rng.multinomial(len(x), np.full(len(x), 1 / len(x)), repetitions) / len(x)
        b = rng.multinomial(len(y), np.full(len(y), 1 / len(y)), repetitions) / len(y)
        drawn += np.einsum("ri,ij,rj->r", a, wins, b) / len(first)
    sizes = [len(part) for part in (*first, *second)]
    return percentile_estimate(point, drawn, sum(sizes), tail_n=min(sizes))


def _by_environment(means: WorldModelMeans, arm: str, what: str) -> list[np.ndarray]:
    the_only(means, "deployment", what=what)
    own = means.where(means.arm == arm)
    if len(own) == 0:
        raise ValueError(f"{what}: there are no units of arm {arm!r}; arms: {', '.join(levels(means.arm))}")
    return [own.real_return[own.environment == e] for e in levels(own.environment)]


def _resampled(
    parts: list[np.ndarray], statistic: Callable[[np.ndarray], np.ndarray], seed: int, repetitions: int
) -> np.ndarray:
    rng = np.random.default_rng([seed, 10])
    drawn = [part[rng.integers(0, len(part), (repetitions, len(part)))] for part in parts]
    return statistic(np.concatenate(drawn, axis=1))
