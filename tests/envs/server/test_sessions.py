"""Sessions: nothing crosses between them, they are bounded, they end, and they outlive the server."""

from __future__ import annotations

import concurrent.futures
import os
import random
import stat
import time

import pytest
from gymnasium.error import ResetNeeded

from tests.envs.server.worlds import Counting
from worldmodel.envs.server.session import Refused
from worldmodel.envs.server.sessions import ASLEEP, Sessions


@pytest.fixture
def world():
    return Counting()


@pytest.fixture
def sessions(world, tmp_path):
    made = Sessions(world, tmp_path / "kept", most=3, idle_seconds=60.0)
    yield made
    world.gate.set()
    made.close()


def reset(connection, **options):
    return connection.reset(options).result(10)


def step(connection, action, session=None):
    return connection.step(action, session).result(10)


def test_a_session_counts_its_steps_and_ends(sessions):
    connection = sessions.connect()
    assert connection.look() is None
    first = reset(connection, seed=7, episode_id="mine")
    assert (first.turn.observation, first.steps, first.episode_id, first.resumed) == ([7, 0], 0, "mine", False)
    for _ in range(5):
        last = step(connection, 10)
    assert last.turn.observation == [57, 5] and last.steps == 5 and last.turn.over and last.episode_id == "mine"
    assert connection.look() == last._replace(resumed=True)
    with pytest.raises(ResetNeeded, match="after the episode's end; call reset first"):
        connection.step(1)
    again = reset(connection)
    assert again.session == first.session and again.steps == 0 and again.episode_id != "mine"


def test_what_is_not_allowed_is_named(sessions):
    connection = sessions.connect()
    with pytest.raises(ResetNeeded, match="step was called before reset"):
        connection.step(1)
    for options, message in (
        ({"episode_id": ""}, "reset option 'episode_id' must be a string of 1 to 255 characters"),
        ({"episode_id": 3}, "reset option 'episode_id' must be a string"),
        ({"session": "x" * 22, "seed": 1}, "reset option 'session' excludes every other"),
        ({"session": "x" * 22}, "no such session: it never was, or was forgotten"),
        ({"session": 3}, "no such session"),
        ({"session": "../../../etc/passwd"}, "no such session"),
        ({"session": "."}, "no such session"),
    ):
        with pytest.raises(ValueError, match=message):
            connection.reset(options)
    reset(connection)
    with pytest.raises(ValueError, match="action is 'a'; an integer is needed"):
        connection.step("a")
    for arguments, message in (({"most": 0}, "max_sessions is 0"), ({"idle_seconds": 0.0}, "idle_seconds is 0.0")):
        with pytest.raises(ValueError, match=message):
            Sessions(Counting(), sessions._store._folder / "other", **arguments)


def test_no_more_sessions_are_open_than_allowed_and_one_that_leaves_makes_room(sessions):
    connections = [sessions.connect() for _ in range(4)]
    for connection in connections[:3]:
        reset(connection)
    with pytest.raises(Refused, match="3 sessions are open, the most this server allows") as refused:
        reset(connections[3])
    assert refused.value.status == 503 and len(sessions) == 3
    connections[0].close()
    connections[0].close()
    assert reset(connections[3]).steps == 0 and len(sessions) == 3


def test_a_session_goes_on_over_another_connection_which_takes_it_from_the_first(sessions):
    first, second = sessions.connect(), sessions.connect()
    key = reset(first, seed=1).session
    step(first, 1)
    taken = reset(second, session=key)
    assert taken.resumed and taken.turn.observation == [2, 1] and taken.steps == 1
    with pytest.raises(Refused, match="taken over by another connection") as refused:
        first.step(1)
    assert refused.value.status == 409
    first.close()  # must not put the other's session to sleep
    assert step(second, 1).turn.observation == [3, 2]
    assert reset(first, seed=5).session != key, "a reset after that is a session of its own"
    second.close()
    assert len(sessions) == 1
    assert step(sessions.connect(), 1, key).turn.observation == [4, 3], "asleep, it is woken by its key"


def test_one_request_at_a_time_for_a_session_and_leaving_meanwhile_loses_nothing(sessions, world):
    connection = sessions.connect()
    key = reset(connection, seed=0).session
    world.gate.clear()
    future = connection.step(1)
    with pytest.raises(Refused, match="still under way; wait for its answer"):
        connection.step(1)
    connection.close()
    other = sessions.connect()
    other.take(key)
    with pytest.raises(Refused, match="still under way"):
        other.step(1)
    world.gate.set()
    assert future.result(10).steps == 1
    assert step(other, 1).steps == 2
    world.gate.clear()
    future = other.step(1)
    other.close()
    assert len(sessions) == 1
    world.gate.set()
    future.result(10)
    assert wait_for(lambda: len(sessions) == 0), "it left when its step was done"


