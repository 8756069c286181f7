"""Who may enter, and what may come in: the guard before an application that echoes."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from worldmodel.envs.server.guard import Guard, check_address, check_message


async def echo(scope, receive, send):
    """Answers a body with its length; over a WebSocket every text with itself, until it ends."""
    if scope["type"] == "lifespan":
        await send({"type": "lifespan.startup.complete"})
        return
    if scope["type"] == "http":
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps({"bytes": len(body)}).encode()})
        return
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})
    await send({"type": "websocket.close", "code": 1000})


def scope_of(kind="http", path="/step", method="POST", host="localhost:8000", extensions=None, **headers):
    pairs = [(b"Host", host.encode()), *((name.encode(), value.encode()) for name, value in headers.items())]
    return {"type": kind, "path": path, "method": method, "headers": pairs, "extensions": extensions}


def asked(guard: Guard, scope, *messages, wait: bool = False) -> list:
    """What the guarded application sends when it hears these messages (and then, with `wait`, nothing more)."""

    async def run() -> list:
        sent, waiting = [], list(messages)

        async def receive():
            if not waiting and wait:
                await asyncio.sleep(30)
            return waiting.pop(0)

        async def send(message):
            sent.append(message)

        await asyncio.wait_for(guard(scope, receive, send), 10)
        return sent

    return asyncio.run(run())


def status_of(guard: Guard, scope, *bodies: bytes) -> tuple[int, dict]:
    parts = [{"type": "http.request", "body": body, "more_body": True} for body in bodies[:-1]]
    last = {"type": "http.request", "body": bodies[-1] if bodies else b"", "more_body": False}
    start, body = asked(guard, scope, *parts, last)
    return start["status"], json.loads(body["body"])


def basic(token: str) -> str:
    return f"Basic {base64.b64encode(f'me:{token}'.encode()).decode()}"


@pytest.mark.parametrize(
    ("host", "token", "message"),
    [
        ("0.0.0.0", None, "host 0.0.0.0 can be reached from other machines: a token is needed .--token."),
        ("192.168.0.7", None, "a token is needed"),
        ("::", None, "a token is needed"),
        ("example.org", None, "a token is needed"),
        ("127.0.0.1.example.org", None, "a token is needed"),
        ("127.0.0.1", "", "the token is empty"),
    ],
)
def test_an_address_that_others_reach_needs_a_token(host, token, message):
    with pytest.raises(ValueError, match=message):
        check_address(host, token)


@pytest.mark.parametrize(("host", "token"), [("127.0.0.1", None), ("::1", None), ("localhost", None), ("::", "secret")])
def test_this_machines_own_needs_none(host, token):
    check_address(host, token)


@pytest.mark.parametrize(
    "given",
    [
        None,
        "Bearer wrong",
        "Bearer",
        "secret",
        "Bearer secret2",
        "Bearer  ",
        "Basic secret",
        "Basic !!",
        basic("wrong"),
    ],
)
def test_a_wrong_token_is_401_over_http_and_websocket(given):
    guard = Guard(echo, token="secret")
    headers = {} if given is None else {"Authorization": given}
    status, told = status_of(guard, scope_of(host="example.org", **headers), b"{}")
    assert status == 401 and told == {"error": "a token is needed: the header 'Authorization: Bearer TOKEN'"}
    socket = scope_of("websocket", "/ws", **headers)
    assert asked(guard, socket) == [{"type": "websocket.close", "code": 1008, "reason": told["error"]}]
    socket["extensions"] = {"websocket.http.response": {}}
    start, body = asked(guard, socket)
    assert start["type"] == "websocket.http.response.start" and start["status"] == 401
    assert (b"www-authenticate", b'Basic realm="worldmodel", charset="UTF-8"') in start["headers"]
    assert json.loads(body["body"]) == told


@pytest.mark.parametrize("given", ["Bearer sécret", "bearer sécret", basic("sécret")])
def test_the_right_token_enters(given):
    scope = scope_of(host="example.org")
    scope["headers"].append((b"authorization", given.encode("utf-8")))
    assert status_of(Guard(echo, token="sécret"), scope, b"{}") == (200, {"bytes": 2})


def test_health_needs_none():
    assert status_of(Guard(echo, token="secret"), scope_of(path="/health", method="GET"))[0] == 200
    assert status_of(Guard(echo, token="secret"), scope_of(path="/health", method="POST"))[0] == 401


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "[::1]:8000", "LOCALHOST:1"])
def test_without_a_token_only_names_of_this_machine_are_served(host):
    assert status_of(Guard(echo), scope_of(host=host), b"{}")[0] == 200
    status, told = status_of(Guard(echo), scope_of(host=f"evil.{host}"), b"{}")
    assert status == 403 and "is not a name of this machine" in told["error"]


def test_pages_of_others_are_refused_and_ones_own_are_not():
    scope = scope_of(Origin="http://evil.example")
    assert status_of(Guard(echo), scope, b"{}") == (
        403,
        {"error": "pages of 'http://evil.example' may not use this server"},
    )
    assert status_of(Guard(echo), scope_of(Origin="http://localhost:8000"), b"{}")[0] == 200
    assert status_of(Guard(echo), scope_of(Origin="null"), b"{}")[0] == 403


def test_bodies_are_bounded_in_size_and_in_time():
    guard = Guard(echo, body=10, body_seconds=0.1)
    assert status_of(guard, scope_of(path="/web"), b"x" * 10) == (200, {"bytes": 10})
    wanted = 413, {"error": "the body has more than the 10 bytes that are allowed"}
    assert status_of(guard, scope_of(), b"x" * 11) == wanted
    assert status_of(guard, scope_of(), *[b"x"] * 11) == wanted
    start, _ = asked(guard, scope_of(), *[{"type": "http.request", "body": b"x" * 10, "more_body": True}] * 17)
    assert start["status"] == 413 and (b"connection", b"close") in start["headers"], "it is not read without end"
    slow = {"type": "http.request", "body": b"x", "more_body": True}
    start, body = asked(guard, scope_of(), slow, wait=True)
    assert start["status"] == 408 and json.loads(body["body"]) == {"error": "the body did not arrive within 0.1 s"}


def test_a_body_that_is_no_object_is_named():
    for body, message in ((b"[1]", "the body is a JSON list"), (b"{", "the body is not JSON"), (b"[" * 9999, "deeply")):
        status, told = status_of(Guard(echo), scope_of(path="/reset"), body)
        assert status == 422 and message in told["error"]
    assert status_of(Guard(echo), scope_of(path="/reset"))[0] == 200, "a reset needs no body"


def heard(text, **more):
    return {"type": "websocket.receive", "text": text, **more}


def test_messages_that_are_none_are_answered_and_the_session_goes_on():
    good = '{"type": "state"}'
    bad = ["[1]", "{", "x", "", '{"type": "stop"}']
    messages = [heard(text) for text in (*bad, good)]
    binary = {"type": "websocket.receive", "bytes": b"{}"}
    leaves = {"type": "websocket.disconnect", "code": 1000}
    sent = asked(Guard(echo), scope_of("websocket", "/ws"), {"type": "websocket.connect"}, *messages, binary, leaves)
    told = [json.loads(message["text"]) for message in sent if message["type"] == "websocket.send"]
    assert [one["type"] for one in told] == [*["error"] * 5, "state", "error"]
    assert all(one["data"]["code"] == "VALIDATION_ERROR" for one in told if one["type"] == "error")
    assert "(did you mean 'step'?)" in told[4]["data"]["message"]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"type": "stp"}, "the message has type 'stp'; known are reset, step, state, close, mcp .did you mean 'step'"),
        ({}, "the message has type None"),
        ({"type": [1]}, "the message has type"),
        ({"type": "step"}, "message 'step' needs 'data', a JSON object"),
        ({"type": "step", "data": [1]}, "message 'step' needs 'data', a JSON object"),
        ({"type": "reset", "data": None}, "message 'reset' needs 'data', a JSON object"),
        ({"type": "step", "action": 1}, "message 'step' has the field 'action'; allowed are data, type"),
        ({"type": "state", "data": {}}, "message 'state' has the field 'data'; allowed are type"),
    ],
)
def test_envelopes_say_what_is_allowed(message, error):
    with pytest.raises(ValueError, match=error):
        check_message(json.dumps(message), envelope=True)
    if message:
        check_message(json.dumps(message), envelope=False)
    check_message('{"type": "reset"}', envelope=True)


def test_a_silent_websocket_is_closed_and_the_application_told():
    sent = asked(Guard(echo, idle_seconds=0.1), scope_of("websocket", "/ws"), {"type": "websocket.connect"}, wait=True)
    assert sent == [
        {"type": "websocket.accept"},
        {"type": "websocket.close", "code": 1001, "reason": "no message for 0.1 s"},
    ]


def test_the_lifespan_passes():
    assert asked(Guard(echo, token="secret"), {"type": "lifespan"}) == [{"type": "lifespan.startup.complete"}]
