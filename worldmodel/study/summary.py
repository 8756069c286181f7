"""A study's rows in one table: mean real return by level and arm, each with an interval over independent units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from worldmodel.fidelity.estimates import mean_interval
from worldmodel.study.answers import answers, estimand_name, estimand_of
from worldmodel.study.store import REGISTRATION, Store


def summarise(store: Store, deployment: str = "training", *, repetitions: int = 1000) -> dict[str, Any]:
    """Means by environment, complexity, diversity, arm, corruption and fidelity, and the study's `answers`.

    A unit is a simulator, whose policies are averaged first, or a policy where there is no simulator.

    Raises:
      ValueError: no rows yet, or none of that deployment.
    """
    described, rows = store.description(), store.rows()
    if not rows:
        raise ValueError(f"{store.path} has no finished cells yet")
    known = list(dict.fromkeys(row["deployment"] for row in rows))
    if deployment not in known:
        raise ValueError(f"nothing was deployed in {deployment!r}; deployments are {', '.join(known)}")
    done, level = store.done(), store.levels()
    return {
        "study": described["name"],
        "note": described["note"],
        "cells": len(described["cells"]),
        "done": sum(key in done for key in described["cells"]),
        "rows": len(rows),
        "deployment": deployment,
        "deployments": known,
        "means": means({**row, "fidelity": level[row["cell"]]} for row in rows if row["deployment"] == deployment),
        "analysis": answers(rows, described, deployment, store.path / REGISTRATION, repetitions=repetitions),
    }


def means(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry per combination of levels and arm: `real_return` and `simulated_return` as estimates."""
    names = ("environment", "complexity", "diversity", "arm", "corruption", "fidelity")
    groups: dict[tuple[Any, ...], dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        unit = row["policy_seed"] if row["world_model_seed"] is None else row["world_model_seed"]
        groups.setdefault(tuple(row[name] for name in names), {}).setdefault(unit, []).append(row)
    out = []
    for group, units in groups.items():
        entry: dict[str, Any] = dict(zip(names, group, strict=True))
        entry["real_return"] = _estimate(units, "real_return")
        entry["simulated_return"] = _estimate(units, "simulated_return")
        out.append(entry)
    return sorted(out, key=lambda entry: tuple("" if entry[n] is None else entry[n] for n in names[:3]))


def _estimate(units: Mapping[int, list[Mapping[str, Any]]], name: str) -> dict[str, Any] | None:
    if any(row[name] is None for rows in units.values() for row in rows):
        return None
    return mean_interval([float(np.mean([row[name] for row in rows])) for rows in units.values()]).to_json()


def tables(result: Mapping[str, Any]) -> str:
    """Markdown: by environment and corruption, rows of complexity and diversity, columns of fidelity and arms."""
    lines = [f"{result['study']}: {result['done']} of {result['cells']} cells, deployed in {result['deployment']}"]
    lines += [result["note"]] if result["note"] else []
    found = result["means"]
    pairs = dict.fromkeys((e["environment"], e["corruption"]) for e in found if e["arm"] == "simulated")
    for environment, corruption in pairs:
        own = [e for e in found if e["environment"] == environment and e["corruption"] in (corruption, None)]
        columns = dict.fromkeys((e["arm"], e["fidelity"]) for e in own if e["arm"] != "simulated")
        levels = sorted({e["fidelity"] for e in own if e["arm"] == "simulated"})
        heads = [f"{corruption} {level:g}" for level in levels] + [_head(*column) for column in columns]
        lines += ["", f"### {environment}: mean real return [95%]", ""]
        lines += [f"| complexity | diversity | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
        for complexity, diversity in dict.fromkeys((e["complexity"], e["diversity"]) for e in own):
            at = {
                (e["arm"], e["fidelity"]): e["real_return"]
                for e in own
                if (e["complexity"], e["diversity"]) == (complexity, diversity)
            }
            wanted = [("simulated", level) for level in levels] + list(columns)
            cells = " | ".join(_text(at.get(column)) for column in wanted)
            lines.append(f"| {complexity:g} | {diversity:g} | {cells} |")
    return "\n".join([*lines, *_answers(result["analysis"])])


def _answers(found: Mapping[str, Any]) -> list[str]:
    """Thresholds by setting, and whether the dials move them."""
    rows: dict[str, list[str]] = {}
    for each in found["conditions"]:
        for kind, own in each["kinds"].items():
            for one in own["thresholds"]:
                rows.setdefault(estimand_name(estimand_of(one["estimand"])), []).append(
                    f"| {each['environment']} | {kind} | {each['complexity']:g} | {each['diversity']:g} "
                    f"| {_bracket(one['bracket'])} | {_text(one['isotonic'])} | {_text(one['sigmoid'])} |"
                )
    lines = [""]
    for question, own in rows.items():
        lines += [
            f"### Fidelity from which on training in the simulator is {question}",
            "",
            "| environment | corruption | complexity | diversity | bracket | isotonic [95%] | sigmoid [95%] |",
            "|---" * 7 + "|",
            *own,
            "",
        ]
    for each in found["dials"]:
        for name, dial in (("alpha_C", "complexity"), ("alpha_D", "diversity")):
            shift = each["pooled_efficiency"].get(name)
            if shift is not None and shift["mean"] is not None:
                where = f"{each['environment']}, {each['corruption']}"
                moved = f"{_text(shift)} per standard deviation of the dial"
                lines.append(f"{where}: {dial} moves the fidelity of half the rise by {moved}")
    for each in found["conditions"]:
        if each["one_curve"].get("p_curve") is not None:
            where = f"{each['environment']}, complexity {each['complexity']:g}, diversity {each['diversity']:g}"
            lines.append(f"{where}: kinds of fault have one curve with p = {each['one_curve']['p_curve']:.2g}")
    lines += [f"left out: {line}" for line in found["excluded"]]
    changed = found["registration"]["changed"]
    return [*lines, f"asked otherwise than registered: {', '.join(changed)}"] if changed else lines


def _bracket(bracket: Mapping[str, Any]) -> str:
    low, high = bracket["lower"], bracket["upper"]
    if low is None and high is not None and high == bracket.get("levels", [None])[0]:
        return f"at most {high:.3g}"
    return f"({'?' if low is None else f'{low:.3g}'}, {'?' if high is None else f'{high:.3g}'}]"


def _head(arm: str, fidelity: float | None) -> str:
    return arm.replace("_", " ") + (f" {fidelity:g}" if fidelity is not None and arm != "oracle" else "")


def _text(estimate: Mapping[str, Any] | None) -> str:
    if estimate is None or estimate["mean"] is None:
        return "-"
    interval = "" if None in (estimate["lo"], estimate["hi"]) else f" [{estimate['lo']:.3g}, {estimate['hi']:.3g}]"
    return f"{estimate['mean']:.3g}{interval}"
