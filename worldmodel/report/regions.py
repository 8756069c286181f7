"""Where a gap in return comes from, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from worldmodel.report.numbers import centre, get, text

NOTABLE = 0.02
"""Share of the policy's return from which what a region contributes is worth a word."""
CAUSE_WORDS = {"reward": "its reward", "end": "its end", "dynamics": "its next state"}


def worst_region(report: Mapping[str, Any]) -> str | None:
    """What the simulator gets wrong where, in words; None where no region stands out after correction.

    A region counts from `NOTABLE` of the policy's return on, real or simulated, whichever is larger.
    """
    found = report.get("attribution") or {}
    scale = max((abs(centre(found.get(f"{side}_return")) or 0.0) for side in ("sim", "real")), default=0.0)
    for region in found.get("regions") or ():
        mean, chance = centre(region["net"]), region.get("p_adjusted")
        if mean is not None and chance is not None and chance < 0.05 and abs(mean) >= NOTABLE * scale > 0:
            causes = {name: centre(get(found, f"causes.{name}.net")) or 0.0 for name in CAUSE_WORDS}
            cause = CAUSE_WORDS[max(causes, key=lambda name: np.sign(mean) * causes[name])]
            verb = "promises" if mean > 0 else "withholds"
            where = "everywhere" if region["rule"] == "everywhere" else f"where {region['rule']}"
            return f"{where} it {verb} {text(abs(mean))} of return an episode, by {cause} first of all"
    return None
