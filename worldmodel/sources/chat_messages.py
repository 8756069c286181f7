"""Messages of a conversation as text: what the environment says (observations), what the agent says (actions).

A message of the agent is its content, then one line for each tool call, so that a text can be read back:

  I look that up.
  <tool_call>{"name": "get_user", "arguments": {"user_id": "mia"}}</tool_call>

Arguments are JSON with sorted keys; arguments that are no JSON object stay the string that the agent wrote. Ids of
calls are left out: they name nothing in the environment.

Messages of one side that follow each other are one text, joined by the line `<next_message>`. A line of a message that
begins as one of these two marks gets a backslash before it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

CALL, CALL_END = "<tool_call>", "</tool_call>"
NEXT = "<next_message>"
SYSTEM, USER, ASSISTANT, TOOL, EXIT = "system", "user", "assistant", "tool", "exit"
ROLES = {
    **{name: name for name in (SYSTEM, USER, ASSISTANT, TOOL, EXIT)},
    "developer": SYSTEM,
    "human": USER,
    "gpt": ASSISTANT,
    "model": ASSISTANT,
    "ai": ASSISTANT,
    "function": TOOL,
    "observation": TOOL,
}
"""What logs call the sides of a conversation."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
_CALLS = ("tool_use", "tool_call", "function_call")
_RESULTS = ("tool_result", "tool_call_response")


@dataclasses.dataclass(frozen=True)
class Call:
    """A tool call; `arguments` is a JSON object, or the string that the agent wrote instead."""

    name: str
    arguments: dict[str, Any] | str


@dataclasses.dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
      role: a value of `ROLES`.
      texts: what is said; several where one message carries the results of several tools.
      calls: tool calls of the assistant.
    """

    role: str
    texts: tuple[str, ...]
    calls: tuple[Call, ...] = ()


def message_of(data: Any, where: str) -> Message:
    """A message as OpenAI, Anthropic, ShareGPT and OpenTelemetry log it; `ValueError` names `where`."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: is a {type(data).__name__}; a message is an object with role and content")
    role = data.get("role", data.get("from"))
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"{where}: has the role {role!r}; known are {', '.join(ROLES)}")
    content = next((data[key] for key in ("content", "value", "parts") if data.get(key) is not None), None)
    texts, calls = _read_parts(content if isinstance(content, list) else [content], where)
    logged = data.get("tool_calls") or []
    if not isinstance(logged, list):
        raise ValueError(f"{where}: tool_calls is a {type(logged).__name__}; a list is needed")
    calls.extend(_call_of(call, where) for call in logged)
    if data.get("function_call"):
        calls.append(_call_of(data["function_call"], where))
    return Message(ROLES[role], tuple(texts or [""]), tuple(calls))


def _read_parts(parts: Sequence[Any], where: str) -> tuple[list[str], list[Call]]:
    """Texts and calls of a content; text parts side by side are one text of several lines."""
    texts: list[str] = []
    calls: list[Call] = []
    together = False
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _THOUGHTS or part is None:
            continue
        if kind in _CALLS:
            calls.append(_call_of(part, where))
            continue
        if kind in _RESULTS:
            answer = next((part[key] for key in ("content", "response", "result") if key in part), None)
            texts.append("\n".join(_read_parts(answer if isinstance(answer, list) else [answer], where)[0]))
            together = False
            continue
        if kind in _TEXT_PARTS:
            text = text_of(part.get("text", part.get("content")))
        else:
            text = f"[{kind}]" if isinstance(kind, str) else text_of(part)
        if together:
            texts[-1] += "\n" + text
        else:
            texts.append(text)
        together = True
    return texts, calls


def _call_of(data: Any, where: str) -> Call:
    inner = data.get("function", data) if isinstance(data, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(name, str):
        raise ValueError(f"{where}: a tool call has no name; {{'name': .., 'arguments': ..}} is needed")
    arguments = next((inner[key] for key in ("arguments", "input", "args") if inner.get(key) is not None), {})
    return Call(clean(name), _arguments(arguments))


def _arguments(logged: Any) -> dict[str, Any] | str:
    """Arguments as an object where nothing is lost by that."""
    written = logged if isinstance(logged, str) else None
    try:
        value = json.loads(logged, object_pairs_hook=_unique) if isinstance(logged, str) else logged
        if isinstance(value, dict):
            json.dumps(value, allow_nan=False)
            return plain(value)
    except (ValueError, RecursionError):
        pass
    return clean(written) if written is not None else text_of(logged)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def text_of(value: Any) -> str:
    """A text as it is, nothing as the empty text, any other JSON value as JSON."""
    if value is None:
        return ""
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def texts_of(values: Iterable[Any]) -> list[str]:
    """`text_of` each value."""
    return [value if isinstance(value, str) and value.isascii() else text_of(value) for value in values]


def clean(text: str) -> str:
    """The text, with U+FFFD for halves of surrogate pairs (left where a logger cut a text), which UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain(value: Any) -> Any:
    """A JSON value with every text in it as `clean` leaves it."""
    return json.loads(clean(json.dumps(value, ensure_ascii=False)))


def action_text(content: str, calls: Sequence[Call] = ()) -> str:
    """A message of the agent as text; the inverse of `parse_action`."""
    lines = [_escape(content, CALL)] if content or not calls else []
    for call in calls:
        name = json.dumps(call.name, ensure_ascii=False)
        arguments = json.dumps(call.arguments, ensure_ascii=False, sort_keys=True)
        lines.append(f'{CALL}{{"name": {name}, "arguments": {arguments}}}{CALL_END}')
    return "\n".join(lines)


def parse_action(text: str) -> tuple[str, tuple[Call, ...]]:
    """Content and tool calls of one message; `ValueError` where a call is not written as `action_text` writes it."""
    start = 0 if text.startswith(CALL) else text.find(f"\n{CALL}") + 1
    if not text.startswith(CALL, start):
        return _unescape(text, CALL), ()
    calls = []
    for line in text[start:].split("\n"):
        try:
            if not line.startswith(CALL) or not line.endswith(CALL_END):
                raise ValueError("a call is one line")
            data = json.loads(line[len(CALL) : -len(CALL_END)])
            calls.append(Call(data["name"], data["arguments"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{line[:80]!r} is not a tool call ({error})") from None
    return _unescape(text[: max(start - 1, 0)], CALL), tuple(calls)


def join_messages(texts: Sequence[str]) -> str:
    """Several messages of one side as one text; the inverse of `split_messages` (of none: one empty message)."""
    return f"\n{NEXT}\n".join(_escape(text, NEXT) for text in texts)


def split_messages(text: str) -> list[str]:
    """The messages that `join_messages` joined."""
    return [_unescape(part, NEXT) for part in text.split(f"\n{NEXT}\n")]


def _escape(text: str, mark: str) -> str:
    return re.sub(rf"(?m)^(\\*{mark})", r"\\\1", text) if mark in text else text


def _unescape(text: str, mark: str) -> str:
    return re.sub(rf"(?m)^\\(\\*{mark})", r"\1", text) if mark in text else text


def ids_looked_up(messages: Iterable[Message]) -> list[str]:
    """Ids in the arguments of tool calls, sorted: values of the keys `id`, `.._id` and `.._ids`, at any depth."""
    return sorted({name for m in messages for call in m.calls for name in ids_in(call.arguments, "")})


def ids_in(value: Any, key: str) -> Iterator[str]:
    """Ids in a JSON value that stands under `key`."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from ids_in(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from ids_in(part, key)
    elif isinstance(value, (str, int)) and (key.lower() == "id" or key.lower().endswith(("_id", "_ids"))):
        yield text_of(value)
