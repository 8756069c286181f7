"""From a study's folder to its analysis: the rows as a table, the questions as they were written down."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.fidelity.estimates import json_safe
from worldmodel.study.analysis import analyse
from worldmodel.study.dials import LEARNED
from worldmodel.study.estimands import BreakEven, Estimand, Tolerance
from worldmodel.study.means import WorldModelMeans, per_world_model
from worldmodel.study.pooled import pooled_threshold
from worldmodel.study.preregistration import Exclusion, Preregistration, apply_exclusions
from worldmodel.study.table import StudyTable


def answers(
    rows: Sequence[Mapping[str, Any]],
    description: Mapping[str, Any],
    deployment: str,
    registered: Path,
    *,
    seed: int = 0,
    repetitions: int = 1000,
) -> dict[str, Any]:
    """What `analyse` says of one deployment, and how the dials move the threshold on the scale of the anchors.

    That is `pooled_efficiency` of each of `dials`: 0 is no training, 1 training in reality, so that tasks whose returns
    are of different size compare.

    Args:
      rows: of finished cells.
      description: the study's `to_json`.
      deployment: where the policies were deployed.
      registered: file of what was registered.
      seed: of resampling.
      repetitions: of resampling.
    """
    questions, table = questions_of(description["questions"]), table_of(rows)
    limits = {grid["bounds"] and (float(grid["bounds"][0]), float(grid["bounds"][1])) for grid in description["grids"]}
    found = analyse(
        table,
        questions,
        registered=registered,
        deployment=deployment,
        bounds=limits.pop() if len(limits) == 1 else None,
        seed=seed,
        repetitions=repetitions,
    )
    means, _ = prepared(rows, questions, deployment)
    own = {(environment, corruption): units for environment, corruption, units in curves(means)}
    for dial in found["dials"]:
        units = own[dial["environment"], dial["corruption"]]
        dial["pooled_efficiency"] = _pooled(units, seed, repetitions)
    return json_safe(found)


def table_of(rows: Sequence[Mapping[str, Any]]) -> StudyTable:
    """The rows as a table; the fidelity of simulators learned from logs is log10 of the logged steps."""
    table = StudyTable.of(rows)
    learned = table.corruption == LEARNED
    fidelity = np.where(learned, np.log10(np.where(learned, table.fidelity, 1.0)), table.fidelity)
    return dataclasses.replace(table, fidelity=fidelity)


def prepared(
    rows: Sequence[Mapping[str, Any]], questions: Preregistration, deployment: str
) -> tuple[WorldModelMeans, list[str]]:
    """One value per simulator of a deployment, without what the rules leave out, and a sentence for each that is."""
    return apply_exclusions(per_world_model(table_of(rows)).select(deployment=deployment), questions.exclusions)


def curves(means: WorldModelMeans) -> Iterator[tuple[str, str, WorldModelMeans]]:
    """Every environment and kind of corruption, and its units with their anchors."""
    own = means.where(means.arm == "simulated")
    for environment, corruption in sorted({*zip(own.environment.tolist(), own.corruption.tolist(), strict=True)}):
        yield environment, corruption, means.select(environment=environment).select(corruption=corruption)


def questions_of(described: Mapping[str, Any]) -> Preregistration:
    """The inverse of `Preregistration.to_json`."""
    values = {field.name: described[field.name] for field in dataclasses.fields(Preregistration)}
    estimands = tuple(estimand_of(each) for each in values["estimands"])
    exclusions = tuple(Exclusion(**rule) for rule in values["exclusions"])
    contrasts = tuple(values["contrasts"])
    return Preregistration(**{**values, "estimands": estimands, "exclusions": exclusions, "contrasts": contrasts})


def estimand_of(described: Mapping[str, Any]) -> Estimand:
    """An estimand of its JSON."""
    kinds: dict[str, Callable[..., Estimand]] = {"Tolerance": Tolerance, "BreakEven": BreakEven}
    return kinds[described["kind"]](**{name: value for name, value in described.items() if name != "kind"})


def estimand_name(estimand: Estimand) -> str:
    """In words."""
    if isinstance(estimand, BreakEven):
        return "no worse than no training"
    of = f"{estimand.delta:.0%}" if estimand.relative else f"{estimand.delta:g}"
    return f"within {of} of training in reality"


def _pooled(own: WorldModelMeans, seed: int, repetitions: int) -> dict[str, Any]:
    try:
        return pooled_threshold(own, scale="efficiency", seed=seed, repetitions=repetitions).to_json()
    except ValueError as error:
        return {"mean": None, "why": str(error)}
