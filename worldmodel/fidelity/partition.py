"""Dividing states into regions that can be named, honestly: found on some episodes, judged on the others.

A regression tree (Breiman et al. 1984) over named features splits where the mean of a residual differs most, so that
what adds to a gap and what takes from it fall apart instead of cancelling. A region that was chosen because it looked
bad looks bad on the same data whatever the truth; hence `held_in`, the episodes that must not judge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from worldmodel.certificate import Node

if TYPE_CHECKING:
    from sklearn.tree import DecisionTreeRegressor

MAX_REGIONS = 8
MIN_SHARE = 0.03
"""Of all visits, so that a region has enough of them to be judged."""
FOLDS = 4
MAX_FEATURES = 512
"""More numbers than that have no names that a rule could go by."""


@dataclasses.dataclass(frozen=True)
class Regions:
    """Rules that divide states.

    Attributes:
      names: of the `F` features.
      root: the tree.
      rules: what each region is, in words, by its number.
      held_in: int64, the episodes that the rules were found on.
    """

    names: tuple[str, ...]
    root: Node
    rules: tuple[str, ...]
    held_in: np.ndarray

    def label(self, features: np.ndarray) -> np.ndarray:
        """Region of each row of `[N, F]`: int64 `[N]`."""
        if features.ndim != 2 or features.shape[1] != len(self.names):
            raise ValueError(f"features have shape {features.shape}; [N, {len(self.names)}] is needed")
        return self.root.label(features)


def find_regions(
    features: np.ndarray,
    residuals: np.ndarray,
    weights: np.ndarray,
    episode: np.ndarray,
    names: Sequence[str],
    *,
    hint: np.ndarray | None = None,
    max_regions: int = MAX_REGIONS,
    seed: int = 0,
) -> Regions:
    """Finds regions on a random half of the episodes: those by which residuals of left-out episodes are predicted best.

    Args:
      features: float `[N, F]`, finite.
      residuals: float `[N]`.
      weights: float `[N]`.
      episode: int `[N]`.
      names: `F` of them.
      hint: float `[N]`, less noisy than the residuals and perhaps about the same regions, such as the error of a step:
        rules that divide it are tried, too.
      max_regions: at most so many.
      seed: of the halves.

    Raises:
      ValueError: fewer than 2 episodes, or a feature that is not finite.
    """
    if not np.isfinite(features).all():
        raise ValueError("a feature is not finite")
    everyone = np.unique(episode)
    if len(everyone) < 2:
        raise ValueError(f"{len(everyone)} episode: one half finds the regions, the other judges them")
    held_in = np.sort(np.random.default_rng(seed).permutation(everyone)[: len(everyone) // 2])
    own = np.isin(episode, held_in)
    data = features[own].astype(np.float32), residuals[own], weights[own]
    targets = [data[1]] if hint is None else [data[1], hint[own]]
    target, size = _best_tree(*data, targets, episode[own], max_regions, seed)
    fitted = _tree(size, seed).fit(data[0], target, sample_weight=data[2]).tree_
    spread = features[own].std(axis=0)
    rules: list[str] = []

    def grown(node: int, bounds: dict[int, tuple[float, float]]) -> Node:
        if fitted.feature[node] < 0:
            rules.append(_rule(bounds, names, spread))
            return Node(region=len(rules) - 1)
        feature, threshold = int(fitted.feature[node]), float(fitted.threshold[node])
        low, high = bounds.get(feature, (-np.inf, np.inf))
        below = grown(int(fitted.children_left[node]), {**bounds, feature: (low, min(high, threshold))})
        above = grown(int(fitted.children_right[node]), {**bounds, feature: (max(low, threshold), high)})
        return Node(feature, threshold, below, above)

    root = grown(0, {})
    return Regions(tuple(names), root, tuple(rules), held_in)


def _tree(leaves: int, seed: int) -> DecisionTreeRegressor:
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor(
        max_depth=4, max_leaf_nodes=leaves, min_weight_fraction_leaf=MIN_SHARE, random_state=seed
    )


def _best_tree(
    features: np.ndarray,
    residuals: np.ndarray,
    weights: np.ndarray,
    targets: Sequence[np.ndarray],
    episode: np.ndarray,
    most: int,
    seed: int,
) -> tuple[np.ndarray, int]:
    """Which of the targets to divide, and into how many regions, at least two; by the residuals of left-out episodes.

    The fewest regions within a standard error of the best (Breiman et al. 1984): a fault cut in pieces is no easier to
    see.
    """
    folds = np.random.default_rng(seed).integers(0, FOLDS, int(episode.max()) + 1)[episode]
    gain = np.zeros((FOLDS, len(targets), most + 1))
    for fold in range(FOLDS):
        out = folds == fold
        if not 0 < out.sum() < len(out):
            continue
        centre = np.average(residuals[~out], weights=weights[~out])
        plain = (residuals[out] - centre) ** 2
        for t, target in enumerate(targets):
            for leaves in range(2, most + 1):
                tree = _tree(leaves, seed).fit(features[~out], target[~out], sample_weight=weights[~out])
                means = _leaf_means(tree.apply(features[~out]), residuals[~out], weights[~out])
                left = (residuals[out] - means[tree.apply(features[out])]) ** 2
                gain[fold, t, leaves] = weights[out] @ (plain - left)
    total = gain.sum(axis=0)[:, 2:]
    best, size = np.unravel_index(int(total.argmax()), total.shape)
    error = gain[:, best, size + 2].std(ddof=1) * np.sqrt(FOLDS)
    return targets[int(best)], int((total[best] >= total[best, size] - error).argmax()) + 2


def _leaf_means(leaf: np.ndarray, residuals: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted mean of the residuals by leaf, by the leaf's number; every leaf has some."""
    total = np.bincount(leaf, weights)
    return np.bincount(leaf, weights * residuals) / np.where(total > 0, total, 1.0)


