"""Anybody's Gymnasium environment as a family: its arguments are the knobs, its starts (or physics) the instances."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from worldmodel.study.cells import Cell
from worldmodel.study.dials import Knob
from worldmodel.study.host_faults import KINDS, Faulty
from worldmodel.study.host_learners import Learn, Policy, learner_for
from worldmodel.study.table import WITH_WORLD_MODEL

FIRST_HELD_OUT = 100_000
INSTANCE, FAULT, LEARNING = 1, 2, 3


@dataclasses.dataclass(frozen=True)
class GymnasiumTask:
    """A family of one's own environment.

    Complexity sets one of its arguments, see `knobs`. An instance is a start (a seed of `reset`), and what `vary` draws
    for it. The simulator is the environment itself with a fault planted from outside (`host_faults`), or what
    `simulator` makes of it.

    Attributes:
      env: class or function that makes it, of keyword arguments; or a Gymnasium id.
      knobs: arguments that complexity can set.
      kwargs: its other arguments.
      vary: generator -> more arguments, those of an instance; None: instances differ in their starts.
      simulator: `(environment, kind, fidelity, seed) -> environment`; None: `Faulty`.
      kinds: corruptions that `simulator` knows.
      learner: see `host_learners.Learn`; None: by the spaces.
      steps: of training.
      real_steps: of the arm with a simulator's real budget.
      episodes: of evaluation, in each deployment.
      max_steps: after which an episode is cut.
      reward_size: of the false reward.
      bounds: least and greatest possible return, where they are known.
    """

    env: Callable[..., gymnasium.Env] | str
    knobs: Mapping[str, Knob]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    vary: Callable[[np.random.Generator], Mapping[str, Any]] | None = None
    simulator: Callable[[gymnasium.Env, str, float, int], gymnasium.Env] | None = None
    kinds: tuple[str, ...] = KINDS
    learner: Learn | None = None
    steps: int = 5_000
    real_steps: int = 1_000
    episodes: int = 20
    max_steps: int = 1_000
    reward_size: float = 1.0
    bounds: tuple[float, float] | None = None
    # What `Family` asks for; without annotations these are no fields.
    arms = ("simulated", "reference", "no_training", "real_equal_budget", "null", "oracle")
    most_diverse = FIRST_HELD_OUT

    def __post_init__(self):
        if self.simulator is None and (unknown := [kind for kind in self.kinds if kind not in KINDS]):
            raise ValueError(f"corruption {unknown[0]!r} of {self.name} needs a `simulator` that plants it")

    @property
    def name(self) -> str:
        """See `Family`."""
        return self.env if isinstance(self.env, str) else self.env.__name__

    @property
    def corruptions(self) -> Sequence[str]:
        """See `Family`."""
        return self.kinds

    def describe(self) -> dict[str, Any]:
        """See `Family`: with a hash of the source of what was given, so that a change of it makes cells anew."""
        plain = ("steps", "real_steps", "episodes", "max_steps", "reward_size")
        code = {name: _source(getattr(self, name)) for name in ("env", "vary", "simulator", "learner")}
        return {
            "kind": type(self).__name__,
            "code": code,
            "kwargs": dict(self.kwargs),
            **{name: getattr(self, name) for name in plain},
        }

    def seconds(self, cell: Cell) -> float:
        """See `Family`."""
        training = 0 if cell.arm == "no_training" else self.steps
        return len(cell.seeds) * cell.policies * (training + 4 * self.episodes * 50) / 30_000

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        """See `Family`."""
        rows = []
        for seed in cell.seeds:
            for number in range(cell.policies):
                rows += self._policy(cell, seed, number)
        return rows

    def _policy(self, cell: Cell, seed: int, number: int) -> list[dict[str, Any]]:
        with_simulator = cell.arm in WITH_WORLD_MODEL
        trained = range(cell.diversity)
        policy, steps = self._learned(cell, seed, number)
        others = range(FIRST_HELD_OUT, FIRST_HELD_OUT + self.episodes)
        imagined = self._deploy(cell, seed, trained, policy, simulated=True) if with_simulator else None
        return [
            {
                "world_model_seed": seed if with_simulator else None,
                "policy_seed": number if with_simulator else seed,
                "deployment": name,
                "real_return": self._deploy(cell, seed, instances, policy),
                "simulated_return": imagined,
                "episodes": self.episodes,
                "real_steps": 0 if with_simulator else steps,
                "simulated_steps": steps if with_simulator else 0,
            }
            for name, instances in (("training", trained), ("held_out", others))
        ]

    def _learned(self, cell: Cell, seed: int, number: int) -> tuple[Policy, int]:
        rng = np.random.default_rng([seed, LEARNING, number])
        envs = [self._make(cell, seed, instance, simulated=True) for instance in range(cell.diversity)]
        try:
            if cell.arm == "no_training":
                space = envs[0].action_space
                return lambda obs, rng: _sample(space, rng), 0
            steps = self.real_steps if cell.arm == "real_equal_budget" else self.steps
            turn = iter(range(10**9))

            def begin() -> tuple[gymnasium.Env, Any]:
                place = next(turn) % len(envs)
                return envs[place], envs[place].reset(seed=_start(seed, place))[0]

            learn = self.learner or learner_for(envs[0])
            return learn(begin, steps, rng), steps
        finally:
            for env in envs:
                env.close()

    def _deploy(
        self, cell: Cell, seed: int, instances: Sequence[int], policy: Policy, *, simulated: bool = False
    ) -> float:
        """Mean return over `episodes` episodes, the same ones whatever the arm."""
        total = 0.0
        for episode in range(self.episodes):
            instance = instances[episode % len(instances)]
            env = self._make(cell, seed, instance, simulated=simulated)
            rng = np.random.default_rng([seed, instance, episode])
            obs, _ = env.reset(seed=_start(seed, instance))
            over = False
            while not over:
                obs, reward, terminated, truncated, _ = env.step(policy(obs, rng))
                total += float(reward)
                over = terminated or truncated
            env.close()
        return total / self.episodes

    def _make(self, cell: Cell, seed: int, instance: int, *, simulated: bool) -> gymnasium.Env:
        knob = self.knobs[cell.knob]
        level = int(cell.complexity) if knob.whole else cell.complexity
        own = {} if self.vary is None else self.vary(np.random.default_rng([seed, INSTANCE, instance]))
        kwargs = {**self.kwargs, **own, cell.knob: level}
        env = gymnasium.make(self.env, **kwargs) if isinstance(self.env, str) else self.env(**kwargs)
        if simulated and cell.arm == "null":
            env = Faulty(env, "dynamics_noise", 1.0, seed)
        elif simulated and cell.arm == "simulated":
            assert cell.corruption is not None
            fidelity = cell.fidelity_of(seed)
            if self.simulator is not None:
                env = self.simulator(env, cell.corruption, fidelity, seed)
            else:
                env = Faulty(env, cell.corruption, 1.0 - fidelity, seed, reward_size=self.reward_size)
        return gymnasium.wrappers.TimeLimit(env, self.max_steps)


def _start(seed: int, instance: int) -> int:
    return int(np.random.SeedSequence([seed, instance]).generate_state(1)[0]) // 2


def _sample(space: gymnasium.Space, rng: np.random.Generator) -> Any:
    space.seed(int(rng.integers(2**31)))
    return space.sample()


def _source(given: Any) -> str | None:
    """Its name and a hash of its code; `ValueError` where the code cannot be read."""
    if given is None or isinstance(given, str):
        return given
    try:
        code = inspect.getsource(given)
    except (OSError, TypeError):
        raise ValueError(f"the source of {given!r} cannot be read; define it in a file, by its name") from None
    return f"{given.__name__}:{hashlib.sha256(code.encode()).hexdigest()[:12]}"
