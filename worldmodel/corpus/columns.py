"""Episodes laid end to end as flat columns: the form in which training and probing read a corpus."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from worldmodel.corpus.split import hash_of, sample_of_hashes
from worldmodel.images import EncodedImages
from worldmodel.spaces import column_list, map_columns
from worldmodel.trajectory import Trajectory


@dataclasses.dataclass(frozen=True)
class Transitions:
    """Every transition by itself, `N` rows; row `t` is `(obs, action) -> (reward, next_obs, terminated)`.

    Attributes:
      obs: columns of `N` rows, before the action.
      actions: columns of `N` rows.
      rewards: float32 `[N]`; zeros where the log has none.
      next_obs: columns of `N` rows, after the action.
      terminated: bool `[N]`.
      episode: int64 `[N]`, index of the episode.
    """

    obs: Any
    actions: Any
    rewards: np.ndarray
    next_obs: Any
    terminated: np.ndarray
    episode: np.ndarray


@dataclasses.dataclass(frozen=True)
class Columns:
    """`E` episodes of `N` transitions in all.

    Attributes:
      observations: columns of `N+E` rows (an array `[N+E, ...]`, or a dict or tuple of them as `worldmodel.spaces` lays
        them out); each episode has one row more than it has transitions.
      actions: columns of `N` rows.
      rewards: float32 `[N]`; zeros for an episode whose log has none.
      terminated: bool `[E]`, the last transition reached a terminal state.
      truncated: bool `[E]`, the last transition was cut by a limit.
      lengths: int64 `[E]`, transitions per episode.
      ids: `E` episode ids.
      policies: `E` names of behaviour policies; None where unknown.
      has_rewards: every episode's log has rewards.
      contexts: what holds for each whole episode, plain JSON; None where nothing does.
      synthetic: bool `[E]`, a model imagined the episode.
    """

    observations: Any
    actions: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    lengths: np.ndarray
    ids: tuple[str, ...]
    policies: tuple[str | None, ...]
    has_rewards: bool
    contexts: tuple[Any, ...]
    synthetic: np.ndarray

    @classmethod
    def from_trajectories(cls, trajectories: Iterable[Trajectory]) -> Columns:
        """Lays the episodes end to end, in order; an episode without an id gets `episode-<index>`.

        Raises:
          ValueError: there is no episode, or two differ in the dtype or shape of an observation or action.
        """
        episodes = list(trajectories)
        if not episodes:
            raise ValueError("no episode to lay out; at least one is needed")
        rewards = [np.zeros(len(e), np.float32) if e.rewards is None else e.rewards for e in episodes]
        names = [e.info.get("policy") for e in episodes]
        return cls(
            observations=_concatenate([e.observations for e in episodes], "observations"),
            actions=_concatenate([e.actions for e in episodes], "actions"),
            rewards=np.concatenate(rewards).astype(np.float32, copy=False),
            terminated=np.array([e.terminated for e in episodes], np.bool_),
            truncated=np.array([e.truncated for e in episodes], np.bool_),
            lengths=np.array([len(e) for e in episodes], np.int64),
            ids=tuple(str(e.info.get("id", f"episode-{i:05d}")) for i, e in enumerate(episodes)),
            policies=tuple(None if name is None else str(name) for name in names),
            has_rewards=all(e.rewards is not None for e in episodes),
            contexts=tuple(e.context for e in episodes),
            synthetic=np.array([e.synthetic for e in episodes], np.bool_),
        )

    @property
    def episodes(self) -> int:
        """Number of episodes `E`."""
        return len(self.lengths)

    def __len__(self) -> int:
        """Number of transitions `N`."""
        return len(self.rewards)

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """int64 `[E]`: row of each episode's first transition in `actions` and `rewards`."""
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)

    @functools.cached_property
    def observation_starts(self) -> np.ndarray:
        """int64 `[E]`: row of each episode's first observation in `observations`."""
        return self.starts + np.arange(self.episodes)

    @functools.cached_property
    def episode_of(self) -> np.ndarray:
        """int64 `[N]`: index of the episode of each transition."""
        return np.repeat(np.arange(self.episodes), self.lengths)

    @functools.cached_property
    def terminated_rows(self) -> np.ndarray:
        """Bool `[N]`: the transition reached a terminal state."""
        rows = np.zeros(len(self), np.bool_)
        rows[self.starts + self.lengths - 1] = self.terminated
        return rows

    @functools.cached_property
    def returns(self) -> np.ndarray:
        """float64 `[E]`: undiscounted sum of rewards of each episode."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.starts)

    def transitions(self) -> Transitions:
        """Every transition by itself (copies the observations twice)."""
        before = np.arange(len(self)) + self.episode_of
        return Transitions(
            obs=map_columns(lambda column: column[before], self.observations),
            actions=self.actions,
            rewards=self.rewards,
            next_obs=map_columns(lambda column: column[before + 1], self.observations),
            terminated=self.terminated_rows,
            episode=self.episode_of,
        )

    def episode(self, index: int) -> Trajectory:
        """Episode `index` as views; its `info` holds `id` and `policy`."""
        start, length = int(self.starts[index]), int(self.lengths[index])
        first = int(self.observation_starts[index])
        info: dict[str, Any] = {"id": self.ids[index]}
        policy = self.policies[index]
        if policy is not None:
            info["policy"] = policy
        if self.synthetic[index]:
            info["synthetic"] = True
        return Trajectory(
            observations=map_columns(lambda column: column[first : first + length + 1], self.observations),
            actions=map_columns(lambda column: column[start : start + length], self.actions),
            rewards=self.rewards[start : start + length] if self.has_rewards else None,
            terminated=bool(self.terminated[index]),
            truncated=bool(self.truncated[index]),
            context=self.contexts[index],
            info=info,
        )

    def pieces(
        self, episode: np.ndarray, first: np.ndarray, steps: np.ndarray
    ) -> tuple[Columns, np.ndarray, np.ndarray]:
        """Itself, which holds every piece where it is (as `Episodes`)."""
        del steps
        return self, episode, first

    def sample(self, transitions: int) -> Columns:
        """Itself, or about `transitions` of it (as `Episodes`)."""
        if len(self) <= transitions:
            return self
        hashes = np.array([hash_of(name) for name in self.ids], np.uint64)
        chosen = sample_of_hashes(hashes, self.lengths, transitions)
        return Columns.from_trajectories([self.episode(int(place)) for place in chosen])

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of a hash over every array and context."""
        digest = hashlib.sha256()
        parts = (self.observations, self.actions, self.rewards, self.lengths, self.terminated)
        for array in (column for part in parts for column in column_list(part)):
            pieces = array.encoded if isinstance(array, EncodedImages) else [np.ascontiguousarray(array).tobytes()]
            for piece in pieces:
                digest.update(piece)
        if any(context is not None for context in self.contexts):
            digest.update(json.dumps(self.contexts, sort_keys=True).encode())
        return digest.hexdigest()[:16]


