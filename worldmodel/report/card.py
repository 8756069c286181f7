"""The model card: `README.md` of a run folder, with the YAML header that model hubs read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldmodel.report import tables
from worldmodel.report.numbers import centre, get, text, text_estimate
from worldmodel.report.verdict import findings, trust_step, verdict


def model_card(report: Mapping[str, Any], run_dir: Path) -> str:
    """Markdown with a YAML header: verdict, data, intended use, limits, fidelity, how it was made, how to load it."""
    env_id, line = report["env_id"], report.get("verdict") or verdict(report)
    run = run_dir.as_posix() if not run_dir.is_absolute() else run_dir.name
    parts = [
        _header(report),
        f"# World model of {env_id}",
        line,
        "The full report, with figures, is [report.html](report.html); its numbers are in [report.json](report.json).",
        "## Data",
        _data(report),
        *(_markdown(table) for table in tables.corpus(report)),
        "## Intended use",
        f"A simulator of `{env_id}` learned from logs: to train and compare policies where real steps are dear, within "
        "the limits below. It predicts the next observation, the reward and the end of an episode from the history and "
        "an action.",
        "## Limits",
        _limits(report),
        "## Fidelity",
        "Means with 95% intervals in brackets.",
        *(_markdown(table) for table in (*tables.fidelity(report), *tables.policies(report), *tables.states(report))),
        "## How it was made",
        *(_markdown(table) for table in (*tables.making(report), *tables.settings(report))),
        "## How to load",
        "```python\nimport worldmodel as wm\n\n"
        f'model = wm.load("{run}")  # the checkpoint\n'
        f'env = wm.make("{run}")  # a Gymnasium environment\n'
        "obs, info = env.reset(seed=0)\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _header(report: Mapping[str, Any]) -> str:
    env_id = report["env_id"]
    lines = [
        "---",
        "library_name: worldmodel",
        "pipeline_tag: reinforcement-learning",
        "tags:",
        "- world-model",
        "- simulator",
        "- reinforcement-learning",
        # JSON text is YAML text: quotes and colons inside an id cannot break the header.
        f"- {json.dumps(env_id)}",
    ]
    metrics = [
        ("mean_return", "return in reality of the policy trained in it", "transfer.sim_trained_real_return"),
        ("one_step_nrmse", "one-step NRMSE", "one_step.nrmse"),
        ("spearman", "Spearman of simulated and real returns", "ranking.spearman"),
    ]
    known = [(kind, name, centre(get(report, path))) for kind, name, path in metrics]
    known = [(kind, name, value) for kind, name, value in known if value is not None]
    if known:
        lines += [
            "model-index:",
            f"- name: {json.dumps('world model of ' + env_id)}",
            "  results:",
            "  - task:",
            "      type: reinforcement-learning",
            "    dataset:",
            f"      name: {json.dumps(env_id)}",
            f"      type: {json.dumps(env_id)}",
            "    metrics:",
        ]
        for kind, name, value in known:
            lines += [f"    - type: {kind}", f"      name: {json.dumps(name)}", f"      value: {value:.6g}"]
    return "\n".join([*lines, "---"])


def _data(report: Mapping[str, Any]) -> str:
    episodes, steps = get(report, "corpus.episodes"), get(report, "corpus.transitions")
    if episodes is None:
        return "This report does not tell of the logs."
    return (
        f"{text(centre(episodes))} logged episodes of `{report['env_id']}`, {text(centre(steps))} transitions, "
        f"mean return {text_estimate(get(report, 'corpus.return_mean'))}."
    )


def _limits(report: Mapping[str, Any]) -> str:
    lines = [f"- {_capital(f.text)}: {_advice(f.grade)}." for f in findings(report) if f.grade != "yes"]
    step = trust_step(report)
    if step is not None:
        lines.append(f"- Single trajectories: do not read them past step {step} of an open-loop rollout.")
    lines.append("- States and actions that the logs do not cover: nothing was measured there.")
    return "\n".join(lines)


def _advice(grade: str) -> str:
    return {"care": "take care", "no": "do not trust it there", "unknown": "not measured"}[grade]


def _capital(line: str) -> str:
    return line[0].upper() + line[1:]


def _markdown(table: tables.Table) -> str:
    head = table.head or (table.title, *[""] * (len(table.rows[0]) - 1))
    rule = ["---"] + ["---:"] * (len(head) - 1)
    rows = [head, rule, *table.rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in r) + " |" for r in rows
    )
