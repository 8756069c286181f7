"""The perturbations of the simulated world in the real one: to test in reality what was trained for."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from gymnasium.utils import seeding

from worldmodel.codec import StepCodec
from worldmodel.envs.check import open_world_model
from worldmodel.perturbations import Perturbations, PerturbationState
from worldmodel.spaces import map_columns


class PerturbedEnv(gym.Wrapper):
    """Any Gymnasium environment, disturbed as `perturb=` disturbs the simulated one.

    What is drawn depends on the seed, the episode and the step alone, so that here and in a `SimEnv` with the same seed
    and the same perturbations the same actions are lost and the same noise is added. `info` of a step has `strength`.

    Args:
      env: the environment.
      perturb: see `SimEnv`.
      like: the world model of this environment, or its run folder: its logs give the units of noise.

    Raises:
      ValueError: a perturbation finds nothing to perturb, or spaces are not those of the world model.
    """

    def __init__(self, env: gym.Env, perturb: Any, like: Any):
        super().__init__(env)
        model = open_world_model(like)
        for role, own, known in zip(
            ("observation", "action"), (env.observation_space, env.action_space), model.spec.to_gymnasium(), strict=True
        ):
            if own != known:
                raise ValueError(f"the {role} space is {own}; the world model's is {known}")
        self._codec = model.dynamics.codec
        self._perturbations = Perturbations.of(perturb)
        self._perturbations.check(self._codec)
        self._begin, self._act, self._sense, self._follow = _compiled(self._perturbations, self._codec)
        self._generator: np.random.Generator | None = None
        self._state: PerturbationState | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """An episode of the environment; its first observation is seen as it is."""
        obs, info = self.env.reset(seed=seed, options=options)
        if seed is not None or self._generator is None:
            self._generator, self._state = seeding.np_random(seed)[0], None
        words = self._generator.integers(0, 2**32, size=2, dtype=np.uint32)
        fresh = self._begin(words, _row(obs))
        self._state = fresh if self._state is None else self._follow(fresh, self._state)
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step of the environment with the action that reaches it."""
        if self._state is None:
            raise gym.error.ResetNeeded("step was called before reset")
        strength = float(self._state.strength[0])
        state, executed = self._act(self._state, _row(action))
        executed = _of_space(executed, self.action_space) if strength else action
        obs, reward, terminated, truncated, info = self.env.step(executed)
        self._state, seen, paid = self._sense(state, _row(obs), np.array([reward], np.float32))
        if strength:
            obs, reward = _of_space(seen, self.observation_space), float(paid[0])
        return obs, float(reward), terminated, truncated, {**info, "strength": np.float32(strength)}


@lru_cache(maxsize=32)
def _compiled(perturbations: Perturbations, codec: StepCodec) -> tuple[Any, ...]:
    alone = perturbations.alone()

    def begin(words: Any, obs: Any) -> PerturbationState:
        # The key that `HostSimulator` and `Simulator.reset` make of the same words.
        key = jax.random.split(jax.random.wrap_key_data(words, impl="threefry2x32"))[0]
        return alone.begin(codec, key[None], obs)

    def follow(fresh: PerturbationState, before: PerturbationState) -> PerturbationState:
        return alone.replace_rows(jax.numpy.ones(1, bool), fresh, before)

    return tuple(map(jax.jit, (begin, partial(alone.act, codec), partial(alone.sense, codec), follow)))


def _row(value: Any) -> Any:
    """A batch of one, in the dtypes that JAX computes in."""

    def leaf(part: Any) -> np.ndarray:
        column = np.asarray(part)[None]
        return column.astype(jax.dtypes.canonicalize_dtype(column.dtype))

    return map_columns(leaf, value)


def _of_space(value: Any, space: gym.Space) -> Any:
    """The one row as Gymnasium has it."""

    def leaf(column: Any, own: gym.Space) -> Any:
        if isinstance(own, gym.spaces.Discrete):
            return int(column[0])
        values = np.asarray(column)[0].astype(own.dtype)
        # JAX computes in 32 bits, whose rounding of a float64 bound may lie outside of it.
        return np.clip(values, own.low, own.high) if isinstance(own, gym.spaces.Box) else values

    return map_columns(leaf, value, space)
