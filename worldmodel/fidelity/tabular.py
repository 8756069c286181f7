"""Finite decision processes with exact answers: what the probe's estimators are checked against.

All is undiscounted and ends after `H` steps at the latest; `S` states, `A` actions.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, Key, PyTree


@dataclasses.dataclass(frozen=True)
class TabularMDP:
    """A finite process.

    transition float `[S, A, S]`; reward float `[S, A]`, its mean; end float `[S, A]`, the probability that the step is
    the episode's last; start float `[S]`; horizon `H`. ValueError where a distribution does not sum to one.
    """

    transition: np.ndarray
    reward: np.ndarray
    end: np.ndarray
    start: np.ndarray
    horizon: int

    def __post_init__(self):
        for name, rows in (("transition", self.transition), ("start", self.start)):
            if (rows < 0).any() or np.abs(rows.sum(axis=-1) - 1.0).max() > 1e-9:
                raise ValueError(f"{name} holds rows that are no distribution")
        if (self.end < 0).any() or (self.end > 1).any():
            raise ValueError("end holds a number outside [0, 1]")

    def values(self, policy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`V [H+1, S]` and `Q [H, S, A]` of a policy `[S, A]`, by backward induction."""
        states, actions = self.reward.shape
        value, quality = np.zeros((self.horizon + 1, states)), np.zeros((self.horizon, states, actions))
        for t in reversed(range(self.horizon)):
            quality[t] = self.reward + (1.0 - self.end) * (self.transition @ value[t + 1])
            value[t] = (policy * quality[t]).sum(axis=-1)
        return value, quality

    def visits(self, policy: np.ndarray) -> np.ndarray:
        """How often a policy is at each state and takes each action at each step: `[H, S, A]`, at most 1 a step."""
        here, out = self.start, []
        for _ in range(self.horizon):
            out.append(here[:, None] * policy)
            here = np.einsum("sa,sa,san->n", out[-1], 1.0 - self.end, self.transition)
        return np.stack(out)

    def expected_return(self, policy: np.ndarray) -> float:
        """Mean return of a policy."""
        return float(self.start @ self.values(policy)[0][0])


def residuals(real: TabularMDP, sim: TabularMDP, values: np.ndarray) -> np.ndarray:
    """What the simulator gets wrong about each step by cause, in units of return: `[H, S, A, 3]`, see `CAUSES`.

    `values` `[H+1, S]` judge what follows; the causes sum to `R^ - R + (1-e^) P^ V' - (1-e) P V'`.
    """
    reward = np.broadcast_to(sim.reward - real.reward, (real.horizon, *real.reward.shape))
    follow = np.stack([real.transition @ v for v in values[1:]])
    imagined = np.stack([sim.transition @ v for v in values[1:]])
    return np.stack([reward, (real.end - sim.end) * follow, (1.0 - sim.end) * (imagined - follow)], axis=-1)


def exact_attribution(
    real: TabularMDP, sim: TabularMDP, policy: np.ndarray, form: Literal["A", "B", "first order"] = "A"
) -> tuple[float, np.ndarray]:
    """The gap `J^ - J` as `(initial, contributions [H, S, A, 3])`, whose sum it is.

    "A": real visits, the simulator's values. "B": simulated visits, real values. "first order": simulated visits and
    values, whose sum misses a remainder.
    """
    own, other = real.values(policy)[0], sim.values(policy)[0]
    values = own if form == "B" else other
    visits = (real if form == "A" else sim).visits(policy)
    return float((sim.start - real.start) @ values[0]), visits[..., None] * residuals(real, sim, values)


