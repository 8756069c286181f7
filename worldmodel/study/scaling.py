"""How transfer grows with an amount: data or compute of the world model. The laws are those of `fidelity.scaling`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from worldmodel.fidelity.scaling import FORMS, Law, Scaling, scaling
from worldmodel.study.means import WorldModelMeans, over_world_models, the_only


@over_world_models
def transfer_scaling(
    means: WorldModelMeans, size: str, *, forms: Sequence[type[Law]] = FORMS, seed: int = 0, repetitions: int = 1000
) -> Scaling:
    """A law of what is lost, `-real_return`, over the metric `size` of the units of arm `simulated`.

    `floor` of the law is minus the return that no amount exceeds. Returns of one condition; on the scale of
    `as_efficiency` the loss at the reference is -1. ValueError as `scaling`, or where `size` was not measured.
    """
    the_only(means, "environment", "complexity", "corruption", "deployment", what="transfer_scaling")
    own = means.where(means.arm == "simulated")
    if size not in own.metrics:
        raise ValueError(f"{size!r} was not measured; metrics: {', '.join(own.metrics) or 'none'}")
    return scaling(np.asarray(own.metrics[size]), -own.real_return, forms=forms, seed=seed, repetitions=repetitions)
