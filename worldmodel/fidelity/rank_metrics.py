"""Does the simulator rank policies as reality does? Input: K policies with returns in simulation and in reality.

Every function takes `sim` and `real` by keyword only: MMRV is asymmetric, and swapped arguments have turned a published
.111 into .003. Higher returns are better. Undefined values are NaN here and null with a reason in `ranking.rank_panel`.
"""

import math

import numpy as np
from scipy import stats

from worldmodel.fidelity.estimates import Values

MMRV_CONVENTIONS = {
    "real_gap_xor": "gap on the real side; i, j violate if (R_i > R_j) != (S_i > S_j) (SIMPLER, Li et al. 2024)",
    "sim_gap_xor": "the same violations, gap on the simulated side",
    "real_gap_strict": "gap on the real side; i, j violate if (R_i - R_j) (S_i - S_j) < 0: ties never do",
}
REGRET_CONVENTIONS = ("dope", "scope_rl")


def pearson(*, sim: Values, real: Values) -> float:
    """Linear correlation of mean returns `[K]`; NaN if either side is constant."""
    return float(pearson_rows(*_pair(sim, real))[0])


def spearman(*, sim: Values, real: Values) -> float:
    """Rank correlation of mean returns `[K]`, ties sharing their mean rank; NaN if either side is constant."""
    return float(spearman_rows(*_pair(sim, real))[0])


def kendall(*, sim: Values, real: Values) -> float:
    """Kendall's tau-b of mean returns `[K]`; NaN if either side is constant."""
    return float(kendall_rows(*_pair(sim, real))[0])


def mae(*, sim: Values, real: Values) -> float:
    """Mean absolute error of simulated returns `[K]`, in units of return (DOPE, Fu et al. 2021)."""
    return float(mae_rows(*_pair(sim, real))[0])


def mmrv(*, sim: Values, real: Values, convention: str = "real_gap_xor") -> float:
    """Mean maximum rank violation: `mean_i max_j gap_ij 1[i, j are ranked unlike]`, in units of return.

    `sim`, `real`: mean returns `[K]`. Published figures differ in gap side and violation rule: see `MMRV_CONVENTIONS`.
    """
    check_convention(convention)
    return float(mmrv_rows(*_pair(sim, real), convention)[0])


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
    return float(top1_rows(*_pair(sim, real))[0])


def calibration_line(*, sim: Values, real: Values) -> tuple[float, float]:
    """Slope and intercept of the least-squares line of real on simulated mean returns `[K]`; NaN if `sim` is constant.

    1 and 0 if simulated returns can be taken at their word; a slope below 1 says that differences are exaggerated.
    Noise in the simulated means alone flattens the slope, which the noise floor of a panel shows.
    """
    slope, intercept = calibration_rows(*_pair(sim, real))
    return float(slope[0]), float(intercept[0])


def check_convention(convention: str) -> None:
    """ValueError unless it is a key of `MMRV_CONVENTIONS`."""
    if convention not in MMRV_CONVENTIONS:
        raise ValueError(f"MMRV convention {convention!r} is unknown; known: {', '.join(MMRV_CONVENTIONS)}")


def _pair(sim: Values, real: Values) -> tuple[np.ndarray, np.ndarray]:
    s, r = np.asarray(sim, np.float64), np.asarray(real, np.float64)
    if s.ndim != 1 or s.shape != r.shape or len(s) == 0:
        raise ValueError(f"sim and real must both be [K], K >= 1; got shapes {list(s.shape)} and {list(r.shape)}")
    for name, side in (("sim", s), ("real", r)):
        if not np.isfinite(side).all():
            raise ValueError(f"{name}[{int(np.argmin(np.isfinite(side)))}] is not finite; mean returns must be finite")
    return s[None], r[None]


# The same of many panels at once: mean returns sim, real [R, K] -> one value per row [R].


