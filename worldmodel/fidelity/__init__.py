"""Where, and how far, a simulator may be trusted: errors of one step, of many, and of the ranking of policies.

The names below load on first use, so that importing this package stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldmodel.fidelity.policy_panel import panel
    from worldmodel.fidelity.probing import probe

_HOME = {
    "Curve": "estimates",
    "Estimate": "estimates",
    "bootstrap_interval": "estimates",
    "cluster_mean_interval": "estimates",
    "cluster_ratio_interval": "estimates",
    "json_safe": "estimates",
    "mean_interval": "estimates",
    "median_curve": "estimates",
    "kendall": "ranking",
    "mae": "ranking",
    "mmrv": "ranking",
    "noise_floor": "ranking",
    "pearson": "ranking",
    "rank_panel": "ranking",
    "regret_at_k": "ranking",
    "spearman": "ranking",
    "top1_agreement": "ranking",
    "OneStepError": "one_step",
    "coverage": "one_step",
    "crps_ensemble": "one_step",
    "crps_fair": "one_step",
    "nrmse": "one_step",
    "persistence_nrmse": "one_step",
    "pit": "one_step",
    "reward_mae": "one_step",
    "termination_scores": "one_step",
    "compounding_factor": "horizon",
    "compounding_interval": "horizon",
    "divergence_horizon": "horizon",
    "median_horizon": "horizon",
    "median_horizon_interval": "horizon",
    "rmst": "horizon",
    "rmst_interval": "horizon",
    "survival": "horizon",
    "FidelityReport": "probing",
    "PairedRollout": "paired",
    "open_loop": "rollout",
    "paired_rollout": "paired",
    "panel": "policy_panel",
    "probe": "probing",
    "simulated_returns": "policy_panel",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
