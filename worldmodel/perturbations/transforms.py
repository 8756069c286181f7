"""What can go wrong at one step, each as a frozen dataclass of pure functions of one episode.

A `strength` in [0, 1] scales probabilities, sizes and delays; at 0 every transform is exactly the identity. All draws
come from the key that a transform is given.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from worldmodel._types import Array, Bool, Float, Key, PyTree
from worldmodel.codec import DiscreteCodec, StepCodec
from worldmodel.perturbations.signals import count, numbers, rest_action, scales, with_numbers


@dataclasses.dataclass(frozen=True)
class Perturbation:
    """Changes nothing; the base of those that do. States are pytrees that keep structure, shapes and dtypes."""

    def check(self, codec: StepCodec) -> None:
        """`ValueError` where this world has nothing to perturb so."""

    def begin(self, codec: StepCodec, key: Key[Array, ""], obs: PyTree) -> PyTree:
        """The state at an episode's first observation, which is seen as it is."""
        del codec, key, obs
        return ()

    def act(
        self, codec: StepCodec, state: PyTree, key: Key[Array, ""], strength: Float[Array, ""], action: PyTree
    ) -> tuple[PyTree, PyTree]:
        """`(state, action)`: what reaches the world of an action."""
        del codec, key, strength
        return state, action

    def sense(
        self,
        codec: StepCodec,
        state: PyTree,
        key: Key[Array, ""],
        strength: Float[Array, ""],
        obs: PyTree,
        reward: Float[Array, ""],
    ) -> tuple[PyTree, PyTree, Float[Array, ""]]:
        """`(state, obs, reward)`: what reaches the policy of an outcome."""
        del codec, key, strength
        return state, obs, reward


@dataclasses.dataclass(frozen=True)
class ObservationNoise(Perturbation):
    """Normal noise on every number of the observation, within the bounds of its space.

    Attributes:
      scale: its deviation, in standard deviations of that number in the logs. What never changes there has no noise.
    """

    scale: float = 0.1

    def __post_init__(self):
        _check_scale(self, self.scale)

    def check(self, codec: StepCodec) -> None:
        """See `Perturbation`."""
        _needs_numbers(self, codec)

    def sense(self, codec, state, key, strength, obs, reward):
        """See `Perturbation`."""
        values = numbers(codec.observation, obs)
        size = strength * self.scale * scales(codec.observation)
        noisy = with_numbers(codec.observation, obs, values + size * jax.random.normal(key, values.shape))
        return state, noisy, reward


@dataclasses.dataclass(frozen=True)
class RewardNoise(Perturbation):
    """Normal noise on the reward.

    Attributes:
      scale: its deviation, in standard deviations of the logs' rewards; of a reward that never varies, in its size.
    """

    scale: float = 0.1

    def __post_init__(self):
        _check_scale(self, self.scale)

    def sense(self, codec, state, key, strength, obs, reward):
        """See `Perturbation`."""
        size = strength * (self.scale * codec.reward.unit)
        return state, obs, reward + size * jax.random.normal(key)


@dataclasses.dataclass(frozen=True)
class DroppedActions(Perturbation):
    """An action that is lost: in its place the world is given one at rest.

    Numbers at rest are zero, or the nearest bound.

    Attributes:
      probability: of each step.
      category: which of the categories is at rest, counted from 0.
    """

    probability: float = 0.1
    category: int = 0

    def __post_init__(self):
        _check_probability(self, self.probability)

    def check(self, codec: StepCodec) -> None:
        """See `Perturbation`."""
        _check_category(self, self.category, codec)

    def act(self, codec, state, key, strength, action):
        """See `Perturbation`."""
        lost = jax.random.uniform(key) < strength * self.probability
        return state, _choose(lost, rest_action(codec.action, self.category), action)


@dataclasses.dataclass(frozen=True)
class StickyActions(Perturbation):
    """The action that was executed last is executed again (Machado et al. 2018, arXiv 1709.06009, section 5).

    Attributes:
      probability: of each step but the first.
    """

    probability: float = 0.25

    def __post_init__(self):
        _check_probability(self, self.probability)

    def begin(self, codec, key, obs):
        """The last action, and whether there was one."""
        del key, obs
        return rest_action(codec.action), jnp.zeros((), bool)

    def act(self, codec, state, key, strength, action):
        """See `Perturbation`."""
        last, begun = state
        again = begun & (jax.random.uniform(key) < strength * self.probability)
        executed = _choose(again, last, action)
        return (executed, jnp.ones((), bool)), executed


