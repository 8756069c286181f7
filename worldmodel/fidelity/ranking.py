"""Does the simulator rank policies as reality does? Input: K policies with returns in simulation and in reality.

Every function takes `sim` and `real` by keyword only: MMRV is asymmetric, and swapped arguments have turned a published
.111 into .003. Higher returns are better. Undefined values are NaN here and null with a reason in `rank_panel`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from worldmodel.fidelity.estimates import Estimate, Values, percentile_estimate

MMRV_CONVENTIONS = {
    "real_gap_xor": "gap on the real side; i, j violate if (R_i > R_j) != (S_i > S_j) (SIMPLER, Li et al. 2024)",
    "sim_gap_xor": "the same violations, gap on the simulated side",
    "real_gap_strict": "gap on the real side; i, j violate if (R_i - R_j) (S_i - S_j) < 0: ties never do",
}
REGRET_CONVENTIONS = ("dope", "scope_rl")
# What the metrics of a panel read if simulated mean returns equal the real ones: of correlations larger is better.
_PERFECT = {"pearson": 1.0, "spearman": 1.0, "kendall": 1.0, "mae": 0.0, "mmrv": 0.0, "regret_at_1": 0.0}


def pearson(*, sim: Values, real: Values) -> float:
    """Linear correlation of mean returns `[K]`; NaN if either side is constant."""
    return float(_pearson_rows(*_pair(sim, real))[0])


def spearman(*, sim: Values, real: Values) -> float:
    """Rank correlation of mean returns `[K]`, ties sharing their mean rank; NaN if either side is constant."""
    return float(_spearman_rows(*_pair(sim, real))[0])


def kendall(*, sim: Values, real: Values) -> float:
    """Kendall's tau-b of mean returns `[K]`; NaN if either side is constant."""
    return float(_kendall_rows(*_pair(sim, real))[0])


def mae(*, sim: Values, real: Values) -> float:
    """Mean absolute error of simulated returns `[K]`, in units of return (DOPE, Fu et al. 2021)."""
    return float(_mae_rows(*_pair(sim, real))[0])


def mmrv(*, sim: Values, real: Values, convention: str = "real_gap_xor") -> float:
    """Mean maximum rank violation: `mean_i max_j gap_ij 1[i, j are ranked unlike]`, in units of return.

    `sim`, `real`: mean returns `[K]`. Published figures differ in gap side and violation rule: see `MMRV_CONVENTIONS`.
    """
    _check_convention(convention)
    return float(_mmrv_rows(*_pair(sim, real), convention)[0])


def regret_at_k(*, sim: Values, real: Values, k: int = 1, normalized: bool = False, convention: str = "dope") -> float:
    """Real return lost by trusting the simulator's top k of mean returns `[K]`.

    "dope": best real return minus the best real return among the top k by `sim` (Fu et al. 2021). "scope_rl": sum of
    the k best real returns minus the sum over the top k by `sim`. Policies tied in `sim` at the cut are taken at
    random, and the value is the expectation. `normalized` divides by the best real return, which must be positive.
    """
    s, r = (side[0] for side in _pair(sim, real))
    if convention not in REGRET_CONVENTIONS:
        raise ValueError(f"regret convention {convention!r} is unknown; known: {', '.join(REGRET_CONVENTIONS)}")
    if not 1 <= k <= len(s):
        raise ValueError(f"regret@k has k={k}; it must be between 1 and the {len(s)} policies")
    cut = np.sort(s)[-k]
    sure, tied = r[s > cut], np.sort(r[s == cut])
    picks = k - len(sure)
    if convention == "scope_rl":
        loss = max(float(np.sort(r)[-k:].sum() - sure.sum() - picks * tied.mean()), 0.0)
    else:
        chance = np.array([math.comb(i, picks - 1) for i in range(len(tied))], np.float64) / math.comb(len(tied), picks)
        best_kept = np.maximum(tied, sure.max()) if len(sure) else tied
        loss = float(chance @ (r.max() - best_kept))
    if not normalized:
        return loss
    if r.max() <= 0:
        raise ValueError(f"normalized regret divides by the best real return, which is {r.max()}; it must be positive")
    return loss / float(r.max())


