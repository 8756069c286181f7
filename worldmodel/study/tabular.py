"""Families of finite processes, trained in milliseconds and evaluated exactly: a check of the study's method."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.study.cells import ARMS, Cell
from worldmodel.study.dials import LEARNED, Knob
from worldmodel.study.table import WITH_WORLD_MODEL
from worldmodel.study.tabular_process import (
    PLANTED,
    Faults,
    Processes,
    best_policy,
    corrupted,
    differences,
    null,
    phased_q_learning,
    returns,
    visits,
)

HELD_OUT, FIRST_HELD_OUT = 20, 100_000
"""How many instances nobody is trained on, and the number of the first."""

INSTANCE, FAULT, LEARNING = 1, 2, 3
"""What is drawn; two draws never share a stream."""

SAFE_RISKY_KNOBS = {"decisions": Knob(1, 64, "decisions", "that many decisions must all succeed", whole=True)}
RANDOM_PROCESS_KNOBS = {"horizon": Knob(2, 64, "steps", "episodes last that long", whole=True)}


@dataclasses.dataclass(frozen=True)
class TabularFamily:
    """What families of finite processes share.

    An instance of a task is drawn by a simulator's seed and its number, so that arms with one seed meet the same tasks.
    Deployed in: the instances trained on ("training"), `HELD_OUT` others of their kind ("held_out") and of a harder
    kind ("shifted"). Returns are exact: there are no evaluation episodes.

    Attributes:
      steps: drawn steps that a policy is trained with; None: exact planning.
      real_steps: real steps that the arm with a simulator's budget has; logs hold as many as their level says.
    """

    steps: int | None = 20_000
    real_steps: int = 1_000
    # What `Family` asks for; without annotations these are no fields.
    corruptions = (*PLANTED, LEARNED)
    arms = tuple(ARMS)
    most_diverse = 1_000
    bounds = (0.0, 1.0)

    def describe(self) -> dict[str, Any]:
        """See `Family`."""
        return {"kind": type(self).__name__, **dataclasses.asdict(self)}

    def seconds(self, cell: Cell) -> float:
        """See `Family`."""
        return 0.002 * len(cell.seeds) * cell.policies * max(1.0, cell.complexity / 4) * max(1, cell.diversity / 8)

    def instances(self, level: float | int, seed: int, numbers: Sequence[int], *, shifted: bool = False) -> Processes:
        """Instances `[I, ...]` of the task at a complexity."""
        raise NotImplementedError

    def faults(self, real: Processes, seed: int) -> Faults:
        """What corruptions lead to in the simulator of a seed."""
        raise NotImplementedError

    def run(self, cell: Cell) -> list[dict[str, Any]]:
        """See `Family`."""
        return [row for seed in cell.seeds for row in self._simulator(cell, seed)]

    def _simulator(self, cell: Cell, seed: int) -> list[dict[str, Any]]:
        """All policies of one simulator (or the one policy of a seed without), in every deployment."""
        with_simulator = cell.arm in WITH_WORLD_MODEL
        real = self.instances(cell.complexity, seed, range(cell.diversity))
        sim = self._trained_in(cell, seed, real)
        others = range(FIRST_HELD_OUT, FIRST_HELD_OUT + HELD_OUT)
        deployments = {
            "training": real,
            "held_out": self.instances(cell.complexity, seed, others),
            "shifted": self.instances(cell.complexity, seed, others, shifted=True),
        }
        metrics = self._measured(real, sim, seed) if with_simulator else {}
        rows = []
        for number in range(cell.policies):
            policy, steps = self._policy(cell, seed, number, real, sim)
            imagined = float(returns(sim, policy).mean()) if with_simulator else None
            for name, tasks in deployments.items():
                rows.append(
                    {
                        "world_model_seed": seed if with_simulator else None,
                        "policy_seed": number if with_simulator else seed,
                        "deployment": name,
                        "real_return": float(returns(tasks, policy).mean()),
                        "simulated_return": imagined,
                        "real_steps": self._real_steps(cell, steps),
                        "simulated_steps": steps if with_simulator else 0,
                        "metrics": metrics,
                    }
                )
        return rows

    def _trained_in(self, cell: Cell, seed: int, real: Processes) -> Processes:
        if cell.arm == "null":
            return null(real)
        if cell.arm != "simulated":
            return real
        assert cell.corruption is not None
        rng, faults = np.random.default_rng([seed, FAULT]), self.faults(real, seed)
        if cell.corruption == LEARNED:
            return self._learned(real, faults, self._logs(real, int(cell.fidelity_of(seed)), seed))
        return corrupted(real, faults, cell.corruption, cell.fidelity_of(seed), rng)

    def _policy(self, cell: Cell, seed: int, number: int, real: Processes, sim: Processes) -> tuple[np.ndarray, int]:
        """A policy `[H, S, A]`, and the steps that it was trained with."""
        rng = np.random.default_rng([seed, LEARNING, number])
        states, actions = real.reward.shape[-2:]
        if cell.arm == "no_training":
            return np.full((real.horizon, states, actions), 1.0 / actions), 0
        if cell.arm == "cloning":
            taken = self._logs(real, int(cell.fidelity_of(seed)), seed).sum(axis=(0, -1)) + 1e-6
            share = taken / taken.sum(axis=-1, keepdims=True)
            return np.broadcast_to(share, (real.horizon, states, actions)), 0
        # One policy for all instances: it learns in steps of an instance drawn anew each time.
        mixed = sim._replace(outcome=sim.outcome.mean(axis=0), reward=sim.reward.mean(axis=0))
        wanted = self.real_steps if cell.arm == "real_equal_budget" else self.steps
        if wanted is None:
            return best_policy(mixed, rng), 0
        places = real.horizon * states * actions
        samples = max(1, wanted // places)
        return phased_q_learning(mixed, samples, rng), samples * places

    def _real_steps(self, cell: Cell, steps: int) -> int:
        if cell.arm in ("reference", "real_equal_budget"):
            return steps
        logged = cell.corruption == LEARNED and cell.arm in ("simulated", "cloning")
        return int(cell.fidelity or 0) if logged else 0

    def _logs(self, real: Processes, steps: int, seed: int) -> np.ndarray:
        """How often logs of all instances hold each outcome: `[I, S, A, S+1]`. Half of the actions are the best."""
        rng = np.random.default_rng([seed, FAULT, 1])
        best = best_policy(real, np.random.default_rng([seed, FAULT, 2]))
        behaviour = 0.5 * best + 0.5 / real.reward.shape[-1]
        seen = visits(real, behaviour)
        share = seen / seen.sum()
        counts = rng.multinomial(steps, share.ravel()).reshape(share.shape)
        return rng.multinomial(counts, real.outcome)

    def _learned(self, real: Processes, faults: Faults, counts: np.ndarray) -> Processes:
        """What the logs say, of all instances together; one logged step's worth of nothing in particular besides."""
        seen = counts.sum(axis=0)
        arbitrary = np.broadcast_to(faults.arbitrary, real.outcome.shape)[0]
        outcome = (seen + arbitrary) / (seen.sum(axis=-1, keepdims=True) + 1.0)
        taken = counts.sum(axis=-1)
        paid = (taken * real.reward).sum(axis=0) / np.maximum(taken.sum(axis=0), 1)
        return real._replace(
            outcome=np.broadcast_to(outcome, real.outcome.shape), reward=np.broadcast_to(paid, real.reward.shape)
        )

    def _measured(self, real: Processes, sim: Processes, seed: int) -> dict[str, float]:
        best = best_policy(real, np.random.default_rng([seed, FAULT, 3]))
        later = real._replace(horizon=max(1, real.horizon - 1))
        value = _values(later, best[..., 1:, :, :] if real.horizon > 1 else best)
        return {name: float(each.mean()) for name, each in differences(real, sim, value).items()}


