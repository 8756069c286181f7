"""What is refused at the border leaves no trace: one environment of a batch never harms another."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from tests.support import untrained_model
from worldmodel.envs.vector import SimVectorEnv

ROWS = 3
GOOD = np.array([[0.5], [-1.0], [1.5]], np.float32)


def env(mode: str = "NextStep", limit: int = 50) -> SimVectorEnv:
    made = SimVectorEnv(ROWS, untrained_model("Pendulum-v1"), autoreset_mode=mode, max_episode_steps=limit)
    made.reset(seed=11)
    return made


def steps(made: SimVectorEnv, count: int) -> list[bytes]:
    return [b"".join(np.asarray(part).tobytes() for part in made.step(GOOD)[:4]) for _ in range(count)]


BAD = {
    "one is NaN": lambda made: made.step(np.array([[0.0], [np.nan], [0.0]])),
    "one is infinite": lambda made: made.step(np.array([[np.inf], [0.0], [0.0]])),
    "one is outside": lambda made: made.step(np.array([[0.0], [0.0], [2.5]])),
    "wrong shape": lambda made: made.step(np.zeros((ROWS, 2))),
    "too few": lambda made: made.step(np.zeros((ROWS - 1, 1))),
    "ragged": lambda made: made.step([[0.0], [0.0, 1.0], [0.0]]),
    "text": lambda made: made.step(np.array([["up"], ["up"], ["up"]])),
    "mask of another length": lambda made: made.reset(options={"reset_mask": np.ones(ROWS + 1, bool)}),
    "mask of numbers": lambda made: made.reset(options={"reset_mask": np.ones(ROWS)}),
    "mask of nobody": lambda made: made.reset(options={"reset_mask": np.zeros(ROWS, bool)}),
    "unknown option": lambda made: made.reset(options={"low": -1.0}),
    "too few seeds": lambda made: made.reset(seed=[1, 2]),
    "start outside": lambda made: made.reset(options={"start": np.full((ROWS, 3), 9.0, np.float32)}),
}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_what_is_refused_changes_no_bit_of_what_follows(mode: str):
    undisturbed, disturbed = env(mode), env(mode)
    assert steps(disturbed, 2) == steps(undisturbed, 2)
    for name, act in BAD.items():
        with pytest.raises(ValueError, match=r"^[^\n]+$"):
            act(disturbed)
        assert steps(disturbed, 1) == steps(undisturbed, 1), name


def test_a_step_after_an_end_is_refused_and_the_others_go_on():
    undisturbed, disturbed = env("Disabled", limit=4), env("Disabled", limit=4)
    mask = np.array([True, False, False])
    for made in (undisturbed, disturbed):
        steps(made, 2)
        made.reset(options={"reset_mask": mask})  # from here on its limit comes two steps later
        steps(made, 2)
    for _ in range(2):
        with pytest.raises(gym.error.ResetNeeded, match="the episodes of environments 1, 2 have ended"):
            disturbed.step(GOOD)
    for made in (undisturbed, disturbed):
        made.reset(seed=5, options={"reset_mask": ~mask})
    assert steps(disturbed, 2) == steps(undisturbed, 2)


def test_a_masked_off_row_takes_no_seed_and_goes_on():
    plain, masked = env("Disabled"), env("Disabled")
    steps(plain, 3)
    steps(masked, 3)
    masked.reset(seed=[None, 77, None], options={"reset_mask": np.array([False, True, False])})
    a, b = plain.step(GOOD)[0], masked.step(GOOD)[0]
    assert np.array_equal(a[[0, 2]], b[[0, 2]]) and not np.array_equal(a[1], b[1])


def test_what_an_ended_row_is_told_reaches_nobody():
    undisturbed, disturbed = env(limit=3), env(limit=3)
    assert steps(disturbed, 3) == steps(undisturbed, 3)
    nonsense = np.full((ROWS, 1), np.nan)  # all ended by the limit: this step resets, and looks at no action
    a, b = undisturbed.step(GOOD), disturbed.step(nonsense)
    assert np.array_equal(a[0], b[0]) and np.isfinite(b[0]).all()
    assert steps(disturbed, 3) == steps(undisturbed, 3)
