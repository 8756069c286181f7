"""A world model as a native batch: `gymnasium.make_vec("worldmodel:worldmodel/Sim-v0", num_envs=N, checkpoint=run)`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from worldmodel.envs.check import (
    STARTS,
    check_actions,
    check_options,
    check_render_mode,
    check_reset_mask,
    check_seeds,
    check_start,
    open_world_model,
    recorded_spec,
    step_limit,
)
from worldmodel.envs.control import check_control
from worldmodel.envs.host import HostSimulator, HostStep
from worldmodel.envs.rendering import can_draw, pictures
from worldmodel.envs.snapshot import Snapshot, taken
from worldmodel.spaces import map_columns
from worldmodel.trajectory import suggest
from worldmodel.trust_region import Trust


class SimVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """`num_envs` simulated episodes, stepped as one batch; what `SyncVectorEnv` over that many `SimEnv` would return.

    Environment i with seed s is `SimEnv` with seed s + i through all its episodes: bit for bit up to eight
    environments, beyond that to float32's rounding (`worldmodel.envs.host.LEAST_ROWS` says why). `info` is as in
    `SimEnv`, batched, with a mask `_name` for each `name`.

    Args:
      num_envs: size of the batch.
      checkpoint, render_mode, max_episode_steps, trust, trust_coverage, trust_penalty, perturb: as in `SimEnv`.
      autoreset_mode: "NextStep": the step after an end ignores the action and resets; "SameStep": the step that ends
        resets, with the end in `info["final_obs"]` and `info["final_info"]`; "Disabled": the caller resets, with
        `reset(options={"reset_mask": ended})`.

    Raises:
      FileNotFoundError, ValueError, gymnasium.error.ResetNeeded: as in `SimEnv`.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012, as Gymnasium has it

    def __init__(
        self,
        num_envs: int = 1,
        checkpoint: Any = None,
        *,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        trust: Trust | str = Trust.IGNORE,
        trust_coverage: float = 0.99,
        trust_penalty: float | None = None,
        perturb: Any = None,
    ):
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; at least 1 is needed")
        self.num_envs = int(num_envs)
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.world_model = open_world_model(checkpoint)
        spec = self.world_model.spec
        self._limit = step_limit(max_episode_steps, spec)
        self.render_mode = check_render_mode(render_mode, spec)
        modes = ["rgb_array"] if can_draw(spec) else []
        self.metadata = {**type(self).metadata, "render_modes": modes, "autoreset_mode": self.autoreset_mode}
        control = check_control(
            self.world_model,
            trust=trust,
            trust_coverage=trust_coverage,
            trust_penalty=trust_penalty,
            perturb=perturb,
        ).among(self.num_envs)
        self._host = HostSimulator(self.world_model, self.num_envs, self._limit, control)
        self.single_observation_space = self._host.observation_space
        self.single_action_space = self._host.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._spec: EnvSpec | None = None
        self._generators: list[np.random.Generator] = []
        self._seeds: list[int] = []
        self._obs: Any = None
        self._ended = np.zeros(self.num_envs, np.bool_)

    @property
    def spec(self) -> EnvSpec | None:
        """How to make this environment again; None unless it came from `gymnasium.make_vec` or `worldmodel.make`."""
        return self._spec

    @spec.setter
    def spec(self, value: EnvSpec | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._spec = recorded_spec(value, self._limit, self.world_model)

    @property
    def np_random(self) -> tuple[np.random.Generator, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The generator of each environment, as in `SyncVectorEnv`."""
        self._seed([None] * self.num_envs)
        return tuple(self._generators)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The seed of each environment's generator."""
        self._seed([None] * self.num_envs)
        return tuple(self._seeds)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every environment, or where `options["reset_mask"]` (bool `[num_envs]`) is true.

        Args:
          seed: None, a number s (environment i gets s + i), or a list with a seed or None for each.
          options: `reset_mask`; or, of all environments, those of `SimEnv.reset`: `start` are observations
            `[num_envs, ...]`, `context` one for all or a list with one for each, `prefix` is lived through by all.
            Later episodes begin as the logs' did.
        """
        check_options(options, ("reset_mask", *STARTS))
        seeds = check_seeds(seed, self.num_envs)
        if options is None or "reset_mask" not in options:
            start = check_start(options, self.world_model, self._limit, self.num_envs)
            self._seed(seeds)
            seeded = np.array([seed is not None for seed in seeds])
            self._obs = self._host.reset(self._generators, start.first, start.context, seeded=seeded)
            if start.prefix is not None:
                self._obs = self._host.observe(start.prefix)
            self._ended = np.zeros(self.num_envs, np.bool_)
        elif len(options) > 1:
            raise ValueError("reset option 'reset_mask' excludes every other")
        else:
            mask = check_reset_mask(options["reset_mask"], self.num_envs)
            if self._obs is None:
                raise gym.error.ResetNeeded("the first reset must be of all environments, without reset_mask")
            self._seed([s if chosen else None for s, chosen in zip(seeds, mask, strict=True)])
            self._obs = self._host.reset_rows(mask, self._generators)
            self._ended = self._ended & ~mask
        return _copy(self._obs), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of every environment, `[num_envs, ...]` each; see the class for what happens at ends."""
        if self._obs is None:
            raise gym.error.ResetNeeded("step was called before reset")
        ended = self._ended
        if self.autoreset_mode is AutoresetMode.DISABLED and ended.any():
            rows = ", ".join(map(str, np.flatnonzero(ended)))
            raise gym.error.ResetNeeded(f"the episodes of environments {rows} have ended; reset them with reset_mask")
        step = self._host.step(check_actions(self.single_action_space, actions, ~ended))
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            return self._same_step(step)
        infos = _masked(step.info, ~ended)
        obs = step.obs
        if ended.any():
            obs = self._host.reset_rows(ended, self._generators)
        reward = np.where(ended, 0.0, step.reward)
        terminated, truncated = step.terminated & ~ended, step.truncated & ~ended
        self._obs, self._ended = obs, terminated | truncated
        return _copy(obs), reward, terminated, truncated, infos

    def snapshot(self) -> Snapshot:
        """This moment of every environment, for `restore`, as `SimEnv.snapshot`."""
        if self._obs is None:
            raise gym.error.ResetNeeded("snapshot was called before reset")
        return taken(self.world_model, self._host.leaves(), self._ended, self._generators, self._seeds)

    def restore(self, snapshot: Snapshot) -> Any:
        """Goes back to a snapshot of as many environments of this world model; returns their observations."""
        snapshot.check(self.world_model, self.num_envs)
        self._obs = self._host.restore(snapshot.leaves)
        self._ended = snapshot.ended.copy()
        self._generators, self._seeds = snapshot.new_generators(), list(snapshot.seeds)
        return _copy(self._obs)

    def start_from(self, host: HostSimulator) -> Any:
        """Every environment continues the first episode of `host`, as `SimEnv.branch` says; returns observations."""
        self._seed([None] * self.num_envs)
        self._obs = self._host.branch(host)
        self._ended = np.zeros(self.num_envs, np.bool_)
        return _copy(self._obs)

    def render(self) -> tuple[Any, ...] | None:
        """One picture per environment, uint8 `[h, w, 3]`; None without a render mode."""
        if self.render_mode is None:
            gym.logger.warn("render was called without a render_mode; make the environments with 'rgb_array'")
            return None
        if self._obs is None:
            raise gym.error.ResetNeeded("render was called before reset")
        return tuple(pictures(self.world_model.spec, self._obs))

    def close_extras(self, **kwargs: Any) -> None:
        """Frees the episodes' memory."""
        self._host.forget()
        self._obs = None

    def _same_step(self, step: HostStep) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        ended = step.terminated | step.truncated
        infos = _masked(step.info, ~ended)
        self._obs = step.obs
        if ended.any():
            final_obs = np.full(self.num_envs, None, dtype=object)
            for row in np.flatnonzero(ended):
                final_obs[row] = map_columns(lambda column, row=row: column[row], step.obs)
            infos |= {"final_obs": final_obs, "_final_obs": ended.copy()}
            infos |= {"final_info": _masked(step.info, ended), "_final_info": ended.copy()}
            self._obs = self._host.reset_rows(ended, self._generators)
        return _copy(self._obs), step.reward, step.terminated, step.truncated, infos

    def _seed(self, seeds: list[int | None]) -> None:
        """New generators where a seed is given, and where there is none yet."""
        pairs = [
            (self._generators[i], self._seeds[i]) if seed is None and self._generators else seeding.np_random(seed)
            for i, seed in enumerate(seeds)
        ]
        self._generators, self._seeds = [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _copy(obs: Any) -> Any:
    return map_columns(np.copy, obs)


def _autoreset_mode(mode: str | AutoresetMode) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    names = [known.value for known in AutoresetMode]
    if mode not in names:
        raise ValueError(f"autoreset_mode is {mode!r}; allowed are {', '.join(names)}{suggest(mode, names)}")
    return AutoresetMode(mode)


def _masked(info: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, Any]:
    """Gymnasium's form of batched infos: zeros and a false `_name` for environments that have none."""
    infos: dict[str, Any] = {}
    if rows.any():
        for name, values in info.items():
            infos[name] = np.where(rows.reshape(-1, *[1] * (values.ndim - 1)), values, np.zeros_like(values))
            infos[f"_{name}"] = rows.copy()
    return infos
