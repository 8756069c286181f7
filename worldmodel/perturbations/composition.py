"""Several perturbations as one: whom they meet, how strongly, and with whose chances."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldmodel._types import Array, Bool, Float, Key, PyTree
from worldmodel.codec import StepCodec
from worldmodel.perturbations import transforms
from worldmodel.perturbations.transforms import Perturbation
from worldmodel.simulator import branches_before, select_rows
from worldmodel.trajectory import suggest

KINDS: dict[str, type[Perturbation]] = {
    name: kind
    for name, kind in vars(transforms).items()
    if isinstance(kind, type) and issubclass(kind, Perturbation) and kind is not Perturbation
}
"""Every perturbation by its name."""

_DRAWS = 0x7E57
"""Folded into the key of an episode: no perturbation shares its chances with the world."""


@dataclasses.dataclass(frozen=True)
class Progressive:
    """A strength that grows as the policy masters it, environment by environment.

    After an episode whose return (of the world's rewards, undisturbed) is `target` or more, the next one's strength is
    greater by `step`, after any other one less.

    Attributes:
      target: return that counts as mastery.
      step: by how much the strength moves.
      start: strength of the first episode.
    """

    target: float
    step: float = 0.05
    start: float = 0.0

    def __post_init__(self):
        if not math.isfinite(self.target):
            raise ValueError(f"target of Progressive is {self.target}; a finite return is needed")
        if not 0.0 < self.step <= 1.0:
            raise ValueError(f"step of Progressive is {self.step}; more than 0 and at most 1 is allowed")
        if not 0.0 <= self.start <= 1.0:
            raise ValueError(f"start of Progressive is {self.start}; 0 to 1 is allowed")


@struct.dataclass
class PerturbationState:
    """What the perturbations of `B` running episodes remember.

    Attributes:
      words: uint32 `[B, 2]`, from which the episode's chances are drawn: they depend on these and on the step alone.
      time: int32 `[B]`, steps taken.
      meets: float32 `[B]`, 1 where the episode is of the disturbed share, else 0.
      level: float32 `[B]`, strength that a disturbed episode has.
      total: float32 `[B]`, return so far.
      parts: of each perturbation, its own state.
    """

    words: Array
    time: Array
    meets: Array
    level: Array
    total: Array
    parts: tuple[PyTree, ...]

    @property
    def strength(self) -> Float[Array, " B"]:
        """Of the running episodes."""
        return self.meets * self.level


@dataclasses.dataclass(frozen=True)
class Perturbations:
    """Perturbations one after the other: actions pass through them in this order, and so do outcomes.

    Attributes:
      transforms: at least one.
      share: of episodes that are disturbed; the others are as without.
      group: environments side by side, so many in each group, that have the same chances of being disturbed in episodes
        that they begin together: rollouts that are compared differ by the policy and the world.
      schedule: how the strength grows; None: it is 1.
    """

    transforms: Sequence[Perturbation]
    share: float = 1.0
    group: int = 1
    schedule: Progressive | None = None

    def __post_init__(self):
        object.__setattr__(self, "transforms", tuple(self.transforms))  # hashable
        if not self.transforms:
            raise ValueError("there is no perturbation; at least one is needed")
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"share of Perturbations is {self.share}; 0 to 1 is allowed")
        if self.group < 1:
            raise ValueError(f"group of Perturbations is {self.group}; at least 1 is needed")
        if self.group > 1 and self.schedule is not None:
            raise ValueError(
                "a progressive schedule follows each environment by itself; it excludes a group of several"
            )

    @classmethod
    def of(cls, value: Any) -> Perturbations:
        """From one perturbation, a sequence of them, an instance, or what `to_json` gave; `ValueError` for others."""
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            return cls._from_json(value)
        several: list[Any] = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for one in several:
            if not isinstance(one, Perturbation) or type(one) is Perturbation:
                raise ValueError(f"perturb holds {one!r}; known perturbations are {', '.join(KINDS)}")
        return cls(tuple(several))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        parts = [{"kind": type(one).__name__, **dataclasses.asdict(one)} for one in self.transforms]
        return {**dataclasses.asdict(self), "transforms": parts}

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> Perturbations:
        rest = dict(data)
        made = tuple(_transform(one) for one in rest.pop("transforms", ()))
        schedule = rest.pop("schedule", None)
        try:
            return cls(made, schedule=None if schedule is None else Progressive(**schedule), **rest)
        except TypeError as error:
            raise ValueError(f"perturb cannot be read: {error}") from None

    def alone(self) -> Perturbations:
        """The same for a single environment, which is a group by itself."""
        return dataclasses.replace(self, group=1)

    def check(self, codec: StepCodec) -> None:
        """`ValueError` where one of them has nothing to perturb in this world."""
        for one in self.transforms:
            one.check(codec)

    def begin(self, codec: StepCodec, key: Key[Array, " B"], obs: PyTree) -> PerturbationState:
        """The state of `B` episodes at their first observations, columns `[B, ...]`, which are seen as they are."""
        rows = key.shape[0]
        if rows % self.group:
            raise ValueError(
                f"{rows} environments cannot be split into groups of {self.group} that share their chances"
            )
        words = jax.vmap(lambda k: jax.random.bits(jax.random.fold_in(k, _DRAWS), (2,), jnp.uint32))(key)
        words = words[jnp.arange(rows) // self.group * self.group]
        nothing = jnp.zeros(rows, jnp.float32)
        level = nothing + jnp.float32(1.0 if self.schedule is None else self.schedule.start)
        first, time = 2 * len(self.transforms), jnp.zeros(rows, jnp.int32)
        met = jax.vmap(jax.random.uniform)(_keys(words, time, first)) < self.share
        parts = tuple(
            jax.vmap(partial(one.begin, codec))(_keys(words, time, first + 1 + i), obs)
            for i, one in enumerate(self.transforms)
        )
        return PerturbationState(words, time, met.astype(jnp.float32), level, nothing, parts)

    def act(self, codec: StepCodec, state: PerturbationState, action: PyTree) -> tuple[PerturbationState, PyTree]:
        """What reaches the world of actions, columns `[B, ...]`."""
        parts, strength = list(state.parts), state.strength
        action = jax.tree.map(jnp.asarray, action)
        for i, one in enumerate(self.transforms):
            keys = _keys(state.words, state.time, 2 * i)
            parts[i], action = jax.vmap(partial(one.act, codec))(parts[i], keys, strength, action)
        return dataclasses.replace(state, parts=tuple(parts)), action

    def sense(
        self, codec: StepCodec, state: PerturbationState, obs: PyTree, reward: Float[Array, " B"]
    ) -> tuple[PerturbationState, PyTree, Float[Array, " B"]]:
        """What reaches the policy of outcomes, columns `[B, ...]`; the step is over with it."""
        parts, strength = list(state.parts), state.strength
        total = state.total + reward
        for i, one in enumerate(self.transforms):
            keys = _keys(state.words, state.time, 2 * i + 1)
            parts[i], obs, reward = jax.vmap(partial(one.sense, codec))(parts[i], keys, strength, obs, reward)
        return dataclasses.replace(state, parts=tuple(parts), time=state.time + 1, total=total), obs, reward

    def live(
        self, codec: StepCodec, state: PerturbationState, action: PyTree, obs: PyTree, reward: Float[Array, " B"]
    ) -> PerturbationState:
        """The state after an undisturbed step."""
        calm, _ = self.act(codec, dataclasses.replace(state, meets=jnp.zeros_like(state.meets)), action)
        calm, _, _ = self.sense(codec, calm, obs, reward)
        return dataclasses.replace(calm, meets=state.meets)

    def replace_rows(
        self, where: Bool[Array, " B"], fresh: PerturbationState, state: PerturbationState
    ) -> PerturbationState:
        """`fresh` where true, at the strength that the episode before it earned; `state` elsewhere."""
        if self.schedule is not None:
            step = jnp.where(state.total >= self.schedule.target, self.schedule.step, -self.schedule.step)
            fresh = dataclasses.replace(fresh, level=jnp.clip(state.level + step, 0.0, 1.0))
        return select_rows(where, fresh, state)

    def take_rows(self, state: PerturbationState, rows: Array) -> PerturbationState:
        """Episodes of `rows` int `[N]` that go on; every further branch of a row has chances of its own from here."""
        taken = jax.tree.map(lambda leaf: leaf[rows], state)
        before = branches_before(rows)
        own = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(_keys(taken.words, before, _DRAWS))
        return dataclasses.replace(taken, words=jnp.where(before[:, None] == 0, taken.words, own))


def _keys(words: Array, time: Array, place: int) -> Key[Array, " B"]:
    """The key of every row for one use at one step."""

    def one(words, time):
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        return jax.random.fold_in(jax.random.fold_in(key, time), place)

    return jax.vmap(one)(words, time)


def _transform(data: Mapping[str, Any]) -> Perturbation:
    fields = dict(data)
    kind = fields.pop("kind", None)
    if kind not in KINDS:
        near = suggest(kind, list(KINDS)) if isinstance(kind, str) else ""
        raise ValueError(f"perturbation {kind!r} is not known; known are {', '.join(KINDS)}{near}")
    try:
        return KINDS[kind](**fields)
    except TypeError as error:
        raise ValueError(f"perturbation {kind} cannot be read: {error}") from None
