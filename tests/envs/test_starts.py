"""Episodes that start where they are told to, or continue what was lived through."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.support import tiny_columns, untrained_model
from worldmodel.envs.gymnasium import SimEnv


@pytest.fixture
def lived():
    """The first episode of a real log, not to its end."""
    _, columns = tiny_columns("CartPole-v1", episodes=12, seed=3)
    whole = columns.episode(0)
    return dataclasses.replace(
        whole,
        observations=whole.observations[:9],
        actions=whole.actions[:8],
        rewards=whole.rewards[:8],
        terminated=False,
        truncated=False,
    )


def test_an_episode_starts_at_a_given_observation():
    env = SimEnv(untrained_model("CartPole-v1"))
    start = np.array([0.5, -0.1, 0.02, 0.3], np.float32)
    obs, _ = env.reset(seed=1, options={"start": start})
    assert obs.tobytes() == start.tobytes()
    first = env.step(0)
    env.reset(seed=1, options={"start": start})
    assert env.step(0)[0].tobytes() == first[0].tobytes()
    lake = SimEnv(untrained_model("FrozenLake-v1"))
    assert lake.reset(options={"start": 5})[0] == 5


def test_a_prefix_is_what_the_episode_has_lived_through(lived):
    env = SimEnv(untrained_model("CartPole-v1"), max_episode_steps=10)
    obs, _ = env.reset(seed=1, options={"prefix": lived})
    assert obs.tobytes() == lived.observations[-1].tobytes()
    told = env.step(1)
    assert not told[3]
    assert env.step(1)[3], "8 steps lived through and 2 taken: the time limit"
    env.reset(seed=1, options={"start": lived.observations[-1]})
    unknown = env.step(1)
    assert unknown[0].tobytes() != told[0].tobytes(), "the model remembers what led there"


def test_what_is_no_start_is_refused(lived):
    env = SimEnv(untrained_model("CartPole-v1"), max_episode_steps=8)
    env.reset(seed=0)
    before = env.step(0)
    for options, message in [
        ({"start": np.zeros(3, np.float32)}, "reset option 'start': observation"),
        ({"start": np.array([0, np.nan, 0, 0], np.float32)}, "reset option 'start': observation"),
        ({"prefix": [1, 2]}, "reset option 'prefix' is of type list; a Trajectory is needed"),
        ({"prefix": lived}, "reset option 'prefix' ends the episode after 8 steps; none is left"),
        ({"prefix": lived, "start": lived.observations[0]}, "'start' and 'prefix' exclude each other"),
    ]:
        with pytest.raises(ValueError, match=message):
            env.reset(options=options)
    env.reset(seed=0)
    assert env.step(0)[0].tobytes() == before[0].tobytes()
