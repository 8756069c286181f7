"""Whether there is anything to gain at a place: the reference against no training, before the rest is run there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from worldmodel.fidelity.estimates import mean_interval
from worldmodel.study.cells import ANCHORS


def without_headroom(rows: Iterable[Mapping[str, Any]], least: float) -> dict[tuple[str, float, int], str]:
    """Places (environment, complexity, diversity) whose training in reality gains no more than `least`, and why.

    By the mean over seeds of the difference, paired by seed, in the training deployment; a place that lacks an anchor
    is not judged.
    """
    found: dict[tuple[str, float, int], dict[str, dict[int, float]]] = {}
    for row in rows:
        if row["arm"] in ANCHORS and row["deployment"] == "training":
            place = (row["environment"], row["complexity"], int(row["diversity"]))
            found.setdefault(place, {}).setdefault(row["arm"], {})[row["policy_seed"]] = row["real_return"]
    out = {}
    for place, arms in found.items():
        if len(arms) < len(ANCHORS):
            continue
        reference, nothing = (arms[name] for name in ANCHORS)
        gain = mean_interval([reference[seed] - nothing[seed] for seed in sorted(reference.keys() & nothing.keys())])
        if gain.mean is not None and gain.mean <= least:
            out[place] = (
                f"no headroom: training in reality gains {gain.mean:.3g} over none, on {gain.n} seeds; "
                f"more than {least:g} is needed"
            )
    return out
