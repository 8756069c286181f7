"""Small regressions on transitions, scored on episodes that they did not see.

Not a world model: just enough, in NumPy and a second, to ask whether one column of a log explains another.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import scipy.linalg
from scipy.spatial import KDTree

from worldmodel.corpus.lint.sample import Episode, Feature, Sample

MAX_ROWS = 10_000
_FOLDS = 4
_MAX_STATE = 24
_RANDOM_FEATURES = 120


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Transitions of whole episodes, or of the first part of very long ones.

    Attributes:
      states: float64 `[N + E, d]`, observations in at most `_MAX_STATE` standardised numbers; those of one episode
        follow each other, one more than it has transitions.
      observations: float64 `[N + E, D]`, the same rows as logged; `owner`: `[N + E]`, the episode of each.
      actions: float64 `[N, a]`, standardised.
      rewards: float64 `[N]`, or None.
      episode: `[N]`, number of the episode of each transition among `episodes`.
      step: `[N]`, its place in the episode; `left`: transitions after it in the episode.
      before: `[N]`, the row of `states` from which the transition starts; the next row is where it leads.
      episodes: the episodes.
    """

    states: np.ndarray
    observations: np.ndarray
    owner: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray | None
    episode: np.ndarray
    step: np.ndarray
    left: np.ndarray
    before: np.ndarray
    episodes: tuple[Episode, ...]

    def __len__(self) -> int:
        return len(self.actions)


