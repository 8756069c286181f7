"""The numbers of a report as rows of text, for the page and for the model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from worldmodel.report.numbers import MISSING, centre, get, text, text_estimate


class Table(NamedTuple):
    """A title, the names of the columns (empty: none), and rows of cells; the first cell of a row names it."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


def fidelity(report: Mapping[str, Any]) -> list[Table]:
    """One step, open loop, ranking, transfer: only rows that the report has."""
    floor, error = centre(get(report, "one_step.persistence_nrmse")), centre(get(report, "one_step.nrmse"))
    share = f"{text(100 * error / floor)}%" if floor and error is not None else MISSING
    one_step = _rows(
        report,
        ("error, NRMSE", "one_step.nrmse"),
        ("the same if nothing changed (persistence)", "one_step.persistence_nrmse"),
        ("negative log-likelihood, nats per dimension", "one_step.nll_per_dim"),
        ("reward, mean absolute error", "one_step.reward_mae"),
        ("ends: recall", "one_step.termination.recall"),
        ("ends: precision", "one_step.termination.precision"),
        ("ends: Brier score", "one_step.termination.brier"),
        ("ends: false ends per step", "one_step.termination.false_end_rate"),
    )
    one_step.insert(2, ("error as a share of persistence", share))
    one_step += _measured(
        report,
        ("ends: false successes per step", "one_step.termination.false_success_rate"),
        ("sampled next states, CRPS in standard deviations", "one_step.crps"),
        ("the same if nothing changed", "one_step.persistence_crps"),
        ("how often trees pick the real one of a pair (half: no better than a coin)", "one_step.c2st.auc"),
        ("index: 0 as if nothing changed, 1 as real episodes", "one_step.distances.energy.phi"),
        ("do members disagree where they are wrong, Spearman", "one_step.uncertainty_link"),
    )
    for name in get(report, "one_step.invariants") or ():
        found = report["one_step"]["invariants"][name]
        one_step.append((f"breaks {name!r}: simulated", text_estimate(found["simulated"])))
        one_step.append((f"breaks {name!r}: in the logs", text_estimate(found["real"])))
    rollout = _rows(
        report,
        ("divergence horizon, steps: mean", "rollout.divergence_horizon"),
        ("divergence horizon, steps: median", "rollout.divergence_horizon.median"),
        ("threshold, standard deviations", "rollout.threshold"),
    )
    ranking = _rows(
        report,
        ("Spearman", "ranking.spearman"),
        ("Spearman of a perfect simulator", "ranking.noise_floor.spearman"),
        ("Pearson", "ranking.pearson"),
        ("Pearson of a perfect simulator", "ranking.noise_floor.pearson"),
        ("MMRV (return lost to wrong order)", "ranking.mmrv"),
        ("MMRV of a perfect simulator", "ranking.noise_floor.mmrv"),
        ("regret of picking the best in simulation", "ranking.regret_at_1"),
    )
    ranking += _measured(
        report,
        ("real return per simulated return (slope)", "ranking.calibration_slope"),
        ("the same of a perfect simulator", "ranking.noise_floor.calibration_slope"),
        ("policy trained in it: promised beyond what it earns", "ranking.exploitation_gap.gap"),
        ("the same of the other policies", "ranking.exploitation_gap.others"),
    )
    transfer = _rows(
        report,
        ("the logs' behaviour", "transfer.behaviour_return"),
        ("trained in the simulator, in reality", "transfer.sim_trained_real_return"),
        ("trained in the simulator, seen inside it", "transfer.sim_trained_sim_return"),
        ("trained in reality on as many steps as the logs", "transfer.real_trained_same_budget_return"),
        ("trained in reality, full budget", "transfer.real_trained_full_return"),
    )
    tables = [("One step", one_step), ("Open loop", rollout), ("Ranking of policies", ranking), ("Return", transfer)]
    return [Table(title, (), rows) for title, rows in tables if rows]


