"""Transitions that no action explains, and those that lead to where episodes start: there an environment was reset."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from worldmodel.corpus.lint.regress import Rows, design, out_of_fold

_TRIMMED = 0.04
_FITS = 4
"""Each leaves out what the one before explained worst; jumps of many deviations hide themselves for two or three."""
_DISCRETE = 0.3
_OUTSIDE = 0.05
_LEAST_STARTS = 6


@functools.lru_cache(maxsize=1)
def surprise(rows: Rows) -> np.ndarray:
    """How far each next observation is from what the others' transitions foretell, `[N]`.

    In units of the error that nine in ten transitions keep below, in the dimension where it is worst.
    """
    change = rows.states[rows.before + 1] - rows.states[rows.before]
    change = change / (change.std(axis=0) + 1e-12)
    features = design(rows.states[rows.before], rows.actions)
    score, weight = np.zeros(len(rows)), None
    for _ in range(_FITS):
        residual = np.abs(out_of_fold(features, change, rows.episode, weight))
        score = (residual / (np.quantile(residual, 0.9, axis=0) + 0.01)).max(axis=1)
        weight = (score <= np.quantile(score, 1 - _TRIMMED)).astype(np.float64)
    return score


@functools.lru_cache(maxsize=1)
def at_start(rows: Rows) -> np.ndarray:
    """Whether a transition leads to where episodes start, `[N]`.

    Its next observation lies in the range of other episodes' first or second ones, or the one after it does in that of
    the first.
    """
    like_first, like_second = _like(rows, 0), _like(rows, 1)
    after = rows.before + 1
    second_after = np.minimum(after + 1, len(like_first) - 1)
    return like_first[after] | like_second[after] | (like_first[second_after] & (rows.left >= 1))


def _like(rows: Rows, step: int) -> np.ndarray:
    """Which of all observations lie in the range of the other episodes' observations at `step`, `[N + E]`."""
    observations = rows.observations
    chosen = rows.before[rows.step == 0] + step
    owner = rows.owner
    if len(chosen) < _LEAST_STARTS:
        return np.zeros(len(observations), bool)
    starts = observations[chosen]
    order, own = np.sort(starts, axis=0), starts[owner]
    low = np.where(own <= order[0], order[1], order[0])
    high = np.where(own >= order[-1], order[-2], order[-1])
    slack = 0.1 * (high - low) + 1e-9
    outside = (observations < low - slack) | (observations > high + slack)
    return outside.mean(axis=1) <= _OUTSIDE


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Transitions of a log whose observations come again and again (grids, cards).

    Attributes:
      key: `[N]`, number of the pair of observation and action.
      repeated: `[N]`, the pair is there at least twice.
      odd: `[N]`, the pair is followed by other observations far more often than by the one here.
    """

    key: np.ndarray
    repeated: np.ndarray
    odd: np.ndarray


@functools.lru_cache(maxsize=1)
def table(rows: Rows) -> Table | None:
    """None where fewer than three in ten observations are there again."""
    names = {}
    ids = np.array([names.setdefault(row.tobytes(), len(names)) for row in rows.observations])
    if np.mean(np.bincount(ids)[ids] > 1) < _DISCRETE:
        return None
    _, action = np.unique(rows.actions, axis=0, return_inverse=True)
    _, key = np.unique(ids[rows.before] * (action.max() + 1) + action.ravel(), return_inverse=True)
    _, pair = np.unique(key * len(names) + ids[rows.before + 1], return_inverse=True)
    count, same = np.bincount(key)[key], np.bincount(pair)[pair]
    most = np.zeros(key.max() + 1, int)
    np.maximum.at(most, key, same)
    odd = (same == 1) | (same <= count / 4) | ((same <= count / 2) & (same < most[key]))
    return Table(key, count > 1, odd & (count > 1))
