"""Estimates with 95% intervals: the one form in which the probe states a number.

Intervals from resampling are *expanded percentile* bootstrap intervals: the tail probability of the percentiles is
`Phi(-sqrt(n / (n - 1)) t_{.975, n-1})` instead of .025, so that few units give t-like rather than too narrow
intervals (Hesterberg 2015, "What Teachers Should Know About the Bootstrap"). They are widened, where needed, to contain
the point estimate, which a biased statistic (MMRV, for one) can otherwise leave.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from scipy import special, stats

LEVEL = 0.95
MAX_UNDEFINED = 0.1  # share of resamples in which a statistic may be undefined before its interval is withheld
_CHUNK = 2_000_000  # numbers held at once while resampling


@runtime_checkable
class SupportsArray(Protocol):
    """What NumPy can read as an array: a JAX array, for one."""

    def __array__(self) -> np.ndarray: ...


# NumPy's own ArrayLike cannot be checked at run time: tuples fail it, and long lists take long.
Values: TypeAlias = np.ndarray | SupportsArray | Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval; `n` counts the units of the interval.

    A part that could not be formed is None, and `why` then says the reason. Non-finite parts, or a missing part
    without a reason, raise ValueError.
    """

    mean: float | None
    lo: float | None
    hi: float | None
    n: int
    why: str | None = None

    def __post_init__(self):
        for name in ("mean", "lo", "hi"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"Estimate.{name} is {value}; a part that could not be formed is None, with `why`")
        if self.why is None and None in (self.mean, self.lo, self.hi):
            raise ValueError("Estimate has a part that is None and no `why`; say why it could not be formed")

    def to_json(self) -> dict[str, Any]:
        """`{"mean", "lo", "hi", "n"}`, and `"why"` where a part is null."""
        out: dict[str, Any] = {"mean": self.mean, "lo": self.lo, "hi": self.hi, "n": self.n}
        return out if self.why is None else {**out, "why": self.why}


@dataclasses.dataclass(frozen=True)
class Curve:
    """An estimate for each `x`: arrays `x, mean, lo, hi` `[H]` float64, `n` `[H]` int64 (units of each interval).

    What could not be formed is NaN here and null in JSON, beside `why`.
    """

    x: np.ndarray
    mean: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    n: np.ndarray
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Parallel arrays `x[], mean[], lo[], hi[], n[]`; `"why"` where one of them holds a null."""
        out: dict[str, Any] = {name: _nullable(getattr(self, name)) for name in ("x", "mean", "lo", "hi")}
        out["n"] = [int(v) for v in self.n]
        return out if self.why is None else {**out, "why": self.why}


def _nullable(values: np.ndarray) -> list[float | None]:
    return [float(v) if math.isfinite(v) else None for v in values]


def mean_interval(values: Values) -> Estimate:
    """Mean of independent `values` `[n]` with Student's t interval. One value has no interval; none has no mean."""
    values = np.asarray(values, np.float64)
    if values.ndim != 1:
        raise ValueError(f"mean_interval takes values of shape [n]; got shape {list(values.shape)}")
    n = len(values)
    if n == 0:
        return Estimate(None, None, None, 0, "no values")
    if bad := int(np.sum(~np.isfinite(values))):
        return Estimate(None, None, None, n, f"{bad} of {n} values are not finite")
    mean = float(values.mean())
    if n == 1:
        return Estimate(mean, None, None, 1, "an interval needs at least 2 units; there is 1")
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1) * values.std(ddof=1) / math.sqrt(n))
    return Estimate(mean, mean - half, mean + half, n)


