"""A plain estimate of what a policy still earns, fitted on real episodes: what weighs the errors of single steps."""

from __future__ import annotations

import dataclasses

import numpy as np

RIDGE = 1e-3
ENOUGH_ROWS = 4000
WIDEST = 20
"""Up to so many columns products of two are used as well."""
REACH = 4.0


@dataclasses.dataclass(frozen=True)
class ValueFunction:
    """Ridge regression of the return to come on observation and time: linear, squares and, if few, products.

    mean, scale `[C]` of the columns; weights `[F]`; `r2`: share of variance explained where it was fitted.
    """

    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    r2: float

    def __call__(self, obs: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Return to come `[N]` at observations `[N, D]` after `time` `[N]` steps; held at `REACH` deviations."""
        return _features(np.column_stack([obs, time]).astype(np.float64), self.mean, self.scale) @ self.weights


def fit_value(obs: np.ndarray, time: np.ndarray, to_come: np.ndarray) -> ValueFunction:
    """Fits on observations `[N, D]`, steps already taken `[N]`, and undiscounted returns to come `[N]`.

    Of more than `ENOUGH_ROWS` rows every second, third, ... is used.
    """
    some = slice(None, None, -(-len(obs) // ENOUGH_ROWS))
    columns = np.column_stack([obs[some], time[some]]).astype(np.float64)
    to_come = to_come[some]
    mean, scale = columns.mean(axis=0), columns.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    x = _features(columns, mean, scale)
    penalty = RIDGE * len(x) * np.eye(x.shape[1])
    penalty[0, 0] = 0.0  # the constant
    weights = np.linalg.lstsq(x.T @ x + penalty, x.T @ to_come, rcond=None)[0]
    variance = float(np.var(to_come))
    r2 = 1.0 - float(np.mean((to_come - x @ weights) ** 2)) / variance if variance > 0 else 1.0
    return ValueFunction(mean, scale, weights, r2)


def _features(columns: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    z = np.clip((columns - mean) / scale, -REACH, REACH)
    if z.shape[1] <= WIDEST:
        i, j = np.triu_indices(z.shape[1])
        second = z[:, i] * z[:, j]
    else:
        second = z**2
    return np.concatenate([np.ones((len(z), 1)), z, second], axis=1)
