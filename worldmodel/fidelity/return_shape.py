"""Returns of one policy beyond their mean: spread, worst episodes, agreement of runs, and what optimisation exploits.

A simulator can have the mean and lose the shape. Each comparison stands beside its noise floor: what it reads if both
sides are draws of the real episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import stats

from worldmodel.fidelity.estimates import Estimate, Values, percentile_estimate

REPETITIONS = 400
WORST = 0.1


def spread_ratio(*, sim: Values, real: Values, seed: int = 0) -> dict[str, Any]:
    """Standard deviation of simulated returns `[n]` over that of real ones `[m]`; 1 if alike.

    JSON: an estimate (bootstrap over episodes; `n` counts the real ones), `floor` (`mean, q05, q95`) for "simulated =
    real", `excess` over its mean, and `p`, the share of those at least as far from 1.
    """

    def ratio(s: np.ndarray, r: np.ndarray) -> np.ndarray:
        below = r.std(axis=1, ddof=1)
        return np.divide(s.std(axis=1, ddof=1), below, out=np.full(len(s), np.nan), where=below > 0)

    return _compared(ratio, sim, real, seed, perfect=1.0, why="real returns have no spread")


def worst_decile_error(*, sim: Values, real: Values, seed: int = 0) -> dict[str, Any]:
    """Mean return of the worst tenth of episodes in simulation minus that in reality; positive: it hides bad ends.

    JSON as `spread_ratio`, with 0 for alike.
    """

    def error(s: np.ndarray, r: np.ndarray) -> np.ndarray:
        return worst_decile(s) - worst_decile(r)

    return _compared(error, sim, real, seed, perfect=0.0, why="")


def worst_decile(returns: np.ndarray) -> np.ndarray:
    """Mean of the lowest tenth (at least one, rounded up) of each row `[R, n]` -> `[R]`."""
    count = math.ceil(WORST * returns.shape[1])
    return np.partition(returns, count - 1, axis=1)[:, :count].mean(axis=1)


def run_to_run(runs: Values) -> dict[str, Any]:
    """Does the simulator give one answer: mean returns of runs `[R, n]`, each by its own member and seed.

    JSON: `sd`, the standard deviation of the runs' true means beyond the noise of episodes (0 if none shows), `p` of
    the F-test that all are equal, `runs`; nulls beside `why` where they cannot be formed.
    """
    x = np.asarray(runs, np.float64)
    if x.ndim != 2:
        raise ValueError(f"runs must be [R, n]; got shape {list(x.shape)}")
    if min(x.shape) < 2 or not np.isfinite(x).all():
        why = "a return is not finite" if min(x.shape) >= 2 else "it needs two runs of two episodes"
        return {"sd": None, "p": None, "runs": len(x), "why": why}
    within = float(x.var(axis=1, ddof=1).mean()) / x.shape[1]
    between = float(x.mean(axis=1).var(ddof=1))
    # Without any spread within runs the test is decided without it.
    p = float(stats.f_oneway(*x).pvalue) if within > 0 else (1.0 if between == 0 else 0.0)
    return {"sd": math.sqrt(max(between - within, 0.0)), "p": p, "runs": len(x)}


def exploitation_gap(
    *, sim: Mapping[str, Values], real: Mapping[str, Values], optimised: str, seed: int = 0
) -> dict[str, Any]:
    """`J_sim - J_real` of the policy that was optimised in the simulator, beside that of the other policies.

    Optimisation seeks the simulator's errors, so that its own policy can be the one that is most overrated. Returns by
    policy `[n]`. JSON: `gap` of it, `others`: their mean gap, `excess`: the difference (intervals: bootstrap over
    episodes, policies held fixed; `n` counts the optimised policy's real episodes).
    """
    if optimised not in sim or set(sim) != set(real):
        raise ValueError(f"optimised policy {optimised!r} is unknown; known: {', '.join(sim)}")
    rng = np.random.default_rng([seed, 5])
    gaps = {}
    for name in sim:
        s, r = (np.asarray(side[name], np.float64) for side in (sim, real))
        points, draws = s.mean() - r.mean(), _resampled(s, rng).mean(axis=1) - _resampled(r, rng).mean(axis=1)
        gaps[name] = np.concatenate([[points], draws])
    own = gaps.pop(optimised)
    n, least = len(np.asarray(real[optimised])), min(len(np.asarray(v)) for side in (sim, real) for v in side.values())
    values: dict[str, np.ndarray | None] = {"gap": own, "others": None, "excess": None}
    if gaps:
        values |= {"others": np.mean(list(gaps.values()), axis=0), "excess": own - np.mean(list(gaps.values()), axis=0)}
    out: dict[str, Any] = {"policy": optimised}
    for name, value in values.items():
        if value is None:
            out[name] = Estimate(None, None, None, n, "there is no other policy").to_json()
        else:
            out[name] = percentile_estimate(float(value[0]), value[1:], n, tail_n=least).to_json()
    return out


def _compared(
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray],
    sim: Values,
    real: Values,
    seed: int,
    *,
    perfect: float,
    why: str,
) -> dict[str, Any]:
    s, r = np.asarray(sim, np.float64), np.asarray(real, np.float64)
    if s.ndim != 1 or r.ndim != 1:
        raise ValueError(f"sim and real must be returns [n] and [m]; got shapes {list(s.shape)} and {list(r.shape)}")
    floor: dict[str, Any] = {"mean": None, "q05": None, "q95": None}
    if min(len(s), len(r)) < 2 or not (np.isfinite(s).all() and np.isfinite(r).all()):
        reason = "a return is not finite" if min(len(s), len(r)) >= 2 else "it needs two episodes on each side"
        return {**Estimate(None, None, None, len(r), reason).to_json(), "floor": floor, "excess": None, "p": None}
    rng = np.random.default_rng([seed, 4])
    point = float(statistic(s[None], r[None])[0])
    estimate = percentile_estimate(
        point, statistic(_resampled(s, rng), _resampled(r, rng)), len(r), why=why, tail_n=min(len(s), len(r))
    )
    null = statistic(_resampled(r, rng, len(s)), _resampled(r, rng))
    null = null[np.isfinite(null)]
    p = excess = None
    if len(null) >= 0.5 * REPETITIONS and math.isfinite(point):
        floor = {
            "mean": float(null.mean()),
            "q05": float(np.quantile(null, 0.05)),
            "q95": float(np.quantile(null, 0.95)),
        }
        p = float((1 + np.sum(np.abs(null - perfect) >= abs(point - perfect) - 1e-12)) / (1 + len(null)))
        excess = point - floor["mean"]
    return {**estimate.to_json(), "floor": floor, "excess": excess, "p": p}


def _resampled(values: np.ndarray, rng: np.random.Generator, size: int | None = None) -> np.ndarray:
    """`REPETITIONS` rows drawn with replacement."""
    return values[rng.integers(0, len(values), (REPETITIONS, size or len(values)))]
