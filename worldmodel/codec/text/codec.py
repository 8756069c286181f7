"""Episodes of texts as tokens, and back: `parse(serialise(x)) == x`, whatever the texts say.

An episode is a conversation in which the environment speaks as the assistant: what the model predicts.

  CONTEXT context END  OBSERVATION first observation END
  then for each turn:  ACTION action END  OBSERVATION observation END  reward ONWARD-or-OVER

Names in capitals are markers (`worldmodel.codec.text.markers`), which no text holds; `OVER` says that the task ended. A
reward is the shortest decimal that gives its float32 back, nothing where the log has none. The context is JSON; what is
the same in all episodes that were learned from (`common`) is left out and put back.

Observations, what ends them, rewards and what ends those are learned; the rest is given.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.codec.text.episode import TextEpisode, TextRules, json_text
from worldmodel.codec.text.information import class_of
from worldmodel.codec.text.markers import Markers
from worldmodel.codec.text.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

VERSION = 1
"""Of the serialisation: another one is another cache of tokens."""

_NUMERALS = set("0123456789.-")


class Kind(IntEnum):
    """What a token is to training."""

    GIVEN = 0
    OBSERVATION = 1
    END = 2
    """Ends an observation."""
    REWARD = 3
    CLOSER = 4
    """Ends a reward: `ONWARD` or `OVER`."""


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A stretch of an episode.

    Attributes:
      ids: int32 `[N]`.
      kinds: uint8 `[N]`, each token's `Kind`.
      classes: uint8 `[N]`, the information class of the turn; 0 for tokens that are no observation's.
    """

    ids: np.ndarray
    kinds: np.ndarray
    classes: np.ndarray

    def __len__(self) -> int:
        """Number of tokens `N`."""
        return len(self.ids)

    def given(self) -> Tokens:
        """The same with nothing to learn."""
        return Tokens(self.ids, np.zeros_like(self.kinds), np.zeros_like(self.classes))


@dataclasses.dataclass(frozen=True)
class TextCodec:
    """How episodes of texts are written as tokens.

    Attributes:
      tokenizer: of the texts.
      markers: between them.
      rules: what is left of texts; `worldmodel.codec.text.episode.prepare` applies them, before a text comes here.
      common: parts of the context that are the same in every episode learned from.
    """

    tokenizer: Tokenizer
    markers: Markers
    rules: TextRules = TextRules()
    common: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def pieces(self, episode: TextEpisode) -> tuple[Tokens, list[Tokens]]:
        """The head (context and first observation), and each turn."""
        told = self._context_text(episode.context)
        rewards = [""] * len(episode.actions) if episode.rewards is None else map(reward_text, episode.rewards)
        texts = [told, episode.observations[0]]
        for action, observation, reward in zip(episode.actions, episode.observations[1:], rewards, strict=True):
            texts += [action, observation, reward]
        context, first, *rest = self.tokenizer.encode(texts)
        head = [self._context_ids(context), self._observation(first, class_of(told, episode.observations[0]))]
        turns = []
        for t, (action, observation) in enumerate(zip(episode.actions, episode.observations[1:], strict=True)):
            said, read, reward = rest[3 * t : 3 * t + 3]
            last = episode.terminated and t + 1 == len(episode.actions)
            parts = [
                self._action_ids(said),
                self._observation(read, class_of(action, observation)),
                self._learned(reward, Kind.REWARD),
                self._learned([self.markers.over if last else self.markers.onward], Kind.CLOSER),
            ]
            turns.append(join(parts))
        return join(head), turns

    def serialise(self, episode: TextEpisode) -> Tokens:
        """The whole episode."""
        head, turns = self.pieces(episode)
        return join([head, *turns])

    def parse(self, ids: np.ndarray | Sequence[int]) -> TextEpisode:
        """The inverse of `serialise`; `ValueError` for tokens that are not written as it writes them."""
        reader = _Reader(self, [int(token) for token in ids])
        context = self._context(reader.text(self.markers.context))
        observations, actions, rewards, over = [reader.text(self.markers.observation)], [], [], False
        while not reader.done:
            if over:
                raise ValueError("a turn follows after the episode is over")
            actions.append(reader.text(self.markers.action))
            observations.append(reader.text(self.markers.observation))
            reward, over = reader.reward()
            rewards.append(reward)
        known = None if None in rewards else tuple(rewards)
        return TextEpisode(context, tuple(observations), tuple(actions), known, over)

    # --- Parts, for whoever writes an episode as it happens -----------------------------------------------------------

    def opening(self, context: Any) -> list[int]:
        """The context, and what opens the first observation."""
        (ids,) = self.tokenizer.encode([self._context_text(context)])
        return [*self._context_ids(ids).ids.tolist(), *self.markers.observation]

    def asking(self, action: str) -> list[int]:
        """An action, and what opens the observation that answers it."""
        (ids,) = self.tokenizer.encode([action])
        return [*self._action_ids(ids).ids.tolist(), *self.markers.observation]

    def answering(self, observation: str, reward: str | None) -> list[int]:
        """An observation, and where there was an action the text of its reward, after which the episode goes on."""
        read, paid = self.tokenizer.encode([observation, reward or ""])
        return [*read, self.markers.end, *([] if reward is None else [*paid, self.markers.onward])]

    @functools.cached_property
    def vocabulary(self) -> int:
        """Ids of texts and markers are below it."""
        return max(self.tokenizer.size, max(self.markers.special) + 1)

    @functools.cached_property
    def text_ids(self) -> np.ndarray:
        """Bool `[vocabulary]`: what a text can hold."""
        allowed = np.arange(self.vocabulary) < self.tokenizer.size
        allowed[list(self.markers.special)] = False
        return allowed

    @functools.cached_property
    def reward_ids(self) -> np.ndarray:
        """Bool `[vocabulary]`: what the text of a reward can hold."""
        allowed = np.zeros(self.vocabulary, np.bool_)
        for token in np.flatnonzero(self.text_ids):
            piece = self.tokenizer.piece(int(token))
            allowed[token] = bool(piece) and set(piece) <= _NUMERALS
        return allowed

    @functools.cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that tell these tokens from those of another codec."""
        told = [VERSION, self.tokenizer.digest, self.to_json()]
        return hashlib.sha256(json_text(told).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; the tokenizer has a file of its own."""
        rules = dataclasses.asdict(self.rules)
        own = self.tokenizer.digest
        told = {"markers": self.markers.to_json(), "rules": rules, "common": dict(self.common), "tokenizer": own}
        return json.loads(json.dumps(told))

    @classmethod
    def load(cls, data: Mapping[str, Any], folder: Path) -> TextCodec:
        """The inverse of `to_json`, with the tokenizer in the folder; `ValueError` where that is another one."""
        tokenizer = ByteTokenizer() if data["tokenizer"] == ByteTokenizer.digest else load_tokenizer(folder)
        if tokenizer.digest != data["tokenizer"]:
            raise ValueError(f"the tokenizer in {folder} is not the one that its config.json names")
        return cls(tokenizer, Markers.from_json(data["markers"]), TextRules(**data["rules"]), data["common"])

    def _context_ids(self, ids: list[int]) -> Tokens:
        return _given([*self.markers.context, *ids, self.markers.end])

    def _action_ids(self, ids: list[int]) -> Tokens:
        return _given([*self.markers.action, *ids, self.markers.end])

    def _observation(self, ids: list[int], information: int) -> Tokens:
        opened, said = _given(self.markers.observation), self._learned(ids, Kind.OBSERVATION)
        told = Tokens(said.ids, said.kinds, np.full(len(ids), information, np.uint8))
        return join([opened, told, self._learned([self.markers.end], Kind.END)])

    def _learned(self, ids: Sequence[int], kind: Kind) -> Tokens:
        return Tokens(np.array(ids, np.int32), np.full(len(ids), kind, np.uint8), np.zeros(len(ids), np.uint8))

    def _context_text(self, context: Any) -> str:
        """What differs of a context that holds all that is common, as an object; any other context, in a list."""
        if not self.common and context is None:
            return ""
        if isinstance(context, Mapping) and all(k in context and context[k] == v for k, v in self.common.items()):
            own = {key: value for key, value in context.items() if key not in self.common}
            return json_text(own)
        return json_text([context])

    def _context(self, text: str) -> Any:
        if not text:
            return None
        try:
            value = json.loads(text)
        except ValueError:
            raise ValueError(f"the context {text[:80]!r} is no JSON") from None
        return value[0] if isinstance(value, list) else {**self.common, **value}


