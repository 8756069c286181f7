"""Frames drawn from observations are the frames the real environment shows, and cost no real step."""

import gymnasium
import numpy as np
import pytest

from worldmodel.envs import rendering

FAMILIES = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]


def _real_rollout(env_id: str, steps: int) -> tuple[np.ndarray, list[np.ndarray]]:
    env = gymnasium.make(env_id, render_mode="rgb_array", disable_env_checker=True).unwrapped
    env.action_space.seed(3)
    observations, shown = [env.reset(seed=3)[0]], [env.render()]
    for _ in range(steps):
        observations.append(env.step(env.action_space.sample())[0])
        # Pendulum draws its last torque as an arrow, which no observation holds.
        if hasattr(env, "last_u"):
            env.last_u = None
        shown.append(env.render())
    env.close()
    return np.stack(observations), shown


@pytest.mark.parametrize("env_id", FAMILIES)
def test_frames_are_those_of_the_real_environment(env_id):
    observations, shown = _real_rollout(env_id, steps=7)
    drawn = rendering.frames(env_id, observations, size=(1000, 1000))
    assert len(drawn) == 8
    for ours, theirs in zip(drawn, shown, strict=True):
        assert ours.dtype == np.uint8 and ours.shape == theirs.shape
        # Rounding of float32 observations may move a pixel of an edge, no more.
        assert (np.abs(ours.astype(int) - theirs.astype(int)).max(axis=-1) > 16).mean() < 2e-3
    assert (drawn[0] != drawn[-1]).any()


@pytest.mark.parametrize("env_id", FAMILIES)
def test_no_real_step_is_taken(env_id, monkeypatch):
    observations, _ = _real_rollout(env_id, steps=4)
    resets = []
    cls = type(gymnasium.make(env_id).unwrapped)
    original = cls.reset
    monkeypatch.setattr(cls, "step", lambda *_: pytest.fail("a real step was taken"))
    monkeypatch.setattr(cls, "reset", lambda self, **kwargs: resets.append(1) or original(self, **kwargs))
    assert len(rendering.frames(env_id, observations)) == 5
    assert resets == [1]


def test_stride_size_and_aspect():
    observations = np.zeros((11, 4), dtype=np.float32)
    drawn = rendering.frames("CartPole-v1", observations, every=3, size=(150, 500))
    assert len(drawn) == 4
    assert drawn[0].shape == (100, 150, 3)


def test_far_away_states_are_drawn_without_overflow():
    far = np.array([[1e9, 0.0, 0.0, 0.0], [0.0, 0.0, 1e3, 0.0]])
    assert len(rendering.frames("CartPole-v1", far)) == 2
    assert len(rendering.frames("MountainCar-v0", np.array([[1e9, 0.0], [-1e9, 0.0]]))) == 2


def test_unknown_family_gives_none():
    assert rendering.frames("HalfCheetah-v5", np.zeros((2, 17))) is None
    assert rendering.frames("my/CartPoleish-v0", np.zeros((2, 4))) is None


@pytest.mark.parametrize(
    ("observations", "every", "message"),
    [
        (np.zeros((3, 5)), 1, r"shape \(3, 5\); \(T\+1, 4\) is needed"),
        (np.full((3, 4), np.nan), 1, "observation 0 of CartPole-v1 is not finite"),
        (np.zeros((3, 4)), 0, "every is 0"),
    ],
)
def test_bad_input_is_one_clear_line(observations, every, message):
    with pytest.raises(ValueError, match=message):
        rendering.frames("CartPole-v1", observations, every=every)
