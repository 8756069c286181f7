"""Fidelity versus transfer: how faithful a simulator must be for what is learned in it to hold in reality.

The names below load on first use, so that importing this package stays light.
"""

import importlib
from typing import Any

_HOME = {
    # Statistics: all of them infer from one value per world-model seed.
    "StudyTable": "table",
    "append_rows": "table",
    "read_table": "table",
    "WorldModelMeans": "means",
    "per_world_model": "means",
    "BreakEven": "estimands",
    "Tolerance": "estimands",
    "bracket": "bracketing",
    "seeds_for_non_inferiority": "bracketing",
    "isotonic_threshold": "isotonic",
    "sigmoid_threshold": "sigmoid",
    "jump": "breaks",
    "kink": "breaks",
    "thresholds": "every_threshold",
    "as_efficiency": "transfer",
    "headroom_of": "transfer",
    "transfer_efficiency": "transfer",
    "pooled_threshold": "pooled",
    "factorial": "contrasts",
    "scalar_sufficiency": "sufficiency",
    "contrast_power": "design",
    "exact_power": "design",
    "pilot_variances": "design",
    "plan": "design",
    "Exclusion": "preregistration",
    "Preregistration": "preregistration",
    "apply_exclusions": "preregistration",
    "compare": "preregistration",
    "register": "preregistration",
    "iqm": "aggregate",
    "performance_profile": "aggregate",
    "probability_of_improvement": "aggregate",
    "analyse": "analysis",
    "league": "metric_league",
    "transfer_scaling": "scaling",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
