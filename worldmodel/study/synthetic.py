"""Made-up studies whose answers are known: what the estimators are judged by, and a way to try a design beforehand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from worldmodel.study.contrasts import orthonormal
from worldmodel.study.estimands import sustained_level
from worldmodel.study.table import NO_SEED, WITH_WORLD_MODEL, StudyTable

BASE, REFERENCE = 0.2, 0.9
"""Returns without training and after training in reality."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """Standard deviations between world models and between policies of one, and how many policies each has."""

    world_model: float = 0.08
    policy: float = 0.05
    policies: int = 2

    @property
    def variance(self) -> float:
        """Of a world model's mean."""
        return self.world_model**2 + self.policy**2 / self.policies


@dataclasses.dataclass(frozen=True)
class KnownCurve:
    """A response curve `of` fidelities in (0, 1], and its kink and jump, None where it has none."""

    of: Callable[[np.ndarray], np.ndarray]
    kink: float | None = None
    jump: float | None = None

    def tolerance(self, delta: float) -> float:
        """The least fidelity from which on the return stays within `delta` of the reference; `inf` without one."""
        phi = np.linspace(0, 1, 200_001)
        found = sustained_level(phi, self.of(phi), REFERENCE - delta)
        return math.inf if found is None else found


def _hinge(phi: np.ndarray) -> np.ndarray:
    return REFERENCE - (REFERENCE - BASE) / 0.6 * np.maximum(0.6 - phi, 0.0)


CURVES: dict[str, KnownCurve] = {
    "flat": KnownCurve(lambda phi: np.full_like(phi, BASE)),
    "linear": KnownCurve(lambda phi: BASE + (REFERENCE - BASE) * phi),
    "hinge": KnownCurve(_hinge, kink=0.6),
    "step": KnownCurve(lambda phi: np.where(phi >= 0.55, REFERENCE, BASE), jump=0.55),
    "logistic": KnownCurve(lambda phi: BASE + (REFERENCE - BASE) / (1 + np.exp(-12 * (phi - 0.45)))),
    "dip": KnownCurve(lambda phi: _hinge(phi) - 0.25 * np.exp(-(((phi - 0.8) / 0.05) ** 2))),
    "opposite": KnownCurve(lambda phi: REFERENCE - (REFERENCE - BASE) * phi),
}


def curve_study(
    curve: KnownCurve,
    rng: np.random.Generator,
    *,
    seeds: int,
    levels: int = 10,
    jittered: bool = False,
    noise: Noise = Noise(),
) -> StudyTable:
    """One condition: `seeds` world models at each of `levels` even fidelities, twice as many runs of each anchor.

    `jittered` spreads the same number of world models evenly over (0, 1) instead.
    """
    count = seeds * levels
    grid = np.repeat(np.arange(1, levels + 1) / levels, seeds)
    phi = (np.arange(count) + 0.5) / count if jittered else grid
    anchors = 2 * seeds
    arm = np.repeat(["simulated", "reference", "no_training"], [count, anchors, anchors])
    expected = np.concatenate([curve.of(phi), np.repeat([REFERENCE, BASE], anchors)])
    fidelity = np.concatenate([phi, np.full(2 * anchors, math.nan)])
    return _table(expected, rng, noise, arm=arm, fidelity=fidelity)


def factorial_study(
    effects: Mapping[str, float],
    rng: np.random.Generator,
    *,
    seeds: int,
    shape: tuple[int, int, int] = (3, 3, 5),
    noise: Noise = Noise(policy=0.1),
) -> StudyTable:
    """A grid of complexity, diversity and fidelity with planted products of linear trends, by name (`CF`, `CDF`)."""
    complexity, diversity, fidelity = _grid(shape, seeds)
    trends = {
        name: orthonormal(dial, 1)[:, 0] for name, dial in zip("CDF", (complexity, diversity, fidelity), strict=True)
    }
    expected = np.full(len(fidelity), 0.5)
    for name, effect in effects.items():
        expected = expected + effect * math.prod((trends[letter] for letter in name), start=np.ones(len(fidelity)))
    return _table(expected, rng, noise, fidelity=fidelity, complexity=complexity, diversity=diversity)


def shifted_study(
    shifts: Mapping[str, float],
    rng: np.random.Generator,
    *,
    seeds: int,
    shape: tuple[int, int, int] = (3, 3, 6),
    slope: float = 12.0,
    middle: float = 0.5,
    noise: Noise = Noise(),
) -> StudyTable:
    """The same grid with sigmoids whose middle the dials shift (`alpha_C`, `alpha_D`, `alpha_CD`; per level's sd)."""
    complexity, diversity, fidelity = _grid(shape, seeds)
    c, d = (orthonormal(dial, 1)[:, 0] for dial in (complexity, diversity))
    moves = {"alpha_C": c, "alpha_D": d, "alpha_CD": c * d}
    at = middle + sum((size * moves[name] for name, size in shifts.items()), start=np.zeros(len(c)))
    expected = BASE + (REFERENCE - BASE) / (1 + np.exp(-slope * (fidelity - at)))
    return _table(expected, rng, noise, fidelity=fidelity, complexity=complexity, diversity=diversity)


def _grid(shape: tuple[int, int, int], seeds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    dials = np.meshgrid(
        np.arange(1.0, shape[0] + 1), np.arange(1.0, shape[1] + 1), np.arange(1, shape[2] + 1) / shape[2], indexing="ij"
    )
    complexity, diversity, fidelity = (np.repeat(dial.reshape(-1), seeds) for dial in dials)
    return complexity, diversity, fidelity


def _table(expected: np.ndarray, rng: np.random.Generator, noise: Noise, **columns: Any) -> StudyTable:
    """Two rows and more per unit: what is expected of it, its own deviation, and that of each policy."""
    units, policies = len(expected), noise.policies
    own = expected + noise.world_model * rng.normal(size=units)
    returns = np.repeat(own, policies) + noise.policy * rng.normal(size=units * policies)
    wide = {name: np.repeat(column, policies) for name, column in columns.items()}
    arm = wide.pop("arm", np.full(units * policies, "simulated"))
    owns, unit = np.isin(arm, WITH_WORLD_MODEL), np.repeat(np.arange(units), policies)

    def same(value: Any) -> np.ndarray:
        return np.full(units * policies, value)

    plain = {"environment": same("made up"), "corruption": same("none"), "deployment": same("training")}
    plain |= {"complexity": same(1.0), "diversity": same(1.0)}
    # Without a world model the unit is the training: every row is one of its evaluations.
    policy = np.where(owns, np.tile(np.arange(policies), units), unit)
    seeds = {"world_model_seed": np.where(owns, unit, NO_SEED), "policy_seed": policy}
    return StudyTable(**{**plain, **wide, **seeds, "arm": arm, "real_return": returns})