@functools.lru_cache(maxsize=1)
def rows_of(sample: Sample, *, limit: int = MAX_ROWS) -> Rows | None:
    """The sample's transitions, thinned by whole episodes to about `limit`; None where there is nothing to fit."""
    episodes = [e for e in sample.episodes if len(e)]
    if not episodes or not sample.observation_features or not sample.action_features:
        return None
    total = sum(len(e) for e in episodes)
    if total > limit:
        # Neighbours stay neighbours where they can: a share of every episode is no use for lags.
        keep = max(8, int(len(episodes) * limit / total))
        episodes = [episodes[i] for i in np.unique(np.linspace(0, len(episodes) - 1, keep).astype(int))]
    longest = max(50, limit // len(episodes)) if sum(len(e) for e in episodes) > 2 * limit else limit
    lengths = np.array([min(len(e), longest) for e in episodes])
    observations = np.concatenate([e.observations[: n + 1] for e, n in zip(episodes, lengths, strict=True)])
    actions = np.concatenate([e.actions[:n] for e, n in zip(episodes, lengths, strict=True)])
    given = [e.rewards[:n] for e, n in zip(episodes, lengths, strict=True) if e.rewards is not None]
    rewards = np.concatenate(given) if len(given) == len(episodes) else None
    episode = np.repeat(np.arange(len(episodes)), lengths)
    step = np.concatenate([np.arange(n) for n in lengths])
    return Rows(
        states=reduce(observations, sample.observation_features),
        observations=observations,
        owner=np.repeat(np.arange(len(episodes)), lengths + 1),
        actions=reduce(actions, sample.action_features),
        rewards=rewards,
        episode=episode,
        step=step,
        left=np.array([len(e) for e in episodes])[episode] - 1 - step,
        before=np.arange(len(actions)) + episode,
        episodes=tuple(episodes),
    )


def reduce(values: np.ndarray, features: tuple[Feature, ...]) -> np.ndarray:
    """`[N, D]` standardised, without constants; more than `_MAX_STATE` numbers become principal components.

    The columns of small one-hots stay as they are: they are the parts that a linear model gets exactly right.
    """
    deviation = values.std(axis=0)
    used = deviation > 1e-9 * np.maximum(1.0, np.abs(values).max(axis=0, initial=0.0))
    scaled = (values[:, used] - values[:, used].mean(axis=0)) / deviation[used]
    scaled = np.clip(scaled, -30, 30)  # a wild value must not own the fit
    if scaled.shape[1] <= _MAX_STATE:
        return scaled
    category = np.array([f.kind == "category" for f in features])[used]
    if category.sum() > _MAX_STATE // 2:
        category[:] = False
    rest = scaled[:, ~category]
    _, vectors = scipy.linalg.eigh(rest.T @ rest)
    components = rest @ vectors[:, ::-1][:, : _MAX_STATE - category.sum()]
    return np.concatenate([scaled[:, category], components / (components.std(axis=0) + 1e-12)], axis=1)


def design(state: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Features of `[N, d]` and `[N, a]`: both, their products, squares, and random sigmoids for what is left."""
    rows = len(state)
    parts = [np.ones((rows, 1)), state, action, action**2]
    parts.append((state[:, :, None] * action[:, None, :]).reshape(rows, -1)[:, :200])
    if state.shape[1] <= 12:
        left, right = np.triu_indices(state.shape[1])
        parts.append(state[:, left] * state[:, right])
    both = np.concatenate([state, action], axis=1)
    rng = np.random.default_rng(both.shape[1])
    weights = rng.standard_normal((both.shape[1], _RANDOM_FEATURES)) * 1.5 / np.sqrt(both.shape[1])
    parts.append(np.tanh(both @ weights + rng.uniform(-1.5, 1.5, _RANDOM_FEATURES)))
    return np.concatenate(parts, axis=1)


def out_of_fold(features: np.ndarray, targets: np.ndarray, group: np.ndarray, weight: np.ndarray | None = None):
    """Residuals `[N, k]` of ridge regression of `targets` `[N, k]`, each from a fit without its group (episode)."""
    folds = group % _FOLDS
    weighted = features if weight is None else features * weight[:, None]
    grams, moments = [], []
    for fold in range(_FOLDS):
        inside = folds == fold
        grams.append(weighted[inside].T @ features[inside])
        moments.append(weighted[inside].T @ targets[inside])
    gram, moment = sum(grams), sum(moments)
    residual = np.empty_like(targets)
    for fold in range(_FOLDS):
        inside = folds == fold
        kept = gram - grams[fold]
        # A ridge in units of each feature's own size keeps duplicate columns harmless.
        kept[np.diag_indices_from(kept)] += 1e-6 * np.diag(gram) + 1e-9 * len(targets)
        factor = scipy.linalg.cho_factor(kept, check_finite=False)
        solution = scipy.linalg.cho_solve(factor, moment - moments[fold], check_finite=False)
        residual[inside] = targets[inside] - features[inside] @ solution
    return residual


def local_residuals(points: np.ndarray, targets: np.ndarray, *, neighbours: int = 30) -> np.ndarray:
    """Residuals `[N, k]` of locally linear regression of `targets` on `points` `[N, d]`, without the row itself."""
    near = np.asarray(KDTree(points).query(points, neighbours + 1)[1])
    rows = np.arange(len(points))[:, None]
    own = near == rows
    own[~own.any(axis=1), -1] = True  # one of many equal points: leave the farthest out instead
    near = near[~own].reshape(len(points), neighbours)
    offsets = points[near] - points[:, None]
    width = np.sqrt((offsets**2).sum(axis=(1, 2), keepdims=True) / neighbours) + 1e-12
    local = np.concatenate([np.ones((*offsets.shape[:2], 1)), offsets / width], axis=2)
    gram = local.transpose(0, 2, 1) @ local + 1e-6 * neighbours * np.eye(local.shape[2])
    first = np.zeros((len(points), local.shape[2], 1))
    first[:, 0] = 1
    weights = (local @ np.linalg.solve(gram, first))[..., 0]
    return targets - np.einsum("nk,nkc->nc", weights, targets[near])


def local_noise(points: np.ndarray, residuals: np.ndarray, *, neighbours: int = 30) -> np.ndarray:
    """Root mean square of the residuals `[N, 1]` around each point, `[N, 1]`, never below a thousandth of all."""
    near = np.asarray(KDTree(points).query(points, neighbours)[1])
    return np.sqrt((residuals[near, 0] ** 2).mean(axis=1, keepdims=True)) + 1e-3 * residuals.std() + 1e-12


def block_means(values: np.ndarray, rows: np.ndarray, length: int = 50) -> np.ndarray:
    """Means of `[N]` over blocks of at most `length` rows, each within one episode (`rows`: its number per row)."""
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    sizes = np.diff(np.append(starts, len(rows)))
    place = np.arange(len(rows)) - np.repeat(starts, sizes)
    block = np.cumsum((place % length == 0).astype(int)) - 1
    return np.bincount(block, values) / np.bincount(block)


def t_value(values: np.ndarray) -> float:
    """Mean over its standard error; 0 for fewer than 5 values."""
    if len(values) < 5:
        return 0.0
    return float(values.mean() / (values.std(ddof=1) / np.sqrt(len(values)) + 1e-12))
