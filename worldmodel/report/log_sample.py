"""What the figure of a log needs: every return and length, and a random sample of observations and actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from worldmodel.spaces import columns_of, is_image, leaves
from worldmodel.trajectory import Spec

SAMPLE = 20_000
SAMPLED_IMAGES = 1_000
_COARSE = 8
_MOST_CLASSES = 64


@dataclasses.dataclass(frozen=True)
class LogSample:
    """A log of `E` episodes, seen through `S` of its observations and actions.

    Attributes:
      spec: of the log.
      returns: float64 `[E]`; NaN where an episode has no rewards.
      lengths: int64 `[E]`, transitions.
      policies: `E` names of behaviour policies.
      observations: float64 `[S, F]`, each observation as the features of its leaves, one after the other (`features`).
      actions: for each leaf of the action space, its values `[S, ...]`; of a Text, their lengths in characters.
    """

    spec: Spec
    returns: np.ndarray
    lengths: np.ndarray
    policies: tuple[str, ...]
    observations: np.ndarray
    actions: tuple[np.ndarray, ...]


class Reservoir:
    """A uniform random sample of the rows of a stream (Vitter 1985, "Random sampling with a reservoir")."""

    def __init__(self, size: int, seed: int):
        self._size, self._rng, self._seen = size, np.random.default_rng(seed), 0
        self.rows: list[Any] = []

    def places(self, count: int) -> list[tuple[int, int]]:
        """Of the next `count` rows, those to take, and where in the sample each belongs."""
        ranks = self._seen + np.arange(count)
        self._seen += count
        targets = np.where(ranks < self._size, ranks, self._rng.integers(0, ranks + 1))
        return [(int(row), int(targets[row])) for row in np.flatnonzero(targets < self._size)]

    def put(self, place: int, row: Any) -> None:
        """Puts a row where `places` said."""
        if place < len(self.rows):
            self.rows[place] = row
        else:
            self.rows.append(row)


def sample_log(log: Any, *, seed: int = 0) -> LogSample:
    """Reads a log once, in the memory of one episode and the sample; `ValueError` where it holds no episode."""
    spec: Spec = log.spec
    images = any(is_image(leaf) for _, leaf in leaves(spec.observation_space))
    observed, acted = Reservoir(SAMPLED_IMAGES if images else SAMPLE, seed), Reservoir(SAMPLE, seed + 1)
    returns, lengths, policies = [], [], []
    for trajectory in log:
        returns.append(trajectory.total_reward)
        lengths.append(len(trajectory))
        policies.append(str(trajectory.info.get("policy") or "unknown"))
        parts = [(leaf, column) for _, leaf, column in columns_of(spec.observation_space, trajectory.observations)]
        for row, place in observed.places(min(len(column) for _, column in parts)):
            observed.put(place, np.concatenate([features(leaf, column[row]) for leaf, column in parts]))
        parts = [(leaf, column) for _, leaf, column in columns_of(spec.action_space, trajectory.actions)]
        for row, place in acted.places(min(len(column) for _, column in parts)):
            acted.put(place, [_value(leaf, column[row]) for leaf, column in parts])
    if not returns:
        raise ValueError("the log holds no episode; there is nothing to draw")
    count = sum(1 for _ in leaves(spec.action_space))
    return LogSample(
        spec=spec,
        returns=np.array(returns, np.float64),
        lengths=np.array(lengths, np.int64),
        policies=tuple(policies),
        observations=np.array(observed.rows, np.float64),
        actions=tuple(np.array([row[i] for row in acted.rows]) for i in range(count)),
    )


def features(leaf: Mapping[str, Any], value: Any) -> np.ndarray:
    """One value of a leaf as numbers, float64 `[F]`.

    A text is its length in characters; an image 8 by 8 block means of each channel; a Discrete of few values one
    indicator for each; all else the numbers themselves.
    """
    if leaf["type"] == "Text":
        return np.array([len(str(value))], np.float64)
    if leaf["type"] == "Discrete" and leaf["n"] <= _MOST_CLASSES:
        return (np.arange(leaf["n"]) == int(value) - leaf["start"]).astype(np.float64)
    if is_image(leaf):
        rows, columns = (np.arange(_COARSE) * side // _COARSE for side in np.shape(value)[:2])
        sums = np.add.reduceat(np.add.reduceat(np.asarray(value, np.float64), rows, axis=0), columns, axis=1)
        sides = (np.diff([*edges, side]) for edges, side in zip((rows, columns), np.shape(value)[:2], strict=True))
        return (sums / np.multiply.outer(*sides)[..., None]).ravel()
    return np.ravel(np.asarray(value, np.float64))


def _value(leaf: Mapping[str, Any], value: Any) -> Any:
    return len(str(value)) if leaf["type"] == "Text" else np.asarray(value)
