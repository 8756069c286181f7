"""Weak, generic behaviours that fill the first logs, each with the true probability of what it did.

They use the spaces and what was recorded before (returns and ends, too). Written as text: `random`; `sticky:P`
(stays near its previous action with probability P); `linear:EPS` (a linear rule drawn anew each episode, uniform with
probability EPS); `search:EPS` (the same, but bred from earlier rules, by the novelty of where they ended and by their
return: an early learner, whose faults reach states that no blind rule reaches).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from worldmodel.agents.arms import BoxArm, DiscreteArm, arm_of
from worldmodel.agents.past import LinearRule, Past
from worldmodel.trajectory import Spec, suggest

FORMS = {"random": "random", "sticky": "sticky:P", "linear": "linear:EPS", "search": "search:EPS"}

# Chosen so that logs are weak and yet hold rare ends: over 300 episodes of CartPole-v1 (seeds 0-4 and 100-104) returns
# average 60 to 100, the best behaviour's below 230, and in the median 11% of the ends are by position, on both sides.
DEFAULT_BEHAVIOURS = ("random", "sticky:0.8", "linear:0.1", "search:0.2", "search:0.3", "search:0.4")

LINEAR_SCALE = 6.0
PUSH_SCALE = 0.6
PUSH_SHARE = 0.9
SEARCH_SHARE = 0.9
SEARCH_STEP = 0.2
NOVELTY_SHARE = 0.8
ELITE = 0.05


@runtime_checkable
class Policy(Protocol):
    """What acts during one episode; `rule` is what it follows, where later policies may breed from it."""

    rule: LinearRule | None

    def act(self, obs: Any) -> Any:
        """An action, of the dtype and shape of the space."""
        ...

    def log_probs(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """float64 `[T]`: natural log of the probability (Discrete) or of the density over the Box of each action.

        Given the history before it, with all of the behaviour's randomness summed out; `observations` `[T, ...]` or
        longer, `actions` `[T, ...]`.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Behaviour:
    """A named family of policies; `begin` draws the one of an episode.

    Attributes:
      kind: a key of `FORMS`.
      parameter: sticky: probability of staying; linear, search: probability of a uniform action; random: 0.
      name: as it was written, e.g. "sticky:0.8".
    """

    kind: str
    parameter: float
    name: str

    @property
    def uses_past(self) -> bool:
        """Whether its policies depend on what was recorded before."""
        return self.kind in ("linear", "search")

    def begin(self, spec: Spec, past: Past | None, rng: np.random.Generator) -> Policy:
        """The policy of one episode; `past` may be None where it is not used.

        `ValueError` for an action Box that is unbounded or not of floats.
        """
        arm = arm_of(spec.action_space)
        if self.kind == "random":
            return StickyPolicy(arm, 0.0, rng)
        if self.kind == "sticky":
            return StickyPolicy(arm, self.parameter, rng)
        if past is None:
            raise ValueError(f"behaviour {self.name!r} needs to know what was recorded before")
        weights, bias = _draw_rule(arm, past, rng)
        if self.kind == "search" and rng.random() < SEARCH_SHARE:
            parents = past.most_novel(ELITE) if rng.random() < NOVELTY_SHARE else past.best(ELITE)
            if parents:
                parent = parents[rng.integers(len(parents))]
                weights, bias = parent.weights + SEARCH_STEP * weights, parent.bias + SEARCH_STEP * bias
        # A constant push in one direction, of this episode only: bred rules must not all end up on one side.
        push = rng.normal(size=arm.width) * (PUSH_SCALE * LINEAR_SCALE if rng.random() < PUSH_SHARE else 0.0)
        return LinearPolicy(arm, past, LinearRule(weights, bias), push, self.parameter, rng)


def _draw_rule(arm: DiscreteArm | BoxArm, past: Past, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A rule on standardised observations, expressed in raw ones, so that rules drawn at different times compare."""
    weights = rng.normal(size=(arm.width, past.size)) * LINEAR_SCALE / past.deviation
    return weights, -weights @ past.mean


def parse_behaviour(text: str) -> Behaviour:
    """Reads `random`, `sticky:P`, `linear:EPS` or `search:EPS`; `ValueError` names what is allowed and the nearest."""
    kind, colon, value = text.partition(":")
    forms = ", ".join(FORMS.values())
    if kind not in FORMS:
        raise ValueError(f"behaviour {text!r} is unknown{suggest(kind, FORMS)}; known are {forms}")
    if kind == "random":
        if colon:
            raise ValueError(f"behaviour {text!r}: random takes no number; known are {forms}")
        return Behaviour(kind, 0.0, text)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"behaviour {text!r}: needs a probability from 0 to 1, as in {kind}:0.5; known are {forms}")
    return Behaviour(kind, number, text)


def parse_behaviours(texts: Sequence[str]) -> tuple[Behaviour, ...]:
    """Reads a mixture; `ValueError` for an empty one."""
    if not texts:
        raise ValueError("no behaviour was named; at least one is needed, e.g. random")
    return tuple(parse_behaviour(text) for text in texts)


def mixture_log_prob(uniform: float, uniform_log_prob: float, preferred: np.ndarray) -> np.ndarray:
    """Log of `uniform * U + (1 - uniform) * exp(preferred)`, float64 `[T]`."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log(uniform) + uniform_log_prob, np.log1p(-uniform) + preferred)


class StickyPolicy:
    """With probability `stay` near its previous action, else uniform; the first action is uniform."""

    def __init__(self, arm: DiscreteArm | BoxArm, stay: float, rng: np.random.Generator):
        self.rule: LinearRule | None = None
        self._arm = arm
        self._stay = stay
        self._rng = rng
        self._previous: Any = None

    def act(self, obs: Any) -> Any:
        """As `Policy.act`."""
        if self._previous is not None and self._rng.random() < self._stay:
            self._previous = self._arm.draw_near(self._previous, self._rng)
        else:
            self._previous = self._arm.draw_uniform(self._rng)
        return self._previous

    def log_probs(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """As `Policy.log_probs`."""
        uniform = self._arm.uniform_log_prob
        later = mixture_log_prob(1.0 - self._stay, uniform, self._arm.near_log_probs(actions[:-1], actions[1:]))
        return np.concatenate([[uniform], later])


class LinearPolicy:
    """Prefers by its rule and a constant push; uniform with probability `uniform`.

    Discrete: softmax of the scores. Box: a truncated normal around `low + (high - low) * sigmoid(score)`.
    """

    def __init__(
        self,
        arm: DiscreteArm | BoxArm,
        past: Past,
        rule: LinearRule,
        push: np.ndarray,
        uniform: float,
        rng: np.random.Generator,
    ):
        self.rule: LinearRule | None = rule
        self._weights = rule.weights
        self._bias = rule.bias + push
        self._arm = arm
        self._past = past
        self._uniform = uniform
        self._rng = rng

    def act(self, obs: Any) -> Any:
        """As `Policy.act`."""
        if self._rng.random() < self._uniform:
            return self._arm.draw_uniform(self._rng)
        return self._arm.draw_preferred(self._weights @ self._past.flat_one(obs) + self._bias, self._rng)

    def log_probs(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """As `Policy.log_probs`."""
        scores = self._past.flat(observations[: len(actions)]) @ self._weights.T + self._bias
        preferred = self._arm.preferred_log_probs(scores, actions)
        return mixture_log_prob(self._uniform, self._arm.uniform_log_prob, preferred)
