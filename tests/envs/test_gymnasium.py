"""One simulated environment keeps Gymnasium's contract: types, seeds, ends, errors, wrappers, specs."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import worldmodel as wm
from tests.support import untrained_model, untrained_run
from worldmodel.envs.gymnasium import SimEnv
from worldmodel.envs.rendering import frames

ENV_IDS = ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"]
# What check_env says of the real environment's spaces, which are not ours to change.
SPACES_OF_THE_ORIGINAL = re.compile(r"A Box \w+ space (minimum|maximum) value is|recommend using a symmetric")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_run(tmp_path_factory.mktemp("runs") / "cartpole")


def walk(env: gym.Env, seed: int, steps: int) -> list:
    """Everything that `steps` steps from a seeded reset return, resets at ends included."""
    env.action_space.seed(seed)
    told: list = [env.reset(seed=seed)]
    for _ in range(steps):
        told.append(env.step(env.action_space.sample()))
        if told[-1][2] or told[-1][3]:
            told.append(env.reset())
    return told


def bits(told: list) -> bytes:
    return b"|".join(
        np.asarray(part).tobytes()
        for row in told
        for item in row
        for part in (item.values() if isinstance(item, dict) else [item])
    )


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_check_env_passes(env_id: str):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(wm.make(untrained_model(env_id)).unwrapped)
    ours = [str(w.message) for w in caught if not SPACES_OF_THE_ORIGINAL.search(str(w.message))]
    assert not ours


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_types_and_spaces_are_gymnasiums(env_id: str):
    env, real = wm.make(untrained_model(env_id)), gym.make(env_id)
    assert env.observation_space == real.observation_space and env.action_space == real.action_space
    ends = 0
    for row in walk(env, seed=3, steps=40):
        assert row[0] in env.observation_space
        if len(row) == 2:
            assert row[1] == {}
            continue
        _, reward, terminated, truncated, info = row
        assert type(reward) is float and type(terminated) is bool and type(truncated) is bool
        assert {name: (value.dtype, value.shape) for name, value in info.items()} == {
            "log_prob": (np.float32, (3,)),
            "end_probability": (np.float32, ()),
            "member": (np.int32, ()),
        }
        said = info["end_probability"] if terminated else 1.0 - info["end_probability"]
        assert info["log_prob"][2] == pytest.approx(np.log(said), abs=1e-4)
        ends += terminated
    assert (ends > 0) == (env_id != "Pendulum-v1")


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_a_seed_fixes_every_bit(env_id: str):
    first, second = wm.make(untrained_model(env_id)), wm.make(untrained_model(env_id))
    told = bits(walk(first, seed=5, steps=30))
    assert told == bits(walk(first, seed=5, steps=30)) == bits(walk(second, seed=5, steps=30))
    assert told != bits(walk(second, seed=6, steps=30))


def test_episodes_without_a_seed_differ():
    env = wm.make(untrained_model())
    starts = {np.asarray(env.reset()[0]).tobytes() for _ in range(10)}
    assert len(starts) > 1


def test_observations_handed_out_stay_as_they_were():
    env = wm.make(untrained_model())
    obs, _ = env.reset(seed=0)
    before = obs.copy()
    obs += 1000.0
    following = env.step(0)[0]
    env.reset(seed=0)
    assert np.array_equal(following, env.step(0)[0])
    assert np.array_equal(before, env.reset(seed=0)[0])


def steps_to_the_end(env: gym.Env) -> tuple[int, bool, bool]:
    env.reset(seed=0)
    for step in range(1, 300):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            return step, terminated, truncated
    return 300, False, False


def test_time_limit_is_the_real_ones_unless_told_otherwise():
    model = untrained_model("Pendulum-v1")
    assert steps_to_the_end(wm.make(model)) == (200, False, True)
    shorter = gym.make("worldmodel:worldmodel/Sim-v0", checkpoint=model, max_episode_steps=7)
    assert steps_to_the_end(shorter) == (7, False, True)
    assert [wm.make(model).spec.max_episode_steps, shorter.spec.max_episode_steps] == [200, 7]


@pytest.mark.parametrize(("asked", "limit"), [(7, 7), (300, 300), (-1, None), (None, 200)])
def test_make_sets_the_limit(asked: int | None, limit: int | None):
    env = wm.make(untrained_model("Pendulum-v1"), max_episode_steps=asked)
    assert env.spec.max_episode_steps == limit
    again = gym.make(env.spec).unwrapped
    assert again.spec.max_episode_steps == limit


def test_a_longer_limit_reaches_past_the_real_one():
    env = SimEnv(untrained_model("Pendulum-v1"), max_episode_steps=-1)
    assert steps_to_the_end(env) == (300, False, False)


def test_run_folder_and_model_in_memory_are_the_same(run: Path):
    memory = bits(walk(wm.make(untrained_model()), seed=1, steps=20))
    assert bits(walk(wm.make(run), seed=1, steps=20)) == memory
    assert bits(walk(wm.make(str(run)), seed=1, steps=20)) == memory
    assert bits(walk(gym.make("worldmodel:worldmodel/Sim-v0", checkpoint=run), seed=1, steps=20)) == memory
    assert bits(walk(wm.make(wm.load(run)), seed=1, steps=20)) == memory


def test_environments_of_one_model_compile_once(run: Path):
    first, second = SimEnv(untrained_model()), SimEnv(run)
    walk(first, seed=0, steps=3)
    compiled = first._host._run.step._cache_size()
    walk(second, seed=0, steps=3)
    assert first._host._run is second._host._run
    assert first._host._run.step._cache_size() == compiled


def test_spec_goes_through_json(run: Path):
    for made in (wm.make(run), wm.make(wm.load(run)), gym.wrappers.RecordEpisodeStatistics(wm.make(run))):
        text = made.spec.to_json()
        assert json.loads(text)["kwargs"] == {"checkpoint": str(run)}
        again = gym.make(EnvSpec.from_json(text))
        assert again.spec.max_episode_steps == made.spec.max_episode_steps == 500
        assert bits(walk(again.unwrapped, seed=2, steps=10)) == bits(walk(made.unwrapped, seed=2, steps=10))


def test_wrappers_count_what_happened():
    env = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(wm.make(untrained_model("Pendulum-v1")), 11))
    env.reset(seed=0)
    rewards = []
    for _ in range(11):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        rewards.append(reward)
    assert truncated and not terminated
    assert info["episode"]["l"] == 11 and info["episode"]["r"] == pytest.approx(sum(rewards), rel=1e-6)


def test_steps_out_of_order_are_refused():
    env = wm.make(untrained_model("FrozenLake-v1"))
    with pytest.raises(gym.error.ResetNeeded, match=r"^step was called before reset$"):
        env.step(0)
    steps_to_the_end(env)
    with pytest.raises(gym.error.ResetNeeded, match=r"^step was called after the episode's end; call reset first$"):
        env.step(0)
    env.reset()
    env.step(0)


def test_close_may_be_called_twice():
    env = wm.make(untrained_model())
    env.close()
    obs, _ = env.reset(seed=0)
    env.close()
    env.close()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    assert np.array_equal(env.reset(seed=0)[0], obs)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("env_id", "action", "message"),
    [
        ("CartPole-v1", 2, "action is 2; it must lie in 0..1"),
        ("CartPole-v1", -1, "action is -1; it must lie in 0..1"),
        ("CartPole-v1", 0.0, "action has dtype float64; integers are needed for Discrete(2)"),
        ("CartPole-v1", NAN, "action has dtype float64; integers are needed for Discrete(2)"),
        ("CartPole-v1", True, "action has dtype bool; integers are needed for Discrete(2)"),
        ("CartPole-v1", None, "action has dtype object; integers are needed for Discrete(2)"),
        ("CartPole-v1", np.array([1]), "action has shape (1,); () is needed"),
        ("Pendulum-v1", np.array([NAN]), "action is [nan]; every value must be finite"),
        ("Pendulum-v1", np.array([INF]), "action is [inf]; every value must be finite"),
        ("Pendulum-v1", np.array([2.5]), "action is [2.5]; it must lie in -2.0..2.0"),
        ("Pendulum-v1", 1.0, "action has shape (); (1,) is needed"),
        ("Pendulum-v1", np.zeros((1, 1)), "action has shape (1, 1); (1,) is needed"),
        ("Pendulum-v1", np.array([1j]), "action has dtype complex128; real numbers are needed for Box("),
        ("Pendulum-v1", [[1.0], [1.0, 2.0]], "action cannot be read as one array: its parts differ in shape"),
    ],
)
def test_actions_outside_the_space_are_refused(env_id: str, action: object, message: str):
    env = wm.make(untrained_model(env_id))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        env.step(action)
    assert "\n" not in str(caught.value)
    env.step(env.action_space.sample())  # nothing happened to the episode


def test_numbers_of_other_types_are_taken():
    env = wm.make(untrained_model())
    expected = [env.reset(seed=0)[0], env.step(1)[0]][1]
    for action in (np.int32(1), np.array(1, np.uint8)):
        env.reset(seed=0)
        assert np.array_equal(env.step(action)[0], expected)
    env = wm.make(untrained_model("Pendulum-v1"))
    expected = [env.reset(seed=0)[0], env.step(np.array([2.0], np.float32))[0]][1]
    for action in (np.array([2.000001]), [2], np.array([2], np.int64)):
        env.reset(seed=0)
        assert np.array_equal(env.step(action)[0], expected)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"checkpoint": None}, "checkpoint is None; a run folder or a WorldModel is needed"),
        ({"checkpoint": 3}, "checkpoint is 3; a run folder or a WorldModel is needed"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0; at least 1 is needed, or -1 for no limit"),
        ({"render_mode": "ansi"}, "render_mode is 'ansi'; None and 'rgb_array' are supported"),
    ],
)
def test_bad_arguments_are_refused(kwargs: dict, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        SimEnv(**{"checkpoint": untrained_model(), **kwargs})


def test_options_that_would_be_ignored_are_refused():
    with pytest.raises(ValueError, match="reset option 'low' is not known; known are start, prefix"):
        wm.make(untrained_model()).reset(options={"low": -1.0})


def test_a_missing_checkpoint_is_one_clear_line(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"run folder .*nowhere does not exist$"):
        wm.make(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"is not a run folder: it has no config\.json$"):
        gym.make("worldmodel:worldmodel/Sim-v0", checkpoint=tmp_path)
    with pytest.raises(ValueError, match="a run folder or a WorldModel is needed"):
        gym.make("worldmodel:worldmodel/Sim-v0")


def test_pictures_are_the_real_renderers():
    env = wm.make(untrained_model(), render_mode="rgb_array")
    with pytest.raises(gym.error.ResetNeeded, match=r"^render was called before reset$"):
        env.render()
    for act in (lambda: env.reset(seed=0), lambda: env.step(1)):
        obs = act()[0]
        picture = env.render()
        assert picture.dtype == np.uint8 and picture.shape == (400, 600, 3)
        assert np.array_equal(picture, frames("CartPole-v1", obs[None], size=(600, 400))[0])


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match=r"observations of FrozenLake-v1 cannot be drawn; .* images, and for CartPole"):
        SimEnv(untrained_model("FrozenLake-v1"), render_mode="rgb_array")
