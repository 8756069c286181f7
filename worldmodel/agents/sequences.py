"""Planning by sampling: sequences of actions are imagined, and the best ones say where to sample next.

The cross-entropy method (Rubinstein 1999; for control with a learned ensemble Chua et al. 2018, arXiv 1805.12114) and
model predictive path integral control (Williams et al. 2017, arXiv 1707.02342), for a Box of actions and, with
categories in the place of normal distributions, for a Discrete one.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from worldmodel._types import Array, Float, Key, PyTree
from worldmodel.simulator import Dynamics


@dataclasses.dataclass(frozen=True)
class CEM:
    """The `elites` best candidates count alike, the others not at all; deviations follow them, too."""

    elites: int = 6

    def weights(self, scores: Float[Array, "B N"]) -> Float[Array, "B N"]:
        """What every candidate counts for, by what it earned; sums to one."""
        _, best = jax.lax.top_k(scores, self.elites)
        return jnp.sum(jax.nn.one_hot(best, scores.shape[1]), axis=1) / self.elites


@dataclasses.dataclass(frozen=True)
class MPPI:
    """All candidates count, by the exponential of what they earned; deviations stay as they are.

    `temperature` is in standard deviations of the candidates' returns, so that it suits every environment.
    """

    temperature: float = 0.1

    def weights(self, scores: Float[Array, "B N"]) -> Float[Array, "B N"]:
        """As `CEM.weights`."""
        unit = self.temperature * jnp.std(scores, axis=1, keepdims=True) + 1e-8
        return jax.nn.softmax(scores / unit, axis=1)


class Normals(NamedTuple):
    """Independent normal distributions of actions in [-1, 1]: mean and deviation, float32 `[B, H, A]`."""

    mean: Array
    deviation: Array

    def draw(self, key: Key[Array, " B"], count: int) -> Array:
        """`[B, count, H, A]`; the first of every row is the mean itself."""
        shape = (count - 1, *self.mean.shape[1:])
        noise = jax.vmap(lambda k: jax.random.normal(k, shape))(key)
        others = jnp.clip(self.mean[:, None] + self.deviation[:, None] * noise, -1.0, 1.0)
        return jnp.concatenate([self.mean[:, None], others], axis=1)

    def refit(self, candidates: Array, weights: Float[Array, "B N"], update: CEM | MPPI) -> Normals:
        """The distributions of the weighted candidates."""
        mean = jnp.einsum("bn,bnha->bha", weights, candidates)
        if isinstance(update, MPPI):
            return Normals(mean, self.deviation)
        variance = jnp.einsum("bn,bnha->bha", weights, (candidates - mean[:, None]) ** 2)
        return Normals(mean, jnp.sqrt(variance))

    def first_action(self) -> Array:
        """`[B, A]`, what is done now."""
        return self.mean[:, 0]

    def shifted(self, spread: float) -> Normals:
        """The plan of the next step: a step on, with nothing known of the last one, and every deviation `spread`."""
        mean = jnp.concatenate([self.mean[:, 1:], jnp.zeros_like(self.mean[:, :1])], axis=1)
        return Normals(mean, jnp.full_like(self.deviation, spread))


class Categories(NamedTuple):
    """Independent distributions over the actions of a Discrete space: float32 `[B, H, K]`."""

    probability: Array

    def draw(self, key: Key[Array, " B"], count: int) -> Array:
        """int32 `[B, count, H]`, counted from 0; the first of every row is the likeliest."""
        rows, horizon, _ = self.probability.shape

        def one(key, log):
            return jax.random.categorical(key, log, shape=(count - 1, horizon))

        others = jax.vmap(one)(key, jnp.log(self.probability))
        likeliest = jnp.argmax(self.probability, axis=-1).reshape(rows, 1, horizon)
        return jnp.concatenate([likeliest, others], axis=1).astype(jnp.int32)

    def refit(self, candidates: Array, weights: Float[Array, "B N"], update: CEM | MPPI) -> Categories:
        """As `Normals.refit`; a tenth of what was stays, so that no action is lost for good."""
        del update
        chosen = jax.nn.one_hot(candidates, self.probability.shape[-1])
        return Categories(0.9 * jnp.einsum("bn,bnhk->bhk", weights, chosen) + 0.1 * self.probability)

    def first_action(self) -> Array:
        """int32 `[B]`, the likeliest now."""
        return jnp.argmax(self.probability[:, 0], axis=-1).astype(jnp.int32)

    def shifted(self, spread: float) -> Categories:
        """As `Normals.shifted`: `spread` is the share of all actions alike."""
        alike = jnp.full_like(self.probability, 1.0 / self.probability.shape[-1])
        following = jnp.concatenate([self.probability[:, 1:], alike[:, :1]], axis=1)
        return Categories(spread * alike + (1.0 - spread) * following)


@dataclasses.dataclass(frozen=True)
class SequenceSearch:
    """How sequences are searched; a step costs `horizon * candidates * iterations` imagined ones, times the members.

    Attributes:
      horizon: steps ahead `H`.
      candidates: sequences imagined at once `N`.
      iterations: how often the distribution is refitted.
      update: by whom it is refitted.
      spread: its width before the first: the deviation, in halves of the action's range, or the share of all actions
        alike.
      discount: of a reward a step later.
      every_member: every member of an ensemble imagines every candidate, which counts by the mean; False: one does,
        each of them the same number of candidates, at that share of the cost.
    """

    horizon: int = 20
    candidates: int = 64
    iterations: int = 3
    update: CEM | MPPI = CEM()
    spread: float = 0.6
    discount: float = 0.99
    every_member: bool = True

    def __post_init__(self):
        if min(self.horizon, self.iterations) < 1 or self.candidates < 2:
            raise ValueError(
                f"horizon {self.horizon}, iterations {self.iterations}, candidates {self.candidates}: "
                "at least 1, 1 and 2 are needed"
            )
        if isinstance(self.update, CEM) and not 1 <= self.update.elites <= self.candidates:
            raise ValueError(f"elites is {self.update.elites}; 1 to {self.candidates} candidates can be kept")
        if isinstance(self.update, MPPI) and not self.update.temperature > 0:
            raise ValueError(f"temperature is {self.update.temperature}; a positive number is needed")
        if not (0 < self.spread <= 1 and 0 < self.discount <= 1):
            raise ValueError(f"spread {self.spread} and discount {self.discount} must lie above 0 and at most at 1")

    def begin(self, rows: int, actions: int, *, discrete: bool) -> Normals | Categories:
        """The plan of an episode that begins, of as many action numbers, or categories."""
        shape = (rows, self.horizon, actions)
        if discrete:
            return Categories(jnp.full(shape, 1.0 / actions, jnp.float32))
        return Normals(jnp.zeros(shape), jnp.full(shape, self.spread, jnp.float32))

    def search(
        self,
        dynamics: Dynamics,
        params: PyTree,
        act: Any,
        belief: PyTree,
        plan: Normals | Categories,
        key: Key[Array, " B"],
    ) -> tuple[Array, Normals | Categories]:
        """Improves a plan from where the episodes are; returns the action to take now, and the plan a step on.

        `act` makes the environment's actions `[rows, ...]` of the plan's.
        """

        def improve(plan, i):
            draw, chances = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, i)), out_axes=1)(key)
            candidates = plan.draw(draw, self.candidates)
            scores = self._scores(dynamics, params, act, belief, candidates, chances)
            return plan.refit(candidates, self.update.weights(scores), self.update), None

        plan, _ = jax.lax.scan(improve, plan, jnp.arange(self.iterations))
        return plan.first_action(), plan.shifted(self.spread)

    def _scores(
        self, dynamics: Dynamics, params: PyTree, act: Any, belief: PyTree, candidates: Array, key: Key[Array, " B"]
    ) -> Float[Array, "B N"]:
        """What each candidate earns: `[B, N]` of `[B, N, H, ...]`.

        All candidates of an episode meet the same chances under one member, so that luck does not choose among them.
        """
        members, (batch, count) = getattr(dynamics, "members", 1), candidates.shape[:2]
        if not self.every_member and count % members:
            raise ValueError(f"{count} candidates cannot be shared equally among {members} members")
        copies = count if self.every_member else count // members
        following, state = _spread(dynamics, belief, copies)
        if self.every_member:
            dealt = jnp.broadcast_to(candidates, (members, *candidates.shape))
        else:
            dealt = jnp.moveaxis(candidates.reshape(batch, members, copies, *candidates.shape[2:]), 1, 0)
        actions = jnp.moveaxis(dealt.reshape(-1, *candidates.shape[2:]), 1, 0)
        own = jax.vmap(lambda m: jax.vmap(lambda k: jax.random.fold_in(k, m))(key))(jnp.arange(members))
        keys = jnp.repeat(own.reshape(-1), copies)
        total = imagined_return(following, params, state, jax.vmap(act)(actions), keys, self.discount)
        total = total.reshape(members, batch, copies)
        if self.every_member:
            return total.mean(axis=0)
        return jnp.moveaxis(total, 0, 1).reshape(batch, count)


def imagined_return(
    dynamics: Dynamics, params: PyTree, state: PyTree, actions: PyTree, key: Key[Array, " R"], discount: float
) -> Float[Array, " R"]:
    """Discounted sum of rewards of `R` rows under actions, columns `[H, R, ...]`, up to the end of each episode.

    A row whose rewards are no numbers counts as the worst of all.
    """

    def body(carry, action):
        state, alive, total, weight, t = carry
        keys = jax.vmap(lambda k: jax.random.fold_in(k, t))(key)
        state, _, reward, end, _ = dynamics.advance(params, state, action, keys)
        total = total + jnp.where(alive, weight * reward, 0.0)
        return (state, alive & ~end, total, weight * discount, t + 1), None

    rows = key.shape[0]
    start = (state, jnp.ones(rows, bool), jnp.zeros(rows), jnp.ones(()), jnp.zeros((), jnp.int32))
    total = jax.lax.scan(body, start, actions)[0][2]
    known = jnp.isfinite(total)
    return jnp.where(known, total, jnp.min(total, where=known, initial=0.0))


def _spread(dynamics: Any, state: PyTree, copies: int) -> tuple[Dynamics, PyTree]:
    """`copies` of every row under each member; rows in the order `[M, B, copies]`."""
    if hasattr(dynamics, "for_each_member"):
        return dynamics.for_each_member(state, copies)
    return dynamics, jax.tree.map(lambda leaf: jnp.repeat(leaf, copies, axis=0), state)
