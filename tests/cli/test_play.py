"""`worldmodel play`: typed, from a file, by a policy; alone, beside the real environment, as a picture."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from tests.cli.test_cli import one_line, run
from tests.support import untrained_model, untrained_run
from worldmodel.agents.side_by_side import SideBySide, parse_action
from worldmodel.envs.gymnasium import SimEnv
from worldmodel.envs.rendering import can_draw, pictures
from worldmodel.spaces import box
from worldmodel.trajectory import Spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_run(tmp_path_factory.mktemp("runs") / "pendulum", "Pendulum-v1")


@pytest.fixture
def stdin(monkeypatch):
    def set_to(text: str, *, terminal: bool = False) -> None:
        stream = io.StringIO(text)
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
        monkeypatch.setattr("sys.stdin", stream)

    return set_to


def test_a_file_of_actions_steps_both_worlds(folder, tmp_path, capsys):
    (tmp_path / "actions.txt").write_text("# torque\n0.5\n-\n\n+\n[-1.25]\n")
    words = ("--actions", tmp_path / "actions.txt", "--real", "--seed", "4", "--json")
    out, err = run("play", folder, *words, capsys=capsys)
    told = json.loads(out)
    wanted = [[0.5], [-2.0], [2.0], [-1.25]]
    assert told["actions"] == wanted and "step 4, action [-1.25]  | imagined reward" in err
    env = gym.make("Pendulum-v1")
    start, _ = env.reset(seed=4)
    real = [start, *[env.step(np.array(action, np.float32))[0] for action in wanted]]
    np.testing.assert_allclose(told["real"]["observations"], real, atol=1e-6)
    # The imagined episode is what the environment gives from that start.
    sim = SimEnv(untrained_model("Pendulum-v1"))
    seen = [sim.reset(seed=4, options={"start": start})[0]]
    seen += [sim.step(np.array(action, np.float32))[0] for action in wanted]
    np.testing.assert_allclose(told["imagined"]["observations"], seen, atol=1e-6)
    assert told["imagined"]["end"] is None and told["gif"] is None


def test_what_is_wrong_in_a_file_is_named_by_its_line(folder, tmp_path, capsys):
    for line, message in (
        ("up", "line 2: 'up' is no action; 1 number(s) of Box(-2.0, 2.0, (1,), float32) are needed, or + or -"),
        ("7", "line 2: action is [7]; it must lie in -2.0..2.0"),
        ("NaN", "line 2: action is [nan]; every value must be finite"),
        ("1 2", "line 2: '1 2' is no action"),
    ):
        (tmp_path / "actions.txt").write_text(f"0\n{line}\n")
        _, err = run("play", folder, "--actions", tmp_path / "actions.txt", code=2, capsys=capsys)
        assert message in err.splitlines()[-1]


def test_without_a_terminal_it_says_that_it_acts_at_random(folder, stdin, capsys):
    stdin("")
    out, err = run("play", folder, "--steps", "3", "--json", capsys=capsys)
    assert "stdin is no terminal: actions are random" in err
    told = json.loads(out)
    assert len(told["actions"]) == 3 and told["real"] is None
    again, _ = run("play", folder, "--steps", "3", "--json", "--policy", "random", capsys=capsys)
    assert json.loads(again) == told


def test_lines_of_a_pipe_are_actions_where_asked(folder, stdin, capsys):
    stdin("1\n\n0\nq\n1\n")
    out, _ = run("play", folder, "--policy", "keys", capsys=capsys)
    assert "step 2, action [1]" in out and "imagined: 3 steps" in out  # an empty line repeats, q stops
    stdin("1\nup\n")
    _, err = run("play", folder, "--policy", "keys", code=2, capsys=capsys)
    assert "stdin, line 2: 'up' is no action" in one_line(err)


def test_a_person_may_try_again(folder, stdin, capsys):
    stdin("\nup\n9\n1\nq\n", terminal=True)
    out, err = run("play", folder, capsys=capsys)
    assert err.count("1 number(s) of Box") == 2 and "action is [9]; it must lie in -2.0..2.0" in out
    assert "imagined: 1 steps" in out and "action (q stops)> " in err


def test_named_policies_play_too(folder, capsys):
    out, _ = run("play", folder, "--policy", "linear:0.2", "--steps", "4", capsys=capsys)
    assert "step 4" in out
    _, err = run("play", folder, "--policy", "linearly", code=2, capsys=capsys)
    assert "behaviour 'linearly' is unknown (did you mean 'linear'?)" in err.splitlines()[-1]


def test_the_picture_shows_both_sides(folder, tmp_path, capsys):
    gif = tmp_path / "play.gif"
    run("play", folder, "--policy", "random", "--real", "--steps", "4", "--gif", gif, capsys=capsys)
    picture = Image.open(gif)
    assert picture.n_frames == 5 and picture.size == (608, 316)
    first = np.asarray(picture.convert("RGB"))[16:]
    assert np.array_equal(first[:, :300], first[:, 308:])  # the same start, drawn by the same renderer
    picture.seek(4)
    last = np.asarray(picture.convert("RGB"))[16:]
    assert not np.array_equal(last[:, :300], first[:, :300])
    assert [path.name for path in tmp_path.iterdir()] == ["play.gif"]


def test_what_cannot_be_played_is_one_line(folder, tmp_path, capsys):
    (tmp_path / "actions.txt").write_text("0\n")
    for words, message in (
        (("--gif", tmp_path / "play.png"), "a file that ends in .gif, in a folder that is there, is needed"),
        (("--gif", tmp_path / "no" / "play.gif"), "in a folder that is there"),
        (("--steps", "0"), "--steps is 0; at least 1 is needed"),
        (("--policy", "random", "--actions", tmp_path / "actions.txt"), "--actions and --policy exclude each other"),
        (("--actions", tmp_path / "gone.txt"), "No such file"),
        (("--context", '{"gravity": 3}', "--policy", "random"), "this model was trained without any"),
    ):
        _, err = run("play", folder, *words, code=2, capsys=capsys)
        assert message in err.splitlines()[-1]


def test_a_side_that_ended_stays_while_the_other_goes_on():
    pair = SideBySide(untrained_model("CartPole-v1"), real=True)
    pair.reset(0)
    steps = 0
    while not pair.over:
        pair.step(steps % 2 if steps < 4 else 1)
        steps += 1
    lengths = {name: len(side.rewards) for name, side in pair.sides.items()}
    assert max(lengths.values()) == steps and all(side.end == "terminated" for side in pair.sides.values())
    assert len(set(lengths.values())) == 2, "both ended at once: another seed shows more"
    picture = Image.open(io.BytesIO(pair.gif(seconds=0.1)))
    shown = 0
    for frame in range(picture.n_frames):
        picture.seek(frame)
        shown += picture.info["duration"]
    assert shown == 100 * (steps + 1)
    pair.close()


def test_logs_of_nowhere_have_no_real_side():
    world = untrained_model("CartPole-v1")
    nameless = dataclasses.replace(world, spec=dataclasses.replace(world.spec, env_id=None))
    with pytest.raises(ValueError, match="these logs name no environment"):
        SideBySide(nameless, real=True)


SPACES = gym.spaces


@pytest.mark.parametrize(
    ("space", "text", "wanted"),
    [
        (SPACES.Discrete(3, start=1), "2", 2),
        (SPACES.Box(-1, 1, (2, 2)), "1 0 0.5 -1", [[1, 0], [0.5, -1]]),
        (SPACES.Box(-1, 1, (2,)), "[0.5, 1]", [0.5, 1]),
        (SPACES.Box(-1, 1, (2,)), "0.5, 1", [0.5, 1]),
        (SPACES.MultiDiscrete([2, 3]), "1 2", [1, 2]),
        (SPACES.MultiBinary(3), "1 0 1", [1, 0, 1]),
    ],
)
def test_actions_are_read_as_they_are_typed(space, text: str, wanted):
    np.testing.assert_array_equal(parse_action(space, text), wanted)


def test_actions_of_several_parts_are_json():
    space = SPACES.Dict({"arm": SPACES.Box(-1, 1, (2,)), "grip": SPACES.Tuple([SPACES.Discrete(2)])})
    action = parse_action(space, '{"arm": [0, 1], "grip": [1]}')
    assert set(action) == {"arm", "grip"} and action["grip"][0] == 1
    with pytest.raises(ValueError, match="JSON of Dict"):
        parse_action(space, "1 1 x")


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_an_image_is_its_own_picture(channels: int):
    spec = Spec(box((12, 10, channels), "uint8"), {"type": "Discrete", "n": 2, "start": 0})
    images = np.random.default_rng(0).integers(0, 255, (2, 12, 10, channels), np.uint8)
    drawn = pictures(spec, images)
    assert can_draw(spec) and drawn[1].shape == (12, 10, 3)
    np.testing.assert_array_equal(drawn[1][..., 0], images[1, ..., 0])
