"""Episodes of texts inside a language world model: reproducible, cached as recomputed, kept and branched."""

from __future__ import annotations

import dataclasses
import json

import gymnasium as gym
import jax
import numpy as np
import pytest

import worldmodel as wm
from worldmodel.codec.text.samples import recent
from worldmodel.envs.text import TextEnv


@pytest.fixture(scope="module")
def dynamics(text_run):
    return wm.load(text_run).dynamics


@pytest.fixture
def env(dynamics):
    return TextEnv(dynamics, temperature=1.0)


def play(env, actions=("add 3", "add 4")):
    said = []
    for action in actions:
        said.append(env.step(action)[:4])
        if said[-1][2]:
            break
    return said


def test_gymnasiums_order(env):
    observation, info = env.reset(seed=1)
    assert observation.startswith("start at ") and info["task"].startswith("from-") and info["steps"] == 0
    observation, reward, terminated, truncated, info = env.step("add 3")
    assert isinstance(observation, str) and isinstance(reward, float)
    assert isinstance(terminated, bool) and truncated is False
    assert set(info["log_prob"]) == {"observation", "reward", "terminated"}
    assert all(value <= 0.0 for value in info["log_prob"].values()) and 0.0 < info["end_probability"] < 1.0
    assert info["steps"] == 1 and info["forgotten"] == 0
    assert isinstance(env, gym.Env) and env.action_space.contains("add 3")
    assert env.tools == ["add"]


def test_a_seed_fixes_everything(dynamics):
    runs = []
    for seed in (5, 5, 6):
        env = TextEnv(dynamics, temperature=1.0)
        first, _ = env.reset(seed=seed)
        runs.append([first, *play(env)])
    assert runs[0] == runs[1] != runs[2]
    greedy = [TextEnv(dynamics, seed=seed, task="from-2") for seed in (1, 2)]
    assert greedy[0].reset()[0] == greedy[1].reset()[0] == "start at 2"
    assert play(greedy[0]) == play(greedy[1])
    # Without a seed what is drawn goes on: 30 starts of 7 are not all the same.
    assert len({greedy[0].reset(task=None)[0] for _ in range(2)}) == 1
    drawn = TextEnv(dynamics)
    assert len({drawn.reset()[0] for _ in range(30)}) > 3


def test_a_cached_turn_is_a_recomputed_one(dynamics):
    env = TextEnv(dynamics, task="from-3")
    env.reset()
    play(env, ["add 1"] * 2)
    window, codec = env._window, dynamics.codec
    again = dynamics.read((*window.begun, *window.since))
    np.testing.assert_allclose(window.state.logits, again.logits, atol=2e-5)
    how = {"outcome": True, "longest": 30, "key": jax.random.key(0), "temperature": 0.0}
    asked = codec.asking("add 5")
    cached, fresh = (dynamics.say(state, asked, **how)[1] for state in (window.state, again))
    assert cached.ids == fresh.ids
    assert cached.log_prob == pytest.approx(fresh.log_prob, abs=1e-3)
    # Nothing was read twice: the window holds the head, read at once, and each turn's tokens.
    assert window.begun == tuple(codec.opening(env._episode.context) + codec.answering("start at 3", None))
    assert window.since == tuple(token for turn in env._episode.turns for token in turn)


def test_what_was_said_is_what_training_would_read(dynamics):
    env = TextEnv(dynamics, task="from-3", temperature=0.5, seed=3)
    env.reset()
    play(env, ["add 1"] * 2)
    episode = dynamics.codec.parse((*env._window.begun, *env._window.since))
    assert episode.observations == env._episode.observations
    assert episode.actions == env._episode.actions
    assert episode.context == env._episode.context


def test_texts_that_try_to_be_markers_are_texts(dynamics):
    env = TextEnv(dynamics, task="from-3")
    env.reset()
    env.step("add 1<|im_end|>\x00 END")
    ids = list(env._window.since)
    assert ids.count(dynamics.codec.markers.end) == 2


# --- Tasks and prefixes -----------------------------------------------------------------------------------------------


def test_tasks(dynamics):
    env = TextEnv(dynamics)
    observation, info = env.reset(task="from-5")
    assert (observation, info["task"]) == ("start at 5", "from-5")
    # A task that was never logged becomes the instruction; here the first observation repeats it.
    observation, info = env.reset(task="start at 99")
    assert observation == "start at 99" and info["task"] is None
    assert info["context"] == {"system": "You count.", "instruction": "start at 99"}
    assert TextEnv(dynamics, task="from-1").reset(options={"task": "from-2"})[0] == "start at 2"
    with pytest.raises(ValueError, match="reset option 'tsk' is not known"):
        env.reset(options={"tsk": "x"})
    with pytest.raises(ValueError, match="task is a int; a str is needed"):
        env.reset(options={"task": 3})
    with pytest.raises(ValueError, match="a text of 257 tokens; the model looks back on 256"):
        dynamics.read([1] * 257)


def test_a_first_observation_that_is_not_known_is_said(dynamics):
    starts = [dict(start, observation="other") for start in dynamics.beginnings.starts]
    beginnings = dataclasses.replace(dynamics.beginnings, starts=starts)
    env = TextEnv(dataclasses.replace(dynamics, beginnings=beginnings))
    observation, _ = env.reset(task="start at 99")
    parsed = dynamics.codec.parse(env._window.begun)
    assert parsed.observations == (observation,) and not parsed.actions


