"""Fidelity versus transfer: how faithful a simulator must be for what is learned in it to hold in reality.

The names below load on first use, so that importing this package stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldmodel.study.cells import Cell
    from worldmodel.study.control import Control
    from worldmodel.study.dials import Complexity, Diversity, Fidelity, Knob
    from worldmodel.study.family import Family
    from worldmodel.study.grid import Grid, Study
    from worldmodel.study.host import GymnasiumTask
    from worldmodel.study.pool import Here, Processes
    from worldmodel.study.runner import run_study
    from worldmodel.study.source import Source
    from worldmodel.study.store import Store
    from worldmodel.study.tabular import RandomProcess, SafeRisky

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
    # The harness: dials, cells, and what runs them.
    "Cell": "cells",
    "Complexity": "dials",
    "Control": "control",
    "Diversity": "dials",
    "Family": "family",
    "Fidelity": "dials",
    "Grid": "grid",
    "GymnasiumTask": "host",
    "Here": "pool",
    "Knob": "dials",
    "Processes": "pool",
    "RandomProcess": "tabular",
    "SafeRisky": "tabular",
    "Source": "source",
    "Store": "store",
    "Study": "grid",
    "run_study": "runner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
