"""`otel:FILE.jsonl` or `otel:DIR`: traces of agents, OpenTelemetry spans of the GenAI conventions.

An episode is what one agent did in one conversation (`gen_ai.conversation.id`, else one trace). Its actions are what
the model calls put out, in the order of their start; an observation is what the next call reads behind the last
message of the assistant. Results of tools that no later call reads come from the spans of the tools. What the first
call reads before its last answer was said before the log begins: it is `context["history"]`.

`info["duration"]` are the seconds that the environment took: from the end of a model call to the start of the next, or
to the end of the tools that the last one called. `info["cost"]` is each call's `gen_ai.usage.cost`, where all have it;
`info["errors"]` what failed and after which action.

The task has ended where the agent's run (`invoke_agent`) ended without an error on a message that calls no tool;
`worldmodel.sources.chat_episode` says what that means for a last action without an answer.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from worldmodel.sources import files
from worldmodel.sources.chat_episode import TEXT, Conversation, episode, is_number, said_text
from worldmodel.sources.chat_files import LINES, heads, log_files
from worldmodel.sources.chat_messages import ASSISTANT, SYSTEM, Message, ids_looked_up, join_messages, text_of
from worldmodel.sources.otel_spans import CALLS, Span, read_by, said_by, spans_of, structured
from worldmodel.trajectory import Trajectory

_SPANS, _GENAI = (b'"resourceSpans"', b'"spanId"', b'"span_id"'), b"gen_ai."


@dataclasses.dataclass(frozen=True)
class OtelSource:
    """Spans in JSONL files, read twice: once for where each conversation ends, once for the episodes.

    In memory are the names of all conversations, and the spans of those that have begun and not ended.
    """

    place: str
    paths: tuple[pathlib.Path, ...]

    spec = TEXT

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Format, place, files and what is left out."""
        root = pathlib.Path(self.place)
        return {
            "format": "otel",
            "place": self.place,
            "files": [p.relative_to(root).as_posix() if p != root else p.name for p in self.paths],
            "left_out": [
                "spans that are neither model calls, tools nor runs of agents",
                "choices of a model call after the first",
                "what the agent thought without saying it: the environment does not read it",
            ],
        }

    def _spans(self) -> Iterator[tuple[int, Span]]:
        """Every span with the number of its line over all files."""
        lines = ((f"{path}: line {number}", text) for path in self.paths for number, text in files.lines(path))
        for index, (where, text) in enumerate(lines):
            for span in spans_of(text, where):
                yield index, span

    def __iter__(self) -> Iterator[Trajectory]:
        """Every episode, in the order in which conversations end in the files."""
        conversation_of: dict[str, str] = {}
        ends: dict[str, int] = {}
        for index, span in self._spans():
            own = _own_conversation(span)
            if own is not None:
                conversation_of.setdefault(span.trace, own)
                ends[own] = index
            else:
                ends[span.trace] = index
        for trace, conversation in conversation_of.items():
            ends[conversation] = max(ends[conversation], ends.pop(trace, -1))
        ending: dict[int, list[str]] = {}
        for group, index in ends.items():
            ending.setdefault(index, []).append(group)
        groups: dict[str, list[Span]] = {}
        for index, of_line in itertools.groupby(self._spans(), key=lambda pair: pair[0]):
            for _, span in of_line:
                group = _own_conversation(span) or conversation_of.get(span.trace, span.trace)
                groups.setdefault(group, []).append(span)
            for group in ending.get(index, ()):
                yield from _episodes(group, groups.pop(group))


def _own_conversation(span: Span) -> str | None:
    name = span.attributes.get("gen_ai.conversation.id")
    return text_of(name) if name else None


def _episodes(group: str, spans: list[Span]) -> Iterator[Trajectory]:
    """One trajectory for each agent of a conversation that called a model."""
    spans = sorted(spans, key=lambda span: span.start)
    by_id = {span.id: span for span in spans}
    agents: dict[str | None, list[Span]] = {}
    for span in spans:
        agents.setdefault(_agent_of(span, by_id), []).append(span)
    callers = [agent for agent, own in agents.items() if any(span.operation in CALLS for span in own)]
    if len(callers) == 1:
        yield _episode(group, callers[0], spans)
        return
    for agent in callers:
        yield _episode(f"{group}/{agent}", agent, agents[agent])


def _agent_of(span: Span | None, by_id: Mapping[str, Span]) -> str | None:
    """The agent that a span names, or the nearest span above it that names one."""
    for _ in range(len(by_id)):  # parents may form a circle in a damaged log
        if span is None:
            break
        name = span.attributes.get("gen_ai.agent.name") or span.attributes.get("gen_ai.agent.id")
        if name:
            return text_of(name)
        span = by_id.get(span.parent or "")
    return None


