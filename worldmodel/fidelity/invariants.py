"""Consistency apart from realism: what must hold of every transition, checked in the log and in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from worldmodel.fidelity.estimates import Estimate, Values, cluster_rate_interval
from worldmodel.fidelity.steps import Steps
from worldmodel.spaces import map_columns

Invariant = Callable[[Any, Any, Any], Values]
"""`(obs, action, next_obs) -> bool [N]`, columns of `N` rows as the spaces lay them out: whether it holds of each."""


def violations(invariants: Mapping[str, Invariant], steps: Steps, seed: int) -> dict[str, Any]:
    """Violation rate of each invariant in the log (`real`) and of one sampled next observation for each (`simulated`).

    The log's own rate is the floor: an invariant that reality breaks is none. ValueError as `violation_rate`.
    """
    drawn = steps.drawn(seed)
    out = {}
    for name, invariant in invariants.items():
        found = {"real": violation_rate(name, invariant, steps.obs, steps.action, steps.next_obs, steps.episode, seed)}
        if drawn is None:
            why = "sampled pictures are not kept"
            found["simulated"] = Estimate(None, None, None, 0, why)
        else:
            after = map_columns(lambda sampled, logged: sampled.astype(logged.dtype), drawn, steps.next_obs)
            found["simulated"] = violation_rate(name, invariant, steps.obs, steps.action, after, steps.episode, seed)
        out[name] = {side: estimate.to_json() for side, estimate in found.items()}
    return out


def violation_rate(
    name: str, invariant: Invariant, obs: Any, action: Any, next_obs: Any, episode_ids: np.ndarray, seed: int = 0
) -> Estimate:
    """Share of transitions that break an invariant; the interval resamples episodes and is never without width.

    ValueError, naming the invariant, where it does not return one truth value for each of the `N` rows.
    """
    holds = np.asarray(invariant(obs, action, next_obs))
    if holds.shape != episode_ids.shape or holds.dtype != np.bool_:
        raise ValueError(
            f"invariant {name!r} returned {holds.dtype}{list(holds.shape)}; bool[{len(episode_ids)}] is needed, "
            "one for each transition"
        )
    return cluster_rate_interval(~holds, np.ones_like(holds), episode_ids, seed)


def check_invariants(invariants: Mapping[str, Any]) -> None:
    """ValueError unless every value can be called."""
    for name, invariant in invariants.items():
        if not callable(invariant):
            raise ValueError(f"invariant {name!r} is a {type(invariant).__name__}; a function is needed")
