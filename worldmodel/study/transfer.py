"""How much of what training in reality gains does training in a simulator gain: transfer efficiency.

`TE = (y - J_base) / (J_ref - J_base)`, with `J_base` of no training and `J_ref` of training in reality, both measured.
Where `J_ref - J_base` is not clear of zero there is no headroom: nothing could have been transferred, which is not the
same as "nothing was".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from scipy import stats

from worldmodel.fidelity.estimates import LEVEL, Estimate, percentile_estimate
from worldmodel.study.means import WorldModelMeans, over_world_models, the_only
from worldmodel.study.response import resampled_means


@over_world_models
def headroom_of(means: WorldModelMeans) -> Estimate:
    """`J_ref - J_base` of one environment, complexity, diversity and deployment, with Welch's 95% interval.

    `why` says "no headroom" where the interval is not above zero.
    """
    base, reference, _ = _arms(means, "headroom_of")
    estimate = difference(reference, base)
    if estimate.lo is None or estimate.lo > 0:
        return estimate
    return dataclasses.replace(estimate, why=_no_headroom(estimate))


@over_world_models
def transfer_efficiency(
    means: WorldModelMeans,
    *,
    arm: str = "simulated",
    method: Literal["fieller", "bootstrap"] = "fieller",
    seed: int = 0,
    repetitions: int = 1000,
) -> Estimate:
    """Transfer efficiency of the units of `arm` (select one fidelity first) with a 95% interval; `n` counts them.

    Fieller's interval (t with Satterthwaite's degrees of freedom at the estimate) or a bootstrap over the units of all
    three arms. Null with `why` where there is no headroom. ValueError for several cells, or for fewer than two units.
    """
    the_only(means, "fidelity", "corruption", what="transfer_efficiency")
    base, reference, y = _arms(means, "transfer_efficiency", arm)
    room = difference(reference, base)
    if room.lo is None or room.lo <= 0:
        return Estimate(None, None, None, len(y), _no_headroom(room))
    if method == "bootstrap":
        rng = np.random.default_rng([seed, 4])
        b, r, s = (resampled_means(values, rng, repetitions) for values in (base, reference, y))
        draws = np.divide(s - b, r - b, out=np.full(repetitions, np.nan), where=r > b)
        point = float((y.mean() - base.mean()) / (reference.mean() - base.mean()))
        return percentile_estimate(point, draws, len(y), tail_n=min(len(base), len(reference), len(y)))
    return fieller(y, base, reference)


def fieller(y: np.ndarray, base: np.ndarray, reference: np.ndarray) -> Estimate:
    """Fieller's 95% interval of `(mean y - mean base) / (mean reference - mean base)`, independent samples.

    Null with `why` where the set of ratios is no interval, since the denominator is not clear of zero.
    """
    top, bottom = float(y.mean() - base.mean()), float(reference.mean() - base.mean())
    v_y, v_b, v_r = (float(x.var(ddof=1)) / len(x) for x in (y, base, reference))
    if bottom == 0:
        return Estimate(None, None, None, len(y), "the denominator is zero")
    ratio = top / bottom
    # The variance of y - ratio r - (1 - ratio) b decides whether a ratio is in the set.
    shares = np.array([v_y, (1 - ratio) ** 2 * v_b, ratio**2 * v_r])
    df = np.array([len(y), len(base), len(reference)]) - 1.0
    total = float(shares.sum())
    t = 0.0 if total == 0 else float(stats.t.ppf(0.5 + LEVEL / 2, total**2 / float((shares**2 / df).sum())))
    a = bottom**2 - t**2 * (v_r + v_b)
    if a <= 0:
        return Estimate(ratio, None, None, len(y), "the denominator is not clear of zero: the ratio is unbounded")
    b = top * bottom - t**2 * v_b
    c = top**2 - t**2 * (v_y + v_b)
    root = math.sqrt(max(b**2 - a * c, 0.0))
    return Estimate(ratio, min((b - root) / a, ratio), max((b + root) / a, ratio), len(y))


@over_world_models
def as_efficiency(means: WorldModelMeans) -> WorldModelMeans:
    """Returns on the scale of their own anchors: 0 is no training, 1 is training in reality.

    Anchors are the means of arms `no_training` and `reference` of each environment, complexity, diversity (or of all,
    if it does not apply to them) and deployment; they are taken as known. ValueError where one is missing, or where
    there is no headroom.
    """
    out = means.real_return.copy()
    for words, here, anchors in conditions(means):
        room = headroom_of(anchors)
        if room.mean is None or room.lo is None or room.lo <= 0:
            raise ValueError(f"{words}: {_no_headroom(room)}; leave it out by a rule set beforehand")
        out[here] = (means.real_return[here] - anchors.returns("no_training").mean()) / room.mean
    return dataclasses.replace(means, real_return=out)


def conditions(means: WorldModelMeans) -> Iterator[tuple[str, np.ndarray, WorldModelMeans]]:
    """Every environment, complexity, diversity and deployment: in words, which units bool `[M]`, and its anchors."""
    names = ("environment", "complexity", "diversity", "deployment")
    keys = np.stack([getattr(means, name).astype(np.str_) for name in names])
    anchor = np.isin(means.arm, ("no_training", "reference"))
    for key in np.unique(keys, axis=1).T:
        alike = keys == key[:, None]
        # An anchor whose diversity does not apply stands for all diversities.
        near = alike[[0, 1, 3]].all(axis=0) & (alike[2] | np.isnan(means.diversity))
        words = f"{key[0]} (complexity {key[1]}, diversity {key[2]}, {key[3]})"
        yield words, alike.all(axis=0), means.where(anchor & near)


def _arms(means: WorldModelMeans, what: str, arm: str | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    the_only(means, "environment", "complexity", "diversity", "deployment", what=what)
    base, reference = means.returns("no_training"), means.returns("reference")
    y = means.returns(arm) if arm else reference
    for name, values in (("no_training", base), ("reference", reference), (arm or "reference", y)):
        if len(values) < 2:
            raise ValueError(f"{what} needs at least 2 units of arm {name!r}; there are {len(values)}")
    return base, reference, y


def difference(first: np.ndarray, second: np.ndarray) -> Estimate:
    """Difference of two means with Welch's 95% interval."""
    v, w = first.var(ddof=1) / len(first), second.var(ddof=1) / len(second)
    mean, n = float(first.mean() - second.mean()), len(first) + len(second)
    if v + w == 0:
        return Estimate(mean, mean, mean, n)
    df = (v + w) ** 2 / (v**2 / (len(first) - 1) + w**2 / (len(second) - 1))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, df)) * math.sqrt(v + w)
    return Estimate(mean, mean - half, mean + half, n)


def _no_headroom(room: Estimate) -> str:
    return (
        f"no headroom: training in reality gains {room.mean:.4g} [{room.lo:.4g}, {room.hi:.4g}] over no training, "
        "which is not clear of zero"
    )
