"""The simulator in other people's shoes."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import gymnasium as gym

__all__ = ["make", "make_text"]


def make(
    run: Any, num_envs: int | None = None, *, max_episode_steps: int | None = None, **kwargs: Any
) -> gym.Env | gym.vector.VectorEnv:
    """A world model as a Gymnasium environment; a language world model as a `worldmodel.envs.text.TextEnv`.

    Args:
      run: a run folder (`str` or path), or a loaded `WorldModel` or `TextWorldModel`.
      num_envs: None for one environment, as `gymnasium.make` returns it; a number for that many as one native batch,
        as `gymnasium.make_vec` returns it.
      max_episode_steps: steps after which an episode is truncated; None: as the real environment does, -1: never.
      **kwargs: of `worldmodel.envs.gymnasium.SimEnv`, of `worldmodel.envs.vector.SimVectorEnv`, or of `TextEnv`
        (`task`, `temperature`, `seed`).

    Raises:
      FileNotFoundError: there is no such run, or it holds no checkpoint.
      ValueError: an argument is outside what is allowed.
    """
    text = _texts(run)
    if text is not None:
        if num_envs is not None:
            raise ValueError("episodes of texts are simulated one by one; leave num_envs out, and branch for several")
        limit = text.spec.max_episode_steps if max_episode_steps is None else max_episode_steps
        return make_text(text, max_steps=None if limit == -1 else limit, **kwargs)
    if num_envs is not None:
        return gym.make_vec(
            "worldmodel/Sim-v0", num_envs, checkpoint=run, max_episode_steps=max_episode_steps, **kwargs
        )
    # `gymnasium.make` keeps an argument named max_episode_steps to itself; one inside the spec reaches the environment.
    inside = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    spec = dataclasses.replace(gym.spec("worldmodel/Sim-v0"), kwargs=inside)
    return gym.make(spec, checkpoint=run, **kwargs)


def make_text(checkpoint: Any, **kwargs: Any) -> gym.Env:
    """What `gymnasium.make("worldmodel:worldmodel/Text-v0", checkpoint=run)` makes: a `worldmodel.envs.text.TextEnv`.

    Args:
      checkpoint: the run folder of a language world model, or a `TextWorldModel`.
      **kwargs: of `TextEnv`.

    Raises:
      FileNotFoundError: there is no such run, or it holds no checkpoint.
      ValueError: it is no run of texts, or an argument is outside what is allowed.
    """
    from worldmodel.envs.text import TextEnv

    text = _texts(checkpoint)
    if text is None:
        raise ValueError(f"checkpoint is {checkpoint!r}; the run of a language world model is needed")
    return TextEnv(text.dynamics, **kwargs)


def _texts(run: Any) -> Any:
    """The language world model that `run` is or holds; None where it is another model's."""
    from worldmodel.training.opened import holds_texts, load
    from worldmodel.training.text.model import TextWorldModel

    if isinstance(run, TextWorldModel):
        return run
    return load(run) if isinstance(run, (str, os.PathLike)) and holds_texts(run) else None
