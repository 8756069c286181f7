"""Does a harder task need a more faithful simulator? One fit of all cells, with a threshold that the dials move.

`y = L + (U - L) / (1 + exp(-k (f - tau)))`, `tau = tau_0 + a_C C + a_D D + a_CD C D`

with `C` and `D` the dials in standard deviations of their levels. `tau` is the fidelity of half the rise: `a_C` is by
how much it moves per standard deviation of complexity. The interval resamples world models within cells.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np

from worldmodel.fidelity.estimates import Estimate, percentile_estimate
from worldmodel.study.least_squares import Model, least_squares
from worldmodel.study.means import WorldModelMeans, levels, over_world_models, the_only
from worldmodel.study.response import resampled_means
from worldmodel.study.sigmoid import GREATEST_SLOPE, LEAST_SLOPE, fit_sigmoid

SHIFTS = {"alpha_C": ("C",), "alpha_D": ("D",), "alpha_CD": ("C", "D")}


@dataclasses.dataclass(frozen=True)
class Pooled:
    """The fit: `L`, `U`, `k`, `tau_0`, `alpha_C`, `alpha_D`, `alpha_CD` by name, and `n` world models.

    A shift whose dial has one level is null with `why`.
    """

    parameters: dict[str, Estimate]
    n: int

    def __getitem__(self, name: str) -> Estimate:
        return self.parameters[name]

    def raises(self, name: str = "alpha_C") -> bool | None:
        """Whether the dial moves the threshold up: True or False where the interval is clear of zero, else None."""
        shift = self.parameters[name]
        if shift.lo is None or shift.hi is None or shift.lo <= 0 <= shift.hi:
            return None
        return shift.lo > 0

    def to_json(self) -> dict[str, Any]:
        """An estimate by parameter, and `n`."""
        return {**{name: e.to_json() for name, e in self.parameters.items()}, "n": self.n}


@over_world_models
def pooled_threshold(
    means: WorldModelMeans,
    *,
    scale: Literal["return", "efficiency"] = "return",
    seed: int = 0,
    repetitions: int = 1000,
) -> Pooled:
    """Fits the curve to the units of arm `simulated` of one environment, corruption and deployment.

    `scale` "efficiency" puts every setting of the dials on the scale of its own anchors first (arms `no_training` and
    `reference`, which are then resampled, too): use it where they differ much between settings.

    Raises:
      ValueError: several environments, corruptions or deployments, fewer than 4 levels of fidelity, or both dials have
        one level; with "efficiency", an anchor is missing.
    """
    the_only(means, "environment", "corruption", "deployment", what="pooled_threshold")
    own = means.where(means.arm == "simulated")
    if len(found := levels(own.fidelity)) < 4:
        raise ValueError(f"pooled_threshold needs at least 4 levels of fidelity; there are {len(found)}")
    codes = {"C": _code(own.complexity), "D": _code(own.diversity)}
    shifts = [name for name, dials in SHIFTS.items() if all(np.ptp(codes[d]) > 0 for d in dials)]
    if not shifts:
        raise ValueError("pooled_threshold needs 2 or more levels of complexity or of diversity; both have one")
    rng = np.random.default_rng([seed, 6])
    moves = np.stack([np.prod([codes[d] for d in SHIFTS[name]], axis=0) for name in shifts], axis=1)
    x, where, y, drawn, weight, weights = _cells(own, moves, rng, repetitions)
    if scale == "efficiency":
        dials = np.stack([_first_by(column, own, moves, len(x)) for column in (own.complexity, own.diversity)], axis=1)
        y, drawn = _on_anchors(means, dials, y, drawn, rng)
    width = float(np.ptp(x))
    spread = float(np.ptp(y)) or 1.0
    free = np.full(len(shifts), 4 * width)
    lower = np.array([y.min() - spread, 0.0, math.log(LEAST_SLOPE / width), x.min() - width, *-free])
    upper = np.array([y.max() + spread, 4 * spread, math.log(GREATEST_SLOPE / width), x.max() + width, *free])
    begin = np.concatenate([fit_sigmoid(x, y, weight)[0], np.zeros(len(shifts))])
    model = _model(x, where)
    point, _ = least_squares(model, begin[None], y, weight, lower=lower, upper=upper, steps=100)
    starts = np.broadcast_to(point, (repetitions, len(begin)))
    fits, _ = least_squares(model, starts, drawn, weights, lower=lower, upper=upper)
    names = ["L", "U", "k", "tau_0", *shifts]
    both = np.concatenate([point, fits])
    both[:, 1] += both[:, 0]
    both[:, 2] = np.exp(both[:, 2])
    # A shift is read from settings of the dials, so that the world models of one of them set the tails; with all of
    # them intervals covered 92.6 to 96.5% of 1,000 made-up studies.
    tail = max(len(own) // len(np.unique(moves, axis=0)), 2)
    out = {
        name: percentile_estimate(float(both[0, i]), both[1:, i], len(own), tail_n=tail) for i, name in enumerate(names)
    }
    for name, dials in SHIFTS.items():
        if name not in out:
            still = " and ".join({"C": "complexity", "D": "diversity"}[d] for d in dials if np.ptp(codes[d]) == 0)
            out[name] = Estimate(None, None, None, len(own), f"{still} has one level")
    return Pooled(out, len(own))


def _code(values: np.ndarray) -> np.ndarray:
    """A dial in standard deviations of its levels; zeros if it has one level or does not apply."""
    found = levels(values)
    return np.zeros(len(values)) if len(found) < 2 else (values - found.mean()) / found.std()


def _cells(
    own: WorldModelMeans, moves: np.ndarray, rng: np.random.Generator, repetitions: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fidelity, moves, `y [1, N]`, resampled `y [R, N]`, weights and resampled weights.

    On a grid `N` are cells, whose means are resampled; with a fidelity per world model `N` are world models, drawn with
    replacement within each setting of the dials.
    """
    cell, count = _numbered(own, moves)
    if count.min() >= 2:
        members = [np.flatnonzero(cell == c) for c in range(len(count))]
        first = [int(m[0]) for m in members]
        mean = np.array([own.real_return[m].mean() for m in members])
        drawn = np.stack([resampled_means(own.real_return[m], rng, repetitions) for m in members], axis=1)
        weight = count.astype(np.float64)
        return own.fidelity[first], moves[first], mean[None], drawn, weight, weight
    _, setting = np.unique(moves, axis=0, return_inverse=True)
    weights = np.zeros((repetitions, len(own)))
    for s in range(setting.max() + 1):
        members = np.flatnonzero(setting.reshape(-1) == s)
        weights[:, members] = rng.multinomial(len(members), np.full(len(members), 1 / len(members)), repetitions)
    y = own.real_return[None]
    return own.fidelity, moves, y, np.broadcast_to(y, weights.shape), np.ones(len(own)), weights


