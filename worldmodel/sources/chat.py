"""`chat:FILE` or `chat:DIR`: conversations of agents with tools, users and shells, as JSON or JSONL.

The environment's side is what a world model predicts. An observation is what the agent reads: the first messages of
the user (the reset), results of tools, replies; an action is what it says, with its tool calls
(`worldmodel.sources.chat_messages` says how both are written as text). The system prompt, the instruction and the list
of tools are the trajectory's `context`. `worldmodel.sources.chat_layouts` says how each layout is read.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from worldmodel.sources import files
from worldmodel.sources.chat_episode import TEXT
from worldmodel.sources.chat_files import LINES, VALUES, heads, log_files, records
from worldmodel.sources.chat_layouts import (
    LAYOUTS,
    Keys,
    intercode,
    layout_of,
    messages,
    swe_agent,
    tau_bench,
    turn_groups,
    turns,
)
from worldmodel.sources.chat_messages import clean, text_of
from worldmodel.trajectory import Trajectory, suggest

_READ = {"messages": messages, "tau-bench": tau_bench, "intercode": intercode, "swe-agent": swe_agent, "turns": turns}
_NEEDED = {"tau-bench": "traj", "intercode": "turn_history", "swe-agent": "trajectory"}
_MARKS = (b'"messages"', b'"conversations"', b'"turn_history"', b'"traj"', b'"trajectory"', b'"role"')
_SPAN_MARKS = (b'"spanId"', b'"span_id"', b'"resourceSpans"', b'"gen_ai.')


@dataclasses.dataclass(frozen=True)
class ChatSource:
    """Logs of conversations.

    Attributes:
      place: as named by the user.
      paths: the files.
      keys: names of keys.
      layout: the layout of every file, or None: told from each file's first record.
    """

    place: str
    paths: tuple[pathlib.Path, ...]
    keys: Keys
    layout: str | None

    spec = TEXT

    @functools.cached_property
    def layouts(self) -> Mapping[pathlib.Path, str | None]:
        """The layout of each file; None where it is not known. Reads each file's first record."""
        return {path: self.layout or self._layout_of(path) for path in self.paths}

    def _layout_of(self, path: pathlib.Path) -> str | None:
        if path.name.endswith((".traj", ".traj.gz", ".traj.zst")):
            return "swe-agent"
        first = next(self._records(path), None)
        return None if first is None else layout_of(first[1], self.keys)

    def _records(self, path: pathlib.Path) -> Iterator[tuple[str, Any]]:
        return records(path, lambda value: layout_of(value, self.keys) is not None)

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Format, place, files and what is left out."""
        left_out = [
            "ids of tool calls: they name nothing in the environment",
            "what the agent thought without saying it: the environment does not read it",
            "parts of messages that are no text: [TYPE] stands for each",
        ]
        left_out += [
            f"{self._name(p)}: its first record is of no known layout" for p, k in self.layouts.items() if not k
        ]
        return {
            "format": "chat",
            "place": self.place,
            "files": [self._name(path) for path, layout in self.layouts.items() if layout],
            "layouts": sorted({layout for layout in self.layouts.values() if layout}),
            "left_out": left_out,
        }

    def _name(self, path: pathlib.Path) -> str:
        root = pathlib.Path(self.place)
        return clean(path.relative_to(root).as_posix() if path != root else path.name)

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode, file by file."""
        for path, layout in self.layouts.items():
            if layout is not None:
                yield from self._read(path, layout)

    def _read(self, path: pathlib.Path, layout: str) -> Iterator[Trajectory]:
        found = self._records(path)
        if layout == "turns":
            found = turn_groups(found, self.keys)
        name = self._name(path)
        for ending in files.COMPRESSED:
            name = name.removesuffix(ending)
        for index, (where, record) in enumerate(found):
            if layout in _NEEDED and (not isinstance(record, Mapping) or _NEEDED[layout] not in record):
                raise ValueError(f"{where}: has no {_NEEDED[layout]!r}, which the layout {layout} needs")
            try:
                trajectory = _READ[layout](record, self.keys, where)
            except RecursionError:
                raise ValueError(f"{where}: is nested too deeply") from None
            info = {"id": f"{name}:{index}", "source": layout, "policy": _stem(path), **trajectory.info}
            if layout == "swe-agent":  # a file for each task, in a folder for each agent
                info = {"task": _stem(path), **info, "policy": trajectory.info.get("policy", _folder(path))}
            yield dataclasses.replace(trajectory, info=info)


