"""The whole analysis of a study, as it was registered: from the rows to one JSON object.

What a design does not allow, or the data refuse, is null there beside `why`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.study.contrasts import factorial
from worldmodel.study.every_threshold import thresholds
from worldmodel.study.means import WorldModelMeans, levels, per_world_model
from worldmodel.study.metric_league import league
from worldmodel.study.pooled import pooled_threshold
from worldmodel.study.preregistration import Preregistration, apply_exclusions, compare
from worldmodel.study.sufficiency import scalar_sufficiency
from worldmodel.study.table import StudyTable
from worldmodel.study.transfer import as_efficiency, headroom_of, transfer_efficiency


def analyse(
    table: StudyTable,
    registration: Preregistration,
    *,
    registered: Path | None = None,
    deployment: str = "training",
    bounds: tuple[float, float] | None = None,
    seed: int = 0,
    repetitions: int = 1000,
) -> dict[str, Any]:
    """Answers the questions of `registration` about one deployment.

    Args:
      table: of all rows; only here are policies averaged.
      registration: what is asked.
      registered: the file that `register` wrote; the answer says what differs from it.
      deployment: "training" or a held-out variant.
      bounds: least and greatest possible return, for contrasts of logits.
      seed: of all resampling.
      repetitions: of every bootstrap.

    Returns: JSON values, `registration` (None where no file is named), `deployment`, `excluded` (sentences),
      `conditions` (headroom; by kind of corruption thresholds, efficiencies, and levels that lack world models),
      `dials` by environment and kind of corruption (`pooled`, the primary answer, and `contrasts`), and `league`.
    """
    means, excluded = apply_exclusions(per_world_model(table).select(deployment=deployment), registration.exclusions)
    said = None if registered is None else compare(registration, registered)
    out: dict[str, Any] = {"registration": said, "deployment": deployment, "excluded": excluded}
    out["conditions"] = [
        _condition(own, registration, seed=seed, repetitions=repetitions) for own in _conditions(means)
    ]
    out["dials"] = [
        {
            "environment": str(own.environment[0]),
            "corruption": kind,
            "pooled": _or_why(lambda own=own: pooled_threshold(own, seed=seed, repetitions=repetitions).to_json()),
            "contrasts": _or_why(
                lambda own=own: factorial(own, contrasts=registration.contrasts, bounds=bounds, seed=seed).to_json()
            ),
            "primary_scale": registration.scale,
        }
        for environment in levels(means.environment)
        for kind, own in _kinds(means.select(environment=str(environment)))
    ]
    out["league"] = _or_why(lambda: [row.to_json() for row in league(as_efficiency(means), seed=seed)])
    return out


def _conditions(means: WorldModelMeans) -> Iterator[WorldModelMeans]:
    """Every environment, complexity and diversity that has units of arm `simulated`, with its anchors."""
    own = means.where(means.arm == "simulated")
    names = ("environment", "complexity", "diversity")
    for values in itertools.product(*(levels(getattr(own, name)) for name in names)):
        keep = np.all([getattr(own, name) == value for name, value in zip(names, values, strict=True)], axis=0)
        if keep.any():
            chosen = dict(zip(names, (v.item() for v in values), strict=True))
            yield means.select(**chosen)


def _kinds(means: WorldModelMeans) -> Iterator[tuple[str, WorldModelMeans]]:
    """Units of each kind of corruption that the arm `simulated` has, with all that kinds do not apply to."""
    for kind in levels(means.corruption[means.arm == "simulated"]):
        yield str(kind), means.where((means.arm != "simulated") & (means.corruption == "") | (means.corruption == kind))


def _condition(means: WorldModelMeans, registration: Preregistration, *, seed: int, repetitions: int) -> dict[str, Any]:
    kinds = {}
    for kind, own in _kinds(means):
        phi = levels(own.fidelity[own.arm == "simulated"])
        kinds[kind] = {
            "short": _short(own, registration.seeds),
            "thresholds": [
                {
                    "estimand": asked,
                    **thresholds(own, estimand, alpha=registration.alpha, seed=seed, repetitions=repetitions),
                }
                for asked, estimand in zip(registration.to_json()["estimands"], registration.estimands, strict=True)
            ],
            "efficiency": [
                {"fidelity": float(f), **_or_why(lambda own=own, f=f: _efficiency(own, float(f)))} for f in phi
            ],
        }
    return {
        "environment": str(means.environment[0]),
        "complexity": float(means.complexity[means.arm == "simulated"][0]),
        "diversity": float(means.diversity[means.arm == "simulated"][0]),
        "headroom": _or_why(lambda: headroom_of(means).to_json()),
        "one_curve": _or_why(lambda: scalar_sufficiency(means).to_json()),
        "kinds": kinds,
    }


def _short(means: WorldModelMeans, seeds: int) -> list[str]:
    """Levels with fewer world models than were registered; a jittered design has no levels."""
    phi, count = np.unique(means.fidelity[means.arm == "simulated"], return_counts=True)
    few = [(f, c) for f, c in zip(phi, count, strict=True) if c < seeds and count.max() > 1]
    return [f"fidelity {f:g}: {c} of {seeds} world models" for f, c in few]


def _efficiency(means: WorldModelMeans, fidelity: float) -> dict[str, Any]:
    """A fidelity that one world model alone has gives no interval: ValueError, as elsewhere."""
    return transfer_efficiency(means.select(fidelity=fidelity)).to_json()


def _or_why(answer: Callable[[], Any]) -> Any:
    try:
        return answer()
    except ValueError as error:
        return {"mean": None, "why": str(error)}
