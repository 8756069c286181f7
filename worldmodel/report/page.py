"""The page: every figure with a caption that says what it shows, in one HTML file that works offline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import jinja2
from matplotlib.figure import Figure

from worldmodel.report import figures, returns, style, tables
from worldmodel.report.animation import player_data
from worldmodel.report.evidence import Evidence
from worldmodel.report.gap import gap_figure
from worldmodel.report.numbers import centre, get, text
from worldmodel.report.verdict import findings, horizon_interval, trust_step, verdict

GRADE_WORDS = {"yes": "Trust", "care": "Care", "no": "Don't", "unknown": "Unknown"}


def html(report: Mapping[str, Any], evidence: Evidence) -> str:
    """The whole page: no external file, no request, one script that plays the rollout."""
    shown = returns.shown_dims(evidence)
    with style.look():
        traces = [
            style.svg(returns.trace_figure(evidence, d), f"trace{d}", f"{evidence.names[d]} by step, imagined and real")
            for d in shown
        ]
        drawn = [
            {"name": name, "title": title, "caption": caption, "svg": style.svg(figure, name, f"{title}. {caption}")}
            for name, title, caption, figure in _figures(report, evidence)
            if figure is not None
        ]
    player = player_data(evidence)
    fidelity, panel = tables.fidelity(report), tables.policies(report)
    package = resources.files("worldmodel.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(package.joinpath("report.html.jinja").read_text("utf-8")).render(
        env_id=report["env_id"],
        kicker=_kicker(report),
        verdict=report.get("verdict") or verdict(report),
        findings=findings(report),
        grade_words=GRADE_WORDS,
        player=player,
        # Inside a script element only "<" could end it.
        player_json=json.dumps(player, allow_nan=False).replace("<", "\\u003c"),
        traces=traces,
        hidden_dims=evidence.real_obs.shape[1] - len(shown),
        figures=drawn,
        ledger=_ledger(report),
        tables={
            "left": fidelity[:3],
            "right": [*fidelity[3:], *panel, *tables.states(report)],
            "made_left": [*tables.corpus(report), *tables.making(report)],
            "made_right": tables.settings(report),
        },
        css=package.joinpath("page.css").read_text("utf-8"),
        js=package.joinpath("page.js").read_text("utf-8"),
    )


def _figures(report: Mapping[str, Any], evidence: Evidence) -> Iterator[tuple[str, str, str, Figure | None]]:
    """`(name, title, caption, figure or None)` of each figure, in the order of the page."""
    starts = get(report, "rollout.divergence_horizon.n")
    yield (
        "transfer",
        "What the policy earns",
        "Mean return over evaluation episodes with its 95% interval; one training run each, so that the luck of "
        "training is not in it."
        if get(report, "transfer.real_steps_after_logs") == 0
        else "Mean return with its 95% interval.",
        returns.transfer_figure(report),
    )
    yield (
        "rollout",
        "How far it can be rolled out",
        "Error when the simulator feeds on its own predictions under the recorded actions"
        + (f", over {text(centre(starts))} held-out episodes." if starts else ".")
        + (" The shaded span is the 95% interval of the horizon." if _spanned(report) else ""),
        figures.rollout_figure(report),
    )
    convention = get(report, "ranking.mmrv_convention")
    yield (
        "ranking",
        "Does it rank policies as reality does?",
        "Each cross is a policy with 95% intervals; on the dashed line simulator and reality agree. "
        f"Spearman {text(centre(get(report, 'ranking.spearman')))}, MMRV {text(centre(get(report, 'ranking.mmrv')))}"
        + (f" ({convention})." if convention else "."),
        figures.ranking_figure(report),
    )
    yield (
        "gap",
        "Where the gap in return comes from",
        "From the real to the simulated return of the policy "
        f"{get(report, 'attribution.policy')!r}: what the simulator promises along real episodes beyond what they "
        "earn, by stretches of an episode (exact), by cause, and by region (found on half of the episodes, judged on "
        "the other). Lines are 95% intervals.",
        gap_figure(report),
    )
    yield (
        "one-step",
        "How wrong is one step?",
        "Root-mean-square error of the next observation on held-out logs, normalised by each dimension's spread.",
        figures.one_step_figure(report, evidence.names),
    )
    yield (
        "training",
        "Training the world model",
        "Loss of one training run; the strong line is its running median.",
        figures.training_figure(report),
    )
    note = get(report, "policy_training.note")
    yield (
        "policy-training",
        "Training the policy inside it",
        "Return seen inside the simulator, one training run." + (f" {note}" if note else ""),
        figures.policy_training_figure(report),
    )


def _spanned(report: Mapping[str, Any]) -> bool:
    step, horizons = trust_step(report), get(report, "rollout.horizons")
    return step is not None and bool(horizons) and step < max(horizons) and horizon_interval(report) is not None


def _kicker(report: Mapping[str, Any]) -> str:
    episodes, steps = centre(get(report, "corpus.episodes")), centre(get(report, "corpus.transitions"))
    parts = ["A world model"]
    if episodes is not None:
        parts = [f"A world model learned from {text(episodes)} logged episodes ({text(steps)} transitions)"]
    total = centre(get(report, "timings.total"))
    if total is not None:
        parts.append(f"made in {total / 60:.1f} minutes" if total >= 60 else f"made in {text(total)} seconds")
    return ", ".join(parts) + f", seed {report.get('seed')}."


def _ledger(report: Mapping[str, Any]) -> str:
    after = centre(get(report, "transfer.real_steps_after_logs"))
    if after is None:
        return "Real steps were not counted."
    if after == 0:
        return (
            "The world model and the policy trained in it used the logged steps and no other. The real steps counted "
            "below as evaluation and comparison measured them; none reached their training."
        )
    return f"After the logs, {text(after)} further real steps were used for training."