def pearson_rows(sim: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Pearson of each row."""
    varies = (np.ptp(sim, axis=1) > 0) & (np.ptp(real, axis=1) > 0)
    s, r = sim - sim.mean(1, keepdims=True), real - real.mean(1, keepdims=True)
    # Unit scale first: squares of tiny or huge returns leave the range of float64.
    s, r = (x / np.where(varies, np.abs(x).max(1), 1.0)[:, None] for x in (s, r))
    norm = np.sqrt((s * s).sum(1) * (r * r).sum(1))
    out = np.divide((s * r).sum(1), norm, out=np.full(len(sim), np.nan), where=varies)
    return np.clip(out, -1.0, 1.0)


def spearman_rows(sim: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Spearman of each row."""
    return pearson_rows(stats.rankdata(sim, axis=1), stats.rankdata(real, axis=1))


def kendall_rows(sim: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Kendall's tau-b of each row."""
    i, j = np.triu_indices(sim.shape[1], 1)
    s, r = np.sign(sim[:, i] - sim[:, j]), np.sign(real[:, i] - real[:, j])
    norm = np.sqrt(np.abs(s).sum(1) * np.abs(r).sum(1))
    return np.divide((s * r).sum(1), norm, out=np.full(len(sim), np.nan), where=norm > 0)


def mae_rows(sim: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Mean absolute error of each row."""
    return np.abs(sim - real).mean(1)


def mmrv_rows(sim: np.ndarray, real: np.ndarray, convention: str) -> np.ndarray:
    """MMRV of each row."""
    out = np.empty(len(sim))
    block = max(1, 2_000_000 // sim.shape[1] ** 2)
    for start in range(0, len(sim), block):
        rows = slice(start, start + block)
        s, r = (x[rows, :, None] - x[rows, None, :] for x in (sim, real))
        unlike = (np.sign(s) * np.sign(r) < 0) if convention == "real_gap_strict" else ((s > 0) != (r > 0))
        gap = np.abs(s if convention == "sim_gap_xor" else r)
        out[rows] = np.where(unlike, gap, 0.0).max(2).mean(1)
    return out


def regret_at_1_rows(sim: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Regret of the best in simulation of each row."""
    best = sim == sim.max(1, keepdims=True)
    lost = real.max(1, keepdims=True) - real
    return np.where(best, lost, 0.0).sum(1) / best.sum(1)


def regret_rows(sim: np.ndarray, real: np.ndarray, k: int, convention: str) -> np.ndarray:
    """`regret_at_k` of each row."""
    ordered = np.sort(sim, axis=1)
    cut = sim.shape[1] - k
    tied = ordered[:, cut] == ordered[:, cut - 1] if cut else np.zeros(len(sim), bool)
    kept = np.take_along_axis(real, np.argsort(sim, axis=1)[:, cut:], axis=1)
    if convention == "scope_rl":
        lost = np.sort(real, axis=1)[:, cut:].sum(1) - kept.sum(1)
    else:
        lost = real.max(1) - kept.max(1)
    lost = np.maximum(lost, 0.0)
    for row in np.flatnonzero(tied):
        lost[row] = regret_at_k(sim=sim[row], real=real[row], k=k, convention=convention)
    return lost


def top1_rows(sim: np.ndarray, real: np.ndarray) -> np.ndarray:
    """`top1_agreement` of each row."""
    best_s, best_r = (side == side.max(1, keepdims=True) for side in (sim, real))
    return (best_s & best_r).sum(1) / (best_s | best_r).sum(1)


def calibration_rows(sim: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`calibration_line` of each row: slopes and intercepts."""
    varies = np.ptp(sim, axis=1) > 0
    s = sim - sim.mean(1, keepdims=True)
    scale = np.where(varies, np.abs(s).max(1), 1.0)[:, None]
    unit = s / scale  # squares of tiny or huge returns leave the range of float64
    rise = (unit * (real - real.mean(1, keepdims=True))).sum(1)
    norm = (unit * unit).sum(1) * scale[:, 0]
    slope = np.divide(rise, norm, out=np.full(len(sim), np.nan), where=varies)
    return slope, real.mean(1) - slope * sim.mean(1)
