"""Is one number enough to say how faithful a simulator is? Whether kinds of corruption share one response curve.

If another kind of corruption gives another return at the same fidelity, a threshold holds for its kind only: report one
per kind.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import stats

from worldmodel.study.means import WorldModelMeans, levels, over_world_models, the_only


@dataclasses.dataclass(frozen=True)
class Sufficiency:
    """Two F-tests on one value per world model.

    Attributes:
      p_curve: of "all kinds have one curve", which asks for the same mean at every fidelity.
      p_interaction: of "kinds differ by the same amount at every fidelity".
      kinds: of corruption.
      n: world models.
    """

    p_curve: float
    p_interaction: float
    kinds: tuple[str, ...]
    n: int

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {**dataclasses.asdict(self), "kinds": list(self.kinds)}


@over_world_models
def scalar_sufficiency(means: WorldModelMeans) -> Sufficiency:
    """Compares kinds of corruption at the fidelities that all of them have, within one condition (arm `simulated`).

    Raises:
      ValueError: several environments, complexities, diversities or deployments; fewer than two kinds, or than two
        common fidelities; a cell with a single world model.
    """
    the_only(means, "environment", "complexity", "diversity", "deployment", what="scalar_sufficiency")
    own = means.where(means.arm == "simulated")
    kinds = levels(own.corruption)
    if len(kinds) < 2:
        raise ValueError(f"scalar_sufficiency compares 2 or more kinds of corruption; there is {len(kinds)}")
    common = [
        f for f in levels(own.fidelity) if all(((own.corruption == k) & (own.fidelity == f)).any() for k in kinds)
    ]
    if len(common) < 2:
        raise ValueError(f"kinds {', '.join(kinds)} have {len(common)} fidelities in common; at least 2 are needed")
    own = own.where(np.isin(own.fidelity, common))
    kind = (own.corruption[:, None] == kinds).astype(np.float64)
    phi = (own.fidelity[:, None] == np.array(common)).astype(np.float64)
    cells = (kind[:, :, None] * phi[:, None, :]).reshape(len(own), -1)
    if (least := int(cells.sum(axis=0).min())) < 2:
        raise ValueError(f"every kind and fidelity needs at least 2 world models; a cell has {least}")
    curve = _test(own.real_return, phi, cells)
    parallel = _test(own.real_return, np.concatenate([phi, kind[:, 1:]], axis=1), cells)
    return Sufficiency(curve, parallel, tuple(str(k) for k in kinds), len(own))


def _test(y: np.ndarray, reduced: np.ndarray, full: np.ndarray) -> float:
    """P-value of the F-test of nested designs of full column rank."""
    rss = []
    for design in (reduced, full):
        q, _ = np.linalg.qr(design)
        rest = y - q @ (q.T @ y)
        rss.append(float(rest @ rest))
    more, df = full.shape[1] - reduced.shape[1], len(y) - full.shape[1]
    if rss[1] <= 0:
        return 1.0 if rss[0] <= 0 else 0.0
    return float(stats.f.sf((rss[0] - rss[1]) / more / (rss[1] / df), more, df))