def percentile_estimate(
    point: float, draws: Values, n: int, *, why: str = "undefined on these data", tail_n: int | None = None
) -> Estimate:
    """Turn bootstrap `draws` `[R]` of a statistic with value `point` into an estimate (see the head of this module).

    NaN draws are resamples in which the statistic is undefined: up to a tenth of them is passed over, more withholds
    the interval. `+inf` draws ("beyond what was observed") take part in the order; an infinite end becomes None.
    `tail_n` (default `n`) is the number of units that sets the expansion; `why` is the reason if `point` is not finite.
    """
    draws = np.asarray(draws, np.float64)
    mean = float(point) if math.isfinite(point) else None
    if (tail_n if tail_n is not None else n) < 2:
        reason = f"an interval needs at least 2 units; there is {n if tail_n is None else tail_n}"
        return Estimate(mean, None, None, n, reason if mean is not None else why)
    undefined = int(np.isnan(draws).sum())
    if undefined > MAX_UNDEFINED * draws.size:
        reason = f"the statistic is undefined in {undefined} of {draws.size} resamples"
        return Estimate(mean, None, None, n, reason if mean is not None else why)
    units = n if tail_n is None else tail_n
    tail = float(special.ndtr(-math.sqrt(units / (units - 1)) * stats.t.ppf(0.5 + LEVEL / 2, units - 1)))
    kept = draws[~np.isnan(draws)]
    # Order statistics, not interpolation: that would turn infinite draws into NaN.
    lo = float(np.quantile(kept, tail, method="lower"))
    hi = float(np.quantile(kept, 1 - tail, method="higher"))
    if mean is not None:
        lo, hi = min(lo, mean), max(hi, mean)
    low, high = (end if math.isfinite(end) else None for end in (lo, hi))
    if mean is None:
        return Estimate(None, low, high, n, why)
    is_open = None in (low, high)
    return Estimate(mean, low, high, n, "the null end is beyond what was observed" if is_open else None)


def bootstrap_interval(
    statistic: Callable[[np.ndarray], float],
    units: np.ndarray | Sequence[np.ndarray],
    *,
    seed: int,
    repetitions: int = 1000,
) -> Estimate:
    """Bootstrap interval of any `statistic`, resampling the highest unit.

    `units` is an array `[n, ...]` (each row a unit) or a sequence of `n` arrays `[m_i, ...]` (clusters, such as the
    steps of one episode). `statistic` sees the drawn rows, clusters concatenated, and returns a float, NaN where
    undefined.
    """
    clustered = not isinstance(units, np.ndarray)
    pool: Any = [np.asarray(u) for u in units] if clustered else units
    n = len(pool)
    if n == 0:
        return Estimate(None, None, None, 0, "no units")
    point = float(statistic(np.concatenate(pool) if clustered else pool))
    if n == 1:
        return percentile_estimate(point, [], 1)
    picks = np.random.default_rng(seed).integers(0, n, (repetitions, n))
    draws = [float(statistic(np.concatenate([pool[i] for i in p]) if clustered else pool[p])) for p in picks]
    return percentile_estimate(point, draws, n)


def cluster_index(cluster_ids: Values | None, n: int) -> tuple[np.ndarray, int]:
    """Number the clusters: `(index [n] int64, how many)`. None makes every row its own cluster."""
    if cluster_ids is None:
        return np.arange(n), n
    ids = np.asarray(cluster_ids)
    if ids.shape != (n,):
        raise ValueError(f"cluster_ids has shape {list(ids.shape)}; it must be [{n}], one per row")
    names, index = np.unique(ids, return_inverse=True)
    return index.reshape(-1), len(names)


