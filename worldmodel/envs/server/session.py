"""What a session is, and what is told and kept of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from worldmodel.envs.server.world import Turn


class Refused(ValueError):
    """A request that the state of the server forbids; `status` is that of HTTP."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class Answer(NamedTuple):
    """A turn, and of which session: `steps` of the episode, `resumed` where it was merely looked up."""

    turn: Turn
    session: str
    episode_id: str
    steps: int
    resumed: bool


@dataclasses.dataclass
class Session:
    """A session while it is open.

    Attributes:
      key: who knows it may continue the session.
      owner: the connection that holds it; 0: it left while a request was under way.
      used: `time.monotonic()` of the last use.
      episode: what the world made; None before the first reset.
      turn: what was told last.
      steps: of the episode.
      episode_id: the client's label.
      busy: a request is under way.
    """

    key: str
    owner: int
    used: float
    episode: Any = None
    turn: Turn | None = None
    steps: int = 0
    episode_id: str = ""
    busy: bool = False


class Job(NamedTuple):
    """A request under way: what the world made of it, and the label of a new episode or None."""

    session: Session
    asked: Any
    episode_id: str | None


def answer_of(session: Session, *, resumed: bool) -> Answer:
    """What was told last, again."""
    assert session.turn is not None
    return Answer(session.turn, session.key, session.episode_id, session.steps, resumed)


def to_note(turn: Turn, steps: int, episode_id: str) -> dict[str, Any]:
    """What is kept beside an episode, plain JSON."""
    return {"turn": turn._asdict(), "steps": steps, "episode_id": episode_id}


def from_note(note: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `Session`; `Refused` where the note is none."""
    try:
        return {"turn": Turn(**note["turn"]), "steps": int(note["steps"]), "episode_id": str(note["episode_id"])}
    except (KeyError, TypeError):
        raise Refused("the session cannot go on: its file is no session", 409) from None
