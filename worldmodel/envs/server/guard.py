"""What stands before the application: who may enter, and what may come in. ASGI, without any framework."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from worldmodel.envs.server.wire import object_of
from worldmodel.trajectory import suggest

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY = 2**20
"""Bytes of a request's body, or of a message over a WebSocket."""
PATIENCE = 16
"""Bodies too large by no more than this factor are read to their end, and thrown away."""
BODY_SECONDS = 20.0
"""A request's headers and its body must be there after so long."""
MESSAGES = {"reset": False, "step": True, "state": None, "close": None, "mcp": True}
"""Types of OpenEnv's messages: whether `data` must be there, may be, or (None) must not."""


def check_address(host: str, token: str | None) -> None:
    """`ValueError` unless a token is set or the host is this machine's alone."""
    if token is not None and not token:
        raise ValueError("the token is empty; at least one character is needed")
    if token is None and not is_loopback(host):
        raise ValueError(f"host {host} can be reached from other machines: a token is needed (--token)")


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """Lets pass what has the token, comes from no foreign page, is small enough and arrives in time.

    Everything else is answered with one JSON object, `{"error": ...}`, and a status, or, over a WebSocket, with
    OpenEnv's error message. `GET /health` needs no token. Without a token only names of this machine are served, so
    that no web page can reach the server by a name of its own that points here.

    Args:
      app: an ASGI application.
      token: of `Authorization: Bearer TOKEN`, or the password of `Basic`, which a browser asks for; None: no check.
      idle_seconds: a WebSocket without a message for so long is closed.
      body, body_seconds: most bytes of a body, and seconds in which it arrives.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        *,
        token: str | None = None,
        idle_seconds: float = 1800.0,
        body: int = BODY,
        body_seconds: float = BODY_SECONDS,
    ):
        self._app, self._token, self._idle = app, token, idle_seconds
        self._body, self._body_seconds = body, body_seconds

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if scope["type"] == "websocket":
            await (self._websocket(scope, receive, send) if refusal is None else _deny(scope, send, *refusal))
        else:
            await (self._http(scope, receive, send) if refusal is None else _reply(send, *refusal))

    def _refusal(self, scope: Message, headers: Mapping[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/health":
            return None
        if self._token is None and not is_loopback(_PORT.sub("", host)):
            return 403, f"host {host!r} is not a name of this machine, and only those are served without a token"
        if "origin" in headers and urlsplit(headers["origin"]).netloc != host:
            return 403, f"pages of {headers['origin']!r} may not use this server"
        if self._token is not None and not _has_token(headers.get("authorization", ""), self._token):
            return 401, "a token is needed: the header 'Authorization: Bearer TOKEN'"
        return None

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            body = await asyncio.wait_for(self._read(receive), self._body_seconds)
        except TimeoutError:
            await _reply(send, 408, f"the body did not arrive within {self._body_seconds:g} s")
            return
        if body is None:
            await _reply(send, 413, f"the body has more than the {self._body} bytes that are allowed")
            return
        if scope["method"] == "POST" and scope["path"] in ("/reset", "/step") and body:
            try:
                object_of(body, "the body")
            except ValueError as error:
                await _reply(send, 422, str(error))
                return
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body; None where it is too large.

        What is too large by far is not waited for; of the rest the end is, or its sender would not hear the answer.
        """
        parts, size = [], 0
        while True:
            message = await receive()
            size += len(message.get("body", b""))
            if size <= self._body:
                parts.append(message.get("body", b""))
            if not message.get("more_body", False) or size > PATIENCE * self._body:  # the client may also have gone
                return b"".join(parts) if size <= self._body else None

    async def _websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        closed = False

        async def hear() -> Message:
            nonlocal closed
            while True:
                try:
                    message = await asyncio.wait_for(receive(), self._idle)
                except TimeoutError:
                    await send({"type": "websocket.close", "code": 1001, "reason": f"no message for {self._idle:g} s"})
                    closed = True
                    return {"type": "websocket.disconnect", "code": 1001}
                if message["type"] != "websocket.receive" or scope["path"] not in ("/ws", "/mcp"):
                    return message
                try:
                    check_message(message.get("text"), envelope=scope["path"] == "/ws")
                    return message
                except ValueError as error:
                    await send({"type": "websocket.send", "text": _error_message(str(error))})

        async def say(message: Message) -> None:
            if not closed:
                await send(message)

        await self._app(scope, hear, say)


def check_message(text: str | None, *, envelope: bool) -> None:
    """`ValueError` unless a WebSocket's message is a JSON object; with `envelope`, one that OpenEnv's sessions know."""
    if text is None:
        raise ValueError("the message is binary; a JSON object as text is needed")
    message = object_of(text, "the message")
    if not envelope:
        return
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in MESSAGES:
        guess = suggest(kind, MESSAGES) if isinstance(kind, str) else ""
        raise ValueError(f"the message has type {kind!r}; known are {', '.join(MESSAGES)}{guess}")
    allowed = {"type"} if MESSAGES[kind] is None else {"type", "data"}
    for name in message:
        if name not in allowed:
            raise ValueError(f"message {kind!r} has the field {name!r}; allowed are {', '.join(sorted(allowed))}")
    if (MESSAGES[kind] and "data" not in message) or not isinstance(message.get("data", {}), dict):
        raise ValueError(f"message {kind!r} needs 'data', a JSON object")


def _has_token(authorization: str, token: str) -> bool:
    """Whether the header holds the token, in a time that does not tell how much of it is right."""
    scheme, _, rest = authorization.partition(" ")
    given = rest.strip().encode("latin-1")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given, token.encode())


_PORT = re.compile(r":\d*$")


def _error_message(text: str) -> str:
    return json.dumps({"type": "error", "data": {"message": text, "code": "VALIDATION_ERROR"}})


def _response(status: int, text: str, prefix: str = "http.response") -> list[Message]:
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="worldmodel", charset="UTF-8"'))
    if status in (408, 413):  # what of the body is still under way is not read
        headers.append((b"connection", b"close"))
    start = {"type": f"{prefix}.start", "status": status, "headers": headers}
    return [start, {"type": f"{prefix}.body", "body": body}]


async def _reply(send: Send, status: int, text: str) -> None:
    for message in _response(status, text):
        await send(message)


async def _deny(scope: Message, send: Send, status: int, text: str) -> None:
    """Refuses the handshake of a WebSocket, with a status where the server can give one."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008, "reason": text[:120]})
        return
    for message in _response(status, text, "websocket.http.response"):
        await send(message)
