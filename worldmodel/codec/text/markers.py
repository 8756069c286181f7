"""The tokens between texts: what opens a turn, what ends it, and how an episode goes on or is over.

A marker is, or holds, a special token that no text can hold, so that where a turn ends is never a matter of what it
says. Of an own vocabulary they are ids beyond the texts'; of a pretrained one its chat template's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from worldmodel.codec.text.tokenizer import BpeTokenizer, Tokenizer


@dataclasses.dataclass(frozen=True)
class Markers:
    """Ids that stand around texts.

    Attributes:
      context: opens what holds for the whole episode.
      action: opens what the agent says, a user's turn.
      observation: opens what it reads, an assistant's turn.
      end: ends a text.
      onward: ends a reward where the episode goes on.
      over: ends a reward where the task ended.
      special: all ids that no text holds.
    """

    context: tuple[int, ...]
    action: tuple[int, ...]
    observation: tuple[int, ...]
    end: int
    onward: int
    over: int
    special: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Markers:
        """The inverse of `to_json`."""
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
        return cls(**fields)


OWN = 6
"""Markers of an own vocabulary."""

TEMPLATES = {
    "<|im_start|>": ("<|im_end|>", "<|endoftext|>", "{open}{role}\n", "\n"),
    "<|start_header_id|>": ("<|eot_id|>", "<|end_of_text|>", "{open}{role}<|end_header_id|>\n\n", ""),
}
"""By the token that opens a turn: what ends it, what ends a document, how a turn opens, what is between two turns.
ChatML (Qwen, SmolLM) and Llama 3."""


def own_markers(tokenizer: Tokenizer) -> Markers:
    """One new id for each marker, after those of the texts."""
    context, action, observation, end, onward, over = range(tokenizer.size, tokenizer.size + OWN)
    every = (context, action, observation, end, onward, over)
    return Markers((context,), (action,), (observation,), end, onward, over, every)


def chat_markers(tokenizer: BpeTokenizer) -> Markers:
    """Those of the chat template that a pretrained tokenizer's special tokens are of.

    Raises:
      ValueError: they are of none that is known.
    """
    special = tokenizer.special
    for opening, (end, over, turn, between) in TEMPLATES.items():
        if opening not in special or end not in special or over not in special:
            continue

        def ids(role: str, turn: str = turn, opening: str = opening, before: str = "") -> tuple[int, ...]:
            found = list(_plain(tokenizer, before))
            for part in _split(turn.format(open=opening, role=role), special):
                found += [special[part]] if part in special else _plain(tokenizer, part)
            return tuple(found)

        return Markers(
            ids("system"),
            ids("user", before=between),
            ids("assistant", before=between),
            special[end],
            special[end],
            special[over],
            tuple(sorted(special.values())),
        )
    known = ", ".join(TEMPLATES)
    raise ValueError(f"the tokenizer has none of the special tokens that open a turn in a known template: {known}")


def _plain(tokenizer: BpeTokenizer, text: str) -> list[int]:
    return tokenizer.encode([text])[0] if text else []


def _split(text: str, special: Mapping[str, int]) -> list[str]:
    """A template's pieces: special tokens by themselves, and the texts between them."""
    for name in special:
        before, found, after = text.partition(name)
        if found:
            return [*_split(before, special), name, *_split(after, special)]
    return [text] if text else []
