"""Codecs of Gymnasium spaces: raw values <-> features the model reads and targets it predicts.

A codec is a frozen dataclass of plain numbers (JSON in a checkpoint); its methods are pure JAX and take any
leading axes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import ArrayLike
from worldmodel.spaces import box_bounds
from worldmodel.trajectory import Spec

BIN_FRACTION = 1e-3
"""Width of the likelihood's bins in standard deviations of a dimension, for every model that is compared."""

LARGEST_BOX = 256
"""Most numbers of a Box: within a step they are predicted one after another."""

QUANTILES = 16
"""Knots per group of observations in the piecewise-linear encoding."""


@dataclasses.dataclass(frozen=True)
class BoxCodec:
    """Flattens a Box to `D` numbers; predicts the standardised change.

    Attributes (tuples of `D` floats): `low`, `high` bounds (None: unbounded); `mean`, `scale` of the values;
    `delta_mean`, `delta_scale` of the changes; `active`: False where the logs never show a change
    (such a dimension is copied, not predicted); `knots`: per dimension `J` increasing values, for `pieces`.
    """

    shape: tuple[int, ...]
    dtype: str
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    delta_mean: tuple[float, ...]
    delta_scale: tuple[float, ...]
    active: tuple[bool, ...]
    knots: tuple[tuple[float, ...], ...] = ()
    kind: str = "box"

    @property
    def size(self) -> int:
        """Number of features `D`."""
        return len(self.mean)

    @property
    def dims(self) -> int:
        """Number of values that a prediction draws one after another."""
        return self.size

    @cached_property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = box_bounds({"low": self.low, "high": self.high, "shape": (self.size,)})
        return low.astype(np.float32), high.astype(np.float32)

    @cached_property
    def bins(self) -> np.ndarray:
        """Bin width per dimension in units of the target, float32 `[D]`."""
        return BIN_FRACTION * _float32(self.scale) / _float32(self.delta_scale)

    def flatten(self, value: ArrayLike) -> jax.Array:
        """`[..., *shape]` of any dtype -> float32 `[..., D]`."""
        value = jnp.asarray(value)
        lead = value.shape[: value.ndim - len(self.shape)]
        return value.astype(jnp.float32).reshape(*lead, self.size)

    def features(self, value: ArrayLike) -> jax.Array:
        """`[..., *shape]` -> float32 `[..., D]`, mean 0 and deviation 1 over the logs."""
        return (self.flatten(value) - _float32(self.mean)) / _float32(self.scale)

    @property
    def pieces_size(self) -> int:
        """Number of values that `pieces` returns."""
        return sum(len(knots) - 1 for knots in self.knots)

    def pieces(self, value: ArrayLike) -> jax.Array:
        """Piecewise-linear encoding (Gorishniy et al. 2022, arXiv 2203.05556) of `[..., *shape]`.

        Each dimension becomes `J - 1` numbers in [0, 1], one for each gap between knots: how much of the gap lies
        below the value. Thresholds are easy to learn from it, and it stays constant outside the logs' range.
        """
        knots = _float32(self.knots)
        share = (self.flatten(value)[..., None] - knots[:, :-1]) / np.diff(knots, axis=1)
        return jnp.clip(share, 0.0, 1.0).reshape(*share.shape[:-2], -1)

    def encode(self, following: ArrayLike, current: ArrayLike) -> jax.Array:
        """Standardised change between two values `[..., *shape]`, float32 `[..., D]`."""
        change = self.flatten(following) - self.flatten(current)
        return (change - _float32(self.delta_mean)) / _float32(self.delta_scale)

    def decode(self, target: jax.Array, current: ArrayLike) -> jax.Array:
        """The value `[..., *shape]` that lies `target` `[..., D]` after `current`.

        Its dtype is the space's, or what JAX has of it: 64-bit types become 32-bit ones by default.
        """
        flat = self.flatten(current)
        change = target * _float32(self.delta_scale) + _float32(self.delta_mean)
        low, high = self._bounds
        value = jnp.clip(flat + jnp.where(np.array(self.active), change, 0.0), low, high)
        if np.dtype(self.dtype).kind in "biu":
            value = jnp.round(value)
        return value.reshape(*flat.shape[:-1], *self.shape).astype(jax.dtypes.canonicalize_dtype(self.dtype))