class _Reader:
    """Goes through the tokens of an episode."""

    def __init__(self, codec: TextCodec, ids: list[int]):
        self._codec, self._ids, self._place = codec, ids, 0
        self._special = set(codec.markers.special)

    @property
    def done(self) -> bool:
        return self._place == len(self._ids)

    def text(self, opening: tuple[int, ...]) -> str:
        """The text that such a marker opens, up to its end."""
        start = self._place
        if tuple(self._ids[start : start + len(opening)]) != opening:
            raise ValueError(f"token {start} does not open the part that belongs there")
        self._place += len(opening)
        text, closer = self._until_special()
        if closer != self._codec.markers.end:
            raise ValueError(f"token {self._place - 1} does not end the text before it")
        return text

    def reward(self) -> tuple[float | None, bool]:
        """The reward, and whether the episode is over."""
        text, closer = self._until_special()
        markers = self._codec.markers
        if closer not in (markers.onward, markers.over):
            raise ValueError(f"token {self._place - 1} does not end the reward before it")
        if text and reward_of(text) is None:
            raise ValueError(f"the reward {text[:80]!r} is no number")
        return reward_of(text), closer == markers.over

    def _until_special(self) -> tuple[str, int]:
        start = self._place
        while not self.done and self._ids[self._place] not in self._special:
            self._place += 1
        if self.done:
            raise ValueError("the last text does not end")
        self._place += 1
        return self._codec.tokenizer.decode(self._ids[start : self._place - 1]), self._ids[self._place - 1]


def join(parts: Iterable[Tokens]) -> Tokens:
    """Stretches one after the other."""
    columns = [(part.ids, part.kinds, part.classes) for part in parts]
    return Tokens(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def reward_text(value: float) -> str:
    """The shortest decimal of a float32."""
    return np.format_float_positional(np.float32(value), unique=True, trim="-")


def reward_of(text: str) -> float | None:
    """The reward that a text says; None where it says none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return float(np.float32(value)) if abs(value) <= float(np.finfo(np.float32).max) else None


def _given(ids: Sequence[int]) -> Tokens:
    zeros = np.zeros(len(ids), np.uint8)
    return Tokens(np.array(ids, np.int32), zeros, zeros)
