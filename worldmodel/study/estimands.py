"""What "the fidelity that is needed" means. Chosen before the data, because each is another number.

With `y(f)` the real return of policies trained at fidelity `f`:

`Tolerance(delta)`   the least fidelity from which on `y` stays within `delta` of training in reality; the primary one,
                     since it exists for smooth curves, too.
`BreakEven()`        the least fidelity at which simulated training is no worse than none.
kink, jump           where a rising curve turns flat, where it leaps: `breaks.py`. Not every curve has one.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import numpy as np


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """`inf{f: y(f') >= J_ref - delta for all f' >= f}`; `J_ref` is an arm of its own, never the curve's own top.

    delta: in units of return, or, if `relative`, a share of `J_ref` (which then must be positive).
    """

    delta: float
    relative: bool = False

    def __post_init__(self):
        if not self.delta > 0 or (self.relative and self.delta >= 1):
            raise ValueError(f"delta must be positive, and below 1 if relative; got {self.delta}")

    @property
    def arm(self) -> str:
        """The arm that sets the target."""
        return "reference"

    @property
    def weight(self) -> float:
        """The target is `weight * mean(arm) - offset`."""
        return 1.0 - self.delta if self.relative else 1.0

    @property
    def offset(self) -> float:
        """See `weight`."""
        return 0.0 if self.relative else self.delta


@dataclasses.dataclass(frozen=True)
class BreakEven:
    """`inf{f: y(f) >= J_base}`; `J_base` is the arm without any training."""

    @property
    def arm(self) -> str:
        """The arm that sets the target."""
        return "no_training"

    @property
    def weight(self) -> float:
        """See `Tolerance.weight`."""
        return 1.0

    @property
    def offset(self) -> float:
        """See `Tolerance.weight`."""
        return 0.0


Estimand: TypeAlias = Tolerance | BreakEven


def sustained_level(phi: np.ndarray, mean: np.ndarray, target: float) -> float | None:
    """The least of the ascending levels `phi` `[K]` from which on `mean` `[K]` is at least `target`; None without."""
    below = np.flatnonzero(mean < target)
    first = 0 if len(below) == 0 else int(below[-1]) + 1
    return None if first == len(phi) else float(phi[first])


def first_level(phi: np.ndarray, mean: np.ndarray, target: float) -> float | None:
    """The least of the ascending levels `phi` `[K]` at which `mean` `[K]` is at least `target`; None without."""
    reached = np.flatnonzero(mean >= target)
    return None if len(reached) == 0 else float(phi[reached[0]])


def crossing(phi: np.ndarray, rising: np.ndarray, target: Any) -> np.ndarray:
    """Where rows of `rising` `[R, K]`, linear between the levels `phi` `[K]`, reach `target` `[R]`: `[R]`.

    `-inf` where the lowest level is already there, `+inf` where the highest is not.
    """
    reached = rising >= np.reshape(target, (-1, 1))
    at = np.where(reached.any(axis=1), reached.argmax(axis=1), len(phi))
    out = np.where(at == 0, -np.inf, np.inf)
    inside = np.flatnonzero((at > 0) & (at < len(phi)))
    here = at[inside]
    low, high = rising[inside, here - 1], rising[inside, here]
    share = (np.broadcast_to(target, (len(rising),))[inside] - low) / (high - low)
    out[inside] = phi[here - 1] + share * (phi[here] - phi[here - 1])
    return out