def wait_for(condition) -> bool:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_concurrent_sessions_are_stepped_together_and_nothing_crosses(tmp_path):
    world = Counting()
    sessions = Sessions(world, tmp_path, most=24)

    def play(number: int) -> None:
        rng, connection = random.Random(number), sessions.connect()
        for _ in range(10):
            value = 1000 * number
            reset(connection, seed=value)
            for t in range(1, 6):
                action = rng.randrange(14, 100)
                value += action
                assert step(connection, action).turn.observation == [value, t]
        connection.close()

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        list(pool.map(play, range(24)))
    sessions.close()
    assert sum(world.calls) == 24 * 50 and max(world.calls) == world.most


def test_a_call_that_fails_leaves_its_sessions_where_they_stood(sessions):
    connection = sessions.connect()
    reset(connection, seed=0)
    with pytest.raises(RuntimeError, match="broken"):
        step(connection, 13)
    assert step(connection, 1).turn.observation == [1, 1]


def test_what_cannot_be_kept_is_not_told(sessions, tmp_path):
    connection = sessions.connect()
    key = reset(connection, seed=0).session
    (tmp_path / "kept" / "full").touch()
    with pytest.raises(OSError, match=r"could not be kept .No space left on device.; reset with its key"):
        step(connection, 5)
    (tmp_path / "kept" / "full").unlink()
    with pytest.raises(Refused, match="the session is closed"):
        connection.step(5)
    assert reset(connection, session=key).turn.observation == [0, 0]
    assert step(connection, 5).turn.observation == [5, 1]


def test_what_one_session_cannot_keep_is_no_matter_to_others_of_its_call(sessions, world, monkeypatch):
    connections = [sessions.connect() for _ in range(3)]
    keys = [reset(connection, seed=number).session for number, connection in enumerate(connections)]
    real = world.save

    def save(episode, note, path):
        if path.stem == keys[1]:
            raise TypeError("not JSON")
        real(episode, note, path)

    monkeypatch.setattr(world, "save", save)
    world.gate.clear()
    futures = [connection.step(1) for connection in connections]
    world.gate.set()
    assert [futures[i].result(10).turn.observation for i in (0, 2)] == [[1, 1], [3, 1]]
    with pytest.raises(TypeError, match="not JSON"):
        futures[1].result(10)


def test_an_idle_session_is_forgotten_open_or_asleep(world, tmp_path):
    sessions = Sessions(world, tmp_path, most=3, idle_seconds=0.2)
    idle, asleep = sessions.connect(), sessions.connect()
    reset(idle)
    key = reset(asleep).session
    asleep.close()
    assert wait_for(lambda: len(sessions) == 0 and not list(tmp_path.glob("*.json")))
    with pytest.raises(Refused, match=r"the session is closed, as after 0.2 s without use; call reset"):
        idle.step(1)
    with pytest.raises(Refused, match="no such session"):
        reset(asleep, session=key)
    assert reset(idle).steps == 0
    sessions.close()


def test_the_disk_is_bounded_too(world, tmp_path):
    sessions = Sessions(world, tmp_path, most=2, idle_seconds=3600.0)
    keys = []
    for _ in range(2 * ASLEEP + 10):
        connection = sessions.connect()
        keys.append(reset(connection).session)
        connection.close()
    assert wait_for(lambda: len(list(tmp_path.glob("*.json"))) <= 2 * ASLEEP + 2)
    sessions.sweep()
    assert len(sessions._store.keys()) <= 2 * ASLEEP
    assert reset(sessions.connect(), session=keys[-1]).steps == 0, "the last are kept"
    sessions.close()


def test_sessions_outlive_the_server_and_only_one_server_has_them(world, tmp_path):
    sessions = Sessions(world, tmp_path / "kept")
    connection = sessions.connect()
    reset(connection, seed=3, episode_id="e")
    last = step(connection, 4)
    with pytest.raises(ValueError, match=f"another writer .process {os.getpid()}. is at work here"):
        Sessions(world, tmp_path / "kept")
    sessions.close()
    sessions.close()
    with pytest.raises(ValueError, match="the server is closing"):
        connection.step(1)
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    again = Sessions(world, tmp_path / "kept")
    other = again.connect()
    assert reset(other, session=last.session) == last._replace(resumed=True)
    assert step(other, 1).turn.observation == [8, 2]
    (tmp_path / "kept" / f"{'a' * 22}.json").write_text("[[0, 0], {}]")
    with pytest.raises(Refused, match="cannot go on: its file is no session"):
        reset(again.connect(), session="a" * 22)
    (tmp_path / "kept" / f"{'b' * 22}.json").write_text("{")
    with pytest.raises(Refused, match="the session cannot go on: "):
        reset(again.connect(), session="b" * 22)
    again.close()
