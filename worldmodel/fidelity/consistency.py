"""Are successes of a simulator successes in reality: its actions, replayed there.

The replay is open-loop, ends at the first real end, and an episode that the simulator ends early counts as a failure.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from worldmodel.fidelity.estimates import Estimate, Values, bootstrap_interval, cluster_rate_interval, json_safe


def consistency_ratio(*, replayed: float | int, real: float | int) -> float:
    """`W2R / Real`: success when simulated actions are replayed in reality, over that of acting in reality.

    A ratio of means over tasks, not a mean of ratios. It may exceed 1, and wanders far where `real` is small.
    """
    if real <= 0:
        raise ValueError(f"the ratio divides by the success rate in reality, which is {real}; it must be positive")
    return replayed / real


def paired_success(*, sim: Values, replayed: Values, seed: int = 0) -> dict[str, Any]:
    """The two-by-two table of success in the simulator and of the same actions in reality, as JSON; bool `[n]` each.

    `confirmed` is P(real success | simulated success), `hallucinated` P(real failure | simulated success), `difference`
    the rate in the simulator minus that in reality (positive: optimistic), and `counts` the four cells.
    """
    s, r = np.asarray(sim), np.asarray(replayed)
    if s.dtype != np.bool_ or r.dtype != np.bool_ or s.ndim != 1 or s.shape != r.shape:
        raise ValueError(
            f"sim and replayed must both be bool [n]; got {s.dtype}{list(s.shape)}, {r.dtype}{list(r.shape)}"
        )
    why = "no success in the simulator"
    parts: dict[str, Estimate] = {
        "confirmed": cluster_rate_interval(r & s, s, None, seed, why=why),
        "hallucinated": cluster_rate_interval(~r & s, s, None, seed, why=why),
        "difference": bootstrap_interval(lambda d: float(d.mean()), s.astype(np.float64) - r, seed=seed),
    }
    cells = {"both": s & r, "sim_only": s & ~r, "real_only": ~s & r, "neither": ~s & ~r}
    return json_safe({**parts, "counts": {name: int(cell.sum()) for name, cell in cells.items()}})
