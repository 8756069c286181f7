"""Does the simulator rank policies as reality does, given so many episodes: metrics, intervals, noise floor, excess."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from worldmodel.fidelity.estimates import Estimate, Values, percentile_estimate
from worldmodel.fidelity.rank_metrics import (
    calibration_rows,
    check_convention,
    kendall_rows,
    mae_rows,
    mmrv_rows,
    pearson_rows,
    regret_at_1_rows,
    regret_rows,
    spearman_rows,
    top1_rows,
)


class _Kind(NamedTuple):
    """What a metric reads if simulated mean returns equal the real ones, which side of it is worse, and its range."""

    perfect: float
    worse: int  # -1: below, 1: above, 0: either
    bounds: tuple[float, float]


_CORRELATION, _ERROR = _Kind(1.0, -1, (-1.0, 1.0)), _Kind(0.0, 1, (0.0, math.inf))
_ANY = (-math.inf, math.inf)
_KINDS = {
    "pearson": _CORRELATION,
    "spearman": _CORRELATION,
    "kendall": _CORRELATION,
    "top1_agreement": _Kind(1.0, -1, (0.0, 1.0)),
    "mae": _ERROR,
    "mmrv": _ERROR,
    "regret_at_1": _ERROR,
    "regret_at_3": _ERROR,
    "regret_at_3_scope_rl": _ERROR,
    "calibration_slope": _Kind(1.0, 0, _ANY),
    "calibration_intercept": _Kind(0.0, 0, _ANY),
}
_K = 3


def noise_floor(
    *,
    real_returns: Sequence[Values],
    n_sim: Sequence[int],
    n_real: Sequence[int] | None = None,
    seed: int,
    repetitions: int = 500,
    convention: str = "real_gap_xor",
) -> dict[str, dict[str, Any]]:
    """What each metric reads for a *perfect* simulator, given only so many episodes.

    Under "simulator = real" both means of a policy are nonparametric bootstrap draws from its real per-episode returns,
    after these are shifted so that the policies' means spread as much as they truly do: observed means also spread by
    noise, and taken for the truth they promise a perfect simulator too good a reading.
    `real_returns[i]` `[n_i]`: `n_sim[i]` episodes for the simulator, `n_real[i]` (default `n_i`) for reality. Returns,
    per metric, `mean` and its worse tail, `q95` or (correlations, agreement) `q05`, or both (the line of calibration);
    nulls with `why`.
    """
    check_convention(convention)
    if len(real_returns) < 2:
        raise ValueError(f"a noise floor needs at least 2 policies; got {len(real_returns)}")
    real = [_returns(values, f"real_returns[{i}]") for i, values in enumerate(real_returns)]
    n_real = [len(values) for values in real] if n_real is None else n_real
    for name, counts in (("n_sim", n_sim), ("n_real", n_real)):
        if len(counts) != len(real) or min(counts) < 1:
            raise ValueError(f"{name} is {list(counts)}; it needs one positive count for each of {len(real)} policies")
    draws = _floor_draws(real, n_sim, n_real, seed, repetitions, convention)
    return {name: _floor_summary(name, values, real) for name, values in draws.items()}


def rank_panel(
    names: Sequence[str],
    sim_returns: Sequence[Values],
    real_returns: Sequence[Values],
    seed: int,
    *,
    repetitions: int = 1000,
    convention: str = "real_gap_xor",
) -> dict[str, Any]:
    """All ranking metrics of K policies, with intervals and noise floor, as plain JSON.

    `sim_returns[i]` `[n_sim_i]` and `real_returns[i]` `[n_real_i]` are per-episode returns of policy `names[i]`.
    Intervals resample episodes within each policy and hold the policies fixed (`n` counts the real episodes), so they
    do not speak of other policies: for that K (`n_policies`) is the sample size. Each is the hull of the percentile
    interval, its mirror image about the estimate (noise only ever breaks a ranking, which biases percentiles), and the
    perfect value where the floor does not reject it at 5%. Each metric is an estimate; `noise_floor` is
    what a perfect simulator would read, with `p`, the share of such readings at least as bad; `excess` is observed
    minus mean floor (errors: above 0 is worse; correlations: below 0 is worse). Regrets at 3 need 4
    policies. Fewer than 2 policies: ValueError.
    """
    check_convention(convention)
    if not len(names) == len(sim_returns) == len(real_returns) or len(set(names)) != len(names):
        raise ValueError(
            f"a panel needs one distinct name, one sim and one real array per policy; got {len(names)} names "
            f"({len(set(names))} distinct), {len(sim_returns)} sim and {len(real_returns)} real arrays"
        )
    if len(names) < 2:
        raise ValueError(f"a ranking needs at least 2 policies; got {len(names)}")
    sim = [_returns(v, f"sim_returns of {n!r}") for n, v in zip(names, sim_returns, strict=True)]
    real = [_returns(v, f"real_returns of {n!r}") for n, v in zip(names, real_returns, strict=True)]
    sizes = [len(v) for v in sim], [len(v) for v in real]
    exact_sim, exact_real = (_tied(np.array([[v.mean() for v in side]])) for side in (sim, real))
    point = {name: float(v[0]) for name, v in _metric_rows(exact_sim, exact_real, convention).items()}
    rng = np.random.default_rng([seed, 0])
    drawn_sim, drawn_real = (_mean_draws(side, [len(v) for v in side], repetitions, rng) for side in (sim, real))
    draws = _metric_rows(drawn_sim, drawn_real, convention)
    undefined = "all policies have the same mean return " + _where_constant(exact_sim, exact_real)
    floor_draws = _floor_draws(real, *sizes, [seed, 1], repetitions, convention)
    floor = {name: _floor_summary(name, values, real) for name, values in floor_draws.items()}
    for name, entry in floor.items():
        entry["p"] = _floor_p(name, point[name], floor_draws[name]) if entry["mean"] is not None else None
        if entry["p"] is None:
            entry.setdefault("why", undefined)
    metrics = {}
    for name, value in point.items():
        estimate = percentile_estimate(value, draws[name], sum(sizes[1]), why=undefined, tail_n=min(map(min, sizes)))
        metrics[name] = _correct_bias(estimate, _KINDS[name], floor[name]["p"])
    return {
        **{name: estimate.to_json() for name, estimate in metrics.items()},
        "mmrv_convention": convention,
        "regret_convention": "regret_at_k: best real return minus the best among the top k by simulation (DOPE); "
        "_scope_rl: sum of the k best real returns minus the sum over the top k by simulation",
        "n_policies": len(names),
        "smallest_permutation_p": 1 / math.factorial(len(names)),
        "interval": "95%, bootstrap over episodes within policy, policies held fixed; n = real episodes",
        "noise_floor": floor,
        "excess": {name: _minus_floor(metrics[name], floor[name]).to_json() for name in metrics},
    }


def _returns(values: Values, name: str) -> np.ndarray:
    out = np.asarray(values, np.float64)
    if out.ndim != 1 or len(out) == 0 or not np.isfinite(out).all():
        raise ValueError(
            f"{name} must be finite returns of shape [episodes], at least one; got shape {list(out.shape)}"
        )
    return out


def _metric_rows(sim: np.ndarray, real: np.ndarray, convention: str) -> dict[str, np.ndarray]:
    """Every metric of the panels `[R, K]`."""
    slope, intercept = calibration_rows(sim, real)
    out = {
        "pearson": pearson_rows(sim, real),
        "spearman": spearman_rows(sim, real),
        "kendall": kendall_rows(sim, real),
        "top1_agreement": top1_rows(sim, real),
        "mae": mae_rows(sim, real),
        "mmrv": mmrv_rows(sim, real, convention),
        "regret_at_1": regret_at_1_rows(sim, real),
        "calibration_slope": slope,
        "calibration_intercept": intercept,
    }
    if sim.shape[1] > _K:
        out["regret_at_3"] = regret_rows(sim, real, _K, "dope")
        out["regret_at_3_scope_rl"] = regret_rows(sim, real, _K, "scope_rl")
    return out


def _tied(means: np.ndarray) -> np.ndarray:
    """Round off the last bits, so that equal means stay tied whatever the order in which they were summed."""
    scale = float(np.abs(means).max())
    return np.round(means / scale, 12) * scale if scale > 0 else means


def _mean_draws(
    returns: Sequence[np.ndarray], sizes: Sequence[int], repetitions: int, rng: np.random.Generator
) -> np.ndarray:
    """Bootstrap means `[R, K]` of `sizes[i]` episodes drawn from `returns[i]`."""
    columns = []
    for values, size in zip(returns, sizes, strict=True):
        distinct, counts = np.unique(values, return_counts=True)
        columns.append(rng.multinomial(size, counts / len(values), size=repetitions) @ distinct / size)
    return _tied(np.stack(columns, axis=1))


def _floor_draws(real, n_sim, n_real, seed, repetitions: int, convention: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = np.array([len(values) for values in real])
    means = np.array([values.mean() for values in real])
    # A bootstrap of n values draws with (n - 1) / n of the variance that a further n episodes would have.
    widen = np.sqrt(sizes / np.maximum(sizes - 1, 1))
    noise = np.mean([values.var() / max(len(values) - 1, 1) for values in real])
    spread = means.var(ddof=1)
    shrink = math.sqrt(max(0.0, 1.0 - noise / spread)) if spread > 0 else 1.0
    truth = means.mean() + shrink * (means - means.mean())
    sim, again = (_tied(truth + widen * (_mean_draws(real, n, repetitions, rng) - means)) for n in (n_sim, n_real))
    return _metric_rows(sim, again, convention)


def _floor_summary(name: str, draws: np.ndarray, real: Sequence[np.ndarray]) -> dict[str, Any]:
    tails = {-1: ("q05",), 1: ("q95",), 0: ("q05", "q95")}[_KINDS[name].worse]
    missing: dict[str, Any] = {"mean": None, **dict.fromkeys(tails)}
    defined = draws[~np.isnan(draws)]
    if min(len(values) for values in real) < 2:
        return {**missing, "why": "a policy has a single real episode, which shows no noise"}
    if len(defined) < 0.5 * len(draws):
        return {**missing, "why": f"undefined in {len(draws) - len(defined)} of {len(draws)} draws"}
    return {"mean": float(defined.mean()), **{t: float(np.quantile(defined, int(t[1:]) / 100)) for t in tails}}


def _floor_p(name: str, observed: float, draws: np.ndarray) -> float | None:
    if math.isnan(observed):
        return None
    kind, defined = _KINDS[name], draws[~np.isnan(draws)]
    if kind.worse == 0:
        defined, observed = np.abs(defined - kind.perfect), abs(observed - kind.perfect)
    worse = defined <= observed if kind.worse < 0 else defined >= observed
    worse |= np.isclose(defined, observed, rtol=1e-9, atol=0)  # equal but for the order of a sum
    return float((1 + worse.sum()) / (1 + len(defined)))


def _correct_bias(estimate: Estimate, kind: _Kind, p: float | None) -> Estimate:
    """Widen an interval to hold its mirror image about the estimate, and a perfect score that `p` does not reject.

    Noise in the means only ever breaks a ranking, and a resample breaks it a second time, so percentiles alone lean
    away from a perfect score (and never reached it when the simulator was perfect).
    """
    if estimate.mean is None or estimate.lo is None or estimate.hi is None:
        return estimate
    lo = min(estimate.lo, 2 * estimate.mean - estimate.hi)
    hi = max(estimate.hi, 2 * estimate.mean - estimate.lo)
    if p is not None and p > 0.05:
        lo, hi = min(lo, kind.perfect), max(hi, kind.perfect)
    return Estimate(estimate.mean, max(lo, kind.bounds[0]), min(hi, kind.bounds[1]), estimate.n)


def _minus_floor(estimate: Estimate, floor: dict[str, Any]) -> Estimate:
    base = floor["mean"]
    if base is None:
        return Estimate(None, None, None, estimate.n, floor["why"])
    mean, lo, hi = (None if v is None else v - base for v in (estimate.mean, estimate.lo, estimate.hi))
    return Estimate(mean, lo, hi, estimate.n, estimate.why)


def _where_constant(sim: np.ndarray, real: np.ndarray) -> str:
    sides = [name for name, side in (("in simulation", sim), ("in reality", real)) if np.ptp(side) == 0]
    return " and ".join(sides)
