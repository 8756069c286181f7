"""Pictures of observations, drawn by the real environment's own renderer; an image is its own picture.

An imagined observation can be shown as the real environment would show it wherever the renderer's state follows from
the observation. The environment is reset once and never stepped: its state is set, and it draws.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from worldmodel.envs.names import family
from worldmodel.spaces import is_image
from worldmodel.trajectory import Spec


def _cartpole(obs: np.ndarray) -> np.ndarray:
    # A diverged imagination may put the cart far outside the picture, where pixel coordinates overflow.
    return np.array([np.clip(obs[0], -4.8, 4.8), *obs[1:]])


def _pendulum(obs: np.ndarray) -> np.ndarray:
    return np.array([np.arctan2(obs[1], obs[0]), obs[2]])


def _mountain_car(obs: np.ndarray) -> np.ndarray:
    return np.array([np.clip(obs[0], -1.2, 0.6), obs[1]])


def _acrobot(obs: np.ndarray) -> np.ndarray:
    return np.array([np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2]), obs[4], obs[5]])


# Environment family (the id without namespace and version) -> (length of an observation, observation -> state).
STATE_OF: dict[str, tuple[int, Callable[[np.ndarray], np.ndarray]]] = {
    "CartPole": (4, _cartpole),
    "Pendulum": (3, _pendulum),
    "MountainCar": (2, _mountain_car),
    "MountainCarContinuous": (2, _mountain_car),
    "Acrobot": (6, _acrobot),
}


WHOLE_FRAME = (4096, 4096)
"""A box that every renderer's picture fits in as it is."""


def can_draw(spec: Spec) -> bool:
    """Whether an observation is a picture, or tells the renderer's state."""
    if is_image(spec.observation_space):
        return True
    if spec.env_id is None or spec.observation_space["type"] != "Box":
        return False
    name = family(spec.env_id)
    return name in STATE_OF and tuple(spec.observation_space.get("shape", ())) == (STATE_OF[name][0],)


def pictures(spec: Spec, observations: np.ndarray, *, size: tuple[int, int] = WHOLE_FRAME) -> list[np.ndarray]:
    """Pictures, uint8 `[h, w, 3]`, of observations `[N, ...]` of an environment that `can_draw`, within `size`."""
    if is_image(spec.observation_space):
        coloured = [np.repeat(o, 3, axis=2) if o.shape[2] == 1 else o[..., :3] for o in np.asarray(observations)]
        return [fit(picture, size) for picture in coloured]
    return frames(str(spec.env_id), observations, env_kwargs=spec.env_kwargs, size=size) or []


def frames(
    env_id: str,
    observations: np.ndarray,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    size: tuple[int, int] = (300, 200),
    every: int = 1,
) -> list[np.ndarray] | None:
    """Draws every `every`-th of `observations`, first one included, without a single step of the environment.

    Args:
      env_id: a Gymnasium id, such as `CartPole-v1`.
      observations: float `[T+1, D]`, real or imagined, finite.
      env_kwargs: passed to `gymnasium.make`.
      size: `(width, height)` in pixels of the box a frame has to fit in; the renderer's aspect is kept.
      every: distance between drawn observations, in steps.

    Returns:
      `ceil((T+1) / every)` pictures, uint8 `[h, w, 3]`; None where `env_id` is of no family whose state follows from
      the observation (`STATE_OF`): draw traces then.

    Raises:
      ValueError: observations of another shape than the family's, or not finite; `every` below 1.
    """
    if family(env_id) not in STATE_OF:
        return None
    if every < 1:
        raise ValueError(f"every is {every}; a whole number of steps, 1 or more, is needed")
    dims, state_of = STATE_OF[family(env_id)]
    observations = np.asarray(observations, dtype=np.float64)
    if observations.ndim != 2 or observations.shape[1] != dims:
        raise ValueError(f"observations of {env_id} have shape {observations.shape}; (T+1, {dims}) is needed")
    if not np.isfinite(observations).all():
        step = int(np.argmin(np.isfinite(observations).all(axis=1)))
        raise ValueError(f"observation {step} of {env_id} is not finite: it cannot be drawn")

    # Without these SDL looks for a display and a sound card; a frame is drawn off screen and in silence.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    import gymnasium

    env: Any = gymnasium.make(env_id, render_mode="rgb_array", disable_env_checker=True, **(env_kwargs or {})).unwrapped
    try:
        env.reset(seed=0)
        drawn = []
        for obs in observations[::every]:
            env.state = state_of(obs)
            drawn.append(fit(np.asarray(env.render(), dtype=np.uint8), size))
    finally:
        env.close()
    return drawn


def fit(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The picture `[H, W, 3]` shrunk into `size = (w, h)`, aspect kept; never enlarged."""
    from PIL import Image

    height, width = picture.shape[:2]
    scale = min(size[0] / width, size[1] / height, 1.0)
    if scale == 1.0:
        return np.ascontiguousarray(picture)
    small = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.array(Image.fromarray(picture).resize(small, Image.Resampling.BICUBIC, reducing_gap=2.0))
