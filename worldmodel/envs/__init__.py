"""The simulator in other people's shoes."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym

__all__ = ["make"]


def make(
    run: Any, num_envs: int | None = None, *, max_episode_steps: int | None = None, **kwargs: Any
) -> gym.Env | gym.vector.VectorEnv:
    """A world model as a Gymnasium environment.

    Args:
      run: a run folder (`str` or path), or a loaded `WorldModel`.
      num_envs: None for one environment, as `gymnasium.make` returns it; a number for that many as one native batch,
        as `gymnasium.make_vec` returns it.
      max_episode_steps: steps after which an episode is truncated; None: as the real environment does, -1: never.
      **kwargs: of `worldmodel.envs.gymnasium.SimEnv`, or of `worldmodel.envs.vector.SimVectorEnv`.

    Raises:
      FileNotFoundError: there is no such run, or it holds no checkpoint.
      ValueError: an argument is outside what is allowed.
    """
    if num_envs is not None:
        return gym.make_vec(
            "worldmodel/Sim-v0", num_envs, checkpoint=run, max_episode_steps=max_episode_steps, **kwargs
        )
    # `gymnasium.make` keeps an argument named max_episode_steps to itself; one inside the spec reaches the environment.
    inside = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    spec = dataclasses.replace(gym.spec("worldmodel/Sim-v0"), kwargs=inside)
    return gym.make(spec, checkpoint=run, **kwargs)
