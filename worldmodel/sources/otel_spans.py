"""Spans of OpenTelemetry, and the messages in those of model calls, in the ways in which they are written.

A line is one span (OTLP's JSON, or what the Python SDK's `to_json` prints) or a batch of them (`resourceSpans`).
Messages stand in attributes or events as the GenAI conventions say today (`gen_ai.input.messages`), or as they did
before: numbered attributes (`gen_ai.prompt.0.content`), events (`gen_ai.user.message`, `gen_ai.choice`,
`gen_ai.content.prompt`).
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from worldmodel.sources import files
from worldmodel.sources.chat_messages import Message, message_of

CALLS = ("chat", "generate_content", "text_completion", "completion")
"""Operations that call a model."""
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_OTHER_SIGNALS = ("resourceLogs", "resourceMetrics")


@dataclasses.dataclass(frozen=True)
class Span:
    """One span.

    Attributes:
      where: file and line, for errors.
      trace, id, parent: hex; the parent is None for a root.
      name: of the span.
      start, end: nanoseconds since 1970.
      attributes: those of the GenAI conventions.
      events: name and such attributes of each event, in order.
      error: what went wrong, or None.
    """

    where: str
    trace: str
    id: str
    parent: str | None
    name: str
    start: int
    end: int
    attributes: Mapping[str, Any]
    events: tuple[tuple[str, Mapping[str, Any]], ...]
    error: str | None

    @property
    def operation(self) -> str | None:
        """`chat`, `execute_tool`, `invoke_agent`, ..; of older spans, told by the prompt that they hold."""
        named = self.attributes.get("gen_ai.operation.name")
        if named is None and any(key.startswith(("gen_ai.prompt", "gen_ai.completion")) for key in self.attributes):
            return "chat"
        return named if isinstance(named, str) else None


def spans_of(line: str, where: str) -> Iterator[Span]:
    """The spans of one line; none of a batch of logs or metrics. `ValueError` where the line holds neither."""
    data = files.json_of(line, where)
    if isinstance(data, Mapping) and "resourceSpans" in data:
        try:
            groups = [group for resource in data["resourceSpans"] for group in resource.get("scopeSpans", ())]
            spans = [span for group in groups for span in group.get("spans", ())]
        except (TypeError, AttributeError) as error:
            raise ValueError(f"{where}: resourceSpans is not built as OTLP says ({error})") from None
    elif isinstance(data, Mapping) and any(signal in data for signal in _OTHER_SIGNALS):
        return
    else:
        spans = [data]
    for span in spans:
        yield _span_of(span, where)


def _span_of(data: Any, where: str) -> Span:
    """A span of OTLP's JSON, or of the Python SDK's, whose ids are in `context`."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: is a {type(data).__name__}; a span of OpenTelemetry is an object")
    try:
        inner = data.get("context", data)
        trace = inner["trace_id"] if "trace_id" in inner else inner["traceId"]
        name = inner["span_id"] if "span_id" in inner else inner["spanId"]
        parent = data.get("parent_id") or data.get("parentSpanId") or data.get("parent_span_id") or None
        status = data.get("status") or {}
        failed = status.get("code", status.get("status_code")) in (2, "STATUS_CODE_ERROR", "ERROR")
        message = status.get("message") or status.get("description") or "error"
        events = [(str(event.get("name")), _attributes(event.get("attributes"))) for event in data.get("events") or ()]
        return Span(
            where=where,
            trace=_hex(trace),
            id=_hex(name),
            parent=_hex(parent) if parent else None,
            name=str(data.get("name")),
            start=_nanoseconds(data, "startTimeUnixNano", "start_time"),
            end=_nanoseconds(data, "endTimeUnixNano", "end_time"),
            attributes=_attributes(data.get("attributes")),
            events=tuple(events),
            error=str(message) if failed else None,
        )
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{where}: is not a span of OpenTelemetry ({said})") from None


def _hex(name: Any) -> str:
    return str(name).removeprefix("0x").lower()


def _nanoseconds(data: Mapping[str, Any], *keys: str) -> int:
    value = next((data[key] for key in keys if data.get(key) is not None), None)
    if value is None:
        raise KeyError(keys[0])
    if isinstance(value, str) and not value.isdecimal():
        moment = datetime.datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError(f"time {value!r} names no zone")
        return (moment - _EPOCH) // datetime.timedelta(microseconds=1) * 1000
    return int(value)


