"""Ends of episodes, right and wrong: false ends and, apart from them, false successes.

A policy that learns in a simulator seeks whatever it wrongly calls a success, so that one in ten thousand steps can be
worth more than all that is right; a false failure only shortens episodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from worldmodel.corpus.columns import Columns
from worldmodel.fidelity.calibration import ece_interval, reliability
from worldmodel.fidelity.estimates import Estimate, cluster_mean_interval, cluster_ratio_interval
from worldmodel.fidelity.one_step import termination_scores
from worldmodel.fidelity.steps import Steps

BINS = 10


def success_threshold(columns: Columns) -> float | None:
    """The reward above which an end counts as a success, or None where no logged end pays more than steps that go on.

    It lies halfway between the most that a step which goes on has paid and the least of the ends that paid more.
    """
    if not columns.has_rewards:
        return None
    ends = columns.terminated_rows
    paid, ordinary = columns.rewards[ends].astype(np.float64), columns.rewards[~ends].astype(np.float64)
    most = float(ordinary.max(initial=-np.inf))
    above = paid[paid > most]
    if len(above) == 0 or not np.isfinite(most):
        return None
    return 0.5 * (most + float(above.min()))


def ends_of(steps: Steps, success_above: float | None, seed: int) -> dict[str, Any]:
    """Scores of predicted ends, as JSON.

    Returns:
      `termination_scores` of the members' average P(end) given their own central prediction, where `false_end_rate` is
      the mean P(end) of good steps given *sampled* observations, which is what a simulated episode is exposed to, and
      `false_end_rate_thresholded` the share of good steps whose central P(end) is above .5; `simulated_rate` beside
      `logged_rate` are ends per step of any kind: where chance decides, a sampled end is no fault by itself.
      `ece`, `ece_bins`, `reliability`: calibration of the sampled P(end).
      `false_success_rate`: sampled ends with a reward above `success_above`, per step that was no success;
      `success_recall`: the same per step that was one; nulls beside `why` where a success cannot be told.
    """
    ids, truth = steps.episode, steps.terminated
    central, sampled = (np.clip(end.mean(axis=1), 0.0, 1.0) for end in (steps.said.end, steps.said.sampled_end))
    ends = termination_scores(central, truth, 0.5, ids, seed)
    rates = ends.pop("false_end_rate")
    goes_on = ~truth
    all_end = "every transition is a true end"
    return {
        **ends,
        "simulated_rate": cluster_mean_interval(sampled, ids, seed).to_json(),
        "logged_rate": float(truth.mean()),
        "false_end_rate": cluster_ratio_interval(sampled * goes_on, goes_on, ids, seed, why=all_end).to_json(),
        "false_end_rate_thresholded": rates["thresholded"],
        "ece": ece_interval(sampled, truth, ids, seed, bins=BINS).to_json(),
        "ece_bins": BINS,
        "reliability": reliability(sampled, truth, BINS),
        **_successes(steps, success_above, seed),
    }


def _successes(steps: Steps, success_above: float | None, seed: int) -> dict[str, Any]:
    if success_above is None:
        why = "no logged end pays more than steps that go on: a success cannot be told"
        nothing = Estimate(None, None, None, 0, why).to_json()
        return {"false_success_rate": nothing, "success_recall": nothing, "success_above": None}
    succeeded = steps.terminated & (steps.reward > success_above)
    said, ids = steps.said.sampled_success.mean(axis=1), steps.episode
    rates = {
        name: cluster_ratio_interval(said * among, among, ids, seed, why=f"every step is {what}").to_json()
        for name, among, what in (
            ("false_success_rate", ~succeeded, "a success"),
            ("success_recall", succeeded, "no success"),
        )
    }
    return {**rates, "success_above": success_above}
