"""A language model's world to serve: actions and observations are texts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from worldmodel.envs.check import check_options
from worldmodel.envs.server.wire import plain
from worldmodel.envs.server.world import SESSION_OPTIONS, Turn, check_seed


@runtime_checkable
class TextEnvironment(Protocol):
    """What is asked of a text environment: one episode at a time, that a snapshot, plain JSON, can bring back."""

    def reset(self, *, seed: int | None = None, task: Any = None, prefix: Any = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode; the first observation, and info."""
        ...

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One turn: observation, reward, terminated, truncated, info."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """This moment as plain JSON."""
        ...

    def restore(self, snapshot: dict[str, Any]) -> Any:
        """Goes back to it."""
        ...

    def close(self) -> None:
        """Frees the episode."""
        ...


class TextWorld:
    """See `World`. Every session has an environment of its own, which `make` gives; they take turns.

    Args:
      make: a new environment; those of one world share what is large, the model.
      name: of the environment that it stands for.
      identity: tells the model from others, so that no session goes on under another.
      longest: characters of an action.
    """

    suffix = ".json"
    most = 1

    def __init__(self, make: Callable[[], TextEnvironment], name: str, identity: str, *, longest: int = 100_000):
        self._make, self._identity, self._longest = make, identity, longest
        self.name, self.description = name, f"{name}, simulated by a language model learned from logs"
        self.action_schema = {"type": "string", "maxLength": longest}
        self.observation_schema = {"type": "string"}

    def warm(self) -> None:
        """Nothing: an episode compiles what it needs at its first turn."""

    def check_reset(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See `World`; options are `seed`, `task` and `prefix`."""
        check_options(options, (*SESSION_OPTIONS, "task", "prefix"))
        check_seed(options.get("seed"))
        return dict(options)

    def check_action(self, action: Any) -> str:
        """See `World`: a string of at most `longest` characters that is Unicode."""
        if not isinstance(action, str):
            raise ValueError(f"action is a {type(action).__name__}; a string is needed")
        if len(action) > self._longest:
            raise ValueError(f"action has {len(action)} characters; {self._longest} are allowed")
        try:
            action.encode()
        except UnicodeEncodeError:
            raise ValueError("action is no valid Unicode: it holds half of a surrogate pair") from None
        return action

    def reset(self, items: Sequence[tuple[TextEnvironment | None, dict[str, Any]]]) -> list[tuple[Any, Turn]]:
        """See `World`. A reset that fails leaves the environment where it was."""
        ((env, options),) = items
        env, before = (self._make(), None) if env is None else (env, env.snapshot())
        observation, info = _or_as_before(env, before, lambda: env.reset(**options))
        return [(env, Turn(observation, None, False, False, plain(info)))]

    def step(self, items: Sequence[tuple[TextEnvironment, str]]) -> list[tuple[Any, Turn]]:
        """See `World`. A step that fails leaves the environment where it was."""
        ((env, action),) = items
        told = _or_as_before(env, env.snapshot(), lambda: env.step(action))
        observation, reward, terminated, truncated, info = told
        return [(env, Turn(observation, plain(float(reward)), bool(terminated), bool(truncated), plain(info)))]

    def save(self, episode: TextEnvironment, note: Mapping[str, Any], path: Path) -> None:
        """See `World`: JSON."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"model": self._identity, "note": note, "snapshot": episode.snapshot()}, file, allow_nan=False)
        os.replace(temporary, path)

    def load(self, path: Path) -> tuple[TextEnvironment, dict[str, Any]]:
        """See `World`."""
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            model, note, snapshot = kept["model"], kept["note"], kept["snapshot"]
        except (KeyError, TypeError, ValueError):
            raise ValueError("its file is no session") from None
        if model != self._identity:
            raise ValueError("it is of another world model")
        env = self._make()
        env.restore(snapshot)
        return env, note

    def drop(self, episode: TextEnvironment | None) -> None:
        """See `World`."""
        if episode is not None:
            episode.close()


def _or_as_before(env: TextEnvironment, before: dict[str, Any] | None, act: Callable[[], Any]) -> Any:
    """What `act` gives; where it fails, the environment is as in the snapshot, or closed where there is none."""
    try:
        return act()
    except Exception:
        if before is None:
            env.close()
        else:
            env.restore(before)
        raise
