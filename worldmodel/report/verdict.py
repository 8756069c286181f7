"""What a reader may conclude from a report: findings with their grades, and one line that joins them.

Every word is computed from the numbers. The rules, and what each grade asks for:

- horizon: the median divergence horizon; `no` below 5 steps.
- ranking: `yes` from a Spearman of .8 on whose interval, where given, excludes zero; `care` from .5 on; `no` below.
- transfer: `yes` where the interval of the real return of the policy trained in simulation lies above the logs'
  behaviour; `care` where they overlap; `no` where it lies below.
- returns: `no` where the simulated return of that policy lies above its real return, intervals apart, by more than a
  tenth of the real returns' scale (exploitation); `care` where it lies that far below.
- where: `care` where a region's contribution to the gap in return stands out, see `regions.worst_region`.
- states: `care` where the risk of a wrong step exceeds what was asked in some states, `no` where none is certified.
- steps: `care` where one-step error exceeds a tenth of the persistence floor, on the logs or where a policy goes.
- ends: `care` where false ends reach 1e-3 a step or recall is below .9.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from worldmodel.report.numbers import centre, get, interval, read, text, text_estimate
from worldmodel.report.regions import worst_region

GRADES = ("yes", "care", "no", "unknown")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One conclusion: `topic`, `grade` (one of `GRADES`), and `text`, a phrase without a full stop."""

    topic: str
    grade: str
    text: str


def trust_step(report: Mapping[str, Any]) -> int | None:
    """Steps of an open-loop rollout before its error first exceeds the threshold (median), or None if not measured.

    Where half of the rollouts never exceed it, this is the longest horizon measured: a lower bound.
    """
    if _censored(report):
        return _longest(report)
    horizon = get(report, "rollout.divergence_horizon")
    middle = centre(get(report, "rollout.divergence_horizon.median"))
    middle = centre(horizon) if middle is None else middle
    return None if middle is None else math.floor(middle)


def horizon_interval(report: Mapping[str, Any]) -> tuple[float, float] | None:
    """95% interval of the divergence horizon, in steps: the median's own where given, else the estimate's."""
    horizon = get(report, "rollout.divergence_horizon") or {}
    return interval({"lo": horizon.get("median_lo"), "hi": horizon.get("median_hi")}) or interval(horizon)


def findings(report: Mapping[str, Any]) -> list[Finding]:
    """Conclusions on horizon, ranking, transfer, returns, regions, states, single steps and ends, in this order."""
    parts = (_horizon, _ranking, _transfer, _returns, _where, _states, _steps, _ends)
    return [finding for part in parts if (finding := part(report)) is not None]


def verdict(report: Mapping[str, Any]) -> str:
    """One line: what to trust the simulator with, and what not, with the numbers that say so."""
    found = findings(report)
    by_topic = {finding.topic: finding for finding in found}
    sentences = []
    trusted = [by_topic[t].text for t in ("horizon", "ranking") if t in by_topic and by_topic[t].grade == "yes"]
    if trusted:
        sentences.append("Trust this simulator " + ", and ".join(trusted))
    if (transfer := by_topic.get("transfer")) is not None and transfer.grade != "unknown":
        sentences.append(transfer.text[0].upper() + transfer.text[1:])
    rest = [f for f in found if f.topic != "transfer"]
    refused = [f.text for f in rest if f.grade == "no"]
    careful = [f.text for f in rest if f.grade == "care"]
    unknown = [f.topic for f in found if f.grade == "unknown"]
    if refused:
        sentences.append("Do not trust it " + "; nor ".join(refused))
    if careful:
        sentences.append("Take care: " + "; ".join(careful))
    if unknown:
        sentences.append("Not measured: " + ", ".join(unknown))
    if not refused and not careful and not unknown:
        sentences.append("No check of this report speaks against it within these limits")
    return ". ".join(sentences) + "."


def _longest(report: Mapping[str, Any]) -> int | None:
    horizons = get(report, "rollout.horizons")
    return int(max(horizons)) if horizons else None


def _censored(report: Mapping[str, Any]) -> bool:
    """Whether half of the rollouts stay under the threshold as long as they were followed."""
    median, longest = centre(get(report, "rollout.divergence_horizon.median")), _longest(report)
    if bool(get(report, "rollout.divergence_horizon.median_censored")):
        return True
    return median is not None and longest is not None and median >= longest


