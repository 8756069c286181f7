"""What is served: a world whose episodes are values that many sessions hold, one each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

SESSION_OPTIONS = ("seed", "episode_id", "session")
"""Reset options that every world has; `episode_id` and `session` never reach it."""


class Turn(NamedTuple):
    """What a client is told after a reset or a step, plain JSON: `reward` is None after a reset."""

    observation: Any
    reward: float | None
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated


def check_seed(seed: Any) -> None:
    """`ValueError` unless it is None, or a whole number that is not negative."""
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
        raise ValueError(f"reset option 'seed' is {seed!r}; a whole number, 0 or more, is needed")


@runtime_checkable
class World(Protocol):
    """A simulator behind a server. An episode is whatever the world makes of it; a session keeps it between steps.

    Attributes:
      name: of the environment that it stands for.
      description: one line for people.
      suffix: of the file that an episode is kept in.
      most: episodes that one call of `reset` or `step` takes at most.
      action_schema, observation_schema: JSON Schema.
    """

    name: str
    description: str
    suffix: str
    most: int
    action_schema: dict[str, Any]
    observation_schema: dict[str, Any]

    def check_reset(self, options: Mapping[str, Any]) -> Any:
        """What a client's reset options ask for; `ValueError` names what is allowed."""
        ...

    def check_action(self, action: Any) -> Any:
        """A client's action, from JSON; `ValueError` names what is allowed."""
        ...

    def reset(self, items: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Turn]]:
        """Begins an episode for every `(episode before or None, what check_reset made)`; new episodes, and turns."""
        ...

    def step(self, items: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Turn]]:
        """Takes one step of every `(episode, what check_action made)`; the episodes that follow, and turns."""
        ...

    def save(self, episode: Any, note: Mapping[str, Any], path: Path) -> None:
        """Writes the episode and a note, plain JSON; the file is whole or absent at any instant."""
        ...

    def load(self, path: Path) -> tuple[Any, dict[str, Any]]:
        """The inverse of `save`; `ValueError` where the file is none of this world. Nothing is unpickled."""
        ...

    def drop(self, episode: Any) -> None:
        """Frees what the episode holds."""
        ...
