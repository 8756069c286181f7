"""Do the dials change each other's effect: factorial contrasts of complexity, diversity and fidelity.

Least squares on one value per world model, with orthonormal polynomials of the dials (linear, quadratic; fidelity as
far as its levels go) and their products, and an intercept per environment. In a balanced grid every contrast's F is
exact. A contrast `CF` is the product of the two linear trends, in units of return per standard deviation of the
product. An interaction on the scale of a success rate can vanish on that of its logit: both are given.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from worldmodel.fidelity.estimates import LEVEL, Estimate
from worldmodel.study.means import WorldModelMeans, levels, over_world_models, the_only

PREREGISTERED = ("CF", "DF", "CD", "CDF")
_DIALS = {"C": "complexity", "D": "diversity", "F": "fidelity"}
_JITTERED = 6
"""More distinct values than this are a jittered dial, whose polynomials end with the cubic."""


@dataclasses.dataclass(frozen=True)
class Contrast:
    """One contrast: its effect with a 95% t interval, p-value, and p-value after Holm; None where it was not formed."""

    name: str
    effect: Estimate
    p: float | None
    p_holm: float | None
    p_permutation: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The effect's estimate with the p-values."""
        ps = {name: getattr(self, name) for name in ("p", "p_holm", "p_permutation")}
        return {"name": self.name, **self.effect.to_json(), **ps}


@dataclasses.dataclass(frozen=True)
class Factorial:
    """Contrasts on both scales, `balanced` (every cell has as many world models), and what kept the logit out."""

    raw: list[Contrast]
    logit: list[Contrast] | None
    balanced: bool
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Both scales; `logit` null beside `why`."""
        logit = None if self.logit is None else [c.to_json() for c in self.logit]
        out: dict[str, Any] = {"raw": [c.to_json() for c in self.raw], "logit": logit, "balanced": self.balanced}
        return out if self.why is None else {**out, "why": self.why}


@over_world_models
def factorial(
    means: WorldModelMeans,
    *,
    contrasts: Sequence[str] = PREREGISTERED,
    bounds: tuple[float, float] | None = None,
    clip: float = 0.01,
    permutations: int = 0,
    seed: int = 0,
) -> Factorial:
    """Tests the contrasts among the units of arm `simulated`, with Holm's correction over all of them.

    Args:
      means: one deployment and corruption.
      contrasts: of `C D F CD CF DF CDF`; a trend's square is `F2`, as in `CF2` (secondary: not among the registered).
      bounds: least and greatest possible return, which the logit needs.
      clip: of the range's ends, so that the logit is finite there.
      permutations: for Freedman and Lane's check of p-values, which assumes no normal errors.
      seed: of the permutations.

    Raises:
      ValueError: several deployments or corruptions, an unknown contrast, a dial with one level, a contrast that cannot
        be told from other terms, or no degrees of freedom left for the error.
    """
    the_only(means, "deployment", "corruption", what="factorial")
    own = means.where(means.arm == "simulated")
    if len(own) == 0:
        raise ValueError("factorial needs units of arm 'simulated'; there are none")
    design, names = design_matrix(own)
    for name in contrasts:
        if name not in names:
            known = ", ".join(n for n in names if n and not n.startswith("environment"))
            raise ValueError(f"contrast {name!r} cannot be formed; these can: {known}")
    cells, counts = np.unique(
        np.stack([np.unique(getattr(own, d), return_inverse=True)[1].reshape(-1) for d in (*_DIALS.values(),)]),
        axis=1,
        return_counts=True,
    )
    full = math.prod(len(levels(getattr(own, d))) for d in _DIALS.values())
    balanced = bool(cells.shape[1] == full and counts.min() == counts.max())

    def tested(y: np.ndarray) -> list[Contrast]:
        return _tested(design, names, y, contrasts, permutations, seed)

    raw = tested(own.real_return)
    if bounds is None:
        return Factorial(raw, None, balanced, "the logit needs the bounds of the return")
    low, high = bounds
    outside = (own.real_return < low) | (own.real_return > high)
    if low >= high or outside.any():
        raise ValueError(f"bounds {list(bounds)} do not hold all returns ({np.ptp(own.real_return):g} wide)")
    share = np.clip((own.real_return - low) / (high - low), clip, 1 - clip)
    return Factorial(raw, tested(np.log(share / (1 - share))), balanced)


def design_matrix(means: WorldModelMeans) -> tuple[np.ndarray, list[str]]:
    """Columns `[M, Q]` of standard deviation one over the units (but the intercepts), and their names."""
    parts: dict[str, list[tuple[str, np.ndarray]]] = {}
    for letter, dial in _DIALS.items():
        found = levels(getattr(means, dial))
        if len(found) < 2:
            raise ValueError(f"factorial needs at least 2 levels of {dial}; there are {len(found)}")
        degree = len(found) - 1 if len(found) <= _JITTERED else 3
        trends = orthonormal(getattr(means, dial), degree)
        parts[letter] = [("", np.ones(len(means)))] + [
            (letter if k == 0 else f"{letter}{k + 1}", trends[:, k]) for k in range(degree)
        ]
    columns, names = [], []
    for terms in itertools.product(*parts.values()):
        columns.append(math.prod((column for _, column in terms[1:]), start=terms[0][1]))
        names.append("".join(name for name, _ in terms))
    for environment in levels(means.environment)[1:]:
        columns.append((means.environment == environment).astype(np.float64))
        names.append(f"environment {environment}")
    return np.stack(columns, axis=1), names


def orthonormal(values: np.ndarray, degree: int) -> np.ndarray:
    """Polynomials `[M, degree]` of `values` `[M]`, orthogonal to each other and to 1 with equal weight on each level.

    For a few levels, coefficients are those of equally weighted levels, spaced as they are; for many, of the units.
    Each has standard deviation one over the levels.
    """
    found, place = np.unique(values, return_inverse=True)
    scaled = (found - found.mean()) / found.std()
    q, r = np.linalg.qr(np.vander(scaled, degree + 1, increasing=True))
    return (q * np.sign(np.diag(r)))[place.reshape(-1), 1:] * math.sqrt(len(found))


def holm(p: np.ndarray) -> np.ndarray:
    """P-values `[..., k]` after Holm's correction over the last axis."""
    order = np.argsort(p, axis=-1)
    stepped = np.take_along_axis(p, order, -1) * (p.shape[-1] - np.arange(p.shape[-1]))
    out = np.empty_like(p)
    np.put_along_axis(out, order, np.minimum(np.maximum.accumulate(stepped, axis=-1), 1.0), -1)
    return out


