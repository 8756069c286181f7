"""Classic control: physics that vary, faults that are planted in them, PPO that learns in them; seeds side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.study.cells import Cell
from worldmodel.study.dials import CORRUPTIONS, LEARNED, Knob
from worldmodel.study.table import WITH_WORLD_MODEL
from worldmodel.trajectory import suggest

HELD_OUT, FIRST_HELD_OUT = 16, 100_000
INSTANCE, FAULT, LEARNING, EVALUATION = 1, 2, 3, 4
KINDS = tuple(kind for kind in CORRUPTIONS if kind != LEARNED)
KNOBS = {
    "horizon": Knob(10, 1_000, "steps", "the pole is to be kept up that long", whole=True),
    "observation_noise": Knob(0, 10, "units of the features", "observations are noisy"),
    "hidden": Knob(0, 2, "velocities", "so many velocities are not seen", whole=True),
    "disturbance": Knob(0, 10, "strength", "the world is pushed at random in every step"),
}
TASKS = ("cartpole", "pendulum")
"""Of `worldmodel.study.control_task`, which only those who train load: it needs jax."""
DEPLOYMENTS = ("training", "held_out", "shifted", "simulated")


@dataclasses.dataclass(frozen=True)
class Learner:
    """Hyperparameters of PPO (`worldmodel.agents.rejax_ppo`), and sizes of the evaluation."""

    num_envs: int = 16
    num_steps: int = 64
    num_epochs: int = 4
    num_minibatches: int = 4
    learning_rate: float = 2e-3
    gamma: float = 0.98
    gae_lambda: float = 0.95
    clip_eps: float = 0.2
    ent_coef: float = 0.01

    @property
    def iteration_steps(self) -> int:
        """Environment steps between two updates."""
        return self.num_envs * self.num_steps


@dataclasses.dataclass(frozen=True)
class Control:
    """A family of CartPole or Pendulum. Returns are shares of the horizon, from 0 to 1.

    An instance multiplies each physical constant by a factor up to `spread` either way ("shifted": beyond it, up to its
    square), drawn by a simulator's seed and its number, so that arms with one seed meet the same tasks. Deployed in the
    instances trained on, in others of their kind, and in shifted ones, in the same episodes whatever the arm.

    Attributes:
      task: cartpole or pendulum.
      steps: of training, of all instances together.
      real_steps: of the arm with a simulator's real budget.
      horizon, observation_noise, hidden, disturbance: of the task, where the complexity dial turns another knob.
      spread: of the physics.
      episodes: of evaluation, in each deployment.
      learner: hyperparameters.
    """

    task: str = "cartpole"
    steps: int = 80_000
    real_steps: int = 10_000
    horizon: int = 200
    observation_noise: float = 0.0
    hidden: int = 0
    disturbance: float = 0.2
    spread: float = 1.5
    episodes: int = 32
    learner: Learner = Learner()
    # What `Family` asks for; without annotations these are no fields.
    knobs = KNOBS
    corruptions = KINDS
    arms = ("simulated", "reference", "no_training", "real_equal_budget", "null", "oracle")
    most_diverse = 1_000
    bounds = (0.0, 1.0)

    def __post_init__(self):
        if self.task not in TASKS:
            raise ValueError(f"task {self.task!r} is unknown{suggest(self.task, TASKS)}; known: {', '.join(TASKS)}")

    @property
    def name(self) -> str:
        """See `Family`."""
        return self.task

    def describe(self) -> dict[str, Any]:
        """See `Family`."""
        return {"kind": type(self).__name__, **dataclasses.asdict(self)}

    def seconds(self, cell: Cell) -> float:
        """See `Family`: measured on one core."""
        units = len(cell.seeds) * cell.policies
        return 1.0 + units * (self._iterations(cell) * self.learner.iteration_steps / 50_000 + 0.2)

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        """See `Family`."""
        import jax
        import jax.numpy as jnp

        from worldmodel.study.control_learner import train_and_deploy

        units = [(seed, number) for seed in cell.seeds for number in range(cell.policies)]
        count, with_simulator = self.episodes, cell.arm in WITH_WORLD_MODEL
        simulators = [self._worlds(cell, seed, self.learner.num_envs) for seed, _ in units]
        deployed = [self._deployed(cell, seed) for seed, _ in units]
        stacked = [jax.tree.map(lambda *leaves: np.stack(leaves), *trees) for trees in (simulators, deployed)]
        keys = [_key([seed, LEARNING, number]) for seed, number in units]
        eval_keys = [[_key([seed, EVALUATION, i]) for i in range(len(DEPLOYMENTS) * count)] for seed, _ in units]
        iterations = self._iterations(cell)
        found = train_and_deploy(
            self.task,
            self.learner,
            jnp.int32(iterations),
            jax.random.wrap_key_data(jnp.array(keys, jnp.uint32)),
            *stacked,
            jax.random.wrap_key_data(jnp.array(eval_keys, jnp.uint32)),
        )
        returns = np.asarray(found, np.float64).reshape(len(units), len(DEPLOYMENTS), count).mean(axis=-1)
        steps = iterations * self.learner.iteration_steps
        return [
            {
                "world_model_seed": seed if with_simulator else None,
                "policy_seed": number if with_simulator else seed,
                "deployment": name,
                "real_return": float(returns[unit, place]),
                "simulated_return": float(returns[unit, -1]) if with_simulator else None,
                "episodes": count,
                "real_steps": 0 if with_simulator else steps,
                "simulated_steps": steps if with_simulator else 0,
                "metrics": {},
            }
            for unit, (seed, number) in enumerate(units)
            for place, name in enumerate(DEPLOYMENTS[:-1])
        ]

    def _iterations(self, cell: Cell) -> int:
        if cell.arm == "no_training":
            return 0
        wanted = self.real_steps if cell.arm == "real_equal_budget" else self.steps
        return max(1, round(wanted / self.learner.iteration_steps))

    def _deployed(self, cell: Cell, seed: int) -> Any:
        """Every deployment's worlds, one after the other, the simulator's last: leaves `[4 * episodes, ...]`."""
        import jax

        exact = dataclasses.replace(cell, arm="oracle")
        others = range(FIRST_HELD_OUT, FIRST_HELD_OUT + HELD_OUT)
        parts = [
            self._worlds(exact, seed, self.episodes),
            self._worlds(exact, seed, self.episodes, others),
            self._worlds(exact, seed, self.episodes, others, shifted=True),
            self._worlds(cell, seed, self.episodes),
        ]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    def _worlds(
        self, cell: Cell, seed: int, count: int, numbers: Sequence[int] | None = None, *, shifted: bool = False
    ) -> Any:
        """`count` worlds of instances `numbers` (those trained on) in turn, with the faults of the cell's simulator."""
        from worldmodel.study import control_task
        from worldmodel.study.control_world import World

        task = control_task.TASKS[self.task]()
        own = {name: getattr(self, name) for name in self.knobs} | {cell.knob: cell.complexity}
        numbers = range(cell.diversity) if numbers is None else numbers
        factors = np.stack([self._factors(seed, number, len(task.physics), shifted) for number in numbers])
        rng = np.random.default_rng([seed, FAULT])
        rates = rng.uniform(0.5, 1.5, task.size)
        plane, taste = rng.normal(size=task.width), 2.0 * rng.normal(size=task.width + 1)
        faults = dict.fromkeys(KINDS, 0.0)
        if cell.arm == "simulated":
            assert cell.corruption is not None
            faults[cell.corruption] = 1.0 - cell.fidelity_of(seed)

        def all_of(value: Any, dtype: Any = np.float32) -> Any:
            return np.broadcast_to(np.asarray(value, dtype), (count, *np.shape(value)))

        return World(
            factors=factors[np.arange(count) % len(factors)].astype(np.float32),
            horizon=all_of(own["horizon"], np.int32),
            observation_noise=all_of(own["observation_noise"]),
            hidden=all_of(own["hidden"], np.int32),
            disturbance=all_of(own["disturbance"]),
            faults={kind: all_of(amount) for kind, amount in faults.items()},
            rates=all_of(rates),
            plane=all_of(plane),
            taste=all_of(taste),
            null=all_of(cell.arm == "null", bool),
        )

    def _factors(self, seed: int, number: int, count: int, shifted: bool) -> np.ndarray:
        rng = np.random.default_rng([seed, INSTANCE, number])
        power = rng.uniform(-1.0, 1.0, count)
        return self.spread ** (power + np.sign(power) if shifted else power)


def _key(words: list[int]) -> np.ndarray:
    """Two words of a key of JAX, from a stream of its own."""
    return np.random.SeedSequence(words).generate_state(2)
