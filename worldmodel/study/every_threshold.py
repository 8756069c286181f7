"""Every threshold of one response curve, by every estimator, beside what refused and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worldmodel.study.bracketing import bracket
from worldmodel.study.breaks import jump, kink
from worldmodel.study.estimands import Estimand
from worldmodel.study.isotonic import isotonic_threshold
from worldmodel.study.means import WorldModelMeans, over_world_models
from worldmodel.study.sigmoid import sigmoid_threshold


@over_world_models
def thresholds(
    means: WorldModelMeans, estimand: Estimand, *, alpha: float = 0.05, seed: int = 0, repetitions: int = 1000
) -> dict[str, Any]:
    """JSON of `bracket`, `isotonic`, `sigmoid` (of the estimand), `kink` and `jump` for one condition.

    `alpha` is of the bracket's and the breaks' tests. An estimator that the design does not allow is null with `why`,
    like one that the data refuse. `means` must hold one environment, complexity, diversity, corruption and deployment.
    """
    ways: dict[str, Callable[[], Any]] = {
        "bracket": lambda: bracket(means, estimand, alpha=alpha),
        "isotonic": lambda: isotonic_threshold(means, estimand, seed=seed, repetitions=repetitions),
        "sigmoid": lambda: sigmoid_threshold(means, estimand, seed=seed, repetitions=repetitions),
        "kink": lambda: kink(means, alpha=alpha, seed=seed, repetitions=repetitions),
        "jump": lambda: jump(means, alpha=alpha, seed=seed, repetitions=repetitions),
    }
    return {name: _stated(way, name, int((means.arm == "simulated").sum())) for name, way in ways.items()}


def _stated(way: Callable[[], Any], name: str, n: int) -> dict[str, Any]:
    ends = {"lower": None, "upper": None} if name == "bracket" else {"mean": None, "lo": None, "hi": None}
    try:
        return way().to_json()
    except ValueError as error:
        return {**ends, "n": n, "why": str(error)}
