"""The transitions of a replay side by side, each with what every member said of it: what single steps are judged on."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from worldmodel.codec import DiscreteCodec, SpaceCodec, TreeCodec
from worldmodel.fidelity.replay import Forced, Replay, rows
from worldmodel.spaces import column_list


@dataclasses.dataclass(frozen=True)
class Steps:
    """`N` real transitions of some episodes, `M` members, `D` dimensions of a flattened observation.

    Attributes:
      codec: of the observation.
      replay: what they are transitions of.
      time, place: int64 `[N]`: step of the replay, and which of its episodes.
      said: see `Forced`; `[N, M, ...]` instead of `[T, M, E, ...]`.
    """

    codec: SpaceCodec
    replay: Replay
    time: np.ndarray
    place: np.ndarray
    said: Forced

    @classmethod
    def of(cls, codec: SpaceCodec, replay: Replay, forced: Forced) -> Steps:
        """The transitions of a replay that are real, in the order of time and then of episodes."""
        time, place = np.nonzero(replay.real)
        return cls(codec, replay, time, place, jax.tree.map(lambda x: np.swapaxes(x, 1, 2)[time, place], forced))

    def __len__(self) -> int:
        """Number of transitions `N`."""
        return len(self.time)

    def take(self, where: np.ndarray) -> Steps:
        """The transitions at `where` (an index or a mask)."""
        said = jax.tree.map(lambda x: x[where], self.said)
        return dataclasses.replace(self, time=self.time[where], place=self.place[where], said=said)

    def sample(self, most: int, seed: int) -> Steps:
        """Itself, or `most` of its transitions, drawn without preference."""
        if len(self) <= most:
            return self
        return self.take(np.sort(np.random.default_rng(seed).choice(len(self), most, replace=False)))

    @property
    def episode(self) -> np.ndarray:
        """int64 `[N]`: index of the episode in the columns: the unit of intervals."""
        return self.replay.episode[self.place]

    @property
    def obs(self) -> Any:
        """Observations before, columns of `N` rows."""
        return rows(self.replay.obs, (self.time, self.place))

    @property
    def next_obs(self) -> Any:
        """Observations after, columns of `N` rows."""
        return rows(self.replay.obs, (self.time + 1, self.place))

    @property
    def action(self) -> Any:
        """Actions, columns of `N` rows."""
        return rows(self.replay.action, (self.time, self.place))

    @property
    def reward(self) -> np.ndarray:
        """float32 `[N]`."""
        return self.replay.reward[self.time, self.place]

    @property
    def terminated(self) -> np.ndarray:
        """Bool `[N]`."""
        return self.replay.terminated[self.time, self.place].astype(bool)

    @functools.cached_property
    def before(self) -> np.ndarray:
        """The observation `[N, D]` in its own precision; integers as float64, whose rounding they do not know."""
        return self.flat(self.obs)

    @functools.cached_property
    def after(self) -> np.ndarray:
        """The next observation `[N, D]`, as `before`."""
        return self.flat(self.next_obs)

    @functools.cached_property
    def numbers(self) -> np.ndarray:
        """Which of the `D` dimensions are numbers that the training logs show to change, bool `[D]`."""
        if isinstance(self.codec, DiscreteCodec):
            return np.zeros(1, bool)
        own = self.codec.numbers_active if isinstance(self.codec, TreeCodec) else self.codec.active
        return np.concatenate([np.array(own, bool), np.zeros(self.before.shape[1] - len(own), bool)])

    @functools.cached_property
    def given(self) -> np.ndarray:
        """State and action float64 `[N, G]`, each column in its own standard deviations; constant ones are left out."""
        actions = [np.asarray(column, np.float64).reshape(len(self), -1) for column in column_list(self.action)]
        both = np.concatenate([self.before.astype(np.float64), *actions], axis=1)
        spread = both.std(axis=0)
        return ((both - both.mean(axis=0)) / np.where(spread > 0, spread, 1.0))[:, spread > 0]

    def member(self, seed: int) -> np.ndarray:
        """A member int64 `[N]` for each, drawn at random: one member rules an imagined step."""
        return np.random.default_rng([seed, 1]).integers(self.said.reward.shape[1], size=len(self))

    def drawn(self, seed: int) -> Any:
        """One sampled next observation for each, columns of `N` rows, by `member`; None where none were kept."""
        if self.said.drawn is None:
            return None
        return rows(self.said.drawn, (np.arange(len(self)), self.member(seed), 0))

    def flat(self, obs: Any) -> np.ndarray:
        """Columns of observations as `[N, D]`."""
        if isinstance(self.codec, TreeCodec):
            return np.asarray(self.codec.flatten(obs))
        flat = np.asarray(obs).reshape(len(obs), -1)
        return flat if np.issubdtype(flat.dtype, np.floating) else flat.astype(np.float64)