@dataclasses.dataclass(frozen=True)
class DiscreteCodec:
    """One-hot features and categorical targets of `Discrete(n, start)`."""

    n: int
    start: int = 0
    kind: str = "discrete"
    dims: ClassVar[int] = 1
    active: ClassVar[tuple[bool, ...]] = (True,)
    bins: ClassVar[np.ndarray] = np.ones(1, np.float32)

    @property
    def size(self) -> int:
        """Number of features `n`."""
        return self.n

    def features(self, value: ArrayLike) -> jax.Array:
        """Integers `[...]` -> one-hot float32 `[..., n]`."""
        return jax.nn.one_hot(jnp.asarray(value) - self.start, self.n, dtype=jnp.float32)

    @property
    def pieces_size(self) -> int:
        """Number of values that `pieces` returns."""
        return self.n

    def pieces(self, value: ArrayLike) -> jax.Array:
        """The same as `features`: categories need no thresholds."""
        return self.features(value)

    def encode(self, following: ArrayLike, current: ArrayLike) -> jax.Array:
        """Category index of the next value, int32 `[...]`."""
        del current
        return (jnp.asarray(following) - self.start).astype(jnp.int32)

    def decode(self, target: jax.Array, current: ArrayLike) -> jax.Array:
        """Category index -> value of the space, int32 `[...]`."""
        del current
        return (target + self.start).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class RewardCodec:
    """Standardises rewards; a reward that never varies in the logs is returned exactly."""

    mean: float
    scale: float
    constant: bool

    @property
    def bin(self) -> float:
        """Width of the likelihood's bin in units of the target."""
        return BIN_FRACTION

    def encode(self, reward: ArrayLike) -> jax.Array:
        """Reward units -> standardised, float32 `[...]`."""
        return (jnp.asarray(reward, jnp.float32) - np.float32(self.mean)) / np.float32(self.scale)

    def known(self, reward: ArrayLike) -> jax.Array:
        """The reward, float32 `[...]`; the logs' mean where there was none yet (NaN)."""
        reward = jnp.asarray(reward, jnp.float32)
        return jnp.where(jnp.isnan(reward), jnp.float32(self.mean), reward)

    def decode(self, target: jax.Array) -> jax.Array:
        """The inverse of `encode`, float32 `[...]`."""
        if self.constant:
            return jnp.full(target.shape, self.mean, jnp.float32)
        return target * np.float32(self.scale) + np.float32(self.mean)


