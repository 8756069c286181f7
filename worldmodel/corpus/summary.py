"""What a log holds, in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import special

from worldmodel.trajectory import Trajectory


def summarise(trajectories: Iterator[Trajectory]) -> dict[str, Any]:
    """What the episodes hold, in one pass, as plain JSON.

    Returns:
      `episodes`, `transitions`; `lengths{min,median,max}` in steps; `returns` (an estimate over episodes; null and
      "why" where no rewards are); `policies[]`, each with `name, episodes, transitions, returns`; and
      `ends{terminated,truncated,cut}` in episodes.
    """
    lengths: list[int] = []
    ends = {"terminated": 0, "truncated": 0, "cut": 0}
    by_policy: dict[str, list[tuple[int, float]]] = {}
    for trajectory in trajectories:
        lengths.append(len(trajectory))
        ends["terminated" if trajectory.terminated else "truncated" if trajectory.truncated else "cut"] += 1
        name = str(trajectory.info.get("policy") or "unknown")
        by_policy.setdefault(name, []).append((len(trajectory), trajectory.total_reward))
    if not lengths:
        raise ValueError("the log holds no episode; at least one is needed")
    return {
        "episodes": len(lengths),
        "transitions": sum(lengths),
        "lengths": {"min": min(lengths), "median": float(np.median(lengths)), "max": max(lengths)},
        "returns": estimate([total for rows in by_policy.values() for _, total in rows]),
        "policies": [
            {
                "name": name,
                "episodes": len(rows),
                "transitions": sum(steps for steps, _ in rows),
                "returns": estimate([total for _, total in rows]),
            }
            for name, rows in by_policy.items()
        ],
        "ends": ends,
    }


def estimate(values: list[float]) -> dict[str, Any]:
    """Mean of episodes and its 95% interval by Student's t; what cannot be formed is null beside "why"."""
    known = np.array([value for value in values if np.isfinite(value)], np.float64)
    n = len(known)
    if n == 0:
        return {"mean": None, "lo": None, "hi": None, "n": 0, "why": "the log has no rewards"}
    mean = float(known.mean())
    if n == 1:
        return {"mean": mean, "lo": None, "hi": None, "n": 1, "why": "an interval needs two episodes"}
    half = float(special.stdtrit(n - 1, 0.975) * known.std(ddof=1) / np.sqrt(n))
    return {"mean": mean, "lo": mean - half, "hi": mean + half, "n": n}