def _horizon(report: Mapping[str, Any]) -> Finding:
    step = trust_step(report)
    if step is None:
        return Finding("horizon", "unknown", "for any number of steps")
    if _censored(report):
        return Finding("horizon", "yes", f"to step {step} of an open-loop rollout, the longest measured")
    horizon, span = get(report, "rollout.divergence_horizon"), horizon_interval(report)
    median = centre(get(report, "rollout.divergence_horizon.median"))
    printed = f"; 95% {text(span[0])}–{text(span[1])}" if span else ""
    if median is None:
        detail = "mean" + printed
    elif span is None or span[0] <= median <= span[1]:
        detail = "median" + printed
    else:
        # An interval that misses the median belongs to the mean: it is printed as that.
        detail = f"median; mean {text_estimate(horizon)}"
    if step < 5:
        return Finding("horizon", "no", f"beyond step {step} of an open-loop rollout ({detail})")
    return Finding("horizon", "yes", f"to step {step} of an open-loop rollout ({detail})")


def _ranking(report: Mapping[str, Any]) -> Finding:
    value, count = get(report, "ranking.spearman"), len(get(report, "policies") or ())
    rho, span = centre(value), interval(value)
    if rho is None:
        return Finding("ranking", "unknown", "to rank policies")
    floor = centre(get(report, "ranking.noise_floor.spearman"))
    numbers = f"Spearman {_short(rho)}" + (f" [{_short(span[0])},\u00a0{_short(span[1])}]" if span else "")
    numbers += f" over {count} policies" if count else ""
    numbers += f", noise floor {_short(floor)}" if floor is not None else ""
    if rho >= 0.8 and (span is None or span[0] > 0):
        return Finding("ranking", "yes", f"to rank policies ({numbers})")
    if rho >= 0.5:
        return Finding("ranking", "care", f"its ranking of policies is rough ({numbers})")
    return Finding("ranking", "no", f"to rank policies ({numbers})")


def _transfer(report: Mapping[str, Any]) -> Finding:
    values = report.get("transfer") or {}
    real, logs = read(values.get("sim_trained_real_return")), read(values.get("behaviour_return"))
    if real is None or logs is None:
        return Finding("transfer", "unknown", "how a policy trained in it does in reality")
    words = f"the policy trained in it earns {text_estimate(values['sim_trained_real_return'])} in reality"
    against = f"{text_estimate(values['behaviour_return'])} for the logs' behaviour"
    if real.lo > logs.hi:
        grade, line = "yes", f"{words} against {against}"
    elif real.hi < logs.lo:
        grade, line = "no", f"{words}, less than the {against}: no transfer"
    else:
        grade, line = "care", f"{words}, not distinguishable from the {against}: no transfer shown"
    same = read(values.get("real_trained_same_budget_return"))
    printed = text_estimate(values.get("real_trained_same_budget_return"))
    if same is not None and real.hi < same.lo:
        line += f"; the same learner on as many real steps as the logs held does better: {printed} (one run each)"
    elif same is not None and real.lo > same.hi:
        line += f" and {printed} for the same learner on as many real steps (one run each)"
    steps = centre(values.get("real_steps_after_logs"))
    if steps:
        line += f" (after {text(steps)} further real steps: not from logs alone)"
    return Finding("transfer", grade, line)


def _returns(report: Mapping[str, Any]) -> Finding:
    values = report.get("transfer") or {}
    sim, real = read(values.get("sim_trained_sim_return")), read(values.get("sim_trained_real_return"))
    if sim is None or real is None:
        return Finding("returns", "unknown", "for the size of a return")
    others = (read(values.get("behaviour_return")), read(values.get("real_trained_full_return")))
    known = [real.mean, *(other.mean for other in others if other is not None)]
    scale = (max(known) - min(known)) or abs(real.mean)
    far = abs(sim.mean - real.mean) > 0.1 * scale
    inside, outside = (text_estimate(values[f"sim_trained_{side}_return"]) for side in ("sim", "real"))
    numbers = f"{inside} inside, {outside} in reality"
    if far and sim.lo > real.hi:
        return Finding("returns", "no", f"for the size of a return: it is optimistic about its own policy ({numbers})")
    if far and sim.hi < real.lo:
        return Finding("returns", "care", f"it understates the return of its own policy ({numbers})")
    return Finding("returns", "yes", f"for the return of its own policy ({numbers})")


