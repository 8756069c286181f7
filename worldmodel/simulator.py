"""The simulator: pure `reset`, `step` and `rollout` over any `Dynamics`, for `jit`, `vmap` and `scan`.

State is a pytree: copy it to branch, save it to resume.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct

from worldmodel._types import Array, Bool, Float, Int, Key, PyTree
from worldmodel.trust_region import TrustRule

DEFAULT_TIME_LIMIT = 1_000
"""Steps after which an evaluated episode is cut, imagined or real, where the environment has no limit of its own."""


@runtime_checkable
class Dynamics(Protocol):
    """What simulator, environments and probe see of a model. Pure, natively batched over `B` rows."""

    def initial(self, params: PyTree, key: Key[Array, " B"], context: Any = None) -> tuple[PyTree, PyTree]:
        """Starts an episode in every row, in an encoded context or one drawn; returns `(state, obs)`.

        obs columns `[B, ...]`, context `[B, C]`.
        """
        ...

    def advance(
        self, params: PyTree, state: PyTree, action: PyTree, key: Key[Array, " B"], *, uncertainty: bool = False
    ) -> tuple[PyTree, PyTree, Array, Array, dict[str, Array]]:
        """Samples a transition per row; returns `(state, obs, reward [B], terminated [B], info)`."""
        ...

    def score(
        self, params: PyTree, state: PyTree, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> Float[Array, "members B parts"]:
        """Nats each member gives to the transition's observation, reward and termination."""
        ...

    def observe(
        self, params: PyTree, state: PyTree, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> PyTree:
        """The state after a transition that really happened."""
        ...


@struct.dataclass
class SimState:
    """`B` running episodes: the dynamics' state, a key per row, steps taken int32 `[B]`."""

    dynamics: PyTree
    key: Array
    steps: Array


class Step(NamedTuple):
    """One step of every row: obs columns `[B, ...]`, reward float32, terminated and truncated bool `[B]`, info."""

    obs: PyTree
    reward: Array
    terminated: Array
    truncated: Array
    info: dict[str, Array]


class Rollout(NamedTuple):
    """`T` steps of `B` rows, time first.

    obs columns `[T+1, B, ...]`, action columns `[T, B, ...]`, reward `[T, B]`, terminated and truncated `[T, B]`, alive
    bool `[T, B]`: False for steps after the row's episode ended, whose other values mean nothing.
    """

    obs: PyTree
    action: PyTree
    reward: Array
    terminated: Array
    truncated: Array
    alive: Array

    @property
    def returns(self) -> Float[Array, " B"]:
        """Undiscounted return of each row's episode."""
        return jnp.sum(jnp.where(self.alive, self.reward, 0.0), axis=0)


Policy = Callable[[Any, Array], Any]
"""`(obs, keys [B]) -> action`, both columns `[B, ...]`."""


@dataclasses.dataclass(frozen=True)
class Simulator:
    """A dynamics with a time limit, and with a rule for steps that it cannot be trusted in.

    Attributes:
      dynamics: the model.
      max_episode_steps: steps after which an episode is truncated, or None.
      trust: what to do about steps outside the trusted region, which costs all members at every step; None: nothing,
        for nothing. `info` of a step then has `outside` bool `[B]` and, in an ensemble, `disagreement` float32 `[B]`.
    """

    dynamics: Dynamics
    max_episode_steps: int | None = None
    trust: TrustRule | None = None

    @property
    def _asks_members(self) -> bool:
        return self.trust is not None and self.trust.asks_members

    def reset(self, params: PyTree, key: Key[Array, " B"], context: Any = None) -> tuple[SimState, PyTree]:
        """Starts an episode in every row, in a given context or one drawn; a row depends on its own key alone."""
        keys = jax.vmap(jax.random.split)(key)
        dynamics, obs = self.dynamics.initial(params, keys[:, 0], context)
        return SimState(dynamics, keys[:, 1], jnp.zeros(key.shape[0], jnp.int32)), obs

    def start_at(
        self, params: PyTree, key: Key[Array, " B"], obs: PyTree, context: Any = None
    ) -> tuple[SimState, PyTree]:
        """As `reset`, but every row starts at a given observation, columns `[B, ...]`."""
        keys = jax.vmap(jax.random.split)(key)
        model: Any = self.dynamics
        dynamics, obs = model.start_at(params, keys[:, 0], obs, context=context)
        return SimState(dynamics, keys[:, 1], jnp.zeros(key.shape[0], jnp.int32)), obs

    def observe(
        self, params: PyTree, state: SimState, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> SimState:
        """Every row after a transition that really happened; it counts as a step, and draws nothing."""
        dynamics = self.dynamics.observe(params, state.dynamics, action, obs, reward, terminated)
        return SimState(dynamics, state.key, state.steps + 1)

    def step(
        self, params: PyTree, state: SimState, action: PyTree, *, uncertainty: bool = False
    ) -> tuple[SimState, Step]:
        """One step of every row. A row that ended must be reset by the caller, see `replace_rows`."""
        keys = jax.vmap(jax.random.split)(state.key)
        dynamics, obs, reward, terminated, info = self.dynamics.advance(
            params, state.dynamics, action, keys[:, 0], uncertainty=uncertainty or self._asks_members
        )
        steps = state.steps + 1
        truncated = jnp.zeros_like(terminated)
        if self.max_episode_steps is not None:
            truncated = (steps >= self.max_episode_steps) & ~terminated
        if self.trust is not None:
            reward, stops, info = self.trust.judge(obs, reward, terminated, info)
            truncated = truncated | stops
        return SimState(dynamics, keys[:, 1], steps), Step(obs, reward, terminated, truncated, info)

    def replace_rows(self, where: Bool[Array, " B"], fresh: SimState, state: SimState) -> SimState:
        """Rows of `fresh` where true, of `state` elsewhere."""
        return SimState(
            replace_rows(self.dynamics, where, fresh.dynamics, state.dynamics),
            select_rows(where, fresh.key, state.key),
            select_rows(where, fresh.steps, state.steps),
        )

    def branch(self, state: SimState, rows: Array) -> SimState:
        """The episodes of `rows` int `[N]`, which may repeat, as a batch of `N`.

        The first branch of a row goes on as the row itself would; every further one draws its own random numbers.
        """
        earlier = branches_before(rows)
        keys = state.key[rows]
        own = jax.vmap(jax.random.fold_in)(keys, earlier)
        keys = jax.random.wrap_key_data(
            jnp.where(earlier[:, None] == 0, jax.random.key_data(keys), jax.random.key_data(own)),
            impl=jax.random.key_impl(keys),
        )
        return SimState(take_rows(self.dynamics, state.dynamics, rows), keys, state.steps[rows])

    def reset_rows(self, params: PyTree, where: Bool[Array, " B"], state: SimState, obs: PyTree):
        """Starts a new episode, keyed by the old one, where true; returns `(state, obs)`."""
        fresh, fresh_obs = self.reset(params, state.key)
        return self.replace_rows(where, fresh, state), select_rows(where, fresh_obs, obs)

    def rollout(self, params: PyTree, policy: Policy, key: Key[Array, " B"], steps: int) -> Rollout:
        """Every row's first episode under a policy, at most `steps` long."""
        keys = jax.vmap(jax.random.split)(key)
        state, obs = self.reset(params, keys[:, 0])

        def body(carry, step_keys):
            state, obs, alive = carry
            action = policy(obs, step_keys)
            state, step = self.step(params, state, action)
            going_on = alive & ~(step.terminated | step.truncated)
            return (state, step.obs, going_on), (obs, action, step, alive)

        row_keys = jax.vmap(lambda k: jax.random.split(k, steps))(keys[:, 1])
        everyone = jnp.ones(key.shape[0], bool)
        (_, last, _), (before, action, step, alive) = jax.lax.scan(
            body, (state, obs, everyone), jnp.swapaxes(row_keys, 0, 1)
        )
        observations = jax.tree.map(lambda some, end: jnp.concatenate([some, end[None]]), before, last)
        return Rollout(observations, action, step.reward, step.terminated, step.truncated, alive)


def branches_before(rows: Int[Array, " N"]) -> Int[Array, " N"]:
    """Of every branch, how many of those before it are of the same row."""
    return jnp.tril(rows[:, None] == rows[None, :], k=-1).sum(axis=1)


def replace_rows(dynamics: Dynamics, where: Bool[Array, " B"], fresh: PyTree, state: PyTree) -> PyTree:
    """The dynamics' own rows of `fresh` where true, of `state` elsewhere: by its `replace_rows`, or leaf by leaf."""
    return getattr(dynamics, "replace_rows", select_rows)(where, fresh, state)


def take_rows(dynamics: Dynamics, state: PyTree, rows: Array) -> PyTree:
    """The dynamics' own states of `rows` int `[N]`, which may repeat: by its `take_rows`, or leaf by leaf."""
    take = getattr(dynamics, "take_rows", lambda state, rows: jax.tree.map(lambda leaf: leaf[rows], state))
    return take(state, rows)


def select_rows(where: Bool[Array, " B"], new: PyTree, old: PyTree) -> PyTree:
    """Leaf by leaf, rows (axis 0) of `new` where true, of `old` elsewhere."""

    def pick(a, b):
        return jnp.where(where.reshape(-1, *[1] * (b.ndim - 1)), a, b)

    return jax.tree.map(pick, new, old)
