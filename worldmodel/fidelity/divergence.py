"""Divergences between a real and a simulated distribution over the same categories.

`real` (P) and `sim` (Q) `[..., V]` are probabilities that sum to one over the last axis; results are `[...]`, natural
logarithms. What is possible on one side alone makes `kl` infinite: such a value is no number for a report.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from worldmodel.fidelity.estimates import Values


def total_variation(*, real: Values, sim: Values) -> np.ndarray:
    """`1/2 sum |P - Q|`, from 0 to 1: the best classifier tells the two apart `(1 + TV) / 2` of the time."""
    p, q = _pair(real, sim)
    return np.asarray(0.5 * np.abs(p - q).sum(-1))


def kl(*, real: Values, sim: Values) -> np.ndarray:
    """`KL(sim || real) = sum Q log(Q / P)` in nats: what the simulator makes up weighs, not what it leaves out."""
    p, q = _pair(real, sim)
    return np.asarray(special.rel_entr(q, p).sum(-1))


def jensen_shannon(*, real: Values, sim: Values) -> np.ndarray:
    """Mean of the divergences of both from their mixture, in nats: from 0 to log 2 (Lin 1991; no square root)."""
    p, q = _pair(real, sim)
    middle = 0.5 * (p + q)
    return np.asarray(0.5 * (special.rel_entr(p, middle) + special.rel_entr(q, middle)).sum(-1))


def cross_entropy(*, real: Values, sim: Values) -> np.ndarray:
    """`-sum P log Q`: the expected negative log-likelihood of the simulator, in nats."""
    p, q = _pair(real, sim)
    return np.asarray(-special.xlogy(p, q).sum(-1))


def excess_nll(*, real: Values, sim: Values) -> np.ndarray:
    """Negative log-likelihood above that of a perfect simulator: `KL(real || sim) = sum P log(P / Q)` in nats."""
    p, q = _pair(real, sim)
    return np.asarray(special.rel_entr(p, q).sum(-1))


def _pair(real: Values, sim: Values) -> tuple[np.ndarray, np.ndarray]:
    sides = []
    for name, side in (("real", real), ("sim", sim)):
        values = np.asarray(side, np.float64)
        if values.ndim == 0 or not (values >= 0).all() or not np.allclose(values.sum(-1), 1.0, atol=1e-6):
            raise ValueError(f"{name} must hold probabilities that sum to 1 over the last axis")
        sides.append(values)
    if sides[0].shape != sides[1].shape:
        raise ValueError(f"real has shape {list(sides[0].shape)} and sim {list(sides[1].shape)}; one shape is needed")
    return sides[0], sides[1]