def top1_agreement(*, sim: Values, real: Values) -> float:
    """Overlap (Jaccard) of the sets of best policies by `sim` and by `real` `[K]`: 1 if the same, 0 if disjoint."""
    s, r = (side[0] for side in _pair(sim, real))
    best_s, best_r = s == s.max(), r == r.max()
    return float(np.sum(best_s & best_r) / np.sum(best_s | best_r))


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
    per metric, `mean` and `q95` (the correlations: `q05`), or nulls with `why`.
    """
    _check_convention(convention)
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
    minus mean floor (errors: above 0 is worse; correlations: below 0 is worse). Fewer than 2 policies: ValueError.
    """
    _check_convention(convention)
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
        metrics[name] = _correct_bias(estimate, _PERFECT[name], floor[name]["p"])
    return {
        **{name: estimate.to_json() for name, estimate in metrics.items()},
        "mmrv_convention": convention,
        "top1_agreement": top1_agreement(sim=exact_sim[0], real=exact_real[0]),
        "n_policies": len(names),
        "smallest_permutation_p": 1 / math.factorial(len(names)),
        "interval": "95%, bootstrap over episodes within policy, policies held fixed; n = real episodes",
        "noise_floor": floor,
        "excess": {name: _minus_floor(metrics[name], floor[name]).to_json() for name in metrics},
    }


def _pair(sim: Values, real: Values) -> tuple[np.ndarray, np.ndarray]:
    s, r = np.asarray(sim, np.float64), np.asarray(real, np.float64)
    if s.ndim != 1 or s.shape != r.shape or len(s) == 0:
        raise ValueError(f"sim and real must both be [K], K >= 1; got shapes {list(s.shape)} and {list(r.shape)}")
    for name, side in (("sim", s), ("real", r)):
        if not np.isfinite(side).all():
            raise ValueError(f"{name}[{int(np.argmin(np.isfinite(side)))}] is not finite; mean returns must be finite")
    return s[None], r[None]


def _returns(values: Values, name: str) -> np.ndarray:
    out = np.asarray(values, np.float64)
    if out.ndim != 1 or len(out) == 0 or not np.isfinite(out).all():
        raise ValueError(
            f"{name} must be finite returns of shape [episodes], at least one; got shape {list(out.shape)}"
        )
    return out


def _check_convention(convention: str) -> None:
    if convention not in MMRV_CONVENTIONS:
        raise ValueError(f"MMRV convention {convention!r} is unknown; known: {', '.join(MMRV_CONVENTIONS)}")


# Row functions: mean returns sim, real [R, K] -> one value per row [R].


def _pearson_rows(sim: np.ndarray, real: np.ndarray) -> np.ndarray:
    varies = (np.ptp(sim, axis=1) > 0) & (np.ptp(real, axis=1) > 0)
    s, r = sim - sim.mean(1, keepdims=True), real - real.mean(1, keepdims=True)
    # Unit scale first: squares of tiny or huge returns leave the range of float64.
    s, r = (x / np.where(varies, np.abs(x).max(1), 1.0)[:, None] for x in (s, r))
    norm = np.sqrt((s * s).sum(1) * (r * r).sum(1))
    out = np.divide((s * r).sum(1), norm, out=np.full(len(sim), np.nan), where=varies)
    return np.clip(out, -1.0, 1.0)


def _spearman_rows(sim: np.ndarray, real: np.ndarray) -> np.ndarray:
    return _pearson_rows(stats.rankdata(sim, axis=1), stats.rankdata(real, axis=1))


def _kendall_rows(sim: np.ndarray, real: np.ndarray) -> np.ndarray:
    i, j = np.triu_indices(sim.shape[1], 1)
    s, r = np.sign(sim[:, i] - sim[:, j]), np.sign(real[:, i] - real[:, j])
    norm = np.sqrt(np.abs(s).sum(1) * np.abs(r).sum(1))
    return np.divide((s * r).sum(1), norm, out=np.full(len(sim), np.nan), where=norm > 0)


