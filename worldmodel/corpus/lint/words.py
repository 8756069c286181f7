"""Texts as the checks see them: sets of words, and kinds of text that many episodes share.

No language model: words say what an answer takes up from a call, and the first words that neither nearly all nor
hardly any texts have say of what kind a text is (a tool's name, the head of an error).
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from worldmodel.corpus.lint.sample import Episode, Sample
from worldmodel.spaces import columns_of, leaves

MOST_TRANSITIONS = 20_000
"""Transitions read; evenly many episodes of the sample are taken where it holds more."""
MOST_KINDS = 30
_HEAD, _TAIL = 3000, 1000
_WORD = re.compile(r"[^\W\d][\w\-]*|\d+(?:\.\d+)?")
_RAREST, _COMMONEST = 0.01, 0.9


@dataclasses.dataclass(frozen=True)
class TextEpisode:
    """The words of an episode.

    Attributes:
      episode: it, with its record.
      texts: the `T+1` observations themselves.
      observations: words of each of the `T+1` observations, in lower case.
      actions: words of each of the `T` actions.
      observation_kinds: int64 `[T+1]`, kind of each observation; equal numbers, equal kinds.
      action_kinds: int64 `[T]`.
    """

    episode: Episode
    texts: Sequence[str]
    observations: Sequence[frozenset[str]]
    actions: Sequence[frozenset[str]]
    observation_kinds: np.ndarray
    action_kinds: np.ndarray

    def __len__(self) -> int:
        return len(self.actions)


def has_text(space: Any) -> bool:
    """Whether a leaf of the space is a text."""
    return any(leaf["type"] == "Text" for _, leaf in leaves(space))


def read_texts(sample: Sample) -> list[TextEpisode]:
    """The words of the sample's episodes, of some of them where they are many."""
    chosen = list(sample.episodes)
    total = sum(len(episode) for episode in chosen)
    if total > MOST_TRANSITIONS:
        chosen = chosen[:: -(-total // MOST_TRANSITIONS)]
    observations = [texts_of(sample.spec.observation_space, e.trajectory.observations) for e in chosen]
    actions = [texts_of(sample.spec.action_space, e.trajectory.actions) for e in chosen]
    observation_kinds, action_kinds = _kinds(observations), _kinds(actions)
    return [
        TextEpisode(
            episode,
            seen,
            [frozenset(_words(text)) for text in seen],
            [frozenset(_words(text)) for text in done],
            seen_kinds,
            done_kinds,
        )
        for episode, seen, done, seen_kinds, done_kinds in zip(
            chosen, observations, actions, observation_kinds, action_kinds, strict=True
        )
    ]


def all_words(episode: TextEpisode) -> frozenset[str]:
    """Every word of an episode."""
    return frozenset().union(*episode.observations, *episode.actions)


def shared_weight(words: frozenset[str], others: frozenset[str], weight: Mapping[str, float]) -> float:
    """Sum of the weights of the words that both have."""
    return sum((weight[word] for word in words & others), 0.0)


def texts_of(space: Any, values: Any) -> list[str]:
    """One text for each step: its texts, and its numbers where they are few."""
    columns = []
    for path, leaf, column in columns_of(space, values):
        if leaf["type"] == "Text":
            columns.append([str(text) for text in column])
        elif leaf["type"] != "Box":
            columns.append([f"{path} {np.asarray(value).tolist()}" for value in np.asarray(column)])
    return ["\n".join(parts) for parts in zip(*columns, strict=True)] if columns else []


def _words(text: str) -> list[str]:
    if len(text) > _HEAD + _TAIL:
        text = f"{text[:_HEAD]}\n{text[-_TAIL:]}"
    return [word.lower() for word in _WORD.findall(text)]


def _kinds(texts: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """The kind of each text: its first sign and its first two words that divide the texts of the log."""
    heads = [[_words(text[:400]) for text in episode] for episode in texts]
    shares = Counter(word for episode in heads for head in episode for word in set(head))
    total = max(sum(len(episode) for episode in heads), 1)
    dividing = {word for word, n in shares.items() if max(_RAREST * total, 2) <= n <= _COMMONEST * total}
    named = []
    for episode, words in zip(texts, heads, strict=True):
        pairs = zip(episode, words, strict=True)
        named.append([(_sign(text), *[w for w in head if w in dividing][:2]) for text, head in pairs])
    common = Counter(kind for episode in named for kind in episode).most_common(MOST_KINDS)
    number = {kind: i + 1 for i, (kind, _) in enumerate(common)}
    return [np.array([number.get(kind, 0) for kind in episode], np.int64) for episode in named]


def _sign(text: str) -> str:
    first = text.lstrip()[:1]
    return "" if first.isalnum() else first
