import pathlib

import gymnasium
import numpy as np

from tests.sources.case import Case
from worldmodel.trajectory import Spec, Trajectory


def scripted(obs: np.ndarray) -> int:
    """Pushes towards the side to which the pole falls."""
    return int(obs[2] > 0)


def _episodes() -> list[Trajectory]:
    env = gymnasium.make("CartPole-v1", max_episode_steps=30)
    found = []
    for index, seed in enumerate((717562215, 1699698858)):
        obs, _ = env.reset(seed=seed)
        observations, actions, rewards, terminated, truncated = [obs], [], [], False, False
        while not (terminated or truncated):
            actions.append(scripted(obs))
            obs, reward, terminated, truncated, _ = env.step(actions[-1])
            observations.append(obs)
            rewards.append(reward)
        found.append(
            Trajectory(
                np.array(observations),
                np.array(actions),
                np.array(rewards, np.float32),
                terminated,
                truncated,
                info={"id": f"CartPole-v1/7/{index:06d}", "source": "recorded", "policy": "scripted", "seed": seed},
            )
        )
    return found


CASES = [
    Case(
        name="gymnasium",
        format="gymnasium",
        path=pathlib.Path("CartPole-v1"),
        spec=Spec.from_gymnasium(gymnasium.make("CartPole-v1", max_episode_steps=30)),
        episodes=_episodes,
        options={"episodes": 2, "seed": 7, "policy": scripted, "env_kwargs": {"max_episode_steps": 30}},
        recognised=False,
        left_out=("^info of each step: ",),
    )
]
