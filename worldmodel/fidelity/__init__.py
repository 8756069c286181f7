"""Where, and how far, a simulator may be trusted: errors of one step, of many, and of the ranking of policies.

The names below load on first use, so that importing this package stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldmodel.fidelity.policy_panel import panel
    from worldmodel.fidelity.probing import probe

_HOME = {
    "FULL": "effort",
    "QUICK": "effort",
    "Effort": "effort",
    "Curve": "estimates",
    "Estimate": "estimates",
    "bootstrap_interval": "estimates",
    "cluster_mean_interval": "estimates",
    "cluster_ratio_interval": "estimates",
    "json_safe": "estimates",
    "mean_interval": "estimates",
    "median_curve": "estimates",
    "kendall": "rank_metrics",
    "mae": "rank_metrics",
    "mmrv": "rank_metrics",
    "noise_floor": "ranking",
    "pearson": "rank_metrics",
    "rank_panel": "ranking",
    "regret_at_k": "rank_metrics",
    "spearman": "rank_metrics",
    "top1_agreement": "rank_metrics",
    "calibration_line": "rank_metrics",
    "spread_ratio": "return_shape",
    "worst_decile_error": "return_shape",
    "run_to_run": "return_shape",
    "exploitation_gap": "return_shape",
    "prediction_powered_mean": "prediction_powered",
    "consistency_ratio": "consistency",
    "paired_success": "consistency",
    "energy_distance": "two_sample",
    "mmd2_unbiased": "two_sample",
    "sliced_wasserstein": "two_sample",
    "wasserstein1": "two_sample",
    "paired_c2st": "classifiers",
    "transition_log_ratio": "classifiers",
    "expected_calibration_error": "calibration",
    "value_aware_error": "value_aware",
    "exact_match": "text_match",
    "token_f1": "text_match",
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
    "certify": "certified_states",
    "explain_gap": "gap",
    "stability": "support",
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
