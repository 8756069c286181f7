"""Finite processes, many at once, with what is planted in them: arrays with leading axes of one's choice.

An outcome is the next state, or, last of all, the end of the episode: `outcome [..., S, A, S+1]`. Rewards are means
`[..., S, A]`; all is undiscounted and stops after `H` steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

REWARD_ERROR = 1.0
"""Deviation of the reward's error where nothing is left of it, as a share of the best reward."""

FALSE_ENDS = 0.5
"""Most of the steps that end where they should not."""

LOCAL_SHARE = 1 / 3
"""Of the states, that a localised corruption is in."""


class Processes(NamedTuple):
    """Processes that share sizes. outcome `[..., S, A, S+1]`; reward `[..., S, A]`; start `[S]`; horizon `H`."""

    outcome: np.ndarray
    reward: np.ndarray
    start: np.ndarray
    horizon: int


@dataclasses.dataclass(frozen=True)
class Faults:
    """What corruptions of a family lead to.

    Attributes:
      better: outcome that a bias pulls a step to, `[..., S, A, S+1]`.
      arbitrary: outcome of a step that says nothing, `[..., S, A, S+1]`.
    """

    better: np.ndarray
    arbitrary: np.ndarray


def corrupted(real: Processes, faults: Faults, kind: str, fidelity: float | int, rng: np.random.Generator) -> Processes:
    """The simulator in which `1 - fidelity` of everything is as `kind` says; what it hits is drawn from `rng`."""
    if kind not in PLANTED:
        raise ValueError(f"corruption {kind!r} cannot be planted in a finite process; {', '.join(PLANTED)} can")
    return PLANTED[kind](real, faults, 1.0 - fidelity, rng)


def null(real: Processes) -> Processes:
    """Outcomes and rewards of a step that is drawn anew: nothing depends on state or action."""
    outcome = np.broadcast_to(real.outcome.mean(axis=(-3, -2), keepdims=True), real.outcome.shape)
    reward = np.broadcast_to(real.reward.mean(axis=(-2, -1), keepdims=True), real.reward.shape)
    return real._replace(outcome=outcome, reward=reward)


def _mixed(real: Processes, other: np.ndarray, amount: Any) -> Processes:
    return real._replace(outcome=(1.0 - amount) * real.outcome + amount * other)


def _bias(real: Processes, faults: Faults, amount: Any, rng: np.random.Generator) -> Processes:
    return _mixed(real, faults.better, amount)


def _noise(real: Processes, faults: Faults, amount: Any, rng: np.random.Generator) -> Processes:
    return _mixed(real, faults.arbitrary, amount)


def _reward(real: Processes, faults: Faults, amount: Any, rng: np.random.Generator) -> Processes:
    error = REWARD_ERROR * real.reward.max() * rng.normal(size=real.reward.shape[-2:])
    return real._replace(reward=real.reward + amount * error)


def _false_ends(real: Processes, faults: Faults, amount: Any, rng: np.random.Generator) -> Processes:
    ends = np.zeros(real.outcome.shape[-1])
    ends[-1] = 1.0
    where = FALSE_ENDS * rng.uniform(size=real.reward.shape[-2:])
    return _mixed(real, ends, amount * where[..., None])


def _localised(real: Processes, faults: Faults, amount: Any, rng: np.random.Generator) -> Processes:
    states = real.reward.shape[-2]
    hit = rng.permutation(states) < max(1, round(LOCAL_SHARE * states))
    return _mixed(real, faults.better, amount * hit[:, None, None].astype(float))


def _determinism(real: Processes, faults: Faults, amount: Any, rng: np.random.Generator) -> Processes:
    return _mixed(real, np.eye(real.outcome.shape[-1])[real.outcome.argmax(axis=-1)], amount)


PLANTED: dict[str, Callable[[Processes, Faults, Any, np.random.Generator], Processes]] = {
    "dynamics_bias": _bias,
    "dynamics_noise": _noise,
    "reward": _reward,
    "false_ends": _false_ends,
    "localised": _localised,
    "determinism": _determinism,
}


def returns(process: Processes, policy: np.ndarray) -> np.ndarray:
    """Exact mean return `[...]` of policies `[..., H, S, A]`, by backward induction."""
    value = np.zeros(process.reward.shape[:-1])
    for step in reversed(range(process.horizon)):
        value = (policy[..., step, :, :] * _quality(process, value)).sum(axis=-1)
    return np.asarray(value @ process.start)


def best_policy(process: Processes, rng: np.random.Generator) -> np.ndarray:
    """The optimal policy `[..., H, S, A]`, by backward induction; ties fall at random."""
    return _backward(process, lambda value, _: _quality(process, value), rng)


def phased_q_learning(process: Processes, samples: int, rng: np.random.Generator) -> np.ndarray:
    """The policy `[..., H, S, A]` learned from `samples` drawn steps of every state and action at every time.

    Phased Q-learning (Kearns and Singh 1999, "Finite-Sample Convergence Rates for Q-Learning and Indirect
    Algorithms"): backward induction with a fresh sample mean in place of each expectation.
    """

    def quality(value: np.ndarray, step: int) -> np.ndarray:
        drawn = rng.multinomial(samples, process.outcome) / samples
        return _quality(process._replace(outcome=drawn), value)

    return _backward(process, quality, rng)


def _backward(
    process: Processes, quality: Callable[[np.ndarray, int], np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    actions, value, policy = process.reward.shape[-1], np.zeros(process.reward.shape[:-1]), []
    for step in reversed(range(process.horizon)):
        found = quality(value, step)
        ties = 1e-9 * rng.uniform(size=found.shape)
        chosen = (found + ties).argmax(axis=-1)
        policy.append(np.eye(actions)[chosen])
        value = np.take_along_axis(found, chosen[..., None], axis=-1)[..., 0]
    return np.stack(policy[::-1], axis=-3)


def _quality(process: Processes, value: np.ndarray) -> np.ndarray:
    return process.reward + np.einsum("...san,...n->...sa", process.outcome[..., :-1], value)


def visits(process: Processes, policy: np.ndarray) -> np.ndarray:
    """How often a policy `[..., H, S, A]` takes each step in an episode: `[..., S, A]`."""
    here = np.broadcast_to(process.start, process.reward.shape[:-1])
    total = np.zeros(process.reward.shape)
    for step in range(process.horizon):
        taken = here[..., None] * policy[..., step, :, :]
        total = total + taken
        here = np.einsum("...sa,...san->...n", taken, process.outcome[..., :-1])
    return total


def differences(real: Processes, sim: Processes, value: np.ndarray) -> dict[str, np.ndarray]:
    """Measured fidelities `[...]`, each a mean over states and actions; `value [..., S]` judges what follows.

    Total variation of outcomes, absolute error of rewards, value-aware error of both, and absolute error of ends.
    """
    apart = sim.outcome - real.outcome
    follow = np.einsum("...san,...n->...sa", apart[..., :-1], value)
    found = {
        "total_variation": 0.5 * np.abs(apart).sum(axis=-1),
        "reward_mae": np.abs(sim.reward - real.reward),
        "value_error": np.abs(sim.reward - real.reward + follow),
        "end_error": np.abs(apart[..., -1]),
    }
    return {name: np.asarray(each.mean(axis=(-2, -1))) for name, each in found.items()}
