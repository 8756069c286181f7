"""Texts as a world to serve, with a stand-in for the environment."""

from __future__ import annotations

import pytest

from tests.envs.server.worlds import Remembering
from worldmodel.envs.server.session import Refused
from worldmodel.envs.server.sessions import Sessions
from worldmodel.envs.server.text import TextWorld


@pytest.fixture
def sessions(tmp_path):
    made = Sessions(TextWorld(Remembering, "shop", "model-1"), tmp_path / "kept", most=2)
    yield made
    made.close()


def test_turns_are_texts_and_outlive_the_server(sessions, tmp_path):
    made, closed = Remembering.made, Remembering.closed
    connection, other = sessions.connect(), sessions.connect()
    first = connection.reset({"task": {"buy": "tea"}, "seed": 3}).result(10)
    assert first.turn.observation == "task: {'buy': 'tea'}, seed: 3" and first.turn.info == {"tokens": 3}
    other.reset({"prefix": ["earlier"]}).result(10)
    turn = connection.step("look é 茶").result(10).turn
    assert turn == ("1: look é 茶", 0.5, False, False, {"log_prob": None})
    assert other.step("look").result(10).turn.observation == "2: look"
    key = connection.key
    assert Remembering.made == made + 2
    connection.close()
    other.close()
    assert Remembering.closed == closed + 2
    sessions.close()
    again = Sessions(TextWorld(Remembering, "shop", "model-1"), tmp_path / "kept")
    connection = again.connect()
    assert connection.reset({"session": key}).result(10).turn == turn
    assert connection.step("done").result(10).turn.observation == "2: done"
    assert connection.look().turn.terminated
    again.close()
    strangers = Sessions(TextWorld(Remembering, "shop", "model-2"), tmp_path / "kept")
    with pytest.raises(Refused, match="the session cannot go on: it is of another world model"):
        strangers.connect().reset({"session": key})
    (tmp_path / "kept" / f"{key}.json").write_text("[]")
    with pytest.raises(Refused, match="the session cannot go on: its file is no session"):
        strangers.connect().reset({"session": key})
    strangers.close()


def test_a_turn_that_fails_did_not_happen(sessions):
    connection = sessions.connect()
    connection.reset().result(10)
    connection.step("a").result(10)
    with pytest.raises(RuntimeError, match="secret detail"):
        connection.step("break").result(10)
    assert connection.step("b").result(10).turn.observation == "2: b"
    with pytest.raises(ValueError, match="tasks are possible"):
        connection.reset({"task": "impossible"}).result(10)
    assert connection.step("c").result(10).turn.observation == "3: c"
    closed, other = Remembering.closed, sessions.connect()
    with pytest.raises(ValueError, match="tasks are possible"):
        other.reset({"task": "impossible"}).result(10)
    assert Remembering.closed == closed + 1 and len(sessions) == 1
    assert other.reset({"task": "possible"}).result(10).steps == 0


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (3, "action is a int; a string is needed"),
        (None, "action is a NoneType; a string is needed"),
        ("x" * 11, "action has 11 characters; 10 are allowed"),
        ("\ud800", "action is no valid Unicode"),
    ],
)
def test_what_is_no_action_is_named(action, message):
    with pytest.raises(ValueError, match=message):
        TextWorld(Remembering, "shop", "model-1", longest=10).check_action(action)


def test_reset_options_of_texts():
    world = TextWorld(Remembering, "shop", "model-1")
    with pytest.raises(ValueError, match=r"reset option 'start' is not known; known are seed, .*, task, prefix"):
        world.check_reset({"start": 1})
    with pytest.raises(ValueError, match="reset option 'seed' is 'a'"):
        world.check_reset({"seed": "a"})


def test_a_trained_model_of_texts_is_served(text_run, tmp_path):
    from worldmodel.cli.serve import _world
    from worldmodel.envs.text import TextEnv
    from worldmodel.training.opened import load

    world = _world(text_run, 8, {"temperature": 1.0})
    alone = TextEnv(load(text_run).dynamics, temperature=1.0)
    made = Sessions(world, tmp_path / "kept")
    first, second = made.connect(), made.connect()
    for connection, seed in ((first, 1), (second, 2)):
        assert connection.reset({"seed": seed}).result(60).turn.observation == alone.reset(seed=seed)[0]
    alone.reset(seed=1)
    said = alone.step("add 3")[:2]
    second.step("add 1").result(60)
    turn = first.step("add 3").result(60).turn
    assert (turn.observation, turn.reward) == said
    key = first.key
    made.close()
    again = Sessions(_world(text_run, 8, {"temperature": 1.0}), tmp_path / "kept")
    connection = again.connect()
    assert connection.reset({"session": key}).result(60).turn.observation == said[0]
    again.close()
    with pytest.raises(TypeError, match="temprature"):
        _world(text_run, 8, {"temprature": 1.0})
