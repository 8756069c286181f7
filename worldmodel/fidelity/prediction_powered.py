"""The real return from few real and many simulated episodes (prediction-powered inference, power-tuned)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import stats

from worldmodel.fidelity.estimates import LEVEL, Estimate, Values, mean_interval


@dataclasses.dataclass(frozen=True)
class PredictionPowered:
    """An estimate of the mean real return.

    Attributes:
      estimate: with its 95% interval; `n` counts the real episodes.
      weight: how much of the simulator was used, from 0 (none) on.
      correlation: of paired simulated and real returns, or None where one of them is constant.
      shortening: how much shorter the interval is than that of the real episodes alone, as a share; None without one.
    """

    estimate: Estimate
    weight: float
    correlation: float | None
    shortening: float | None

    def to_json(self) -> dict[str, Any]:
        """The estimate with the other three."""
        own = {name: getattr(self, name) for name in ("weight", "correlation", "shortening")}
        return {**self.estimate.to_json(), **own}


def prediction_powered_mean(
    *, real: Values, paired_sim: Values, sim: Values, starts: int | None = None
) -> PredictionPowered:
    """Mean of real returns: `mean(real - w paired_sim) + w mean(sim)` with the weight that makes its variance least.

    Right whatever the simulator is worth; only the width depends on it (PPI++, Angelopoulos et al. 2023):
    `w = Cov(real, paired) / (Var(paired) + n Var(sim) / N)`, tuned on the same episodes. Student's t has `n - 2`
    degrees of freedom, since a mean and a weight were fitted.

    Args:
      real: `[n]` returns of real episodes, at least 3.
      paired_sim: `[n]` return simulated from the start of each: of one simulated episode, or a mean of several.
      sim: `[N]` returns simulated from other starts of the *same distribution*.
      starts: how many starts those were drawn from, where they are but a sample (of logs): `1 / N` is then
        `1 / N + 1 / starts`.
    """
    y, f, g = (_returns(values, name) for values, name in ((real, "real"), (paired_sim, "paired_sim"), (sim, "sim")))
    n = len(y)
    if len(f) != n:
        raise ValueError(f"paired_sim must have one return for each of the {n} real episodes; got {len(f)}")
    alone = mean_interval(y)
    if n < 3 or len(g) < 2:
        why = f"it needs at least 3 real and 2 further simulated episodes; got {n} and {len(g)}"
        return PredictionPowered(Estimate(alone.mean, None, None, n, why), 0.0, None, None)
    spread_y, spread_f = y.std(ddof=1), f.std(ddof=1)
    if spread_f <= 1e-12 * max(1.0, float(np.abs(f).max())):
        # A simulator that says the same of every start does not tell them apart: its weight is zero.
        return PredictionPowered(alone, 0.0, None, 0.0 if spread_y > 0 else None)
    covariance = float(np.cov(y, f)[0, 1])
    noise = g.var(ddof=1) * (1 / len(g) + (1 / starts if starts else 0.0))
    weight = covariance / (spread_f**2 + n * noise)
    rest = y - weight * f
    mean = float(rest.mean() + weight * g.mean())
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 2) * math.sqrt(rest.var(ddof=2) / n + weight**2 * noise))
    shortening = None
    if alone.hi is not None and alone.mean is not None and alone.hi > alone.mean:
        shortening = 1.0 - half / (alone.hi - alone.mean)
    correlation = covariance / float(spread_y * spread_f) if spread_y > 0 else None
    return PredictionPowered(Estimate(mean, mean - half, mean + half, n), float(weight), correlation, shortening)


def _returns(values: Values, name: str) -> np.ndarray:
    out = np.asarray(values, np.float64)
    if out.ndim != 1 or not np.isfinite(out).all():
        raise ValueError(f"{name} must be finite returns of shape [episodes]; got shape {list(out.shape)}")
    return out
