"""A text trajectory as the language model sees it: strings, without what no environment reads, cut to a length."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, Literal

from worldmodel.sources.chat_messages import action_text, clean, join_messages, parse_action, split_messages
from worldmodel.trajectory import Trajectory

CUT = "\n[cut]"
"""Stands at the end of a text for what was cut away."""

_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class TextRules:
    """What is left of texts.

    What an agent thinks to itself reaches no environment: `<think>` blocks, and what stands beside a tool call in one
    message. Logs differ in whether they hold it.
    """

    thoughts: Literal["keep", "drop"] = "keep"
    """Whether actions keep what the agent thinks to itself."""
    longest_observation: int = 1_600
    """Characters; of a longer one the beginning stays, and a line `[cut]`. 0: of any length."""
    longest_action: int = 800
    """The same of an action."""
    longest_context: int = 2_000
    """The same of each text in the context, and of the first observation."""

    def __post_init__(self):
        for name in ("longest_observation", "longest_action", "longest_context"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 0 is needed")


@dataclasses.dataclass(frozen=True)
class TextEpisode:
    """`T` turns.

    Attributes:
      context: plain JSON that holds for the whole episode, or None.
      observations: `T+1` texts.
      actions: `T` texts.
      rewards: `T` float32 numbers; None where the log has none.
      terminated: the task ended with the last turn.
    """

    context: Any
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    rewards: tuple[float, ...] | None
    terminated: bool


def prepare(trajectory: Trajectory, rules: TextRules) -> tuple[TextEpisode, int]:
    """The episode of a trajectory of texts, and how many of its texts were cut.

    A limit of time (`truncated`) is the clock's, not the world's: it is not kept.
    """
    first, *rest = (clean(str(text)) for text in trajectory.observations)
    actions = [action_of(str(text), rules) for text in trajectory.actions]
    context, in_context = _cut_all(trajectory.context, rules.longest_context)
    texts = [cut(first, rules.longest_context), *(cut(text, rules.longest_observation) for text in rest)]
    said = [cut(text, rules.longest_action) for text in actions]
    whole = (*zip((first, *rest), texts, strict=True), *zip(actions, said, strict=True))
    episode = TextEpisode(
        context,
        tuple(texts),
        tuple(said),
        None if trajectory.rewards is None else tuple(float(value) for value in trajectory.rewards),
        trajectory.terminated,
    )
    return episode, in_context + sum(before != after for before, after in whole)


def action_of(text: str, rules: TextRules) -> str:
    """An action as the environment reads it."""
    text = clean(text)
    return without_thoughts(text) if rules.thoughts == "drop" else text


def without_thoughts(action: str) -> str:
    """An action without `<think>` blocks and without what its messages say beside their tool calls."""
    kept = []
    for message in split_messages(action):
        try:
            content, calls = parse_action(message)
        except ValueError:
            content, calls = message, ()
        kept.append(action_text("", calls) if calls else action_text(_THOUGHT.sub("", content)))
    return join_messages(kept)


def cut(text: str, longest: int) -> str:
    """The text, or its beginning and `CUT`; cut again, it stays as it is."""
    return text if not longest or len(text) <= longest + len(CUT) else text[:longest] + CUT


def _cut_all(value: Any, longest: int) -> tuple[Any, int]:
    """A JSON value with every text in it cut, and how many were."""
    if isinstance(value, str):
        text = clean(value)
        return cut(text, longest), int(cut(text, longest) != text)
    if isinstance(value, dict):
        pairs = {clean(str(key)): _cut_all(part, longest) for key, part in value.items()}
        return {key: part for key, (part, _) in pairs.items()}, sum(count for _, count in pairs.values())
    if isinstance(value, (list, tuple)):
        parts = [_cut_all(part, longest) for part in value]
        return [part for part, _ in parts], sum(count for _, count in parts)
    return value, 0


def json_text(value: Any) -> str:
    """One text for equal JSON values."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
