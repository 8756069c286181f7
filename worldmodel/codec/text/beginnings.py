"""One look at all episodes to learn from: what their contexts share, how they begin, which tools they call."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from worldmodel.codec.text.codec import reward_text
from worldmodel.codec.text.episode import TextRules, json_text, prepare
from worldmodel.sources.chat_messages import parse_action, split_messages
from worldmodel.trajectory import Trajectory

FILE = "beginnings.json"
MOST_STARTS = 20_000


@dataclasses.dataclass(frozen=True)
class Beginnings:
    """What an environment of texts begins from.

    Attributes:
      starts: of each different one that was logged: `task` (or None), `context`, `observation`.
      tools: schemas of tools as a context lists them, and names of others that were called.
      reward: the text of the reward that turns have most often where the episode goes on.
      common: parts of the context that all episodes share.
    """

    starts: Sequence[Mapping[str, Any]]
    tools: Sequence[Any]
    reward: str
    common: Mapping[str, Any]

    def save(self, run: Path) -> None:
        """Writes `beginnings.json`."""
        text = json.dumps(dataclasses.asdict(self), ensure_ascii=False, allow_nan=False)
        (run / FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, run: Path) -> Beginnings:
        """The inverse of `save`; `FileNotFoundError` or `ValueError` with one line."""
        path = run / FILE
        if not path.is_file():
            raise FileNotFoundError(f"{run} has no {FILE}, what its episodes begin from")
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({' '.join(str(error).split())[:160]})") from error


def survey(episodes: Iterable[Trajectory], rules: TextRules) -> Beginnings:
    """Looks at every episode once."""
    common: dict[str, Any] | None = None
    starts: dict[str, Mapping[str, Any]] = {}
    schemas: dict[str, Any] = {}
    called: set[str] = set()
    rewards: Counter[str] = Counter()
    for trajectory in episodes:
        episode, _ = prepare(trajectory, rules)
        own = episode.context if isinstance(episode.context, Mapping) else {}
        common = dict(own) if common is None else {k: v for k, v in common.items() if k in own and own[k] == v}
        task = trajectory.info.get("task")
        start = {"task": None if task is None else str(task), "context": episode.context}
        start["observation"] = episode.observations[0]
        if len(starts) < MOST_STARTS:
            starts.setdefault(json_text(start), start)
        listed = trajectory.context.get("tools") if isinstance(trajectory.context, Mapping) else None
        schemas |= {_name(tool): tool for tool in listed or ()} if isinstance(listed, list) else {}
        called |= {name for action in trajectory.actions for name in _called(str(action))}
        paid = episode.rewards or ()
        rewards.update(reward_text(value) for value in paid[: len(paid) - episode.terminated])
    tools = [*schemas.values(), *sorted(called - set(schemas))]
    return Beginnings(list(starts.values()), tools, max(rewards, key=rewards.__getitem__, default=""), common or {})


def _name(tool: Any) -> str:
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else tool
    return str(inner.get("name", inner)) if isinstance(inner, Mapping) else str(inner)


def _called(action: str) -> list[str]:
    """Names of the tools that an action calls."""
    found = []
    for message in split_messages(action):
        try:
            found += [call.name for call in parse_action(message)[1]]
        except ValueError:
            continue
    return found
