"""A world model as one Gymnasium environment: `gymnasium.make("worldmodel:worldmodel/Sim-v0", checkpoint=run)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from worldmodel.envs.check import (
    STARTS,
    check_action,
    check_options,
    check_render_mode,
    check_start,
    open_world_model,
    recorded_spec,
    step_limit,
)
from worldmodel.envs.control import check_control
from worldmodel.envs.host import HostSimulator
from worldmodel.envs.rendering import can_draw, pictures
from worldmodel.envs.snapshot import Snapshot, taken
from worldmodel.spaces import map_columns
from worldmodel.trust_region import Trust

if TYPE_CHECKING:
    from worldmodel.envs.vector import SimVectorEnv


class SimEnv(gym.Env[Any, Any]):
    """One simulated episode at a time, in the spaces and under the time limit of the environment it stands for.

    `reset(seed=s)` fixes everything that follows, to the last bit. The environment truncates by itself: no wrapper is
    needed. `info` of a step holds `log_prob` float32 `[3]` (nats that the model gave to the observation, the reward and
    the termination it drew), `end_probability` float32 and `member` int32, the ensemble member that rules the episode.

    Args:
      checkpoint: a run folder, or a loaded `WorldModel`.
      render_mode: None, or "rgb_array" where the real environment's renderer can draw an observation.
      max_episode_steps: steps after which an episode is truncated; None: as the real environment does, -1: never.
        `gymnasium.make` keeps an argument of this name to itself and adds a limit: with it episodes get shorter only.
      trust: what to do about a step outside the trusted region, that is where the ensemble's members disagree more than
        they do on held-out steps, or, where a probe left a certificate with the run, in states that are not certified:
        "ignore"; "info" says so, `info` has `outside` bool and, of an ensemble, `disagreement` float32; "truncate" ends
        the episode; "penalise" lets it cost reward. It needs a certificate, or two members or more that were trained
        with held-out episodes.
      trust_coverage: share of the held-out steps that counts as inside.
      trust_penalty: reward that a step outside costs; None: one standard deviation of the logs' rewards.
      perturb: what disturbs the world (`worldmodel.perturbations`): one, a sequence of them, or `Perturbations`; `info`
        has their `strength`, float32. None: nothing.

    Raises:
      FileNotFoundError: there is no such run, or it holds no checkpoint.
      ValueError: an argument, a reset option or an action is outside what is allowed.
      gymnasium.error.ResetNeeded: a step or a picture before `reset`, or a step after the episode's end.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012, as Gymnasium has it

    def __init__(
        self,
        checkpoint: Any = None,
        *,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
        trust: Trust | str = Trust.IGNORE,
        trust_coverage: float = 0.99,
        trust_penalty: float | None = None,
        perturb: Any = None,
    ):
        self.world_model = open_world_model(checkpoint)
        spec = self.world_model.spec
        self._limit = step_limit(max_episode_steps, spec)
        self.render_mode = check_render_mode(render_mode, spec)
        self.metadata = {**type(self).metadata, "render_modes": ["rgb_array"] if can_draw(spec) else []}
        asked: dict[str, Any] = {"trust": trust, "trust_coverage": trust_coverage, "trust_penalty": trust_penalty}
        control = check_control(self.world_model, **asked, perturb=perturb).alone()
        self._asked = {**asked, "perturb": control.perturb}
        self._host = HostSimulator(self.world_model, 1, self._limit, control)
        self.observation_space, self.action_space = self._host.observation_space, self._host.action_space
        self._spec: EnvSpec | None = None
        self._obs: Any = None
        self._ended = False

    @property
    def spec(self) -> EnvSpec | None:
        """How to make this environment again; None unless it came from `gymnasium.make` or `worldmodel.make`."""
        return self._spec

    @spec.setter
    def spec(self, value: EnvSpec | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._spec = recorded_spec(value, self._limit, self.world_model)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode: where one of the logs' did, or as one of the options says.

        Args:
          seed: of everything that follows; None: the generator goes on.
          options: `start`, an observation to begin at; `context`, what holds for the episode, as the logs have it; or
            `prefix`, a `Trajectory` that the episode continues in its context: what it holds counts as lived through,
            and its steps count towards the time limit.

        Raises:
          ValueError: an option is unknown, is not of the spaces, or leaves no step to take.
        """
        check_options(options, STARTS)
        start = check_start(options, self.world_model, self._limit)
        super().reset(seed=seed)
        seeded = np.array([seed is not None])
        self._obs = self._host.reset([self.np_random], start.first, start.context, seeded=seeded)
        if start.prefix is not None:
            self._obs = self._host.observe(start.prefix)
        self._ended = False
        return self._of_space(self._obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; see the class for `info`."""
        if self._obs is None:
            raise gym.error.ResetNeeded("step was called before reset")
        if self._ended:
            raise gym.error.ResetNeeded("step was called after the episode's end; call reset first")
        step = self._host.step(check_action(self.action_space, action))
        terminated, truncated = bool(step.terminated[0]), bool(step.truncated[0])
        self._obs, self._ended = step.obs, terminated or truncated
        info = {name: values[0] for name, values in step.info.items()}
        return self._of_space(step.obs), float(step.reward[0]), terminated, truncated, info

    def snapshot(self) -> Snapshot:
        """This moment, for `restore`: of the episode, and of the generator that later resets draw from.

        Wrappers keep what they count to themselves: call it as `env.unwrapped.snapshot()`.
        """
        if self._obs is None:
            raise gym.error.ResetNeeded("snapshot was called before reset")
        generator, seed = self.np_random, self.np_random_seed
        return taken(self.world_model, self._host.leaves(), [self._ended], [generator], [seed])

    def restore(self, snapshot: Snapshot) -> Any:
        """Goes back to a snapshot of this world model, taken here or elsewhere; returns its observation.

        The same actions then give the same bits. `ValueError` where it is another model's, or a batch's.
        """
        snapshot.check(self.world_model, 1)
        self._obs = self._host.restore(snapshot.leaves)
        self._ended = bool(snapshot.ended[0])
        (self._np_random,), (self._np_random_seed,) = snapshot.new_generators(), snapshot.seeds
        return self._of_space(self._obs)

    def branch(self, count: int) -> SimVectorEnv:
        """The present episode continued `count` ways, as one batch that may be stepped at once.

        Environment 0 goes on exactly as this one would with the same actions; each other one draws its own chances.
        This environment stays where it is. Ends are left to the caller (`autoreset_mode="Disabled"`).
        """
        from worldmodel.envs.vector import SimVectorEnv

        if self._obs is None:
            raise gym.error.ResetNeeded("branch was called before reset")
        if self._ended:
            raise gym.error.ResetNeeded("branch was called after the episode's end; call reset first")
        limit = -1 if self._limit is None else self._limit
        made = SimVectorEnv(count, self.world_model, max_episode_steps=limit, autoreset_mode="Disabled", **self._asked)
        made.start_from(self._host)
        return made

    def render(self) -> Any:
        """The present observation as the real environment would draw it, uint8 `[h, w, 3]`; None without a mode."""
        if self.render_mode is None:
            gym.logger.warn("render was called without a render_mode; make the environment with 'rgb_array'")
            return None
        if self._obs is None:
            raise gym.error.ResetNeeded("render was called before reset")
        return pictures(self.world_model.spec, self._obs)[0]

    def close(self) -> None:
        """Frees the episode's memory; may be called again."""
        self._host.forget()
        self._obs = None

    def _of_space(self, obs: Any) -> Any:
        """The one row as Gymnasium has it: a Python int for a Discrete space, else arrays of the caller's own."""

        def leaf(column: np.ndarray, space: gym.Space) -> Any:
            return int(column[0]) if isinstance(space, gym.spaces.Discrete) else column[0].copy()

        return map_columns(leaf, obs, self.observation_space)