def _values(process: Processes, policy: np.ndarray) -> np.ndarray:
    """`[..., S]`: what a policy earns from each state on."""
    states = np.eye(process.reward.shape[-2])
    return np.stack([returns(process._replace(start=one), policy) for one in states], axis=-1)


@dataclasses.dataclass(frozen=True)
class SafeRisky(TabularFamily):
    """Decisions that must all succeed: at each, `safe` does with probability .6, `risky` with one that is less.

    An instance has its own probability of `risky` at every decision, uniform in [.2, .55] ("shifted": [0, .2]); a
    policy sees which decision it is at. A biased simulator says `p + (1 - fidelity) (1 - p)` of `risky`. With exact
    planning and one instance, the tolerance threshold of 5% is .723, .777, .819, .847 at 1, 2, 4, 8 decisions:
    complexity raises the fidelity that is needed, by a known amount.
    """

    name = "safe_risky"
    knobs = SAFE_RISKY_KNOBS
    safe: float = 0.6

    def instances(self, level: float | int, seed: int, numbers: Sequence[int], *, shifted: bool = False) -> Processes:
        """See `TabularFamily`: states are the decisions, and the success of all, which pays 1."""
        low, high = (0.0, 0.2) if shifted else (0.2, 0.55)
        count = int(level)
        risky = np.stack(
            [np.random.default_rng([seed, INSTANCE, number]).uniform(low, high, count) for number in numbers]
        )
        success = np.stack([np.full_like(risky, self.safe), risky], axis=-1)
        reward = np.zeros((len(success), count + 1, 2))
        reward[:, -1] = 1.0
        return Processes(_forward(success), reward, np.eye(count + 1)[0], count + 1)

    def faults(self, real: Processes, seed: int) -> Faults:
        """Bias makes `risky` succeed; a step that says nothing succeeds in half of the cases."""
        count = real.reward.shape[-2] - 1
        sure = _forward(np.ones((1, count, 2)))
        better = np.where(np.arange(2)[:, None] == 1, sure, real.outcome)
        return Faults(better, _forward(np.full((1, count, 2), 0.5)))


