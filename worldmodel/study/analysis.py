"""What a study's rows say of its questions: thresholds by setting, how the dials move them, and which metric tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.fidelity.estimates import json_safe
from worldmodel.study.contrasts import factorial
from worldmodel.study.dials import LEARNED
from worldmodel.study.estimands import BreakEven, Estimand, Tolerance
from worldmodel.study.every_threshold import thresholds
from worldmodel.study.means import WorldModelMeans, levels, per_world_model
from worldmodel.study.metric_league import league
from worldmodel.study.pooled import pooled_threshold
from worldmodel.study.preregistration import Exclusion, Preregistration, apply_exclusions, compare
from worldmodel.study.sufficiency import scalar_sufficiency
from worldmodel.study.table import StudyTable
from worldmodel.study.transfer import as_efficiency, headroom_of, transfer_efficiency


def analyse(
    rows: Sequence[Mapping[str, Any]],
    description: Mapping[str, Any],
    deployment: str,
    registration: Path,
    *,
    seed: int = 0,
    repetitions: int = 1000,
) -> dict[str, Any]:
    """Answers the study's questions for one deployment; what could not be formed is null beside "why".

    For simulators learned from logs fidelity is log10 of the logged steps.

    Args:
      rows: of finished cells.
      description: the study's `to_json`.
      deployment: where the policies were deployed.
      registration: file of what was registered.
      seed: of resampling.
      repetitions: of resampling.
    """
    questions = questions_of(description["questions"])
    means, excluded = prepared(rows, questions, deployment)
    bounds = {grid["family"]["name"]: grid["bounds"] for grid in description["grids"]}
    conditions, dials = [], []
    for environment, corruption, own in curves(means):
        named = {"environment": environment, "corruption": corruption}
        for setting, here in _settings(own):
            conditions.append({**named, **setting, **_condition(here, questions.estimands, seed, repetitions)})
        dials.append({**named, **_dials(own, questions, bounds.get(environment), seed, repetitions)})
    return json_safe(
        {
            "deployment": deployment,
            "registration": compare(questions, registration),
            "excluded": excluded,
            "conditions": conditions,
            "dials": dials,
            "kinds": [
                {**setting, **_or_why(lambda here=here: scalar_sufficiency(here).to_json())}
                for environment in levels(means.environment)
                for setting, here in _settings(means.select(environment=str(environment)))
                if len(levels(here.corruption)) > 1
            ],
            "league": _or_why(lambda: [row.to_json() for row in league(as_efficiency(means), seed=seed)]),
        }
    )


def prepared(
    rows: Sequence[Mapping[str, Any]], questions: Preregistration, deployment: str
) -> tuple[WorldModelMeans, list[str]]:
    """One value per simulator of a deployment, without what the rules leave out, and a sentence for each that is."""
    means = per_world_model(StudyTable.of(rows)).select(deployment=deployment)
    learned = means.corruption == LEARNED
    fidelity = np.where(learned, np.log10(np.where(learned, means.fidelity, 1.0)), means.fidelity)
    return apply_exclusions(dataclasses.replace(means, fidelity=fidelity), questions.exclusions)


def curves(means: WorldModelMeans) -> Iterator[tuple[str, str, WorldModelMeans]]:
    """Every environment and kind of corruption, and its units with their anchors."""
    own = means.where(means.arm == "simulated")
    for environment, corruption in sorted({*zip(own.environment.tolist(), own.corruption.tolist(), strict=True)}):
        yield environment, corruption, means.select(environment=environment).select(corruption=corruption)


def questions_of(described: Mapping[str, Any]) -> Preregistration:
    """The inverse of `Preregistration.to_json`."""
    kinds: dict[str, Callable[..., Estimand]] = {"Tolerance": Tolerance, "BreakEven": BreakEven}
    values = {field.name: described[field.name] for field in dataclasses.fields(Preregistration)}
    estimands = tuple(kinds[e["kind"]](**{n: v for n, v in e.items() if n != "kind"}) for e in values["estimands"])
    exclusions = tuple(Exclusion(**rule) for rule in values["exclusions"])
    contrasts = tuple(values["contrasts"])
    return Preregistration(**{**values, "estimands": estimands, "exclusions": exclusions, "contrasts": contrasts})


def estimand_name(estimand: Estimand) -> str:
    """In words."""
    if isinstance(estimand, BreakEven):
        return "no worse than no training"
    of = f"{estimand.delta:.0%}" if estimand.relative else f"{estimand.delta:g}"
    return f"within {of} of training in reality"


def _condition(here: WorldModelMeans, estimands: Any, seed: int, repetitions: int) -> dict[str, Any]:
    """Headroom, transfer efficiency by fidelity, and every threshold of one setting."""
    efficiency = []
    for level in levels(here.fidelity[here.arm == "simulated"]):
        at = here.where((here.fidelity == level) & (here.arm == "simulated") | np.isin(here.arm, ANCHORED))
        found = _or_why(lambda at=at: transfer_efficiency(at, seed=seed).to_json())
        efficiency.append({"fidelity": float(level), **found})
    return {
        "headroom": _or_why(lambda: headroom_of(here).to_json()),
        "efficiency": efficiency,
        "thresholds": {
            estimand_name(each): thresholds(here, each, seed=seed, repetitions=repetitions) for each in estimands
        },
    }


ANCHORED = ("reference", "no_training")


def _dials(
    own: WorldModelMeans, questions: Preregistration, bounds: Any, seed: int, repetitions: int
) -> dict[str, Any]:
    """How complexity and diversity move the curve of one environment and corruption."""
    limits = None if bounds is None else (float(bounds[0]), float(bounds[1]))

    def pooled(scale: Any) -> Callable[[], dict[str, Any]]:
        return lambda: pooled_threshold(own, scale=scale, seed=seed, repetitions=repetitions).to_json()

    def tested() -> dict[str, Any]:
        return factorial(own, contrasts=questions.contrasts, bounds=limits, seed=seed).to_json()

    return {"pooled": _or_why(pooled("efficiency")), "factorial": _or_why(tested)}


def _settings(own: WorldModelMeans) -> Iterator[tuple[dict[str, Any], WorldModelMeans]]:
    for complexity in levels(own.complexity):
        for diversity in levels(own.select(complexity=float(complexity)).diversity):
            dials = {"complexity": float(complexity), "diversity": float(diversity)}
            here = own.select(**dials)
            setting = {"environment": str(own.environment[0]), **dials}
            if (here.arm == "simulated").any():
                yield setting, here


def _or_why(form: Callable[[], Any]) -> Any:
    try:
        return form()
    except ValueError as error:
        return {"value": None, "why": str(error)}