@dataclasses.dataclass(frozen=True)
class StepCodec:
    """All codecs of one environment, and the rate of true ends in its logs."""

    observation: BoxCodec | DiscreteCodec
    action: BoxCodec | DiscreteCodec
    reward: RewardCodec
    end_rate: float

    @property
    def uniforms(self) -> int:
        """How many uniform numbers a sampled transition takes: two for each value, one for the end."""
        return 2 * (self.observation.dims + 1) + 1

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; the inverse of `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepCodec:
        """The inverse of `to_json`."""
        return cls(
            observation=_space_codec_from_json(data["observation"]),
            action=_space_codec_from_json(data["action"]),
            reward=RewardCodec(**data["reward"]),
            end_rate=data["end_rate"],
        )


def _float32(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)


def _space_codec_from_json(data: Mapping[str, Any]) -> BoxCodec | DiscreteCodec:
    if data["kind"] == "discrete":
        return DiscreteCodec(**data)
    return BoxCodec(**{name: _tuples(value) for name, value in data.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


MODELLED = ("Box", "Discrete")


def check_kinds(spec: Spec) -> None:
    """Raises `ValueError` for kinds of spaces that neither behaviour policies nor the model know."""
    for role, space in (("observation", spec.observation_space), ("action", spec.action_space)):
        if space["type"] not in MODELLED:
            raise ValueError(f"{role} space {space['type']} is not supported; supported are {' and '.join(MODELLED)}")


def check_spec(spec: Spec) -> None:
    """Raises `ValueError` for spaces that cannot be modelled, before anything is recorded or trained."""
    check_kinds(spec)
    for role, space in (("observation", spec.observation_space), ("action", spec.action_space)):
        size = int(np.prod(space["shape"])) if space["type"] == "Box" else 1
        if size > LARGEST_BOX:
            shape = tuple(space["shape"])
            raise ValueError(
                f"{role} space is a Box of shape {shape}, {size:,} numbers; supported are Discrete spaces and Boxes of "
                f"at most {LARGEST_BOX}"
            )


def fit_codec(
    spec: Spec,
    observations: np.ndarray,
    next_observations: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray,
) -> StepCodec:
    """Statistics of `N` logged transitions.

    Args:
      spec: the spaces.
      observations: `[N, ...]` before each action.
      next_observations: `[N, ...]` after it.
      actions: `[N, ...]`.
      rewards: float `[N]`.
      terminated: bool `[N]`.

    Raises:
      ValueError: a space is too large to be modelled.
    """
    check_spec(spec)
    rewards = np.asarray(rewards, np.float64)
    deviation = float(rewards.std())
    constant = deviation <= 1e-7 * max(1.0, abs(float(rewards.mean())))
    return StepCodec(
        observation=_fit_space(spec.observation_space, observations, next_observations, np.asarray(terminated)),
        action=_fit_space(spec.action_space, actions, actions, None),
        reward=RewardCodec(float(rewards.mean()), 1.0 if constant else deviation, constant),
        # Jeffreys' prior: logs without a single end still say how rare an end can be at most.
        end_rate=float((np.sum(terminated) + 0.5) / (len(terminated) + 1.0)),
    )


def _fit_space(
    space: Mapping[str, Any], values: np.ndarray, following: np.ndarray, ends: np.ndarray | None
) -> BoxCodec | DiscreteCodec:
    if space["type"] == "Discrete":
        return DiscreteCodec(n=space["n"], start=space["start"])
    flat = np.asarray(values, np.float64).reshape(len(values), -1)
    after = np.asarray(following, np.float64).reshape(len(values), -1)
    change = after - flat
    deviation, spread = flat.std(axis=0), change.std(axis=0)
    magnitude = np.maximum(1e-6 * np.abs(flat).max(axis=0, initial=0.0), 1e-9)
    moves = np.abs(change).max(axis=0, initial=0.0) > magnitude
    return BoxCodec(
        shape=tuple(space["shape"]),
        dtype=space["dtype"],
        low=tuple(space["low"]),
        high=tuple(space["high"]),
        mean=tuple(map(float, flat.mean(axis=0))),
        scale=tuple(map(float, np.where(deviation > magnitude, deviation, 1.0))),
        delta_mean=tuple(map(float, change.mean(axis=0))),
        delta_scale=tuple(map(float, np.where(spread > magnitude, spread, 1.0))),
        active=tuple(map(bool, moves)),
        knots=() if ends is None else _knots(flat, after, ends),
    )


def _knots(before: np.ndarray, after: np.ndarray, ends: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Quantiles per dimension of all observations, of the last before an end, and of the ends themselves.

    An end is often a threshold on one dimension: the last two groups put knots on both sides of it, and two more
    mark the gap between what was survived and the nearest end beyond, however few ends there are.
    """
    levels = np.linspace(0.0, 1.0, QUANTILES)
    groups = [np.quantile(after, levels, axis=0)]
    if ends.any() and not ends.all():
        groups += [np.quantile(before[ends], levels, axis=0), np.quantile(after[ends], levels, axis=0)]
        for side in (-1.0, 1.0):
            survived = (side * after[~ends]).max(axis=0)
            beyond = np.where(side * after[ends] > survived, side * after[ends], np.inf).min(axis=0)
            groups.append(side * np.stack([survived, np.where(np.isfinite(beyond), beyond, survived)]))
    knots = np.sort(np.concatenate(groups), axis=0).T
    # Equal knots would make gaps of width zero.
    step = np.maximum(1e-5 * after.std(axis=0), 1e-6 * np.maximum(np.abs(after).max(axis=0), 1.0))
    rise = step[:, None] * np.arange(knots.shape[1])
    return tuple(tuple(map(float, row)) for row in np.maximum.accumulate(knots - rise, axis=1) + rise)