def _forward(success: np.ndarray) -> np.ndarray:
    """Outcomes of decisions that succeed with `[I, H, A]` and else end it: `[I, H+1, A, H+2]`."""
    tasks, count, actions = success.shape
    outcome = np.zeros((tasks, count + 1, actions, count + 2))
    at = np.arange(count)
    outcome[:, at, :, at + 1] = np.moveaxis(success, 1, 0)
    outcome[:, at, :, -1] = np.moveaxis(1.0 - success, 1, 0)
    outcome[:, -1, :, -1] = 1.0
    return outcome


@dataclasses.dataclass(frozen=True)
class RandomProcess(TabularFamily):
    """A random process: every step leads to about three states and pays up to 1; returns are per step.

    All instances share one process, of which each replaces the share `variety` of outcomes and rewards by its own
    ("shifted": twice as much). Bias leads one action of every state, drawn by the simulator, to the best state.
    """

    name = "random_process"
    knobs = RANDOM_PROCESS_KNOBS
    states: int = 12
    actions: int = 3
    variety: float = 0.3
    process_seed: int = 0

    def instances(self, level: float | int, seed: int, numbers: Sequence[int], *, shifted: bool = False) -> Processes:
        """See `TabularFamily`."""
        horizon, share = int(level), self.variety * (2.0 if shifted else 1.0)
        base = self._drawn([self.process_seed], horizon)
        own = [self._drawn([self.process_seed, seed, INSTANCE, number], horizon) for number in numbers]
        outcome = np.stack([(1 - share) * base.outcome + share * each.outcome for each in own])
        reward = np.stack([(1 - share) * base.reward + share * each.reward for each in own])
        return Processes(outcome, reward, base.start, horizon)

    def faults(self, real: Processes, seed: int) -> Faults:
        """See `TabularFamily`."""
        best = best_policy(real, np.random.default_rng([seed, FAULT, 4]))
        target = _values(real, best).mean(axis=0).argmax()
        favoured = np.random.default_rng([seed, FAULT, 5]).integers(self.actions, size=self.states)
        hit = favoured[:, None] == np.arange(self.actions)
        better = np.where(hit[..., None], np.eye(self.states + 1)[target], real.outcome)
        arbitrary = np.append(np.full(self.states, 1.0 / self.states), 0.0)
        return Faults(better, np.broadcast_to(arbitrary, (1, self.states, self.actions, self.states + 1)))

    def _drawn(self, seed: list[int], horizon: int) -> Processes:
        from worldmodel.fidelity.tabular import random_mdp

        one = random_mdp(np.random.default_rng(seed), self.states, self.actions, horizon)
        ends = one.end[..., None]
        outcome = np.concatenate([(1.0 - ends) * one.transition, ends], axis=-1)
        return Processes(outcome, one.reward / horizon, np.full(self.states, 1.0 / self.states), horizon)
