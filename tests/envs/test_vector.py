"""A native batch returns what Gymnasium's own SyncVectorEnv over single environments returns, bit for bit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import worldmodel as wm
from tests.support import untrained_model, untrained_run
from worldmodel.envs.check import check_actions
from worldmodel.envs.gymnasium import SimEnv
from worldmodel.envs.vector import SimVectorEnv

ENV_IDS = ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"]
MODES = list(AutoresetMode)


def assert_same(ours: Any, theirs: Any, where: str) -> None:
    """Equal in structure, dtype and every bit."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for name in theirs:
            assert_same(ours[name], theirs[name], f"{where}.{name}")
        return
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), where
    if ours.dtype == object:
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)), where
    else:
        assert ours.tobytes() == theirs.tobytes(), where


def both(env_id: str, num_envs: int, mode: AutoresetMode) -> tuple[SimVectorEnv, SyncVectorEnv]:
    model = untrained_model(env_id)
    alone = SyncVectorEnv([lambda: SimEnv(model)] * num_envs, autoreset_mode=mode)
    return wm.make(model, num_envs, autoreset_mode=mode), alone


def ended(told: tuple) -> np.ndarray:
    return told[2] | told[3]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("env_id", "steps"),
    [("CartPole-v1", 60), ("FrozenLake-v1", 40), pytest.param("Pendulum-v1", 202, marks=pytest.mark.slow)],
)
def test_eight_in_a_batch_are_eight_alone(env_id: str, steps: int, mode: AutoresetMode):
    batch, alone = both(env_id, 8, mode)
    assert batch.observation_space == alone.observation_space and batch.action_space == alone.action_space
    assert batch.metadata["autoreset_mode"] is mode
    batch.action_space.seed(0)
    ours, theirs = batch.reset(seed=11), alone.reset(seed=11)
    assert_same(ours[0], theirs[0], "reset")
    ends = 0
    for step in range(steps):
        action = batch.action_space.sample()
        ours, theirs = batch.step(action), alone.step(action)
        for name, a, b in zip(("obs", "reward", "terminated", "truncated", "info"), ours, theirs, strict=True):
            assert_same(a, b, f"step {step}, {name}")
        ends += int(ended(ours).sum())
        if mode is AutoresetMode.DISABLED and ended(ours).any():
            again = batch.reset(options={"reset_mask": ended(ours)})
            assert_same(again[0], alone.reset(options={"reset_mask": ended(ours)})[0], f"step {step}, masked reset")
    assert ends >= 8


@pytest.mark.parametrize("num_envs", [1, 3])
def test_small_batches_are_the_same_too(num_envs: int):
    batch, alone = both("CartPole-v1", num_envs, AutoresetMode.NEXT_STEP)
    assert_same(batch.reset(seed=4)[0], alone.reset(seed=4)[0], "reset")
    for step in range(10):
        action = np.full(num_envs, step % 2)
        assert_same(batch.step(action)[0], alone.step(action)[0], f"step {step}")


def test_large_batches_agree_to_rounding():
    # A matrix product of another number of rows sums in another order: equal to float32's rounding, not to the bit.
    batch, alone = both("CartPole-v1", 12, AutoresetMode.NEXT_STEP)
    assert_same(batch.reset(seed=4)[0], alone.reset(seed=4)[0], "reset")
    for step in range(10):
        action = np.full(12, step % 2)
        ours, theirs = batch.step(action), alone.step(action)
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
        assert np.array_equal(ended(ours), ended(theirs))


# Gymnasium 1.3's wrapper leaves out the first step after an end in SameStep mode, over its own SyncVectorEnv too.
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_statistics_of_episodes_are_right(mode: AutoresetMode):
    env = gym.wrappers.vector.RecordEpisodeStatistics(wm.make(untrained_model(), 8, autoreset_mode=mode))
    env.reset(seed=2)
    returns, fresh, finished = np.zeros(8), np.zeros(8, bool), 0
    for _ in range(40):
        told = env.step(np.zeros(8, np.int64))
        returns += np.where(fresh, 0.0, told[1])
        done = ended(told)
        if done.any():
            assert np.array_equal(told[4]["_episode"], done)
            np.testing.assert_allclose(told[4]["episode"]["r"][done], returns[done], rtol=1e-6)
            assert np.array_equal(told[4]["episode"]["l"][done], returns[done])  # CartPole pays 1 a step
            returns[done], finished = 0.0, finished + int(done.sum())
        fresh = done if mode is AutoresetMode.NEXT_STEP else np.zeros(8, bool)
        if mode is AutoresetMode.DISABLED and done.any():
            env.reset(options={"reset_mask": done})
    assert finished > 8 and env.episode_count == finished


