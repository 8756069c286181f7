"""The server as its clients see it: OpenEnv's own client, plain HTTP, and sockets that misbehave."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openenv", reason="openenv is missing: pip install 'worldmodel[serve]'")

from openenv.core import GenericEnvClient

from tests.envs.server.worlds import Counting, Remembering
from tests.support import untrained_model, untrained_run
from worldmodel.envs.gymnasium import SimEnv
from worldmodel.envs.server.app import listen, make_server
from worldmodel.envs.server.sessions import Sessions
from worldmodel.envs.server.text import TextWorld

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def served(world, folder: Path, *, most: int = 64, idle_seconds: float = 60.0, **options) -> Iterator[str]:
    """A server in this process, in a thread; its address."""
    sessions = Sessions(world, folder, most=most, idle_seconds=idle_seconds)
    server, listening = make_server(sessions, **options), listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    end = time.monotonic() + 20
    while not server.started and time.monotonic() < end:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        sessions.close()
        listening.close()
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def counting(tmp_path_factory) -> Iterator[str]:
    with served(Counting(), tmp_path_factory.mktemp("counting")) as url:
        yield url


def client(url: str, **headers: str):
    return GenericEnvClient(base_url=url, headers=headers or None).sync()


def asked(url: str, data=None, **headers: str) -> tuple[int, dict]:
    body = None if data is None else data if isinstance(data, bytes) else json.dumps(data).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_client_plays_and_is_told_everything(counting):
    with client(counting) as env:
        first = env.reset(seed=3, episode_id="mine")
        assert first.observation["observation"] == [3, 0] and first.reward is None and not first.done
        for t in range(1, 6):
            last = env.step({"action": 2})
            assert last.observation["observation"] == [3 + 2 * t, t] and last.reward == 1.0
        assert last.done and last.observation["terminated"] and not last.observation["truncated"]
        key = first.metadata["session"]
        assert last.metadata == {"session": key, "episode_id": "mine", "steps": 5, "resumed": False}
        wanted = {"episode_id": "mine", "step_count": 5, "session": key, "terminated": True, "truncated": False}
        assert env.state() == wanted


def test_errors_say_what_is_allowed_and_the_session_goes_on(counting):
    with client(counting) as env:
        for action, message in (
            ({"action": 1}, "step was called before reset"),
            ({"act": 1}, "an action is an object with the key 'action', not one with: act"),
            ({}, "an action is an object with the key 'action', not one with: nothing"),
        ):
            with pytest.raises(RuntimeError, match=message):
                env.step(action)
        env.reset(seed=0)
        with pytest.raises(RuntimeError, match="action is 'x'; an integer is needed"):
            env.step({"action": "x"})
        with pytest.raises(RuntimeError, match=r"Server error: the server failed; its log says why .code"):
            env.step({"action": 13})  # "broken" stays on the server
        with pytest.raises(RuntimeError, match="no such session"):
            env.reset(session="../../../etc/passwd")
        assert env.step({"action": 1}).observation["observation"] == [1, 1]


def test_broken_messages_are_answered_and_the_session_goes_on(counting):
    from websockets.sync.client import connect

    with connect(counting.replace("http", "ws") + "/ws") as ws:

        def say(text):
            ws.send(text)
            return json.loads(ws.recv(10))

        assert say('{"type": "reset", "data": {"seed": 1}}')["type"] == "observation"
        for text in ("[1]", "{", "null", b"\x00", '{"type": "jump"}', '{"type": "step"}', "[" * 50_000):
            told = say(text)
            assert told["type"] == "error" and told["data"]["code"] == "VALIDATION_ERROR"
        assert say('{"type": "step", "data": {"action": 1}}')["data"]["observation"]["observation"] == [2, 1]
        ws.send("x" * (2**20 + 1))
        with pytest.raises(Exception, match="1009"):
            ws.recv(10)


def test_over_plain_http_a_step_names_its_session(counting):
    status, first = asked(f"{counting}/reset", {"seed": 5})
    assert status == 200 and first["observation"]["observation"] == [5, 0]
    step = {"action": {"action": 1}, "session": first["metadata"]["session"]}
    for t in (1, 2):
        status, told = asked(f"{counting}/step", step)
        assert status == 200 and told["observation"]["observation"] == [5 + t, t]
    for path, data, wanted, message in (
        ("step", {"action": {"action": 1}}, 409, "over HTTP a step names the session that reset told"),
        ("step", {**step, "session": "x"}, 404, "no such session"),
        ("step", {**step, "action": {"action": "x"}}, 422, "an integer is needed"),
        ("step", {**step, "action": {"action": 13}}, 500, "the server failed; its log says why"),
        ("step", {**step, "action": 3}, 422, "the body is not as it should be: body.action: .* valid dictionary"),
        ("step", [1], 422, "the body is a JSON list"),
        ("step", b"{", 422, "the body is not JSON"),
        ("reset", b"x" * 2**21, 413, "the body has more than the 1048576 bytes"),
        ("reset", {"seed": -1}, 422, "body.seed: Input should be greater than or equal to 0"),
    ):
        status, told = asked(f"{counting}/{path}", data)
        assert status == wanted and set(told) == {"error"}
        assert re.search(message, told["error"])


@pytest.mark.parametrize("path", ["../../etc/passwd", "..%2f..%2fetc/passwd", "web/../../../etc/passwd", "%2e%2e/x"])
def test_paths_lead_nowhere(counting, path):
    assert asked(f"{counting}/{path}")[0] == 404


def test_what_an_action_is_can_be_read(counting):
    told = asked(f"{counting}/schema")[1]
    assert told["action"]["properties"]["action"] == {"type": "integer", "title": "Action"}
    assert told["action"]["required"] == ["action"] and {"session"} <= set(told["state"]["properties"])
    assert asked(f"{counting}/metadata")[1]["description"] == "counts"
    assert asked(f"{counting}/health") == (200, {"status": "healthy"})


def test_a_wrong_token_is_401_and_the_right_one_enters(tmp_path):
    with served(Counting(), tmp_path, token="secret") as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert asked(f"{url}/reset", {}, **headers)[0] == 401
            with pytest.raises(ConnectionError, match="401"):
                client(url, **headers).reset()
        with client(url, Authorization="Bearer secret") as env:
            assert env.reset(seed=2).observation["observation"] == [2, 0]
        basic = base64.b64encode(b"any:secret").decode()
        assert asked(f"{url}/reset", {}, Authorization=f"Basic {basic}")[0] == 200


def test_sessions_are_limited(tmp_path):
    with served(Counting(), tmp_path, most=2) as url, client(url) as one, client(url) as two:
        one.reset()
        two.reset()
        with pytest.raises(RuntimeError, match="capacity: 2/2"), client(url) as three:
            three.reset()
        status, told = asked(f"{url}/reset", {})
        assert status == 503 and "2 sessions are open, the most this server allows" in told["error"]
        one.close()
        end = time.monotonic() + 10
        while asked(f"{url}/reset", {})[0] != 200:
            assert time.monotonic() < end, "a session that was left makes room"


def test_slow_and_silent_clients_are_let_go(tmp_path):
    def talk(url: str, *said: bytes) -> bytes:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            for part in said:
                raw.sendall(part)
            return raw.recv(65536)

    with served(Counting(), tmp_path, body_seconds=0.3, idle_seconds=1.0) as url:
        assert talk(url) == b"", "nothing was said"
        assert talk(url, b"POST /reset HTTP/1.1\r\nHost: loc") == b"", "a header that does not end"
        half = b"POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
        assert talk(url, half).startswith(b"HTTP/1.1 408")
        from websockets.sync.client import connect

        with connect(url.replace("http", "ws") + "/ws") as ws, pytest.raises(Exception, match="1001"):
            ws.recv(10)
        assert asked(f"{url}/health")[0] == 200


def test_texts_are_served_the_same_way(tmp_path):
    with served(TextWorld(Remembering, "shop", "model-1"), tmp_path) as url, client(url) as env:
        assert env.reset(task="tea").observation["observation"] == "task: tea, seed: None"
        turn = env.step({"action": "look 茶"})
        assert turn.observation["observation"] == "1: look 茶" and turn.reward == 0.5
        with pytest.raises(RuntimeError, match="action is no valid Unicode"):
            env.step({"action": "\ud800"})
        with pytest.raises(RuntimeError, match="action is a int; a string is needed"):
            env.step({"action": 1})


# --- A real model in a process of its own -----------------------------------------------------------------------------


class Process:
    """`worldmodel serve` of a run, started and killed."""

    def __init__(self, run: Path):
        words = ["serve", str(run), "--port", "0", "--json", "--max-sessions", "70"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "worldmodel.cli", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.told = json.loads(self.process.stdout.readline())
        self.url = self.told["url"]

    def end(self, how: signal.Signals) -> int:
        os.kill(self.process.pid, how)
        return self.process.wait(30)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return untrained_run(tmp_path_factory.mktemp("runs") / "cartpole")


@pytest.fixture(scope="module")
def model(run) -> Iterator[Process]:
    started = Process(run)
    yield started
    assert started.end(signal.SIGINT) == 0


def alone(seed: int, steps: int) -> list[tuple]:
    """What `SimEnv` tells with this seed, up to an end; actions are a function of the step."""
    env = SimEnv(untrained_model())
    told = [(env.reset(seed=seed)[0].tolist(), None, False)]
    for t in range(steps):
        obs, reward, terminated, truncated, _ = env.step((seed + t) % 2)
        told.append((obs.tolist(), reward, terminated or truncated))
        if terminated or truncated:
            break
    return told


def row(result) -> tuple:
    return result.observation["observation"], result.reward, result.done


def test_a_hundred_episodes_of_the_client_are_those_of_the_environment(model):
    with client(model.url) as env:
        for seed in range(100):
            told = [row(env.reset(seed=seed))]
            while not told[-1][2] and len(told) <= 25:
                told.append(row(env.step({"action": (seed + len(told) - 1) % 2})))
            assert told == alone(seed, 25)


async def play(url: str, seeds: range, steps: int) -> dict[int, list[tuple]]:
    seen = {}
    async with GenericEnvClient(base_url=url) as env:
        for seed in seeds:
            seen[seed] = [row(await env.reset(seed=seed))]
            while not seen[seed][-1][2] and len(seen[seed]) <= steps:
                seen[seed].append(row(await env.step({"action": (seed + len(seen[seed]) - 1) % 2})))
    return seen


def together(url: str, parts: list[range], steps: int) -> dict[int, list[tuple]]:
    async def all_of_them():
        return await asyncio.gather(*(play(url, part, steps) for part in parts))

    return {seed: told for seen in asyncio.run(all_of_them()) for seed, told in seen.items()}


def test_a_hundred_episodes_of_ten_async_clients_are_too(model):
    seen = together(model.url, [range(i, i + 10) for i in range(0, 100, 10)], 25)
    assert seen == {seed: alone(seed, 25) for seed in range(100)}


def test_sixty_four_sessions_at_a_time_do_not_cross(model):
    seen = together(model.url, [range(seed, seed + 1) for seed in range(1000, 1064)], 12)
    assert seen == {seed: alone(seed, 12) for seed in range(1000, 1064)}


def test_a_killed_server_goes_on_with_its_sessions(run, tmp_path):
    mine = tmp_path / "run"
    subprocess.run(["cp", "-R", str(run), str(mine)], check=True)
    subprocess.run(["rm", "-rf", str(mine / "sessions")], check=True)
    first = Process(mine)
    wanted = {seed: alone(seed, 20) for seed in range(8)}
    keys, seen = {}, {}
    for seed in range(8):
        with client(first.url) as env:
            start = env.reset(seed=seed)
            keys[seed], seen[seed] = start.metadata["session"], [row(start)]
            while len(seen[seed]) <= seed and not seen[seed][-1][2]:
                seen[seed].append(row(env.step({"action": (seed + len(seen[seed]) - 1) % 2})))
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    second = Process(mine)
    for seed, key in keys.items():
        with client(second.url) as env:
            again = env.reset(session=key)
            assert again.metadata["resumed"] and again.metadata["steps"] == len(seen[seed]) - 1
            assert row(again) == seen[seed][-1]
            while not seen[seed][-1][2] and len(seen[seed]) <= 20:
                seen[seed].append(row(env.step({"action": (seed + len(seen[seed]) - 1) % 2})))
    assert seen == wanted
    second.end(signal.SIGTERM)


def test_numbers_that_are_none_are_refused_by_a_real_model(tmp_path):
    from worldmodel.envs.server.numeric import NumericWorld

    with served(NumericWorld(untrained_model("Pendulum-v1")), tmp_path) as url, client(url) as env:
        env.reset(seed=0)
        for action, message in (
            ([float("nan")], "action is .nan.; every value must be finite"),
            ([7.0], r"action is .7\..; it must lie in -2.0..2.0"),
            ([0.0, 0.0], r"action has shape .2,.; .1,. is needed"),
            (None, "action has dtype object; real numbers are needed"),
        ):
            with pytest.raises(RuntimeError, match=message):
                env.step({"action": action})
        assert np.isfinite(env.step({"action": [0.5]}).reward)


def test_the_page_draws_the_observation_and_has_a_button_for_each_action(tmp_path):
    from worldmodel.envs.server.numeric import NumericWorld

    with served(NumericWorld(untrained_model()), tmp_path, web=True) as url:
        with urllib.request.urlopen(f"{url}/web/", timeout=20) as reply:
            assert reply.status == 200 and b"CartPole-v1" in reply.read()
        status, told = asked(f"{url}/web/reset", {})
        assert status == 200 and len(told["observation"]["observation"]) == 4
        assert asked(f"{url}/web/step", {"action": {"action": 1}})[1]["reward"] == 1.0
        assert asked(f"{url}/web/gradio_api/file=/etc/passwd")[0] in (403, 404)