def policies(report: Mapping[str, Any]) -> list[Table]:
    """Every policy of the panel, the best in reality first; with its spread and its own one-step error where known."""
    panel = sorted(report.get("policies") or (), key=lambda p: -(centre(p.get("real_return")) or 0.0))
    visited = {v["name"]: v.get("nrmse") for v in get(report, "visits.by_policy") or ()}
    more = {
        "spread, share of real": [p.get("spread_ratio") for p in panel],
        "one-step error where it goes": [visited.get(p["name"]) for p in panel],
    }
    known = {head: values for head, values in more.items() if any(centre(v) is not None for v in values)}
    rows = [
        (
            p["name"],
            text_estimate(p.get("sim_return")),
            text_estimate(p.get("real_return")),
            text(centre(p["episodes"])),
            *(text(centre(values[i])) for values in known.values()),
        )
        for i, p in enumerate(panel)
    ]
    return [Table("Policies", ("policy", "simulator", "reality", "episodes", *known), rows)] if rows else []


def states(report: Mapping[str, Any]) -> list[Table]:
    """Regions of the state space: share of the logs, how often a step errs too much, what is certified."""
    found = report.get("trust_region") or {}
    rows = [
        (
            region["rule"],
            f"{text(100 * region['share'])}%",
            MISSING if region["exceeding"] is None else f"{text(100 * region['exceeding'])}%",
            text(region["bound"]),
            "yes" if region["certified"] else "no",
        )
        for region in sorted(found.get("regions") or (), key=lambda region: -region["share"])
    ]
    if not rows:
        return []
    wrong = f"steps that err by more than {found['tolerance']:g}"
    within = f"error of {text(100 * (1 - found['risk']))}% of steps"
    return [Table("Where steps are certified", ("states", "share of the logs", wrong, within, "certified"), rows)]


def corpus(report: Mapping[str, Any]) -> list[Table]:
    """The logs: counts, ends, and the behaviours that made them."""
    rows = _rows(
        report, ("episodes", "corpus.episodes"), ("transitions", "corpus.transitions"), ("return", "corpus.return_mean")
    )
    ends = get(report, "corpus.ends")
    if ends:
        rows.append(("ends of episodes", ", ".join(f"{text(centre(n))} {name}" for name, n in ends.items())))
    tables = [Table("Logs", (), rows)] if rows else []
    made_by = [
        (b["name"], text(centre(b.get("episodes"))), text_estimate(b.get("return_mean")))
        for b in get(report, "corpus.behaviours") or ()
    ]
    if made_by:
        tables.append(Table("Behaviours in the logs", ("behaviour", "episodes", "return"), made_by))
    return tables


def making(report: Mapping[str, Any]) -> list[Table]:
    """Real steps, seconds, versions."""
    ledger = _rows(
        report,
        ("in the logs", "transfer.real_steps.logs"),
        ("after the logs, for training", "transfer.real_steps_after_logs"),
        ("to evaluate policies", "transfer.real_steps.evaluation"),
        ("to train the policies it is compared with", "transfer.real_steps.comparison"),
    )
    seconds = [(name, f"{text(centre(s))} s") for name, s in (report.get("timings") or {}).items()]
    versions = [(name, str(v)) for name, v in (report.get("versions") or {}).items()]
    tables = [("Real steps", ledger), ("Time", seconds), ("Versions", versions)]
    return [Table(title, (), rows) for title, rows in tables if rows]


def settings(report: Mapping[str, Any]) -> list[Table]:
    """The configuration, nested keys joined by dots."""
    rows = [("seed", str(report.get("seed", MISSING)))]
    rows += _flat(report.get("config") or {}, "")
    return [Table("Configuration", (), rows)]


def _flat(value: Mapping[str, Any], prefix: str) -> list[tuple[str, str]]:
    rows = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            rows += _flat(item, f"{prefix}{key}.")
        elif isinstance(item, list | tuple):
            rows.append((prefix + key, ", ".join(str(i) for i in item)))
        else:
            rows.append((prefix + key, str(item)))
    return rows


def _measured(report: Mapping[str, Any], *wanted: tuple[str, str]) -> list[tuple[str, str]]:
    """As `_rows`, without those that could not be formed."""
    return _rows(report, *((label, path) for label, path in wanted if centre(get(report, path)) is not None))


def _rows(report: Mapping[str, Any], *wanted: tuple[str, str]) -> list[tuple[str, str]]:
    rows = []
    for label, path in wanted:
        value = get(report, path)
        if value is not None:
            rows.append((label, text_estimate(value)))
    return rows
