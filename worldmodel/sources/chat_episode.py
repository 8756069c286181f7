"""A conversation as an episode of texts.

A record's last action may have no answer. If the log says that the task ended there, the answer is the empty text;
else the action is dropped, with its reward, because what it led to is not known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from worldmodel.sources.chat_messages import ASSISTANT, SYSTEM, Message, action_text, join_messages, plain
from worldmodel.trajectory import Spec, Trajectory

TEXT = Spec({"type": "Text", "max_length": None}, {"type": "Text", "max_length": None})
"""Texts of any length on both sides."""


@dataclasses.dataclass(frozen=True)
class Conversation:
    """What was read and said.

    Attributes:
      system: system messages before the first other one, joined; None without any.
      observations: texts before each action, and after the last where there are any: `T` or `T+1`.
      actions: `T` texts.
    """

    system: str | None
    observations: list[str]
    actions: list[str]


def fold(messages: Iterable[Message]) -> Conversation:
    """Groups messages into what is read and what is said, in turns; a later system message is read like any other."""
    system: list[str] = []
    turns: list[list[str]] = [[]]  # even places: read; odd places: said
    for message in messages:
        said = message.role == ASSISTANT
        if message.role == SYSTEM and turns == [[]]:
            system.extend(message.texts)
            continue
        if said == (len(turns) % 2 == 1):
            turns.append([])
        turns[-1].extend([said_text(message)] if said else message.texts)
    texts = [join_messages(turn) for turn in turns]
    return Conversation(join_messages(system) if system else None, texts[::2], texts[1::2])


def said_text(message: Message) -> str:
    """A message of the agent as text."""
    return action_text("\n".join(message.texts), message.calls)


def episode(
    talk: Conversation,
    *,
    rewards: Any,
    terminated: bool,
    truncated: bool,
    context: Mapping[str, Any],
    info: Mapping[str, Any],
    where: str,
) -> Trajectory:
    """The trajectory of a conversation.

    Args:
      talk: with or without an answer to the last action.
      rewards: a list, one for each action; a number, of the last step; or None.
      terminated: the task ended.
      truncated: a limit ended it.
      context: what is None in it is not in the log and left out.
      info: as `context`; empty lists are left out, too. Lists of `duration` and `cost` have one number for each step
        that stays.
      where: for errors.

    Raises:
      ValueError: a reward is no number.
    """
    observations, actions = list(talk.observations), list(talk.actions)
    unanswered = bool(actions) and len(observations) == len(actions)
    if unanswered and terminated:
        observations.append("")
    elif unanswered:
        actions.pop()
        rewards = rewards[:-1] if isinstance(rewards, list) and len(rewards) == len(actions) + 1 else rewards
    facts = plain({"context": context, "info": info})
    return Trajectory(
        observations=np.array(observations, np.object_),
        actions=np.array(actions, np.object_),
        rewards=_rewards(rewards, len(actions), where),
        terminated=terminated,
        truncated=truncated,
        context={key: value for key, value in facts["context"].items() if value is not None} or None,
        info={key: value for key, value in facts["info"].items() if value is not None and value != []},
    )


def _rewards(logged: Any, steps: int, where: str) -> np.ndarray | None:
    if logged is None:
        return None
    values = logged if isinstance(logged, list) else [*[0.0] * (steps - 1), logged] if steps else []
    for step, value in enumerate(values):
        if not isinstance(value, (int, float)):
            raise ValueError(f"{where}, step {step}: reward is {value!r}; a number is needed")
    return np.array(values, np.float64).astype(np.float32)


def is_number(value: Any) -> bool:
    """A number of JSON; true and false count as 1 and 0."""
    return isinstance(value, (int, float))