def open_source(
    place: str,
    *,
    layout: str | None = None,
    prompt: str | None = None,
    response: str | None = None,
    answer: str | None = None,
    turns: str | None = None,
    episode: str | None = None,
    reward: str | None = None,
    done: str | None = None,
    task: str | None = None,
    policy: str | None = None,
    context: str | None = None,
) -> ChatSource:
    """Opens a file, or every JSON and JSONL file below a folder.

    Args:
      place: a `.json`, `.jsonl`, `.ndjson` or `.traj` file, compressed or not, or a folder of them.
      layout: one of `LAYOUTS` for every file; else each file's first record tells it, and a file of a folder that is
        of none is left out.
      prompt: key of what the agent read in a turn.
      response: key of what it said in a turn.
      answer: key of what it read next.
      turns: key of the turns inside a record.
      episode: key that is equal in all turns of an episode.
      reward: key of the reward.
      done: key that is true where the task ended.
      task: key of the task, for splits.
      policy: key of the agent's name.
      context: keys of more context, separated by commas; `Keys` says more of each key.

    Raises:
      FileNotFoundError: nothing at `place`, or no such file below it.
      ValueError: an unknown layout, keys that are missing, or a file of no known layout.
    """
    keys = Keys(prompt, response, answer, turns, episode, reward, done, task, policy, context)
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(
            f"chat: layout {layout!r} is unknown{suggest(layout, LAYOUTS)}; known are {', '.join(LAYOUTS)}"
        )
    if (prompt is None) != (response is None) or (prompt is None and (layout == "turns" or turns)):
        raise ValueError("chat: turns need prompt=KEY and response=KEY: which key holds what the agent read, and said")
    root = pathlib.Path(place)
    if not root.exists():
        raise FileNotFoundError(f"{place}: no such file or folder")
    if root.is_dir():
        paths = log_files(root)
        if not paths:
            raise FileNotFoundError(f"{place}: holds no file that ends in {', '.join(LINES + VALUES)}")
        return ChatSource(place, tuple(paths), keys, layout)
    source = ChatSource(place, (root,), keys, layout)
    if files.suffix_of(root) not in LINES + VALUES:
        raise ValueError(f"{place}: a file of chats ends in {', '.join(LINES + VALUES)}, with .gz or .zst or without")
    if source.layouts[root] is None:
        raise ValueError(f"{place}: {_unknown(source, root)}; name the layout: {', '.join(LAYOUTS)}")
    return source


def _unknown(source: ChatSource, path: pathlib.Path) -> str:
    first = next(source._records(path), None)
    if first is None:
        return "holds no record"
    keys = ", ".join(list(first[1])[:20]) if isinstance(first[1], Mapping) else type(first[1]).__name__
    return f"its first record ({text_of(keys)}) is of no known layout"


def recognise(path: pathlib.Path) -> bool:
    """A JSON or JSONL file with the keys of a known layout near its start, or a folder that holds one."""
    return any(
        any(mark in head for mark in _MARKS) and not any(mark in head for mark in _SPAN_MARKS) for head in heads(path)
    )


def _stem(path: pathlib.Path) -> str:
    name = path.name
    for ending in (*files.COMPRESSED, *LINES, *VALUES):
        name = name.removesuffix(ending)
    return clean(name)


def _folder(path: pathlib.Path) -> str:
    """The nearest folder above that is not named as the file is."""
    names = [parent.name for parent in path.resolve().parents]
    return clean(next((name for name in names if name != _stem(path)), ""))
