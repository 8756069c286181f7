"""Does a dimension change its unit somewhere in the log?

The scale of a dimension alone says little: another behaviour moves it more. Its relation to the others says it all:
the dynamics of the first part of the log hold in the last part only after one dimension is divided by a number, and
the other way round.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.linalg

from worldmodel.corpus.lint.codes import finding
from worldmodel.corpus.lint.finding import Finding
from worldmodel.corpus.lint.sample import Episode, Sample

_PART = 0.25
_WIDEST = 40
_LEAST_ROWS = 150
_MOST_ROWS = 3_000
_TESTED_ROWS = 250
_LEAST_GAIN = 2.0
_FACTORS = np.exp(np.linspace(np.log(1 / 1200), np.log(1200), 61))
_REFINED = np.exp(np.linspace(-0.13, 0.13, 27))
_MOST_VALUES = 64
_LEAST_SEEN = 20
_SHARED = 0.9


def check(sample: Sample) -> list[Finding]:
    """`unit-changed`: from some row on, a dimension is another multiple of itself."""
    episodes = [e for e in sample.episodes if len(e)]
    numbers = [i for i, feature in enumerate(sample.observation_features) if feature.kind == "number"]
    if not episodes or not numbers:
        return []
    observations = np.concatenate([e.observations[:, numbers] for e in episodes])
    found = None
    if not np.array_equal(observations, np.round(observations)):
        found = _by_relation(episodes, numbers)
    found = found or _by_values(episodes, observations)
    if found is None:
        return []
    dimension, factor, episode, step, evidence = found
    name = sample.observation_features[numbers[dimension]].name or "[0]"
    place = f"episode {episode.record.id}, step {step}"
    return [
        finding(
            "unit-changed",
            f"from {place} on, observation {name} is {factor:.4g} times what it was: its unit changes within the log",
            episodes=[e.record.id for e in episodes if e.record.index >= episode.record.index],
            evidence={"dimension": name, "factor": factor, "episode": episode.record.id, "step": step, **evidence},
        )
    ]


@dataclasses.dataclass(frozen=True)
class _Part:
    """Transitions: observations `[N, D]` before and after, actions `[N, A]`."""

    before: np.ndarray
    after: np.ndarray
    actions: np.ndarray

    def __getitem__(self, index) -> _Part:
        return _Part(self.before[index], self.after[index], self.actions[index])

    def thinned(self, most: int) -> _Part:
        """At most `most` rows, evenly spread."""
        return self[np.unique(np.linspace(0, len(self.before) - 1, most).astype(int))]


class _Law:
    """How the next observation follows, as one part of the log has it: ridge on products of all."""

    def __init__(self, part: _Part):
        self.centre, self.scale = part.before.mean(axis=0), part.before.std(axis=0) + 1e-9
        change = part.after - part.before
        self.step = change.std(axis=0) + 1e-9
        features = self._features(part.before, part.actions)
        gram = features.T @ features
        gram[np.diag_indices_from(gram)] *= 1 + 1e-5
        gram[np.diag_indices_from(gram)] += 1e-6 * len(features)
        self.weights = scipy.linalg.solve(gram, features.T @ (change / self.step), assume_a="pos")

    def _features(self, before: np.ndarray, actions: np.ndarray) -> np.ndarray:
        state = np.clip((before - self.centre) / self.scale, -20, 20)
        parts = [np.ones((len(state), 1)), state, actions]
        parts.append((state[:, :, None] * actions[:, None, :]).reshape(len(state), -1)[:, :80])
        if state.shape[1] <= 12:
            left, right = np.triu_indices(state.shape[1])
            parts.append(state[:, left] * state[:, right])
        return np.concatenate(parts, axis=1)

    def errors(self, part: _Part, divisor: np.ndarray) -> np.ndarray:
        """Log of each squared error over the spread of what is predicted, `[N, D]`; observations over `divisor`.

        Relative to the spread, so that no dimension is explained by shrinking it away.
        """
        before, after = part.before / divisor, part.after / divisor
        change = (after - before) / self.step
        residual = change - self._features(before, part.actions) @ self.weights
        spread = change.var(axis=0) + 1e-12
        return np.clip(np.log(residual**2 / spread + 1e-6), None, 6.0)

    def misfit(self, part: _Part, divisor: np.ndarray) -> float:
        """Sum over dimensions of the median log error: heavy tails (contacts) do not count."""
        return float(np.median(self.errors(part, divisor), axis=0).sum())


def _by_relation(episodes: list[Episode], numbers: list[int]):
    """The dimension and the factor that make the first and the last part of the log obey each other's dynamics."""
    whole = _Part(
        np.concatenate([e.observations[:-1, numbers] for e in episodes]),
        np.concatenate([e.observations[1:, numbers] for e in episodes]),
        np.concatenate([e.actions for e in episodes]),
    )
    moving = np.flatnonzero((whole.after != whole.before).any(axis=0))
    count = int(_PART * len(whole.before))
    if count < _LEAST_ROWS or not 0 < len(moving) <= _WIDEST:
        return None
    actions = (whole.actions - whole.actions.mean(axis=0)) / (whole.actions.std(axis=0) + 1e-9)
    whole = _Part(whole.before[:, moving], whole.after[:, moving], actions)
    first, last = whole[:count].thinned(_MOST_ROWS), whole[-count:].thinned(_MOST_ROWS)
    laws = _Law(first), _Law(last)
    tested = last.thinned(_TESTED_ROWS), first.thinned(_TESTED_ROWS)
    same = np.ones(len(moving))
    base = [law.misfit(part, same) for law, part in zip(laws, tested, strict=True)]

    def divisor(dimension: int, factor: float) -> np.ndarray:
        changed = same.copy()
        changed[dimension] = factor
        return changed

    def gain(dimension: int, factor: float, least: float) -> float:
        forth = base[0] - laws[0].misfit(tested[0], divisor(dimension, factor))
        if forth <= least:
            return forth
        return min(forth, base[1] - laws[1].misfit(tested[1], divisor(dimension, 1 / factor)))

    best = (0.5, -1, 1.0)
    for dimension in range(len(moving)):
        for factor in _FACTORS:
            best = max(best, (gain(dimension, factor, best[0]), dimension, float(factor)))
    if best[1] < 0:
        return None
    best = max((gain(best[1], best[2] * fine, 0.0), best[1], float(best[2] * fine)) for fine in _REFINED)
    if best[0] < _LEAST_GAIN or abs(np.log(best[2])) < 0.1:
        return None
    changed = divisor(best[1], best[2])
    better = np.clip(laws[0].errors(whole, same) - laws[0].errors(whole, changed), -3, 3).sum(axis=1)
    row = int(np.argmin(np.cumsum(better))) + 1
    ends = np.cumsum([len(e) for e in episodes])
    at = min(int(np.searchsorted(ends, row, side="right")), len(episodes) - 1)
    step = max(row - int(ends[at]) + len(episodes[at]), 0)
    return int(moving[best[1]]), best[2], episodes[at], step, {"gain_nats": round(best[0], 2)}