def first_end(env: SimVectorEnv) -> tuple:
    env.reset(seed=0)
    for _ in range(100):
        told = env.step(np.zeros(env.num_envs, np.int64))
        if ended(told).any():
            return told
    raise AssertionError("no episode ended in 100 steps")


def test_next_step_resets_on_the_step_after():
    env = wm.make(untrained_model("FrozenLake-v1"), 4)
    told = first_end(env)
    done = ended(told)
    assert not done.all() and "final_obs" not in told[4]
    action = np.where(done, 999, 0)  # the action of an ended environment is ignored, whatever it is
    obs, reward, terminated, truncated, info = env.step(action)
    assert (obs[done] == 0).all()  # FrozenLake starts on field 0
    assert (reward[done] == 0).all() and not (terminated | truncated)[done].any()
    assert np.array_equal(info["_log_prob"], ~done)


def test_same_step_keeps_the_end_in_info():
    model = untrained_model("FrozenLake-v1")
    obs, _, terminated, _, info = first_end(wm.make(model, 4, autoreset_mode="SameStep"))
    other = first_end(wm.make(model, 4))
    assert np.array_equal(terminated, other[2]) and not terminated.all()
    assert (obs[terminated] == 0).all()
    assert np.array_equal(info["_final_obs"], terminated) and np.array_equal(info["_final_info"], terminated)
    assert list(info["final_obs"][terminated]) == list(other[0][terminated])
    assert np.array_equal(info["final_info"]["log_prob"][terminated], other[4]["log_prob"][terminated])
    assert not info["_log_prob"][terminated].any() and info["_log_prob"][~terminated].all()
    env = wm.make(model, 4, autoreset_mode="SameStep")
    told = env.reset(seed=0)
    assert told[1] == {} and "final_obs" not in env.step(np.zeros(4, np.int64))[4]


def test_disabled_wants_a_masked_reset():
    env = wm.make(untrained_model("FrozenLake-v1"), 4, autoreset_mode=AutoresetMode.DISABLED)
    done = ended(first_end(env))
    rows = ", ".join(map(str, np.flatnonzero(done)))
    with pytest.raises(gym.error.ResetNeeded, match=f"the episodes of environments {rows} have ended"):
        env.step(np.zeros(4, np.int64))
    options = {"reset_mask": done}
    env.reset(options=options)
    assert options["reset_mask"] is done  # a wrapper reads it after us
    env.step(np.zeros(4, np.int64))


def test_a_masked_reset_leaves_the_others_alone():
    env, same = wm.make(untrained_model("Pendulum-v1"), 4), wm.make(untrained_model("Pendulum-v1"), 4)
    mask, action = np.array([True, False, True, False]), np.full((4, 1), 0.5, np.float32)
    for each in (env, same):
        each.reset(seed=7)
        present = each.step(action)[0]
    obs, info = env.reset(seed=[50, 51, None, None], options={"reset_mask": mask})
    assert info == {} and np.array_equal(obs[~mask], present[~mask])
    assert np.array_equal(obs[0], SimEnv(untrained_model("Pendulum-v1")).reset(seed=50)[0])
    ours, theirs = env.step(action), same.step(action)
    assert_same(ours[0][~mask], theirs[0][~mask], "others")
    assert not np.array_equal(ours[0][mask], theirs[0][mask])
    # A seed for an environment that is not reset is not used: row 1 goes on with its own.
    assert env.np_random_seed[1] == same.np_random_seed[1] == 8


def test_seeds_are_numbered_or_listed():
    env = wm.make(untrained_model(), 3)
    counted = env.reset(seed=np.int64(20))[0]
    assert env.np_random_seed == (20, 21, 22) and len(env.np_random) == 3
    assert np.array_equal(counted, env.reset(seed=[20, 21, 22])[0])
    assert np.array_equal(counted[::-1], env.reset(seed=[22, 21, 20])[0])
    following = env.reset()[0]
    env.reset(seed=[22, 21, 20])
    assert np.array_equal(following, env.reset()[0])
    with pytest.raises(ValueError, match="2 seeds for 3 environments; one number, or one seed for each, is needed"):
        env.reset(seed=[1, 2])


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([1, 0, 0], "reset_mask has dtype int64 and shape (3,); bool and (3,) are needed"),
        (np.ones(2, bool), "reset_mask has dtype bool and shape (2,); bool and (3,) are needed"),
        (np.zeros(3, bool), "reset_mask selects no environment; at least one is needed"),
    ],
)
def test_bad_masks_are_refused(mask: Any, message: str):
    env = wm.make(untrained_model(), 3)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=re.escape(message)):
        env.reset(options={"reset_mask": mask})


