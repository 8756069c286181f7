"""Where the gap between simulated and real return comes from: a waterfall over causes, horizons and regions.

The gap is how episodes begin, plus what the simulator promises at the beginning of real ones beyond what they earn; the
latter divides exactly by stretches of an episode. Causes and regions divide it by residuals of visited steps (see
`value_residuals`): their sums differ from it by the noise of estimates, which is stated.
Intervals of 95% take the episode as the unit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from worldmodel.fidelity.estimates import LEVEL, Estimate, mean_interval
from worldmodel.fidelity.partition import Regions
from worldmodel.fidelity.step_residuals import CAUSES
from worldmodel.fidelity.value_residuals import Residuals


@dataclasses.dataclass(frozen=True)
class Slice:
    """What a part of the visits contributes to the gap, in units of return.

    Attributes:
      net: mean over episodes of the slice's residuals.
      mass: mean visits per episode.
      p: of the two-sided test that `net` is zero, the episode as the unit; None where it cannot be formed.
    """

    net: Estimate
    mass: float
    p: float | None

    @property
    def mean_residual(self) -> float | None:
        """Return lost or promised in excess per visit: `net` over `mass`."""
        return None if self.net.mean is None or self.mass == 0 else self.net.mean / self.mass

    def to_json(self) -> dict[str, Any]:
        """`net`, `mass`, `mean_residual`, `p`."""
        return {"net": self.net.to_json(), "mass": self.mass, "mean_residual": self.mean_residual, "p": self.p}


def slices(residuals: Residuals, values: np.ndarray, labels: np.ndarray, count: int) -> list[Slice]:
    """Sums of `values` float `[N]` by label int `[N]` (0 to `count` - 1; -1: in none), each visit by its weight."""
    visits, episodes = residuals.visits, residuals.episodes
    inside = labels >= 0
    place = labels[inside], visits.episode[inside]
    sums, mass = np.zeros((count, episodes)), np.zeros((count, episodes))
    np.add.at(sums, place, (visits.weight * values)[inside])
    np.add.at(mass, place, visits.weight[inside])
    return [Slice(mean_interval(s), float(m.mean()), _p_value(s)) for s, m in zip(sums, mass, strict=True)]


def benjamini_hochberg(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p-values (Benjamini and Hochberg 1995); None stays None and does not count."""
    known = [i for i, p in enumerate(p_values) if p is not None]
    adjusted: list[float | None] = [None] * len(p_values)
    if known:
        values = stats.false_discovery_control([p_values[i] for i in known])
        for i, value in zip(known, np.atleast_1d(values).tolist(), strict=True):
            adjusted[i] = float(value)
    return adjusted