def _by_values(episodes: list[Episode], observations: np.ndarray):
    """The values that a dimension takes last are those that it took first, times a factor, and none of them itself."""
    rows = np.cumsum([len(e) + 1 for e in episodes])
    owner = np.repeat(np.arange(len(episodes)), [len(e) + 1 for e in episodes])
    count = int(_PART * len(observations))
    for dimension in range(observations.shape[1]):
        column = observations[:, dimension]
        first, last = column[:count], column[-count:]
        early, late = (_values(first, owner[:count]), _values(last, owner[-count:]))
        if early is None or late is None or np.intersect1d(early, late).size:
            continue
        factor = _ratio(early, first, late, last)
        if factor is None:
            continue
        new = np.isin(column, late).astype(int) - np.isin(column, early)
        row = int(np.argmin(np.cumsum(new))) + 1
        at = int(np.searchsorted(rows, row, side="right"))
        step = row - int(rows[at]) + len(episodes[at]) + 1
        evidence = {"first_values": early.tolist(), "last_values": late.tolist()}
        return dimension, factor, episodes[at], step, evidence
    return None


def _ratio(early: np.ndarray, first: np.ndarray, late: np.ndarray, last: np.ndarray) -> float | None:
    """The factor that makes nearly all rows of either part values of the other; None: there is none."""
    common = late[np.argmax([(last == value).sum() for value in late])]
    for factor in common / early:
        moved = np.isin(np.round(late / factor, 6), np.round(early, 6))
        reached = np.isin(np.round(early * factor, 6), np.round(late, 6))
        if (
            np.isin(last[last != 0], late[moved]).mean() > _SHARED
            and np.isin(first[first != 0], early[reached]).mean() > _SHARED
        ):
            return float(factor)
    return None


def _values(column: np.ndarray, owner: np.ndarray) -> np.ndarray | None:
    """Its values other than 0 (which has no unit); None where too few rows or episodes hold one, or there are many."""
    used = column != 0
    if used.sum() < _LEAST_SEEN or len(np.unique(owner[used])) < 3:
        return None
    values = np.unique(column[used])
    return values if len(values) <= _MOST_VALUES else None