@runtime_checkable
class Episodes(Protocol):
    """Episodes that windows are cut from, in memory (`Columns`) or on disk (`StoredEpisodes`)."""

    @property
    def lengths(self) -> np.ndarray:
        """int64 `[E]`: transitions per episode."""
        ...

    @property
    def has_rewards(self) -> bool:
        """Every episode's log has rewards."""
        ...

    @property
    def digest(self) -> str:
        """Tells these episodes from others."""
        ...

    def sample(self, transitions: int) -> Columns:
        """All of them in memory, or, of more than `transitions`, those that the hashes of their ids choose."""
        ...

    def pieces(
        self, episode: np.ndarray, first: np.ndarray, steps: np.ndarray
    ) -> tuple[Columns, np.ndarray, np.ndarray]:
        """Columns that hold these pieces of episodes, each with the transition before it where there is one.

        Args:
          episode: int64 `[P]`, which episode.
          first: int64 `[P]`, its first transition.
          steps: int64 `[P]`, how many.

        Returns:
          Columns, and int64 `[P]` twice: each piece's episode in them, and its first transition within that.
        """
        ...


def _concatenate(pieces: list[Any], name: str) -> Any:
    if len({len(column_list(piece)) for piece in pieces}) == 1:
        try:
            return map_columns(lambda *columns: _join(columns, name), *pieces)
        except (KeyError, IndexError, TypeError):
            pass  # one has other keys, or is no dict or tuple
    raise ValueError(f"episodes differ in how their {name} are built; all have the parts of one space")


def _join(columns: Sequence[Any], name: str) -> Any:
    kinds = sorted({f"{column.dtype}{list(column.shape[1:])}" for column in columns})
    if len(kinds) > 1:
        raise ValueError(f"episodes differ in their {name}: {', '.join(kinds)}; one dtype and shape is needed")
    if all(isinstance(column, EncodedImages) for column in columns):
        return EncodedImages([data for column in columns for data in column.encoded], columns[0].size)
    return np.concatenate([np.asarray(column) for column in columns])