def resample_counts(n: int, repetitions: int, seed: int, *, width: int = 1) -> Iterator[np.ndarray]:
    """How often each of `n` units is drawn: blocks `[r, n]` float64 whose `r` sum to `repetitions`.

    `width` is how many numbers per repetition the caller derives; it bounds the size of a block.
    """
    rng = np.random.default_rng(seed)
    block = max(1, min(repetitions, _CHUNK // max(n, width, 1)))
    for start in range(0, repetitions, block):
        yield rng.multinomial(n, np.full(n, 1 / n), size=min(block, repetitions - start)).astype(np.float64)


def cluster_sums(values: np.ndarray, index: np.ndarray, clusters: int) -> np.ndarray:
    """Sum rows of `values` `[N, ...]` by cluster -> `[clusters, ...]` float64."""
    out = np.zeros((clusters, *values.shape[1:]))
    np.add.at(out, index, values)
    return out


def cluster_ratio_interval(
    numerator: Values,
    denominator: Values,
    cluster_ids: Values | None = None,
    seed: int = 0,
    *,
    repetitions: int = 1000,
    why: str = "the denominator is zero",
) -> Estimate:
    """`sum(numerator) / sum(denominator)` over rows `[N]`, resampling whole clusters; `n` is the number of clusters."""
    top, bottom = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    if top.ndim != 1 or top.shape != bottom.shape:
        raise ValueError(f"numerator and denominator must both be [N]; got {list(top.shape)} and {list(bottom.shape)}")
    index, clusters = cluster_index(cluster_ids, len(top))
    if clusters == 0:
        return Estimate(None, None, None, 0, "no values")
    if bad := int(np.sum(~np.isfinite(top) | ~np.isfinite(bottom))):
        return Estimate(None, None, None, clusters, f"{bad} of {len(top)} values are not finite")
    sums = cluster_sums(np.stack([top, bottom], axis=1), index, clusters)
    total = sums.sum(0)
    if total[1] == 0:
        return Estimate(None, None, None, clusters, why)
    drawn = np.concatenate([counts @ sums for counts in resample_counts(clusters, repetitions, seed)])
    draws = np.divide(drawn[:, 0], drawn[:, 1], out=np.full(len(drawn), np.nan), where=drawn[:, 1] != 0)
    return percentile_estimate(float(total[0] / total[1]), draws, clusters)


def cluster_mean_interval(
    values: Values, cluster_ids: Values | None = None, seed: int = 0, *, repetitions: int = 1000
) -> Estimate:
    """Mean over rows `[N]`, resampling whole clusters (episodes); `n` is the number of clusters."""
    values = np.asarray(values, np.float64)
    return cluster_ratio_interval(values, np.ones_like(values), cluster_ids, seed, repetitions=repetitions)


def cluster_rate_interval(
    events: Values,
    among: Values,
    cluster_ids: Values | None = None,
    seed: int = 0,
    *,
    why: str = "there is nothing to count among",
) -> Estimate:
    """Share of `events` among the rows `among`, bool `[N]` both, resampling whole clusters.

    The interval is the hull of that and of Clopper and Pearson's, because a resample that holds no event has no width.
    """
    counted = np.asarray(among, bool)
    hits = np.asarray(events, bool) & counted
    if not counted.any():
        return Estimate(None, None, None, 0, why)
    bootstrap = cluster_ratio_interval(hits, counted, cluster_ids, seed)
    return widened(bootstrap, *clopper_pearson(int(hits.sum()), int(counted.sum())))


def clopper_pearson(events: int, trials: int) -> tuple[float, float]:
    """Exact 95% interval of a binomial rate."""
    lo = 0.0 if events == 0 else float(stats.beta.ppf(0.025, events, trials - events + 1))
    hi = 1.0 if events == trials else float(stats.beta.ppf(0.975, events + 1, trials - events))
    return lo, hi


def widened(estimate: Estimate, lo: float, hi: float) -> Estimate:
    """The estimate with an interval that holds `[lo, hi]`, too; one that could not be formed stays missing."""
    if estimate.lo is None or estimate.hi is None:
        return estimate
    return dataclasses.replace(estimate, lo=min(estimate.lo, lo), hi=max(estimate.hi, hi))


def median_draws(
    errors: np.ndarray, cluster_ids: Values | None, seed: int, repetitions: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Medians over rows of each column of `errors` `[n, H]`: `(medians [H], draws [R, H], clusters [H])`.

    NaN entries are left out; `clusters` counts those that have a value at each horizon.
    One resample of clusters serves all columns, so that a statistic of the whole curve may be formed from each draw.
    """
    if errors.ndim != 2:
        raise ValueError(f"errors must be [n, H]; got shape {list(errors.shape)}")
    rows, horizons = errors.shape
    index, clusters = cluster_index(cluster_ids, rows)
    medians = np.full(horizons, np.nan)
    draws = np.full((repetitions if clusters else 0, horizons), np.nan)
    live = np.zeros(horizons, np.int64)
    if clusters == 0:
        return medians, draws, live
    order, valid = np.argsort(errors, axis=0), np.sum(~np.isnan(errors), axis=0)
    for h in range(horizons):
        kept = order[: valid[h], h]
        live[h] = len(np.unique(index[kept]))
        if len(kept):
            medians[h] = _weighted_medians(errors[kept, h], np.ones((1, len(kept))))[0]
    start = 0
    for counts in resample_counts(clusters, repetitions, seed, width=rows):
        for h in np.flatnonzero(valid):
            kept = order[: valid[h], h]
            draws[start : start + len(counts), h] = _weighted_medians(errors[kept, h], counts[:, index[kept]])
        start += len(counts)
    return medians, draws, live


def _weighted_medians(ordered: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Median of ascending `ordered` `[m]`, each repeated `weights` `[r, m]` times -> `[r]`; NaN where all are zero."""
    cumulative = np.cumsum(weights, axis=1)
    total = cumulative[:, -1:]
    low = ordered[np.argmax(cumulative > (total - 1) // 2, axis=1)]
    high = ordered[np.argmax(cumulative > total // 2, axis=1)]
    return np.where(total[:, 0] > 0, 0.5 * (low + high), np.nan)


def median_curve(errors: Values, cluster_ids: Values | None = None, seed: int = 0, *, repetitions: int = 1000) -> Curve:
    """Median over rows of `errors` `[n, H]` at each horizon 1..H, with intervals that resample clusters (episodes).

    NaN marks what was not observed (the real episode was over) and is left out, so later horizons speak of fewer,
    longer episodes. A simulator that broke must be `inf`, not NaN. `Curve.n` counts the clusters at each horizon.
    """
    errors = np.asarray(errors, np.float64)
    medians, draws, live = median_draws(errors, cluster_ids, seed, repetitions)
    estimates = [percentile_estimate(medians[h], draws[:, h], int(live[h])) for h in range(len(medians))]
    parts = [[math.nan if v is None else v for v in (e.mean, e.lo, e.hi)] for e in estimates]
    mean, lo, hi = np.array(parts, np.float64).reshape(-1, 3).T
    thin = np.isnan(mean) | np.isnan(lo) | np.isnan(hi)
    why = None
    if thin.any():
        listed = ", ".join(str(h + 1) for h in np.flatnonzero(thin)[:5]) + (", ..." if thin.sum() > 5 else "")
        why = (
            f"at {int(thin.sum())} of {len(thin)} horizons ({listed}) too few episodes go on, or the error is infinite"
        )
    return Curve(np.arange(1.0, len(medians) + 1), mean, lo, hi, live, why)


def json_safe(obj: Any, *, path: str = "") -> Any:
    """Plain JSON values from nested dicts, sequences, NumPy scalars and arrays, and anything with `to_json()`.

    Raises ValueError naming the path of a NaN or infinity, of a key that is not a string, and of an unknown type.
    """
    here = path or "the top level"
    if obj is None or isinstance(obj, (bool, str)):
        return obj
    if isinstance(obj, np.generic):
        return json_safe(obj.item(), path=path)
    if isinstance(obj, int):
        return int(obj)
    if isinstance(obj, float):
        if not math.isfinite(obj):
            raise ValueError(f"value at {here} is {obj}; JSON holds finite numbers only: write null beside a 'why'")
        return float(obj)
    if isinstance(obj, Mapping):
        for key in obj:
            if not isinstance(key, str):
                raise ValueError(f"key {key!r} at {here} is a {type(key).__name__}; keys in JSON are strings")
        return {key: json_safe(value, path=f"{path}.{key}" if path else key) for key, value in obj.items()}
    if isinstance(obj, (list, tuple, np.ndarray)):
        if isinstance(obj, np.ndarray) and obj.ndim == 0:
            return json_safe(obj.item(), path=path)
        return [json_safe(value, path=f"{path}[{i}]") for i, value in enumerate(obj)]
    if callable(getattr(obj, "to_json", None)):
        return json_safe(obj.to_json(), path=path)
    raise ValueError(
        f"value at {here} is a {type(obj).__name__}; JSON holds numbers, strings, booleans, lists and dicts"
    )
