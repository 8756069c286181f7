"""A language model behind an endpoint, simulator and policy, against a stub server that fails in every way."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from gymnasium.error import ResetNeeded

from worldmodel.envs.openai_client import ChatClient, Reply
from worldmodel.envs.openai_endpoint import EndpointPolicy, EndpointSimulator, Told
from worldmodel.envs.server.sessions import Sessions
from worldmodel.envs.server.text import TextWorld

Answer = Callable[[Any], None]


class Stub(http.server.BaseHTTPRequestHandler):
    """Answers with what `script` holds next, and remembers what it was asked."""

    script: ClassVar[list[Answer]] = []
    asked: ClassVar[list[dict]] = []
    headers_seen: ClassVar[list[dict]] = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Stub.asked.append({"path": self.path, **body})
        Stub.headers_seen.append(dict(self.headers))
        (Stub.script.pop(0) if Stub.script else say())(self)

    def log_message(self, *args):
        pass

    def send(self, status: int, body: bytes, **headers: str):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


def say(text: Any = None, tokens: tuple | None = (10, 3), finish: str = "stop") -> Answer:
    """A good answer: the text, or how many messages there were."""

    def answer(stub: Stub) -> None:
        content = f"{len(Stub.asked[-1]['messages'])} messages" if text is None else text
        told: dict[str, Any] = {
            "choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": finish}]
        }
        if tokens is not None:
            told["usage"] = dict(zip(("prompt_tokens", "completion_tokens"), tokens, strict=True))
        stub.send(200, json.dumps(told).encode())

    return answer


def fail(status: int, body: str = '{"error": "no"}', **headers: str) -> Answer:
    return lambda stub: stub.send(status, body.encode(), **headers)


def garbage(body: bytes) -> Answer:
    return lambda stub: stub.send(200, body)


def hang(stub: Stub) -> None:
    time.sleep(0.5)


def drip(stub: Stub) -> None:
    """A byte now and then: each of them in time, the whole of them not."""
    stub.send_response(200)
    stub.send_header("Content-Length", "100")
    stub.end_headers()
    for _ in range(8):
        stub.wfile.write(b" ")
        stub.wfile.flush()
        time.sleep(0.08)


def hang_up(stub: Stub) -> None:
    stub.connection.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request, client_address):  # clients that give up are what is tested
            pass

    with Server(("127.0.0.1", 0), Stub) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join(10)


@pytest.fixture
def script(url) -> Callable[..., None]:
    Stub.script, Stub.asked, Stub.headers_seen = [], [], []
    return Stub.script.extend


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def client(url, waits) -> ChatClient:
    return ChatClient(url, "m", timeout=0.3, retries=2, backoff=1.0, sleep=waits.append, price=(2.0, 10.0))


def test_turns_are_a_chat_and_are_counted(script, client):
    script([say("a room"), say("a door"), say("out")])
    read = lambda text: Told(text.upper(), 1.0 if text == "out" else 0.0, text == "out")  # noqa: E731
    env = EndpointSimulator(client, "Simulate: {task} {tools}", opening="Begin.", read=read, tools=[{"name": "go"}])
    assert env.reset(task={"goal": 1}, seed=7)[0] == "A ROOM"
    obs, reward, terminated, truncated, info = env.step("look")
    assert (obs, reward, terminated, truncated) == ("A DOOR", 0.0, False, False)
    assert env.step("go")[:4] == ("OUT", 1.0, True, False)
    with pytest.raises(ResetNeeded, match="after the episode's end"):
        env.step("go")
    last = Stub.asked[-1]
    assert last["path"] == "/v1/chat/completions" and last["model"] == "m" and last["seed"] == 7
    assert [(m["role"], m["content"]) for m in last["messages"]] == [
        ("system", 'Simulate: {"goal": 1} [{"name": "go"}]'),
        ("user", "Begin."),
        ("assistant", "a room"),
        ("user", "look"),
        ("assistant", "a door"),
        ("user", "go"),
    ]
    assert info | {"seconds": 0} == {
        "status": "ok",
        "error": None,
        "attempts": 1,
        "seconds": 0,
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "finish": "stop",
    }
    assert (client.usage.requests, client.usage.prompt_tokens, client.usage.completion_tokens) == (3, 30, 9)
    assert client.cost() == {"cost": pytest.approx((2 * 30 + 10 * 9) / 1e6)}


@pytest.mark.parametrize(
    ("trouble", "status"),
    [
        (fail(429), "http 429"),
        (fail(500, ""), "http 500"),
        (fail(503, "<html>busy</html>"), "http 503"),
        (hang, "timeout"),
        (drip, "timeout"),
        (hang_up, "connection"),
        (garbage(b"<html>"), "garbage"),
        (garbage(b'{"choices": []}'), "garbage"),
        (garbage(b'{"choices": [{"message": "x"}]}'), "garbage"),
        (garbage(b"[" * 100_000), "garbage"),
        (garbage(b"\xff\xfe"), "garbage"),
        (garbage(b"null"), "garbage"),
    ],
)
def test_what_passes_is_tried_again_and_what_does_not_is_data(script, client, waits, trouble, status):
    script([trouble, say("good")])
    env = EndpointSimulator(client, "s")
    env.reset(task="t")
    obs, _, _, truncated, info = env.step("a")
    assert (obs, truncated, info["status"], info["attempts"]) == ("good", False, "ok", 2)
    assert len(waits) == 1 and 0.5 <= waits[0] <= 1.0
    script([trouble] * 3)
    obs, reward, terminated, truncated, info = env.step("b")
    assert (obs, reward, terminated, truncated) == ("", 0.0, False, True)
    assert (info["status"], info["attempts"]) == (status, 3) and info["error"]
    assert 1.0 <= waits[2] <= 2.0, "the wait doubles"
    assert json.loads(json.dumps(info, allow_nan=False)) == info
    assert client.usage.statuses == {"ok": 1, status: 1} and client.usage.failures == 1
    with pytest.raises(ResetNeeded):
        env.step("c")


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422, 302])
def test_what_will_not_pass_is_not_tried_again(script, client, waits, code):
    script([fail(code, '{"error":\n "context too long"}', Location="http://127.0.0.1:9/elsewhere")])
    reply = client.chat([{"role": "user", "content": "x"}])
    assert (reply.text, reply.status, reply.attempts, waits) == (None, f"http {code}", 1, [])
    assert reply.error == '{"error": "context too long"}'


def test_the_endpoint_may_ask_for_time_but_not_for_ever(script, client, waits):
    script([fail(429, Retry_After="7"), fail(429, Retry_After="86400"), say("good")])
    assert client.chat([]).text == "good"
    assert waits == [7.0, 60.0]
    script([fail(429, Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"), fail(429, Retry_After="-3"), say("good")])
    assert client.chat([]).attempts == 3 and all(0.5 <= wait <= 2.0 for wait in waits[2:])


def test_nobody_there_is_data_too(waits):
    client = ChatClient("http://127.0.0.1:9/v1", "m", retries=1, sleep=waits.append)
    reply = client.chat([])
    assert (reply.text, reply.status, reply.attempts) == (None, "connection", 2) and "refused" in str(reply.error)


def test_a_message_without_text_and_one_in_parts(script, client):
    script([say([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), say(3, finish="tool_calls")])
    assert client.chat([]).text == "ab"
    reply = client.chat([])
    assert (reply.text, reply.status, reply.attempts) == (None, "no text", 1) and reply.prompt_tokens == 10


def test_the_budget_is_kept_and_costs_that_cannot_be_known_are_not_made_up(script, url, waits):
    client = ChatClient(url, "m", most_attempts=3, retries=5, sleep=waits.append)
    assert client.cost() == {"cost": None, "why": "no price was given"}
    script([fail(500), say("good"), fail(500)])
    assert [client.chat([]).status for _ in range(3)] == ["ok", "http 500", "budget"]
    assert len(Stub.asked) == client.usage.attempts == 3
    script([say("good", tokens=None)])
    client = ChatClient(url, "m", price=(1.0, 1.0))
    client.chat([])
    assert client.cost() == {"cost": None, "why": "1 replies told no token counts"}


def test_the_key_goes_to_the_endpoint_and_nowhere_else(script, url):
    client = ChatClient(url, "m", api_key="secret-key", temperature=0.5)
    env = EndpointSimulator(client, "s", task="t")
    assert env.reset()[0] == "t"
    env.step("a")
    assert Stub.headers_seen[-1]["Authorization"] == "Bearer secret-key" and Stub.asked[-1]["temperature"] == 0.5
    assert "secret-key" not in json.dumps(env.snapshot()) + repr(vars(client.usage))


def test_an_episode_branches_and_goes_on_from_its_snapshot(script, client):
    env = EndpointSimulator(client, "s", max_steps=3)
    assert env.reset(task="t", prefix=[["look", "a room"]])[0] == "a room"
    assert env.step("a")[0] == "4 messages"
    moment = json.loads(json.dumps(env.snapshot()))
    one, other = env.branch(2)
    assert one.step("b")[3] and other.step("c")[3], "the third step, the prefix counted, is the last"
    assert [m["content"] for m in Stub.asked[-1]["messages"]] == ["s", "look", "a room", "a", "4 messages", "c"]
    assert env.step("d")[3]
    env.restore(moment)
    assert env.step("e")[0] == "6 messages"
    for wrong in ([["a"]], [["a", 1]], ["ab"]):
        with pytest.raises(ValueError, match=r"prefix\[0\] is .*; an .action, observation. pair of texts is needed"):
            env.reset(prefix=wrong)


def test_a_reset_that_fails_is_an_episode_that_was_cut(script, client):
    script([fail(400), say("a room")])
    env = EndpointSimulator(client, "s", opening="Begin.")
    obs, info = env.reset()
    assert obs == "" and info["status"] == "http 400"
    other = EndpointSimulator(client, "s")
    other.restore(json.loads(json.dumps(env.snapshot())))
    for each in (env, other):
        assert each.step("a")[:4] == ("", 0.0, False, True)
    assert len(Stub.asked) == 1, "nothing more was asked"
    assert env.reset()[0] == "a room"


def test_a_policy_hears_observations_and_says_actions(script, client):
    policy = EndpointPolicy(client, "Act. {task}")
    policy.reset("find tea")
    script([say("look"), fail(400)])
    assert policy.act("a room") == "look" and policy.act("a door") == ""
    assert isinstance(policy.last, Reply) and policy.last.status == "http 400"
    assert policy.act("nothing") == "6 messages"
    roles = [(m["role"], m["content"]) for m in Stub.asked[-1]["messages"]]
    assert roles[:3] == [("system", "Act. find tea"), ("user", "a room"), ("assistant", "look")]
    policy.reset()
    assert policy.last is None


def test_what_is_not_allowed_is_named(client, url):
    for base in ("ftp://x/v1", "localhost:80", "http://"):
        with pytest.raises(ValueError, match=r"base_url is .*; one such as"):
            ChatClient(base, "m")
    with pytest.raises(ValueError, match="retries is -1"):
        ChatClient(url, "m", retries=-1)
    with pytest.raises(ValueError, match="max_steps is 0"):
        EndpointSimulator(client, "s", max_steps=0)
    env = EndpointSimulator(client, "s")
    with pytest.raises(ResetNeeded, match="before reset"):
        env.step("a")


def test_it_can_be_served_like_any_text_environment(script, client, tmp_path):
    sessions = Sessions(TextWorld(lambda: EndpointSimulator(client, "s"), "foreign", "m"), tmp_path)
    connection = sessions.connect()
    assert connection.reset({"task": "tea"}).result(10).turn.observation == "tea"
    turn = connection.step("look").result(10).turn
    assert turn.observation == "2 messages" and turn.info["status"] == "ok"
    sessions.close()