@dataclasses.dataclass(frozen=True)
class TabularDynamics:
    """A finite process as a `Dynamics`: what a trained model is to the probe, but exact.

    `params` are the process's arrays, see `of`; observations and actions int32 `[B]`.
    """

    @staticmethod
    def of(process: TabularMDP) -> dict[str, Array]:
        """Parameters that make the dynamics follow `process`."""
        floor = np.finfo(np.float32).tiny
        return {
            "log_transition": jnp.asarray(np.log(np.maximum(process.transition, floor)), jnp.float32),
            "log_start": jnp.asarray(np.log(np.maximum(process.start, floor)), jnp.float32),
            "reward": jnp.asarray(process.reward, jnp.float32),
            "end": jnp.asarray(process.end, jnp.float32),
        }

    def initial(self, params: PyTree, key: Key[Array, " B"], context: Any = None) -> tuple[Array, Array]:
        """State and observation are the same."""
        del context
        state = jax.vmap(lambda k: jax.random.categorical(k, params["log_start"]))(key).astype(jnp.int32)
        return state, state

    def start_at(
        self, params: PyTree, key: Key[Array, " B"], obs: Array, last_reward: Any = None, context: Any = None
    ) -> tuple[Array, Array]:
        """Starts every row at a given state."""
        del params, key, last_reward, context
        return obs, obs

    def advance(
        self, params: PyTree, state: Array, action: Array, key: Key[Array, " B"], *, uncertainty: bool = False
    ) -> tuple[Array, Array, Array, Array, dict[str, Array]]:
        """Draws the next state and whether the step is the last."""
        del uncertainty
        keys = jax.vmap(jax.random.split)(key)
        following = jax.vmap(jax.random.categorical)(keys[:, 0], params["log_transition"][state, action])
        ends = jax.vmap(jax.random.uniform)(keys[:, 1]) < params["end"][state, action]
        following = following.astype(jnp.int32)
        return following, following, params["reward"][state, action], ends, {}

    def score(self, params: PyTree, state: Array, action: Array, obs: Array, reward: Array, terminated: Array) -> Array:
        """Nats of next state and end `[1, B, 3]`; the reward is certain."""
        end = params["end"][state, action]
        chance = jnp.where(terminated, jnp.log(end), jnp.log1p(-end))
        parts = (params["log_transition"][state, action, obs], jnp.zeros_like(reward), chance)
        return jnp.stack(parts, axis=-1)[None]

    def observe(
        self, params: PyTree, state: Array, action: Array, obs: Array, reward: Array, terminated: Array
    ) -> Array:
        """The state is what was observed."""
        del params, state, action, reward, terminated
        return obs


def random_mdp(rng: np.random.Generator, states: int, actions: int, horizon: int) -> TabularMDP:
    """Every step leads to about three states, pays between 0 and 1, and ends the episode in at most one case of 20."""
    transition = rng.dirichlet(np.full(states, 3.0 / states), (states, actions))
    return TabularMDP(
        transition=transition / transition.sum(axis=-1, keepdims=True),
        reward=rng.uniform(size=(states, actions)),
        end=rng.uniform(0.0, 0.05, (states, actions)),
        start=rng.dirichlet(np.ones(states)),
        horizon=horizon,
    )


def sample_episodes(
    process: TabularMDP, policy: np.ndarray, rng: np.random.Generator, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`count` episodes side by side: states int `[H+1, E]`, actions `[H, E]`, alive and end bool `[H, E]`.

    What comes after an episode's end means nothing.
    """
    state = rng.choice(len(process.start), size=count, p=process.start)
    alive = np.ones(count, bool)
    states, actions, living, ends = [state], [], [], []
    for _ in range(process.horizon):
        action = _draw(policy[state], rng)
        ended = rng.uniform(size=count) < process.end[state, action]
        state = _draw(process.transition[state, action], rng)
        states.append(state)
        actions.append(action)
        living.append(alive)
        ends.append(ended & alive)
        alive = alive & ~ended
    return np.stack(states), np.stack(actions), np.stack(living), np.stack(ends)


def _draw(chances: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One category per row of `[E, K]`."""
    picked = (np.cumsum(chances, axis=1) < rng.uniform(size=(len(chances), 1))).sum(axis=1)
    return np.minimum(picked, chances.shape[1] - 1)