def attribute(
    residuals: Residuals,
    sim_returns: np.ndarray,
    *,
    features: np.ndarray | None = None,
    regions: Regions | None = None,
) -> dict[str, Any]:
    """The waterfall of a gap; plain JSON.

    Args:
      residuals: of the real episodes.
      sim_returns: of simulated episodes from the simulator's own beginnings `[n]`.
      features: of the visits `[N, F]`, and
      regions: the rules that divide them, found on other episodes than those that are judged here (`held_in`).

    Returns:
      `sim_return`, `real_return`, and their `gap`, which is `initial` (how episodes begin) and `net` (promised at the
      beginning of real episodes less earned in them); `horizon`: the latter by stretches of steps; `causes` by name;
      `regions`: slices by rule, largest first, with `p_adjusted` (Benjamini-Hochberg over them); `gross`: sum over
      stretches of what each contributes, signs dropped; `unexplained`: `net` less the sum of causes, which is the noise
      of estimates; `explained`: see `Residuals`; `episodes`, `visits`, `simulated_steps`. `gap` is None beside `why`
      where the simulator broke.
    """
    visits, parts = residuals.visits, residuals.parts
    if not all(np.isfinite(part).all() for part in (parts, residuals.promised, sim_returns)):
        return {"gap": None, "why": "the simulator's returns are not finite"}
    total, everything = parts.sum(axis=1), np.zeros(len(parts), np.int64)
    causes = {name: slices(residuals, parts[:, c], everything, 1)[0] for c, name in enumerate(CAUSES)}
    promised, real_returns = residuals.promised, residuals.earned.sum(axis=1)
    stretches = [mean_interval(own) for own in (promised[:, :-1] - residuals.earned - promised[:, 1:]).T]
    net = mean_interval(promised[:, 0] - real_returns)
    out: dict[str, Any] = {
        "gap": difference(sim_returns, real_returns).to_json(),
        "sim_return": mean_interval(sim_returns).to_json(),
        "real_return": mean_interval(real_returns).to_json(),
        "initial": difference(sim_returns, promised[:, 0]).to_json(),
        "net": net.to_json(),
        "horizon": [
            {"from": int(low), "to": int(high), "net": own.to_json()}
            for low, high, own in zip(residuals.milestones[:-1], residuals.milestones[1:], stretches, strict=True)
        ],
        "causes": {name: found.to_json() for name, found in causes.items()},
        "regions": None,
        "gross": float(sum(abs(own.mean or 0.0) for own in stretches)),
        "unexplained": (net.mean or 0.0) - sum(found.net.mean or 0.0 for found in causes.values()),
        "explained": residuals.explained,
        "episodes": residuals.episodes,
        "visits": len(visits.step),
        "simulated_steps": residuals.simulated_steps,
    }
    if regions is not None and features is not None:
        judges = ~np.isin(visits.episode, regions.held_in)
        kept = judging(residuals, regions.held_in)
        found = slices(kept, total[judges], regions.label(features[judges]), len(regions.rules))
        adjusted = benjamini_hochberg([s.p for s in found])
        listed = [
            {"rule": rule, **s.to_json(), "p_adjusted": p}
            for rule, s, p in zip(regions.rules, found, adjusted, strict=True)
        ]
        out["regions"] = sorted(listed, key=lambda r: -abs(r["net"]["mean"] or 0.0))
    return out


def judging(residuals: Residuals, held_in: np.ndarray) -> Residuals:
    """The residuals of all other episodes than `held_in`, numbered anew."""
    keep = ~np.isin(np.arange(residuals.episodes), held_in)
    visits, chosen = residuals.visits, ~np.isin(residuals.visits.episode, held_in)
    number = np.cumsum(keep) - 1
    picked = visits._replace(
        episode=number[visits.episode[chosen]], step=visits.step[chosen], weight=visits.weight[chosen]
    )
    return dataclasses.replace(
        residuals,
        visits=picked,
        parts=residuals.parts[chosen],
        distance=None if residuals.distance is None else residuals.distance[chosen],
        promised=residuals.promised[keep],
        earned=residuals.earned[keep],
    )


def difference(one: np.ndarray, other: np.ndarray) -> Estimate:
    """Difference of the means of two independent samples, with Welch's interval; `n` counts the smaller one."""
    n = min(len(one), len(other))
    if n == 0:
        return Estimate(None, None, None, 0, "no values")
    apart = float(np.mean(one) - np.mean(other))
    if n == 1:
        return Estimate(apart, None, None, 1, "an interval needs at least 2 units; there is 1")
    spread = np.array([np.var(side, ddof=1) / len(side) for side in (one, other)])
    if spread.sum() == 0:
        return Estimate(apart, apart, apart, n)
    freedom = spread.sum() ** 2 / (spread**2 / (np.array([len(one), len(other)]) - 1)).sum()
    half = float(stats.t.ppf(0.5 + LEVEL / 2, freedom) * math.sqrt(spread.sum()))
    return Estimate(apart, apart - half, apart + half, n)


def _p_value(sums: np.ndarray) -> float | None:
    """Of Student's test that the mean is zero."""
    if len(sums) < 2 or sums.std() == 0:
        return None
    t = sums.mean() / (sums.std(ddof=1) / math.sqrt(len(sums)))
    return float(2.0 * stats.t.sf(abs(t), len(sums) - 1))