def _tested(
    design: np.ndarray, names: list[str], y: np.ndarray, contrasts: Sequence[str], permutations: int, seed: int
) -> list[Contrast]:
    n, size = design.shape
    q, r = np.linalg.qr(design)
    singular = np.abs(np.diag(r)) < 1e-8 * np.abs(np.diag(r)).max()
    if n - size < 1 or singular.any():
        what = f"{size} terms for {n} world models" if n - size < 1 else f"no data tell {names[int(singular.argmax())]}"
        raise ValueError(f"factorial has no degrees of freedom or cannot tell terms apart: {what}; fill the cells")
    inverse = np.linalg.inv(r)
    beta, rest = inverse @ (q.T @ y), y - q @ (q.T @ y)
    df = n - size
    sigma = math.sqrt(float(rest @ rest) / df)
    places = [names.index(name) for name in contrasts]
    se = sigma * np.sqrt((inverse[places] ** 2).sum(axis=1))
    t = np.divide(beta[places], se, out=np.zeros(len(places)), where=se > 0)
    p = 2 * stats.t.sf(np.abs(t), df)
    half, corrected = stats.t.ppf(0.5 + LEVEL / 2, df) * se, holm(p)
    out = []
    for i, name in enumerate(contrasts):
        mean = float(beta[places[i]])
        shuffled = freedman_lane(design, places[i], y, permutations, seed) if permutations else None
        effect = Estimate(mean, mean - float(half[i]), mean + float(half[i]), n)
        out.append(Contrast(name, effect, float(p[i]), float(corrected[i]), shuffled))
    return out


def freedman_lane(design: np.ndarray, place: int, y: np.ndarray, permutations: int, seed: int) -> float:
    """P-value of one column by permuting residuals of the model without it (Freedman and Lane 1983)."""
    others, _ = np.linalg.qr(np.delete(design, place, axis=1))
    own = design[:, place] - others @ (others.T @ design[:, place])
    own /= np.sqrt(own @ own)
    rest = y - others @ (others.T @ y)
    rng = np.random.default_rng([seed, 5])
    shuffled = np.stack([rest, *(rng.permutation(rest) for _ in range(permutations))])
    shuffled -= (shuffled @ others) @ others.T
    along = (shuffled @ own) ** 2
    share = along / (shuffled**2).sum(axis=1)
    return float(np.mean(share >= share[0] - 1e-12))