def _where(report: Mapping[str, Any]) -> Finding | None:
    words = worst_region(report)
    return None if words is None else Finding("where", "care", words)


def _states(report: Mapping[str, Any]) -> Finding | None:
    found = report.get("trust_region") or {}
    regions = [region for region in found.get("regions") or () if region["share"] > 0]
    if not regions:
        return None
    left_out = [region for region in regions if not region["certified"]]
    wrong = [region for region in left_out if (region["exceeding"] or 0.0) > found["risk"]]
    if len(left_out) == len(regions):
        return Finding("states", "no", "in any state by itself: nowhere is the risk of a wrong step certified")
    if wrong:
        worst = max(wrong, key=lambda region: region["exceeding"] * region["share"])
        share = sum(region["share"] for region in wrong)
        numbers = f"{text(100 * worst['exceeding'])}% of steps err there by more than {found['tolerance']:g}"
        numbers += f"; {text(100 * share)}% of the logs' steps are in such states"
        return Finding("states", "care", f"not where {worst['rule']} ({numbers})")
    if left_out:
        share = text(100 * sum(region["share"] for region in left_out))
        return Finding("states", "yes", f"in the states that the logs visit often (all but {share}% of their steps)")
    return Finding("states", "yes", "in all states that the logs visit")


def _steps(report: Mapping[str, Any]) -> Finding:
    error, floor = centre(get(report, "one_step.nrmse")), centre(get(report, "one_step.persistence_nrmse"))
    if error is None or not floor:
        return Finding("steps", "unknown", "for single steps")
    numbers = f"{text(100 * error / floor)}% of the persistence floor"
    if error > 0.1 * floor:
        return Finding("steps", "care", f"one-step error is {numbers}, over the 10% asked for")
    worst, name = max(_visited(report), default=(0.0, ""))
    if worst > 0.1:
        there = f"{text(100 * worst)}% where policy '{name}' goes"
        return Finding("steps", "care", f"one-step error is {numbers} on the logs, but {there}")
    return Finding("steps", "yes", f"for single steps (error {numbers})")


def _visited(report: Mapping[str, Any]) -> list[tuple[float, str]]:
    """One-step error as a share of the persistence floor, and name, of every policy on its own visits."""
    shares = []
    for entry in get(report, "visits.by_policy") or ():
        error, floor = centre(entry.get("nrmse")), centre(entry.get("persistence_nrmse"))
        if error is not None and floor:
            shares.append((error / floor, entry["name"]))
    return shares


def _ends(report: Mapping[str, Any]) -> Finding | None:
    ends = get(report, "one_step.termination") or {}
    false, recall = centre(ends.get("false_end_rate")), centre(ends.get("recall"))
    if false is None and recall is None:
        # Logs without a single true end leave nothing to measure, and nothing to say.
        return None
    simulated, logged = centre(ends.get("simulated_rate")), centre(ends.get("logged_rate"))
    # Where chance decides, a sampled end after a good step is no fault: then only too many of them are.
    excess = false if simulated is None or logged is None else simulated - logged
    if false is not None and false >= 1e-3 and excess is not None and excess >= 1e-3:
        return Finding("ends", "care", f"it ends good episodes ({text(false)} a step)")
    if recall is not None and recall < 0.9:
        return Finding("ends", "care", f"it misses ends of episodes (recall {_short(recall)})")
    parts = [f"false ends {text(false)} a step"] if false is not None else []
    parts += [f"recall {_short(recall)}"] if recall is not None else []
    return Finding("ends", "yes", f"for ends of episodes ({', '.join(parts)})")


def _short(value: float) -> str:
    """A correlation or probability with two decimals and no leading zero: .93."""
    printed = f"{value:.2f}".replace("-", "\u2212")
    return printed.replace("0.", ".", 1) if abs(value) < 0.995 else printed
