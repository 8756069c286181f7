"""Worlds for the server's tests that cost nothing: a counter of numbers, and a text environment that remembers."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldmodel.envs.server.world import Turn


class Counting:
    """An episode is `(start, steps)`; an action is added to the start. Ends after five steps."""

    name, description, suffix, most = "Counting", "counts", ".json", 4
    action_schema, observation_schema = {"type": "integer"}, {"type": "array"}

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def check_reset(self, options: Mapping[str, Any]) -> Any:
        return options.get("seed", 0)

    def check_action(self, action: Any) -> int:
        if not isinstance(action, int):
            raise ValueError(f"action is {action!r}; an integer is needed")
        return action

    def reset(self, items: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Turn]]:
        self.gate.wait(10)
        return [((seed, 0), Turn([seed, 0], None, False, False, {})) for _, seed in items]

    def step(self, items: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Turn]]:
        self.gate.wait(10)
        self.calls.append(len(items))
        if any(action == 13 for _, action in items):
            raise RuntimeError("broken")
        after = [(value + action, steps + 1) for (value, steps), action in items]
        return [(episode, Turn(list(episode), 1.0, episode[1] == 5, False, {})) for episode in after]

    def save(self, episode: Any, note: Mapping[str, Any], path: Path) -> None:
        if (path.parent / "full").exists():
            raise OSError(28, "No space left on device")
        path.write_text(json.dumps([episode, note]))

    def load(self, path: Path) -> tuple[Any, dict[str, Any]]:
        episode, note = json.loads(path.read_text())
        return tuple(episode), note

    def drop(self, episode: Any) -> None:
        pass


class Remembering:
    """A `TextEnv`: repeats what was said, with how often it was spoken to."""

    tools: tuple[str, ...] = ()
    made = 0
    closed = 0

    def __init__(self) -> None:
        Remembering.made += 1
        self.said: list[str] = []

    def reset(self, *, seed: int | None = None, task: Any = None, prefix: Any = None) -> tuple[str, dict[str, Any]]:
        if task == "impossible":
            raise ValueError("task is 'impossible'; tasks are possible")
        self.said = list(prefix or [])
        return f"task: {task}, seed: {seed}", {"tokens": 3}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.said.append(action)
        if action == "break":
            raise RuntimeError("secret detail")
        return f"{len(self.said)}: {action}", 0.5, action == "done", False, {"log_prob": float("nan")}

    def snapshot(self) -> dict[str, Any]:
        return {"said": list(self.said)}

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.said = list(snapshot["said"])

    def close(self) -> None:
        Remembering.closed += 1