@dataclasses.dataclass(frozen=True)
class DelayedActions(Perturbation):
    """Actions that take effect later; until the first one does, the world is given one at rest.

    Attributes:
      steps: how much later; a lower strength rounds to fewer.
      category: which of the categories is at rest, counted from 0.
    """

    steps: int = 1
    category: int = 0

    def __post_init__(self):
        if not 1 <= self.steps <= 1_000:
            raise ValueError(f"steps of DelayedActions is {self.steps}; 1 to 1,000 are allowed")

    def check(self, codec: StepCodec) -> None:
        """See `Perturbation`."""
        _check_category(self, self.category, codec)

    def begin(self, codec, key, obs):
        """The actions on their way, the latest one first."""
        del key, obs
        rest = rest_action(codec.action, self.category)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.steps, *leaf.shape)), rest)

    def act(self, codec, state, key, strength, action):
        """See `Perturbation`."""
        del codec, key
        line = jax.tree.map(lambda new, old: jnp.concatenate([new.astype(old.dtype)[None], old]), action, state)
        late = jnp.round(strength * self.steps).astype(jnp.int32)
        return jax.tree.map(lambda leaf: leaf[:-1], line), jax.tree.map(lambda leaf: leaf[late], line)


@dataclasses.dataclass(frozen=True)
class StuckActuator(Perturbation):
    """A failure that lasts: one number of the action, drawn for the episode, stays as it is until the episode's end.

    An action without numbers stays as a whole.

    Attributes:
      probability: of each step at which it still works.
    """

    probability: float = 0.01

    def __post_init__(self):
        _check_probability(self, self.probability)

    def begin(self, codec, key, obs):
        """Which number it is, whether it is stuck, and the last action."""
        del obs
        return _drawn(key, count(codec.action)), jnp.zeros((), bool), rest_action(codec.action)

    def act(self, codec, state, key, strength, action):
        """See `Perturbation`."""
        which, stuck, last = state
        stuck = stuck | (jax.random.uniform(key) < strength * self.probability)
        if count(codec.action):
            values = numbers(codec.action, action)
            held = jnp.where(jnp.arange(len(values)) == which, numbers(codec.action, last), values)
            executed = _choose(stuck, with_numbers(codec.action, action, held), action)
        else:
            executed = _choose(stuck, last, action)
        return (which, stuck, executed), executed


@dataclasses.dataclass(frozen=True)
class StuckSensor(Perturbation):
    """A failure that lasts: one number of the observation, drawn for the episode, shows its last value from then on.

    Attributes:
      probability: of each step at which it still works.
    """

    probability: float = 0.01

    def __post_init__(self):
        _check_probability(self, self.probability)

    def check(self, codec: StepCodec) -> None:
        """See `Perturbation`."""
        _needs_numbers(self, codec)

    def begin(self, codec, key, obs):
        """Which number it is, whether it is stuck, and what it showed."""
        which = _drawn(key, count(codec.observation))
        return which, jnp.zeros((), bool), numbers(codec.observation, obs)[which]

    def sense(self, codec, state, key, strength, obs, reward):
        """See `Perturbation`."""
        which, stuck, shown = state
        values = numbers(codec.observation, obs)
        stuck = stuck | (jax.random.uniform(key) < strength * self.probability)
        shown = jnp.where(stuck, shown, values[which])
        seen = _choose(stuck, with_numbers(codec.observation, obs, values.at[which].set(shown)), obs)
        return (which, stuck, shown), seen, reward


def _drawn(key: Key[Array, ""], among: int) -> Array:
    return jax.random.randint(key, (), 0, max(among, 1))


def _choose(first: Bool[Array, ""], one: PyTree, other: PyTree) -> PyTree:
    """`one` where true, in the dtypes of `other`."""
    return jax.tree.map(lambda a, b: jnp.where(first, a.astype(b.dtype), b), one, other)


def _needs_numbers(perturbation: Perturbation, codec: StepCodec) -> None:
    if not count(codec.observation):
        name = type(perturbation).__name__
        raise ValueError(f"{name} needs numbers in the observation, and this world's are categories or pictures alone")


def _check_probability(perturbation: Perturbation, value: Any) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"probability of {type(perturbation).__name__} is {value}; 0 to 1 is allowed")


def _check_scale(perturbation: Perturbation, value: Any) -> None:
    if not 0.0 <= value < math.inf:
        raise ValueError(f"scale of {type(perturbation).__name__} is {value}; a finite number, 0 or more, is needed")


def _check_category(perturbation: Perturbation, category: int, codec: StepCodec) -> None:
    most = codec.action.n if isinstance(codec.action, DiscreteCodec) else math.inf
    if not 0 <= category < most:
        allowed = "0 or more is needed" if most == math.inf else f"0 to {most - 1} are allowed"
        raise ValueError(f"category of {type(perturbation).__name__} is {category}; {allowed}")