def _attributes(data: Any) -> dict[str, Any]:
    """Attributes of the GenAI conventions and of errors; other ones can be large and are not needed."""
    if isinstance(data, list):
        data = {item["key"]: _any_value(item.get("value")) for item in data}
    wanted = ("gen_ai.", "error.type", "content", "message", "role", "id", "tool_calls")
    return {key: value for key, value in (data or {}).items() if key.startswith(wanted)}


def _any_value(value: Any) -> Any:
    """A value of OTLP: `{"stringValue": ..}`, `{"intValue": "3"}`, .."""
    if not value:
        return None
    kind, inner = next(iter(value.items()))
    if kind == "arrayValue":
        return [_any_value(part) for part in inner.get("values", ())]
    if kind == "kvlistValue":
        return {part["key"]: _any_value(part.get("value")) for part in inner.get("values", ())}
    return int(inner) if kind == "intValue" else inner


def read_by(span: Span) -> list[Message]:
    """What a model call read, with its system prompt first; empty where the span does not hold it."""
    system = structured(span, "gen_ai.system_instructions")
    logged = structured(span, "gen_ai.input.messages")
    if logged is None:
        logged = _numbered(span, "gen_ai.prompt") or structured(span, "gen_ai.prompt") or _events(span)
    system = [{"role": "system", "content": system}] if system else []
    return _messages([*system, *(logged if isinstance(logged, list) else [{"role": "user", "content": logged}])], span)


def said_by(span: Span) -> Message | None:
    """The first choice of a model call; None where the span does not hold it."""
    logged = structured(span, "gen_ai.output.messages")
    if logged is None:
        logged = _numbered(span, "gen_ai.completion") or structured(span, "gen_ai.completion") or _choices(span)
    first = logged[0] if isinstance(logged, list) and logged else logged
    if not first:
        return None
    first = first if isinstance(first, Mapping) else {"content": first}
    return _messages([{"role": "assistant", **first}], span)[0]


def _messages(logged: list[Any], span: Span) -> list[Message]:
    return [message_of(m, f"{span.where}, span {span.id}, message {n}") for n, m in enumerate(logged)]


def structured(span: Span, key: str) -> Any:
    """An attribute of the span or of one of its events, from JSON where it is written as such."""
    found = [attributes[key] for attributes in (span.attributes, *(a for _, a in span.events)) if key in attributes]
    return _from_json(found[0]) if found else None


def _from_json(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            pass  # a text that only begins as JSON does
    return value


def _numbered(span: Span, prefix: str) -> list[dict[str, Any]]:
    """Messages of `PREFIX.N.role`, `PREFIX.N.content`, `PREFIX.N.tool_calls.M.name`, .."""
    found: dict[int, dict[str, Any]] = {}
    calls: dict[tuple[int, int], dict[str, Any]] = {}
    for key, value in span.attributes.items():
        match = re.fullmatch(rf"{re.escape(prefix)}\.(\d+)\.(?:tool_calls\.(\d+)\.)?(\w+)", key)
        if match and match[2]:
            calls.setdefault((int(match[1]), int(match[2])), {})[match[3]] = value
        elif match:
            found.setdefault(int(match[1]), {})[match[3]] = value
    for (message, _), call in sorted(calls.items()):
        found.setdefault(message, {}).setdefault("tool_calls", []).append(call)
    return [found[number] for number in sorted(found)]


def _events(span: Span) -> list[dict[str, Any]]:
    """Messages of events `gen_ai.ROLE.message`."""
    messages = []
    for name, attributes in span.events:
        match = re.fullmatch(r"gen_ai\.(system|user|assistant|tool)\.message", name)
        if match:
            messages.append({"role": match[1], **_spoken(attributes)})
    return messages


def _choices(span: Span) -> list[dict[str, Any]]:
    """Messages of events `gen_ai.choice`."""
    found = [_spoken(attributes) for name, attributes in span.events if name == "gen_ai.choice"]
    return [message["message"] if isinstance(message.get("message"), dict) else message for message in found]


def _spoken(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """An event's attributes without their prefix, from JSON where they are written as such."""
    keys = ("role", "content", "tool_calls", "message")
    named = {key.removeprefix("gen_ai.event."): value for key, value in attributes.items()}
    return {k: v if k == "content" else _from_json(v) for k, v in named.items() if k in keys and v is not None}
