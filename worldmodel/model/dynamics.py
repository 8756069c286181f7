"""A trained step model as a batched `Dynamics`: `initial`, `advance`, `score`, `observe`, all pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldmodel._types import Array, ArrayLike, Bool, Float, Key, PyTree
from worldmodel.codec import BoxCodec, DiscreteCodec, StepCodec
from worldmodel.model.step import Params, StepConfig, StepModel, step_model
from worldmodel.model.transformer import LayerCache
from worldmodel.spaces import at


@struct.dataclass
class StepState:
    """What the model remembers of `B` running episodes.

    Attributes:
      cache: per layer keys and values with a leading members axis: `[M, B, W, kv_heads, C]`, or
        `[M, B/M, ...]` in the grouped layout.
      seen: int32 `[B]`, positions of the cache that are valid.
      observation: the present observation, columns `[B, ...]`.
      reward: float32 `[B]` the last reward (0 units of deviation at the start).
      member: int32 `[B]` the ensemble member that rules the row's episode.
      context: float32 `[B, C]` what holds for the whole episode, encoded.
      before: the observation before the present one where the codec `looks_back`, else None.
    """

    cache: tuple[LayerCache, ...]
    seen: Array
    observation: PyTree
    reward: Array
    member: Array
    context: Array
    before: PyTree


@dataclasses.dataclass(frozen=True)
class StepDynamics:
    """The step model behind the `Dynamics` protocol.

    `params` is `{"members": ..., "starts": columns [S, ...]}`: weights, and how the logged episodes began; where
    episodes have a context also `"contexts": float32 [S, C]`.

    In the default layout every member follows every row, and the row's own member is drawn from its key. No row sees
    another: alone it behaves as in a batch, to the rounding of a matrix product of another height. With
    `grouped=True` row b belongs to member `b // (B / M)` for good and only that member runs: M times cheaper, for
    training policies; `score` and uncertainty are then refused.
    """

    config: StepConfig
    codec: StepCodec
    grouped: bool = False

    @property
    def members(self) -> int:
        """Size of the ensemble `M`."""
        return self.config.members

    def initial(
        self, params: Params, key: Key[Array, " B"], context: ArrayLike | None = None
    ) -> tuple[StepState, PyTree]:
        """Starts an episode in every row at an observation drawn from the logs' starts; returns `(state, obs)`.

        The context, float32 `[B, C]`, is the one given (see `codec.context.encode`), or that of the start.
        """
        start_key, member_key = _split_rows(key)
        starts = jax.tree.map(jnp.asarray, params["starts"])
        count = len(jax.tree.leaves(starts)[0])
        pick = jax.vmap(lambda k: jax.random.randint(k, (), 0, count))(start_key)
        if context is None and "contexts" in params:
            context = jnp.asarray(params["contexts"])[pick]
        first = jax.tree.map(lambda column: column[pick], starts)
        return self.start_at(params, member_key, first, context=context)

    def start_at(
        self,
        params: Params,
        key: Key[Array, " B"],
        obs: PyTree,
        last_reward: Array | None = None,
        context: ArrayLike | None = None,
    ) -> tuple[StepState, PyTree]:
        """Starts every row at a given observation, columns `[B, ...]`.

        `last_reward`, float32 `[B]`, is what the step that led there paid, NaN or None where none did. `context`,
        float32 `[B, C]`, is encoded; None for the logs' mean.
        """
        del params
        width = self.codec.context.size
        if context is not None and jnp.shape(context) != (key.shape[0], width):
            raise ValueError(f"context has shape {jnp.shape(context)}; {(key.shape[0], width)} is needed")
        batch, members = key.shape[0], self.members
        if self.grouped:
            if batch % members:
                raise ValueError(f"the grouped layout needs a batch that {members} members divide, not {batch}")
            member = jnp.arange(batch, dtype=jnp.int32) // (batch // members)
        else:
            member = jax.vmap(lambda k: jax.random.randint(k, (), 0, members))(key).astype(jnp.int32)
        rows = batch // members if self.grouped else batch
        state = StepState(
            cache=self._empty_cache(rows),
            seen=jnp.zeros(batch, jnp.int32),
            observation=obs,
            reward=self.codec.reward.known(jnp.full(batch, jnp.nan) if last_reward is None else last_reward),
            member=member,
            context=jnp.zeros((batch, width), jnp.float32) if context is None else jnp.asarray(context, jnp.float32),
            before=obs if self.codec.looks_back else None,
        )
        return state, obs

    def replace_rows(self, where: Bool[Array, " B"], fresh: StepState, state: StepState) -> StepState:
        """`fresh` where true, `state` elsewhere; a fresh row's cache counts as empty and is not copied."""

        def pick(new, old):
            return jnp.where(where.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        return dataclasses.replace(
            state,
            seen=pick(fresh.seen, state.seen),
            observation=jax.tree.map(pick, fresh.observation, state.observation),
            reward=pick(fresh.reward, state.reward),
            member=pick(fresh.member, state.member),
            context=pick(fresh.context, state.context),
            before=jax.tree.map(pick, fresh.before, state.before),
        )

    def take_rows(self, state: StepState, rows: Array) -> StepState:
        """The episodes of `rows` int `[N]`, which may repeat: what a branch continues."""
        self._need_all("take_rows")

        def take(leaf):
            return leaf[rows]

        return StepState(
            cache=jax.tree.map(lambda leaf: leaf[:, rows], state.cache),
            seen=take(state.seen),
            observation=jax.tree.map(take, state.observation),
            reward=take(state.reward),
            member=take(state.member),
            context=take(state.context),
            before=jax.tree.map(take, state.before),
        )

    def for_each_member(self, state: StepState, copies: int) -> tuple[StepDynamics, StepState]:
        """Every episode continued `copies` times under every member: what a planner imagines.

        The first result steps the second, whose `M * B * copies` rows lie in the order `[M, B, copies]`.
        """
        self._need_all("for_each_member")
        members, batch = self.members, state.seen.shape[0]

        def spread(leaf):
            return jnp.tile(jnp.repeat(leaf, copies, axis=0), (members, *[1] * (leaf.ndim - 1)))

        return dataclasses.replace(self, grouped=True), StepState(
            cache=jax.tree.map(lambda leaf: jnp.repeat(leaf, copies, axis=1), state.cache),
            seen=spread(state.seen),
            observation=jax.tree.map(spread, state.observation),
            reward=spread(state.reward),
            member=jnp.repeat(jnp.arange(members, dtype=jnp.int32), batch * copies),
            context=spread(state.context),
            before=jax.tree.map(spread, state.before),
        )

    def advance(
        self,
        params: Params,
        state: StepState,
        action: PyTree,
        key: Key[Array, " B"],
        *,
        uncertainty: bool = False,
    ) -> tuple[StepState, PyTree, Float[Array, " B"], Bool[Array, " B"], dict[str, Array]]:
        """Samples one transition per row.

        Args:
          params: see the class.
          state: `B` running episodes.
          action: `[B, ...]` in the action space.
          key: one key per row.
          uncertainty: also report `info["disagreement"]`, float32 `[B]`: root mean square over dimensions of the
            members' standard deviation of the central prediction, in standard deviations of a step's change; for a
            category its square is the chance that two members differ (alone: see `DiscreteCodec.features`).

        Returns:
          `(state, obs, reward, terminated, info)`; `info` has `log_prob` `[B, 3]` (nats of observation, reward,
          termination under the row's member), `end_probability` `[B]` and `member` `[B]`.
        """
        h, cache = self._trunk(params, state, action)
        uniforms = jax.vmap(partial(jax.random.uniform, shape=(self.codec.uniforms,)))(key)
        draws = self._heads(params, StepModel.draw, h, state.observation, uniforms, state.before)
        draw = jax.tree.map(partial(self._own, state), draws)
        info = {"log_prob": draw.log_prob, "end_probability": draw.end_probability, "member": state.member}
        if uncertainty:
            info["disagreement"] = self._disagreement(params, h, state)
        following = self._absorb(state, cache, draw.obs, draw.reward)
        return following, draw.obs, draw.reward, draw.terminated, info

    def score(
        self, params: Params, state: StepState, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> Float[Array, "members B parts"]:
        """Nats every member gives to a transition: observation (sum of dimensions), reward, termination."""
        self._need_all("score")
        h, _ = self._trunk(params, state, action)
        end = jnp.asarray(terminated).astype(jnp.float32)
        return self._heads(params, StepModel.log_prob, h, state.observation, obs, reward, end, state.before)

    def observe(
        self, params: Params, state: StepState, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> StepState:
        """Absorbs a transition that really happened, in every row."""
        del terminated  # the caller resets a row that ended
        _, cache = self._trunk(params, state, action)
        return self._absorb(state, cache, obs, reward)

    def predict(self, params: Params, state: StepState, action: PyTree) -> tuple[PyTree, Array, Array]:
        """Central prediction of every member: next obs `[M, B, ...]`, reward `[M, B]`, P(end) `[M, B]`."""
        self._need_all("predict")
        h, _ = self._trunk(params, state, action)
        return self._heads(params, StepModel.mean, h, state.observation, state.before)

    def disagreement(self, params: Params, state: StepState, action: PyTree) -> Float[Array, " B"]:
        """What `advance` reports as `info["disagreement"]`, without a draw."""
        h, _ = self._trunk(params, state, action)
        return self._disagreement(params, h, state)

    def _need_all(self, what: str) -> None:
        if self.grouped:
            raise ValueError(f"{what} needs every member, and the grouped layout runs one per row")

    def _empty_cache(self, rows: int) -> tuple[LayerCache, ...]:
        c = self.config.trunk
        zeros = jnp.zeros((self.members, rows, self.config.window, c.kv_heads, c.head_width), jnp.float32)
        return tuple(LayerCache(zeros, zeros) for _ in range(c.layers))

    def _trunk(self, params: Params, state: StepState, action: PyTree) -> tuple[Array, tuple[LayerCache, ...]]:
        def run(model: StepModel, cache, obs, action, reward, context, seen):
            return model.position(model.inputs(obs, action, reward, context), cache, seen)

        rows = (state.observation, action, state.reward, state.context, state.seen)
        return self._over_members(params, run, (state.cache,), rows)

    def _heads(self, params: Params, method: Callable, h: Array, *rows: PyTree) -> Any:
        return self._over_members(params, lambda model, h, *r: method(model, h, *r), (h,), rows)

    def _absorb(self, state: StepState, cache, obs: PyTree, reward: Array) -> StepState:
        seen = jnp.minimum(state.seen + 1, self.config.window)
        before = state.observation if self.codec.looks_back else None
        return dataclasses.replace(state, cache=cache, seen=seen, observation=obs, reward=reward, before=before)

    def _over_members(self, params: Params, fn: Callable, per_member: tuple, rows: tuple) -> Any:
        """`fn(model, *per_member[m], *rows)` for every member, stacked `[M, ...]`; grouped, rows are dealt out."""

        def one(member_params, *arguments):
            return fn(step_model(self.config, self.codec, member_params), *arguments)

        if self.grouped:
            rows = jax.tree.map(lambda x: x.reshape(self.members, len(x) // self.members, *x.shape[1:]), rows)
        if jax.default_backend() != "cpu":
            axes = (0,) * (1 + len(per_member)) + (0 if self.grouped else None,) * len(rows)
            return jax.vmap(one, in_axes=axes)(params["members"], *per_member, *rows)
        results = []  # unrolled: XLA's CPU backend runs batched products and loop bodies poorly
        for m in range(self.members):
            own = jax.tree.map(lambda x, m=m: x[m], (params["members"], *per_member))
            shared = jax.tree.map(lambda x, m=m: x[m], rows) if self.grouped else rows
            results.append(one(*own, *shared))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)

    def _own(self, state: StepState, values: Array) -> Array:
        """`[M, B, ...]` (or grouped `[M, B/M, ...]`) -> `[B, ...]` of each row's own member."""
        if self.grouped:
            return values.reshape(-1, *values.shape[2:])
        return values[state.member, jnp.arange(values.shape[1])]

    def _disagreement(self, params: Params, h: Array, state: StepState) -> Float[Array, " B"]:
        self._need_all("uncertainty")
        central, _, _ = self._heads(params, StepModel.mean, h, state.observation, state.before)
        codec = self.codec.observation
        if isinstance(codec, DiscreteCodec):
            return jnp.mean(jnp.std(codec.features(central), axis=0), axis=-1)
        present = jax.tree.map(lambda now, said: jnp.broadcast_to(now, said.shape), state.observation, central)
        if isinstance(codec, BoxCodec):
            return jnp.sqrt(jnp.mean(jnp.var(codec.encode(central, present), axis=0), axis=-1))
        spread = [jnp.var(codec.encode(central, present), axis=0)] if codec.numbers else []
        if codec.sites:  # the probability that two members say different things
            said = codec.index(central)
            apart = (said[:, None] != said[None]).astype(jnp.float32)
            spread.append(jnp.mean(apart, axis=(0, 1)))
        for path, _ in codec.pictures:  # the same of two pixels, over those of a picture
            said = at(central, path)
            apart = (said[:, None] != said[None]).any(axis=-1).astype(jnp.float32)
            spread.append(jnp.mean(apart, axis=(0, 1, 3, 4))[:, None])
        return jnp.sqrt(jnp.mean(jnp.concatenate(spread, axis=-1), axis=-1))


def _split_rows(key: Key[Array, " B"]) -> tuple[Array, Array]:
    keys = jax.vmap(jax.random.split)(key)
    return keys[:, 0], keys[:, 1]
