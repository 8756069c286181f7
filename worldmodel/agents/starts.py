"""Which starts a policy learns from: those whose outcomes vary across attempts tell it most."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np


class StartSelector:
    """Draws among `N` starts (observations, prefixes, tasks), the more often the more their returns vary.

    A policy-gradient group whose attempts all return the same has no gradient. A start is drawn with probability
    `floor / N + (1 - floor) * spread / sum of spreads`; its spread is a running mean over its groups of the attempts'
    standard deviation. A start that was never tried counts as the most varied of all, so that each is tried. Where
    nothing varies, draws are uniform.

    Args:
      starts: `N`.
      floor: share of draws that are uniform: no start is ever drawn less than `floor / N` of the time.
      memory: how much of a start's spread is remembered when a group of it is told, in [0, 1).
      seed: of the draws.

    Raises:
      ValueError: an argument is outside what is allowed.
    """

    def __init__(self, starts: int, *, floor: float = 0.2, memory: float = 0.5, seed: int = 0):
        if starts < 1:
            raise ValueError(f"starts is {starts}; at least 1 is needed")
        if not 0.0 < floor <= 1.0:
            raise ValueError(f"floor of StartSelector is {floor}; more than 0 and at most 1 is allowed")
        if not 0.0 <= memory < 1.0:
            raise ValueError(f"memory of StartSelector is {memory}; 0 or more and less than 1 is allowed")
        self._floor, self._memory = floor, memory
        self._rng = np.random.default_rng(seed)
        self._spread = np.full(starts, np.nan)
        self._drawn = np.zeros(starts, np.int64)
        self._groups = self._flat = 0

    @property
    def probabilities(self) -> np.ndarray:
        """float64 `[N]`: of the next draw."""
        untried = np.isnan(self._spread)
        most = np.max(self._spread, initial=0.0, where=~untried)
        spread = np.where(untried, most or 1.0, self._spread)
        total, count = spread.sum(), len(spread)
        varied = spread / total if total > 0 else np.full(count, 1.0 / count)
        return self._floor / count + (1.0 - self._floor) * varied

    def draw(self, count: int) -> np.ndarray:
        """int64 `[count]`: starts to try next; the same one may come twice."""
        chosen = self._rng.choice(len(self._spread), size=count, p=self.probabilities)
        np.add.at(self._drawn, chosen, 1)
        return chosen.astype(np.int64)

    def tell(self, starts: Any, returns: Any) -> None:
        """What became of groups: `starts` int `[G]`, `returns` of their attempts `[G, A]`, two or more.

        Raises:
          ValueError: shapes do not fit, a start is none, or a return is not finite.
        """
        starts, returns = np.asarray(starts), np.asarray(returns, np.float64)
        if returns.ndim != 2 or starts.shape != returns.shape[:1] or returns.shape[1] < 2:
            raise ValueError(
                f"starts have shape {starts.shape}, returns {returns.shape}; [G] and [G, 2 or more] are needed"
            )
        if not np.issubdtype(starts.dtype, np.integer) or ((starts < 0) | (starts >= len(self._spread))).any():
            raise ValueError(f"starts must be integers in 0..{len(self._spread) - 1}")
        if not np.isfinite(returns).all():
            raise ValueError("returns must be finite; what broke cannot be compared")
        for start, spread in zip(starts, returns.std(axis=1), strict=True):
            before = self._spread[start]
            self._spread[start] = spread if np.isnan(before) else self._memory * before + (1 - self._memory) * spread
            self._groups += 1
            self._flat += bool(spread == 0.0)

    def coverage(self) -> dict[str, Any]:
        """What selection did to the variety of starts, plain JSON.

        `drawn` draws so far; `tried`: share of the starts that were drawn; `effective`: exponential of the entropy of
        the draws by start, as a share of what as many uniform draws can reach; `largest`: share of the draws that the
        most drawn start had; `flat`: share of the told groups whose attempts all returned the same. Null before there
        are any.
        """
        total = int(self._drawn.sum())
        if not total:
            return {"drawn": 0, "tried": 0.0, "effective": None, "largest": None, "flat": None}
        share = self._drawn[self._drawn > 0] / total
        effective = float(np.exp(-(share * np.log(share)).sum()))
        return {
            "drawn": total,
            "tried": float(np.mean(self._drawn > 0)),
            "effective": effective / min(total, len(self._drawn)),
            "largest": float(share.max()),
            "flat": self._flat / self._groups if self._groups else None,
        }

    def get_state(self) -> dict[str, Any]:
        """JSON: everything that draws depend on."""
        spread = [None if np.isnan(value) else float(value) for value in self._spread]
        generator = json.loads(json.dumps(self._rng.bit_generator.state))
        counts = {"drawn": self._drawn.tolist(), "groups": self._groups, "flat": self._flat}
        return {"spread": spread, "generator": generator, **counts}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `get_state`; `ValueError` where it is of another number of starts."""
        if len(state["spread"]) != len(self._spread):
            raise ValueError(f"the state is of {len(state['spread'])} starts, not of {len(self._spread)}")
        self._spread = np.array([np.nan if value is None else value for value in state["spread"]], np.float64)
        self._drawn = np.array(state["drawn"], np.int64)
        self._groups, self._flat = state["groups"], state["flat"]
        self._rng.bit_generator.state = state["generator"]
