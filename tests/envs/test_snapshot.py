"""A moment kept, and come back to in the same bits; one episode continued several ways."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import worldmodel as wm
from tests.support import untrained_model, untrained_run
from worldmodel.envs.gymnasium import SimEnv
from worldmodel.envs.snapshot import Snapshot
from worldmodel.envs.vector import SimVectorEnv


def played(env, actions) -> list[bytes]:
    """What every step told, to the last bit; episodes that end begin anew."""
    told = []
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(action)
        told.append(b"".join(np.asarray(x).tobytes() for x in (obs, reward, terminated, truncated, info["log_prob"])))
        if terminated or truncated:
            told.append(np.asarray(env.reset()[0]).tobytes())
    return told


def actions(env, count: int) -> list:
    env.action_space.seed(3)
    return [env.action_space.sample() for _ in range(count)]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1"])
def test_a_restored_episode_goes_on_in_the_same_bits_and_so_do_those_after_it(env_id, tmp_path):
    env = SimEnv(untrained_model(env_id))
    env.reset(seed=5)
    played(env, actions(env, 7))
    moment = env.snapshot()
    plan = actions(env, 60)
    first = played(env, plan)
    assert len(first) > len(plan), "an episode ends within, and the next one is the same, too"
    env.restore(moment)
    assert played(env, plan) == first
    moment.save(tmp_path / "moment.npz")
    other = SimEnv(untrained_model(env_id))
    other.restore(Snapshot.load(tmp_path / "moment.npz"))
    assert played(other, plan) == first


def test_a_batch_is_restored_with_every_generator(tmp_path):
    env = SimVectorEnv(3, untrained_model("CartPole-v1"))
    env.reset(seed=2)
    plan = actions(env, 80)
    for action in plan[:30]:
        env.step(action)
    moment = env.snapshot()

    def rest() -> list[bytes]:
        return [b"".join(np.asarray(x).tobytes() for x in env.step(action)[:4]) for action in plan[30:]]

    first = rest()
    env.restore(moment)
    assert rest() == first


def test_the_first_branch_goes_on_as_the_episode_and_the_others_differ():
    env = SimEnv(untrained_model("CartPole-v1"))
    env.reset(seed=5)
    for action in actions(env, 6):
        env.step(action)
    many = env.branch(4)
    assert many.num_envs == 4
    obs = np.stack([many.step(np.ones(4, np.int64))[0] for _ in range(3)])
    own = np.stack([env.step(1)[0] for _ in range(3)])
    assert obs[:, 0].tobytes() == own.tobytes(), "stepping the branches moved nothing here"
    assert len({obs[:, row].tobytes() for row in range(4)}) == 4


def test_what_cannot_be_restored_is_refused(tmp_path):
    env = SimEnv(untrained_model("CartPole-v1"))
    for early in (env.snapshot, lambda: env.branch(2)):
        with pytest.raises(gym.error.ResetNeeded, match="was called before reset"):
            early()
    env.reset(seed=0)
    moment = env.snapshot()
    with pytest.raises(ValueError, match="the snapshot is of another world model"):
        SimEnv(untrained_model("CartPole-v1", 1)).restore(moment)
    with pytest.raises(ValueError, match="the snapshot is of 1 environments, not of 2"):
        SimVectorEnv(2, untrained_model("CartPole-v1")).restore(moment)
    (tmp_path / "torn.npz").write_bytes(b"PK\3\4 torn")
    with pytest.raises(ValueError, match="is no snapshot"):
        Snapshot.load(tmp_path / "torn.npz")


@pytest.mark.slow
def test_another_process_goes_on_in_the_same_bits(tmp_path):
    run = untrained_run(tmp_path / "run")
    env = wm.make(run).unwrapped
    env.reset(seed=5)
    played(env, actions(env, 5))
    env.snapshot().save(tmp_path / "moment.npz")
    plan = actions(env, 20)
    script = """
        import sys
        import worldmodel as wm
        from tests.envs.test_snapshot import actions, played
        from worldmodel.envs.snapshot import Snapshot

        env = wm.make(sys.argv[1]).unwrapped
        env.restore(Snapshot.load(sys.argv[2]))
        print([told.hex() for told in played(env, actions(env, 20))])
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(run), str(tmp_path / "moment.npz")]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == str([told.hex() for told in played(env, plan)])
