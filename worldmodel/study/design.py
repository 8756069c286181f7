"""How many world models a study needs: variances from a pilot, the power of its contrasts, and which of them to keep.

More policies in one world model soon stop helping: the variance of a world model's mean is
`sd_world_model^2 + sd_policy^2 / policies`, and the first part stays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from worldmodel.study.contrasts import PREREGISTERED, holm
from worldmodel.study.means import FACTORS
from worldmodel.study.table import WITH_WORLD_MODEL, StudyTable

ALPHA = 0.05
_UPPER = 0.8


@dataclasses.dataclass(frozen=True)
class PilotVariances:
    """What a pilot says of the spread within one cell.

    Attributes:
      world_model: variance between world models of one cell beyond that of their policies; 0 if none shows.
      world_model_upper: its upper 80% limit, which plans use: a pilot of few world models often shows too little.
      policy: variance between policies of one world model.
      policies: per world model (harmonic mean).
      world_models, cells: how many.
    """

    world_model: float
    world_model_upper: float
    policy: float
    policies: float
    world_models: int
    cells: int

    def of_mean(self, policies: int) -> float:
        """Variance of a world model's mean over `policies`, with the upper limit of the part between world models."""
        return self.world_model_upper + self.policy / policies


def pilot_variances(pilot: StudyTable) -> PilotVariances:
    """Nested analysis of variance: policies in world models in cells (all factors), over arms with a world model.

    The limit is that of Graybill and Wang (1980, JASA 75), exact where one of the two variances is zero.

    Raises:
      ValueError: no cell has two world models, or no world model two policies.
    """
    keep = np.isin(pilot.arm, WITH_WORLD_MODEL)
    groups: dict[tuple[Any, ...], dict[int, dict[int, list[float]]]] = {}
    for i in np.flatnonzero(keep):
        cell = tuple(str(getattr(pilot, name)[i]) for name in FACTORS)
        models = groups.setdefault(cell, {})
        policies = models.setdefault(int(pilot.world_model_seed[i]), {})
        policies.setdefault(int(pilot.policy_seed[i]), []).append(float(pilot.real_return[i]))
    cells = [[[float(np.mean(rows)) for rows in p.values()] for p in models.values()] for models in groups.values()]
    between = sum(len(models) - 1 for models in cells)
    within = sum(len(policies) - 1 for models in cells for policies in models)
    if between < 1 or within < 1:
        raise ValueError(
            f"a pilot needs cells with 2 or more world models, and world models with 2 or more policies; in "
            f"{len(cells)} cells there are {between} and {within} degrees of freedom"
        )
    sizes = [len(policies) for models in cells for policies in models]
    r = len(sizes) / sum(1 / size for size in sizes)
    means = [np.array([np.mean(policies) for policies in models]) for models in cells]
    of_means = sum(float(((m - m.mean()) ** 2).sum()) for m in means) / between
    policy = sum(float(np.var(policies) * len(policies)) for models in cells for policies in models) / within
    above = between / stats.chi2.ppf(1 - _UPPER, between) - 1
    below = 1 - within / stats.chi2.ppf(_UPPER, within)
    upper = of_means - policy / r + math.hypot(above * of_means, below * policy / r)
    return PilotVariances(
        max(of_means - policy / r, 0.0), max(upper, 0.0), policy, r, sum(len(models) for models in cells), len(cells)
    )


def variance_of_mean(sd_world_model: float, sd_policy: float, policies: int) -> float:
    """`sd_world_model^2 + sd_policy^2 / policies`."""
    return sd_world_model**2 + sd_policy**2 / policies


def contrast_power(
    effects: Mapping[str, float],
    *,
    seeds: int,
    variance: float,
    cells: int,
    alpha: float = ALPHA,
    repetitions: int = 20_000,
    seed: int = 0,
) -> dict[str, float]:
    """Power of each contrast with Holm's correction over all, in a balanced grid of one environment.

    Each t is drawn from its exact distribution (noncentral, one chi-squared of the error for all), not from data: with
    20,000 draws the error is below .004.

    Args:
      effects: in units of return per standard deviation of the contrast, by name; 0 for one that is expected absent.
      seeds: world models per cell, at least 2.
      variance: of one world model's value within a cell.
      cells: of the grid.
      alpha: family-wise.
      repetitions: draws.
      seed: of the draws.
    """
    if seeds < 2 or variance <= 0 or cells < 2:
        raise ValueError(f"seeds >= 2, variance > 0 and cells >= 2 are needed; got {seeds}, {variance}, {cells}")
    df = cells * (seeds - 1)
    rng = np.random.default_rng([seed, 7])
    shift = np.array(list(effects.values())) * math.sqrt(cells * seeds / variance)
    t = (shift + rng.normal(size=(repetitions, len(effects)))) / np.sqrt(rng.chisquare(df, (repetitions, 1)) / df)
    found = holm(2 * stats.t.sf(np.abs(t), df)) <= alpha
    return {name: float(found[:, i].mean()) for i, name in enumerate(effects)}


def exact_power(effect: float, *, seeds: int, variance: float, cells: int, alpha: float = ALPHA) -> float:
    """Power of one contrast alone, from the noncentral F distribution."""
    if effect == 0:
        return alpha
    df = cells * (seeds - 1)
    return float(stats.ncf.sf(stats.f.ppf(1 - alpha, 1, df), 1, df, effect**2 * cells * seeds / variance))


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
      seeds: world models per cell.
      power: of each kept contrast at that number.
      dropped: contrasts that no affordable number gives the power, with their power at the greatest one. They are
        reported as estimates, without a test: "not found" would say nothing.
      enough: whether every contrast is kept.
    """

    seeds: int
    power: dict[str, float]
    dropped: dict[str, float]

    @property
    def enough(self) -> bool:
        """No contrast was dropped."""
        return not self.dropped

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {**dataclasses.asdict(self), "enough": self.enough}


def plan(
    effects: Mapping[str, float],
    *,
    variance: float,
    cells: int,
    max_seeds: int,
    power: float = 0.8,
    alpha: float = ALPHA,
    contrasts: Sequence[str] = PREREGISTERED,
) -> Plan:
    """The least number of seeds per cell at which every contrast that can have `power` has it.

    `effects` are the smallest that matter, by contrast; a contrast without one cannot be planned for and is dropped.
    Dropping a contrast makes Holm's correction milder for the rest. ValueError if none can be kept.
    """
    if unknown := set(effects) - set(contrasts):
        raise ValueError(f"effect of {sorted(unknown)[0]!r}, which is no contrast; contrasts: {', '.join(contrasts)}")
    kept = {name: effects[name] for name in contrasts if effects.get(name)}
    dropped = {name: alpha for name in contrasts if name not in kept}

    def at(seeds: int) -> dict[str, float]:
        return contrast_power(kept, seeds=seeds, variance=variance, cells=cells, alpha=alpha)

    while kept and min((best := at(max_seeds)).values()) < power:
        worst = min(best, key=lambda name: best[name])
        dropped[worst] = best[worst]
        del kept[worst]
    if not kept:
        listed = ", ".join(f"{name} {p:.2f}" for name, p in dropped.items())
        raise ValueError(f"no contrast has power {power:g} with {max_seeds} seeds per cell ({listed}): ask for less")
    low, high = 2, max_seeds
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if min(at(middle).values()) >= power else (middle + 1, high)
    return Plan(low, at(low), dropped)