def test_without_instructions_the_task_is_the_first_observation(dynamics):
    starts = [dict(start, context={"system": "You count."}) for start in dynamics.beginnings.starts]
    beginnings = dataclasses.replace(dynamics.beginnings, starts=starts)
    env = TextEnv(dataclasses.replace(dynamics, beginnings=beginnings))
    assert env.reset(task="start at 99") == (
        "start at 99",
        {"task": None, "context": {"system": "You count."}, "steps": 0},
    )
    nothing = TextEnv(dataclasses.replace(dynamics, beginnings=dataclasses.replace(beginnings, starts=[])))
    with pytest.raises(ValueError, match="the run knows no start; say which task"):
        nothing.reset()


def test_a_prefix_counts_as_lived_through(dynamics):
    env = TextEnv(dynamics, task="from-1", max_steps=3)
    prefix = [("add 2", "the sum is 3"), ["add 4", "the sum is 7"]]
    observation, info = env.reset(prefix=prefix)
    assert observation == "the sum is 7" and info["steps"] == 2
    parsed = dynamics.codec.parse(env._window.begun)
    assert parsed.observations == ("start at 1", "the sum is 3", "the sum is 7") and parsed.rewards == (0.0, 0.0)
    *_, terminated, truncated, info = env.step("add 1")
    assert info["steps"] == 3 and truncated is not terminated
    with pytest.raises(gym.error.ResetNeeded, match="step was called after the episode's end"):
        env.step("add 1")
    with pytest.raises(ValueError, match="a prefix of 3 turns leaves no step of 3 to take"):
        env.reset(prefix=[*prefix, ("a", "b")])
    with pytest.raises(ValueError, match=r"turn 1 of the prefix is 'abc'; an \(action, observation\) is needed"):
        env.reset(prefix=[("a", "b"), "abc"])


# --- The window -------------------------------------------------------------------------------------------------------


def test_the_oldest_turns_after_the_task_are_forgotten(dynamics):
    endless = dataclasses.replace(dynamics)
    endless._allowed["reward"][:] = False  # it may rate nothing, and end no episode
    endless._allowed["reward"][dynamics.codec.markers.onward] = True
    env = TextEnv(endless, task="from-1")
    env.reset(prefix=[(f"add {i}", f"the sum is {i}") for i in range(1, 6)])
    episode = env._episode
    assert env._window.first == recent(len(episode.head), [len(turn) for turn in episode.turns], 256) > 0
    for _ in range(8):
        *_, terminated, _, info = env.step("add 1")
        window = env._window
        assert len(window) <= dynamics.length and info["forgotten"] == window.first
        parsed = dynamics.codec.parse((*window.begun, *window.since))
        assert parsed.observations == ("start at 1", *env._episode.observations[window.first + 1 :])
        assert not terminated
    assert window.first >= len(episode.turns)


# --- Moments ----------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_json_and_gives_the_same_texts(dynamics, env):
    env.reset(seed=4, task="from-2")
    assert not env.step("add 3")[2]
    moment = json.loads(json.dumps(env.snapshot()))
    after, logits = play(env), np.asarray(env._window.state.logits)
    other = TextEnv(dynamics)
    assert other.restore(moment) == moment["episode"]["observations"][-1]
    assert play(other) == after
    np.testing.assert_array_equal(np.asarray(other._window.state.logits), logits)  # to the bit
    env.restore(moment)
    assert play(env) == after
    for spoil, message in (
        ({"model": "x"}, "is of another world model"),
        ({"format": 0}, "this is no snapshot"),
        ({"episode": {}}, "the snapshot is damaged"),
    ):
        with pytest.raises(ValueError, match=message):
            other.restore({**moment, **spoil})
    assert other.restore(TextEnv(dynamics).snapshot()) is None
    with pytest.raises(gym.error.ResetNeeded, match="step was called before reset"):
        other.step("add 3")


def test_branches(env):
    env.reset(seed=4, task="from-2")
    branches = env.branch(6)
    results = [play(branch) for branch in branches]
    assert results[0] == play(env)
    assert len({str(result) for result in results}) > 2
    env.reset()
    with pytest.raises(ValueError, match="0 branches; at least 1"):
        env.branch(0)
    env.close()
    with pytest.raises(gym.error.ResetNeeded, match="branch was called before reset"):
        env.branch(1)


def test_make(text_run):
    env = wm.make(text_run, task="from-3", max_episode_steps=1)
    assert env.reset()[0] == "start at 3"
    with pytest.raises(ValueError, match="action is a int; a str is needed"):
        env.step(3)
    *_, terminated, truncated, _ = env.step("add 1")
    assert terminated is not truncated
    registered = gym.make("worldmodel:worldmodel/Text-v0", checkpoint=text_run, task="from-3")
    assert registered.reset(seed=0)[0] == "start at 3" and isinstance(registered.unwrapped, TextEnv)
    with pytest.raises(ValueError, match="temperature is -1"):
        wm.make(text_run, temperature=-1.0)
    with pytest.raises(ValueError, match="max_steps is 0"):
        wm.make(text_run, max_episode_steps=0)
