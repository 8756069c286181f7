"""One simulated episode as pure functions of a key, without a batch axis: what the adapters to JAX's interfaces share.

`jax.vmap` makes a batch of it, and the products of the batch are as large as if it had been one from the start.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldmodel._types import Array, PyTree
from worldmodel.envs.check import open_world_model, step_limit
from worldmodel.envs.control import Control, check_control
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trust_region import Trust


@struct.dataclass
class EpisodeState:
    """A running episode.

    Attributes:
      dynamics: what the model remembers.
      observation: the present one, of the space.
      reward: float32 `[]` of the last step, 0 at the start.
      terminated: bool `[]`, the last step reached a terminal state.
      time: int32 `[]`, steps taken.
      trust: of the last step `outside` bool `[]` and, in an ensemble, `disagreement` float32 `[]`; empty where trust is
        ignored.
    """

    dynamics: Any
    observation: PyTree
    reward: Array
    terminated: Array
    time: Array
    trust: dict[str, Array]


@dataclasses.dataclass(frozen=True)
class PureEpisode:
    """Starts and steps one episode of a world model.

    Attributes:
      model: the world model.
      max_episode_steps: steps after which an episode is truncated; None: never.
      control: what is not trusted, and what is disturbed.
    """

    model: WorldModel
    max_episode_steps: int | None
    control: Control = Control()

    @classmethod
    def of(cls, checkpoint: Any, max_episode_steps: int | None = None, **control: Any) -> PureEpisode:
        """Of a run folder or a loaded model; the limit and `control` (see `check_control`) are read as by `SimEnv`.

        One episode is a group by itself; under `vmap`, those that begin from one key have the same chances.
        """
        model = open_world_model(checkpoint)
        return cls(model, step_limit(max_episode_steps, model.spec), check_control(model, **control).alone())

    @property
    def limit(self) -> int:
        """The time limit as a number: far away where there is none."""
        return 2**31 - 1 if self.max_episode_steps is None else self.max_episode_steps

    def begin(self, params: PyTree, key: Array, context: Array | None = None) -> EpisodeState:
        """The state of a new episode, from one key, also of the old kind.

        `context` float32 `[C]`, encoded; None: drawn as logged.
        """
        dynamics, obs = self.control.dynamics(self.model).initial(
            params, _typed(key)[None], None if context is None else context[None]
        )
        nothing, no = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.bool_)
        rule, trust = self.control.trust, {}
        if rule is not None:
            trust = {"outside": no, **({"disagreement": nothing} if rule.asks_members else {})}
        return EpisodeState(dynamics, _first(obs), nothing, no, jnp.zeros((), jnp.int32), trust)

    def advance(
        self, params: PyTree, state: EpisodeState, action: PyTree, key: Array
    ) -> tuple[EpisodeState, dict[str, Array]]:
        """The state after an action of the space, and what the model says of the step (`info` of `SimEnv.step`)."""
        action = jax.tree.map(lambda a: jnp.asarray(a)[None], action)
        trust, advance = self.control.trust, self.control.dynamics(self.model).advance
        dynamics, obs, reward, terminated, info = advance(
            params, state.dynamics, action, _typed(key)[None], uncertainty=trust is not None and trust.asks_members
        )
        if trust is not None:
            reward, _, info = trust.judge(obs, reward, terminated, info)
        info = _first(info)
        said = {name: info[name] for name in state.trust}
        return EpisodeState(dynamics, _first(obs), reward[0], terminated[0], state.time + 1, said), info

    def truncated(self, state: EpisodeState, limit: Any = None) -> Array:
        """Bool `[]`: the time is up (None: `self.limit`), or the step was not to be trusted, and it was no end."""
        over, trust = state.time >= (self.limit if limit is None else limit), self.control.trust
        if trust is not None and trust.trust is Trust.TRUNCATE:
            over = over | state.trust["outside"]
        return over & ~state.terminated


def _typed(key: Array) -> Array:
    """The key, also of the old kind, whose two words are bare numbers."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def _first(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], tree)