def _episode(name: str, agent: str | None, spans: Sequence[Span]) -> Trajectory:
    calls, said = _model_calls(spans)
    reads = [_parts_read(read_by(span)) for span in calls]
    observations = [join_messages(_texts(new)) for _, _, new in reads]
    seconds = [(after.start - before.end) / 1e9 for before, after in itertools.pairwise(calls)]
    ended = False
    if calls:
        results, end = _tool_results(calls[-1], said[-1], spans)
        ended = not said[-1].calls and _run_ended(calls[-1], spans)
        if results:
            observations.append(join_messages(results))
        if results or ended:
            seconds.append((end - calls[-1].end) / 1e9)
    costs = [span.attributes.get("gen_ai.usage.cost") for span in calls][: len(seconds)]
    system, history, _ = reads[0] if reads else ([], [], [])
    return episode(
        Conversation(None, observations or [""], [said_text(message) for message in said]),
        rewards=None,
        terminated=ended,
        truncated=False,
        context={
            "system": join_messages(_texts(system)) if system else None,
            "tools": structured(calls[0], "gen_ai.tool.definitions") if calls else None,
            "history": [{"role": m.role, "text": said_text(m) if m.calls else "\n".join(m.texts)} for m in history]
            or None,
        },
        info={
            "id": name,
            "source": "otel",
            "policy": agent or (calls[0].attributes.get("gen_ai.request.model") if calls else None),
            "keys": ids_looked_up(said),
            "errors": _errors(spans, calls),
            "duration": seconds,
            "cost": costs if all(is_number(cost) for cost in costs) else None,
        },
        where=name,
    )


def _model_calls(spans: Sequence[Span]) -> tuple[list[Span], list[Message]]:
    """The model calls that put something out, and what; one that failed did nothing."""
    calls, said = [], []
    for span in spans:
        message = said_by(span) if span.operation in CALLS else None
        if message is not None:
            calls.append(span)
            said.append(message)
        elif span.operation in CALLS and span.error is None:
            raise ValueError(
                f"{span.where}: span {span.id}, a model call, has no gen_ai.output.messages; "
                "its instrumentation has to capture the contents of messages"
            )
    return calls, said


def _parts_read(messages: Sequence[Message]) -> tuple[list[Message], list[Message], list[Message]]:
    """System messages at the start, what follows to the last message of the assistant, and what is new behind it."""
    system = list(itertools.takewhile(lambda m: m.role == SYSTEM, messages))
    rest = list(messages[len(system) :])
    new = next((i for i in range(len(rest), 0, -1) if rest[i - 1].role == ASSISTANT), 0)
    return system, rest[:new], rest[new:]


def _texts(messages: Sequence[Message]) -> list[str]:
    return [text for message in messages for text in message.texts]


def _tool_results(call: Span, message: Message, spans: Sequence[Span]) -> tuple[list[str], int]:
    """What the tools gave that the last model call asked for, and when; nothing where the spans do not say it all."""
    tools = [span for span in spans if span.operation == "execute_tool" and span.start >= call.start]
    results = [tool.attributes.get("gen_ai.tool.call.result", tool.error) for tool in tools]
    if len(tools) != len(message.calls) or any(result is None for result in results):
        return [], call.end
    return [text_of(result) for result in results], max((tool.end for tool in tools), default=call.end)


def _run_ended(call: Span, spans: Sequence[Span]) -> bool:
    """The run of an agent that made the call ended, without an error."""
    runs = [span for span in spans if span.operation == "invoke_agent"]
    return any(run.error is None and run.start <= call.start and call.end <= run.end for run in runs)


def _errors(spans: Sequence[Span], calls: Sequence[Span]) -> list[dict[str, Any]]:
    """What failed, and after which action (-1: before the first)."""
    return [
        {
            "step": sum(call.start < span.start for call in calls) - 1,
            "span": span.name,
            "type": span.attributes.get("error.type"),
            "message": span.error,
        }
        for span in spans
        if span.error is not None
    ]


def open_source(place: str) -> OtelSource:
    """Opens a JSONL file of spans, or every one below a folder as one log.

    Args:
      place: a `.jsonl` or `.ndjson` file, compressed or not, or a folder of them.

    Raises:
      FileNotFoundError: nothing at `place`, or no such file below it.
      ValueError: the first line is no span.
    """
    root = pathlib.Path(place)
    if not root.exists():
        raise FileNotFoundError(f"{place}: no such file or folder")
    paths = [root]
    if root.is_dir():
        paths = [path for path in log_files(root) if files.suffix_of(path) in LINES]
        if not paths:
            raise FileNotFoundError(f"{place}: holds no file that ends in {', '.join(LINES)}")
    elif files.suffix_of(root) not in LINES:
        raise ValueError(f"{place}: a file of spans ends in {', '.join(LINES)}, with .gz or .zst or without")
    for number, text in files.lines(paths[0]):
        next(spans_of(text, f"{paths[0]}: line {number}"), None)
        break
    return OtelSource(place, tuple(paths))


def recognise(path: pathlib.Path) -> bool:
    """A JSONL file with spans of the GenAI conventions near its start, or a folder that holds one."""
    return any(_GENAI in head and any(mark in head for mark in _SPANS) for head in heads(path, LINES))