def named_features(flat: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Flattened observations `[N, D]`, and the size of each number that takes both signs: faults often go by it."""
    both = signed_numbers(flat)
    return np.concatenate([flat, np.abs(flat[:, both])], axis=1), [*names, *(f"|{names[i]}|" for i in both)]


def signed_numbers(flat: np.ndarray) -> list[int]:
    """Which of the `D` numbers of `[N, D]` take both signs."""
    both = (flat.min(axis=0, initial=0.0) < 0) & (flat.max(axis=0, initial=0.0) > 0)
    return np.flatnonzero(both).tolist()


def _rule(bounds: dict[int, tuple[float, float]], names: Sequence[str], spread: np.ndarray) -> str:
    spans = _without_sizes(bounds, names)
    return " and ".join(_words(names[f], *span, float(spread[f])) for f, span in spans.items()) or "everywhere"


def _without_sizes(bounds: dict[int, tuple[float, float]], names: Sequence[str]) -> dict[int, tuple[float, float]]:
    """The bounds, where those on the size of a number whose sign they fix are bounds on the number."""
    out = dict(bounds)
    for feature, (low, high) in bounds.items():
        number = names[feature].strip("|")
        if number == names[feature] or number not in names or (place := list(names).index(number)) not in out:
            continue
        least, most = out[place]
        if least >= 0:
            out[place] = max(least, low), min(most, high)
        elif most <= 0:
            out[place] = max(least, -high), min(most, -low)
        else:
            continue
        del out[feature]
    return out


def _words(name: str, low: float, high: float, spread: float) -> str:
    digits = max(0, 2 - int(np.floor(np.log10(spread)))) if spread > 0 else 3
    if low == -np.inf:
        return f"{name} <= {high:.{digits}f}"
    if high == np.inf:
        return f"{name} > {low:.{digits}f}"
    return f"{low:.{digits}f} < {name} <= {high:.{digits}f}"