def test_calls_out_of_order_are_refused():
    env = wm.make(untrained_model(), 3)
    with pytest.raises(gym.error.ResetNeeded, match=r"^step was called before reset$"):
        env.step(np.zeros(3, np.int64))
    with pytest.raises(gym.error.ResetNeeded, match="the first reset must be of all environments"):
        env.reset(options={"reset_mask": np.ones(3, bool)})
    with pytest.raises(ValueError, match="reset option 'mask' is not known; known are reset_mask"):
        env.reset(options={"mask": np.ones(3, bool)})
    env.reset()
    env.close()
    env.close()
    assert env.closed


@pytest.mark.parametrize(
    ("env_id", "actions", "message"),
    [
        ("CartPole-v1", np.array([0, 2, 1]), "action of environment 1 is 2; it must lie in 0..1"),
        ("CartPole-v1", np.zeros(3), "actions has dtype float64; integers are needed for Discrete(2)"),
        ("CartPole-v1", np.zeros(4, int), "actions have shape (4,); (3,) is needed"),
        ("Pendulum-v1", np.zeros(3), "actions have shape (3,); (3, 1) is needed"),
        ("Pendulum-v1", np.array([[0], [0], [np.nan]]), "action of environment 2 is [nan]; every value must be finite"),
        ("Pendulum-v1", np.array([[-3.0], [0], [0]]), "action of environment 0 is [-3.]; it must lie in -2.0..2.0"),
    ],
)
def test_actions_outside_the_space_are_refused(env_id: str, actions: np.ndarray, message: str):
    env = wm.make(untrained_model(env_id), 3)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=re.escape(message)):
        env.step(actions)


def test_rows_that_do_not_act_are_not_looked_at():
    space, acting = gym.spaces.Box(1.0, 2.0, (1,)), np.array([True, False])
    checked = check_actions(space, np.array([[1.5], [np.nan]]), acting)
    assert checked.dtype == np.float32 and np.array_equal(checked, np.float32([[1.5], [1.0]]))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0; at least 1 is needed"),
        (
            {"autoreset_mode": "samestep"},
            "autoreset_mode is 'samestep'; allowed are NextStep, SameStep, Disabled (did you mean 'SameStep'?)",
        ),
        ({"render_mode": "human"}, "render_mode is 'human'; None and 'rgb_array' are supported"),
    ],
)
def test_bad_arguments_are_refused(kwargs: dict, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        SimVectorEnv(**{"num_envs": 2, "checkpoint": untrained_model(), **kwargs})


def test_made_by_gymnasium_and_again_from_its_spec(tmp_path: Path):
    run = untrained_run(tmp_path / "run")
    env = gym.make_vec("worldmodel:worldmodel/Sim-v0", num_envs=4, checkpoint=run, autoreset_mode="SameStep")
    assert isinstance(env, SimVectorEnv) and env.spec.max_episode_steps == 500
    again = gym.make_vec(EnvSpec.from_json(env.spec.to_json()))
    assert again.num_envs == 4 and again.autoreset_mode is AutoresetMode.SAME_STEP
    assert np.array_equal(env.reset(seed=3)[0], again.reset(seed=3)[0])
    enum = gym.make_vec("worldmodel/Sim-v0", 2, checkpoint=str(run), autoreset_mode=AutoresetMode.DISABLED)
    assert gym.make_vec(EnvSpec.from_json(enum.spec.to_json())).autoreset_mode is AutoresetMode.DISABLED
    sync = gym.make_vec("worldmodel/Sim-v0", 4, vectorization_mode="sync", checkpoint=str(run))
    assert np.array_equal(sync.reset(seed=3)[0], env.reset(seed=3)[0])


def test_pictures_of_every_environment():
    env = wm.make(untrained_model(), 2, render_mode="rgb_array")
    env.reset(seed=0)
    pictures = env.render()
    assert [picture.shape for picture in pictures] == [(400, 600, 3)] * 2
    assert not np.array_equal(*pictures)