def _numbered(own: WorldModelMeans, moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    keys = np.column_stack([own.fidelity, moves])
    _, cell, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    return cell.reshape(-1), count


def _first_by(values: np.ndarray, own: WorldModelMeans, moves: np.ndarray, size: int) -> np.ndarray:
    """`values` `[M]` as they are for the `size` rows that `_cells` returned."""
    if size == len(own):
        return values
    cell, count = _numbered(own, moves)
    return np.array([values[np.argmax(cell == c)] for c in range(len(count))])


def _on_anchors(
    means: WorldModelMeans, dials: np.ndarray, y: np.ndarray, drawn: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    y, drawn = y.copy(), np.array(drawn)
    # A dial that does not apply is NaN, which is not equal to itself.
    keys = np.where(np.isnan(dials), -np.inf, dials)
    for key in np.unique(keys, axis=0):
        here = (keys == key).all(axis=1)
        setting = dict(zip(("complexity", "diversity"), key.tolist(), strict=True))
        near = means.select(**{name: value for name, value in setting.items() if math.isfinite(value)})
        base, reference = near.returns("no_training"), near.returns("reference")
        if min(len(base), len(reference)) < 2 or reference.mean() <= base.mean():
            said = ", ".join(f"{name} {value:g}" for name, value in setting.items())
            raise ValueError(f"{said}: no headroom, or fewer than 2 units of arms 'no_training' and 'reference'")
        b, r = (resampled_means(values, rng, len(drawn))[:, None] for values in (base, reference))
        y[:, here] = (y[:, here] - base.mean()) / (reference.mean() - base.mean())
        drawn[:, here] = (drawn[:, here] - b) / np.maximum(r - b, 1e-12)
    return y, drawn


def _model(x: np.ndarray, moves: np.ndarray) -> Model:
    def model(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low, rise, log_slope = (p[:, i, None] for i in range(3))
        middle = p[:, 3, None] + p[:, 4:] @ moves.T
        slope = np.exp(log_slope)
        z = slope * (x - middle)
        s = 0.5 * (1 + np.tanh(0.5 * z))
        bell = rise * s * (1 - s)
        move = -bell * slope
        own = np.stack([np.ones_like(s), s, bell * z, move], axis=2)
        return low + rise * s, np.concatenate([own, move[:, :, None] * moves], axis=2)

    return model