def _mae_rows(sim: np.ndarray, real: np.ndarray) -> np.ndarray:
    return np.abs(sim - real).mean(1)


def _mmrv_rows(sim: np.ndarray, real: np.ndarray, convention: str) -> np.ndarray:
    out = np.empty(len(sim))
    block = max(1, 2_000_000 // sim.shape[1] ** 2)
    for start in range(0, len(sim), block):
        rows = slice(start, start + block)
        s, r = (x[rows, :, None] - x[rows, None, :] for x in (sim, real))
        unlike = (np.sign(s) * np.sign(r) < 0) if convention == "real_gap_strict" else ((s > 0) != (r > 0))
        gap = np.abs(s if convention == "sim_gap_xor" else r)
        out[rows] = np.where(unlike, gap, 0.0).max(2).mean(1)
    return out


def _regret_rows(sim: np.ndarray, real: np.ndarray) -> np.ndarray:
    best = sim == sim.max(1, keepdims=True)
    lost = real.max(1, keepdims=True) - real
    return np.where(best, lost, 0.0).sum(1) / best.sum(1)


def _metric_rows(sim: np.ndarray, real: np.ndarray, convention: str) -> dict[str, np.ndarray]:
    plain: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        "pearson": _pearson_rows,
        "spearman": _spearman_rows,
        "kendall": _kendall_rows,
        "mae": _mae_rows,
        "mmrv": lambda s, r: _mmrv_rows(s, r, convention),
        "regret_at_1": _regret_rows,
    }
    return {name: f(sim, real) for name, f in plain.items()}


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
    quantile = "q05" if _PERFECT[name] else "q95"
    defined = draws[~np.isnan(draws)]
    if min(len(values) for values in real) < 2:
        return {"mean": None, quantile: None, "why": "a policy has a single real episode, which shows no noise"}
    if len(defined) < 0.5 * len(draws):
        return {"mean": None, quantile: None, "why": f"undefined in {len(draws) - len(defined)} of {len(draws)} draws"}
    return {"mean": float(defined.mean()), quantile: float(np.quantile(defined, 0.05 if quantile == "q05" else 0.95))}


def _floor_p(name: str, observed: float, draws: np.ndarray) -> float | None:
    if math.isnan(observed):
        return None
    defined = draws[~np.isnan(draws)]
    worse = defined <= observed if _PERFECT[name] else defined >= observed
    worse |= np.isclose(defined, observed, rtol=1e-9, atol=0)  # equal but for the order of a sum
    return float((1 + worse.sum()) / (1 + len(defined)))


def _correct_bias(estimate: Estimate, perfect: float, p: float | None) -> Estimate:
    """Widen an interval to hold its mirror image about the estimate, and a perfect score that `p` does not reject.

    Noise in the means only ever breaks a ranking, and a resample breaks it a second time, so percentiles alone lean
    away from a perfect score (and never reached it when the simulator was perfect).
    """
    if estimate.mean is None or estimate.lo is None or estimate.hi is None:
        return estimate
    lo = min(estimate.lo, 2 * estimate.mean - estimate.hi)
    hi = max(estimate.hi, 2 * estimate.mean - estimate.lo)
    if p is not None and p > 0.05:
        lo, hi = min(lo, perfect), max(hi, perfect)
    bounds = (-1.0, 1.0) if perfect else (0.0, math.inf)
    return Estimate(estimate.mean, max(lo, bounds[0]), min(hi, bounds[1]), estimate.n)


def _minus_floor(estimate: Estimate, floor: dict[str, Any]) -> Estimate:
    base = floor["mean"]
    if base is None:
        return Estimate(None, None, None, estimate.n, floor["why"])
    mean, lo, hi = (None if v is None else v - base for v in (estimate.mean, estimate.lo, estimate.hi))
    return Estimate(mean, lo, hi, estimate.n, estimate.why)


def _where_constant(sim: np.ndarray, real: np.ndarray) -> str:
    sides = [name for name, side in (("in simulation", sim), ("in reality", real)) if np.ptp(side) == 0]
    return " and ".join(sides)
