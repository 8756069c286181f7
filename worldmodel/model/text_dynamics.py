"""A language model as the dynamics of an environment of texts: it reads what happened, and says what happens next.

What was read stays in the key-value cache; a turn costs its own tokens alone. Reading and saying are one compiled
loop over single tokens, so that the same tokens give the same bits, whoever said them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array
from worldmodel.codec.text.beginnings import Beginnings
from worldmodel.codec.text.codec import TextCodec, reward_of
from worldmodel.model.language import Context, LanguageConfig, language_model, pad_left
from worldmodel.model.params import Params

LONGEST_REWARD = 16
"""Tokens of a reward."""

_READING, _OBSERVATION, _REWARD, _DONE = range(4)
_NEVER = -1e30
_HASHED = 2**10
"""Numbers of every array of weights that tell one model from another."""
_SMALLEST = 64
"""Positions of the shortest program that reads a beginning; longer ones double."""


class TextState(NamedTuple):
    """One running text: logits of its next token `[1, vocabulary]`, and the cache of what was read."""

    logits: Array
    context: Context


class Said(NamedTuple):
    """What the model said.

    Attributes:
      ids: its tokens.
      observation: their text.
      reward: as the tokens say it; None where no number was said, or none was asked for.
      over: the episode ended.
      log_prob: nats of the observation (and where it ends), the reward, and that the episode goes on or is over,
        under the model at temperature 1, among what may stand there.
      end_probability: that the episode is over.
      cut: the observation did not come to its end and was ended.
    """

    ids: list[int]
    observation: str
    reward: float | None
    over: bool
    log_prob: dict[str, float]
    end_probability: float
    cut: bool


@dataclasses.dataclass(frozen=True, eq=False)
class TextDynamics:
    """A trained language world model, with what it takes to begin episodes.

    Attributes:
      config: sizes of the model.
      codec: of texts.
      params: of the model.
      length: tokens that it was trained to look back on.
      beginnings: how episodes begin.
    """

    config: LanguageConfig
    codec: TextCodec
    params: Params
    length: int
    beginnings: Beginnings

    def read(self, ids: Sequence[int]) -> TextState:
        """Reads the beginning of a text at once; `ValueError` where it is longer than the model looks back."""
        if len(ids) > self.length:
            raise ValueError(f"a text of {len(ids)} tokens; the model looks back on {self.length}")
        tokens, lengths = pad_left([list(ids)], self.config.vocabulary)
        size = _SMALLEST
        while size < len(ids):
            size *= 2
        tokens = np.pad(tokens, [(0, 0), (size - tokens.shape[1], 0)])
        capacity = self.length if self.config.trunk.window is None else None
        return TextState(*_read(self.config, capacity, self.params, tokens, lengths))

    def go_on(self, state: TextState, ids: Sequence[int]) -> TextState:
        """Reads on."""
        return self._run(state, ids, say=0, longest=0, key=jax.random.key(0), temperature=0.0)[0]

    def say(
        self,
        state: TextState,
        ids: Sequence[int],
        *,
        outcome: bool,
        longest: int,
        key: Any,
        temperature: float,
    ) -> tuple[TextState, Said]:
        """Reads on and says an observation.

        Args:
          state: of the text so far.
          ids: to read first.
          outcome: a reward follows, and whether the episode is over.
          longest: tokens of the observation.
          key: of what is drawn.
          temperature: that logits are divided by; 0: always the likeliest token.
        """
        state, said = self._run(state, ids, say=2 if outcome else 1, longest=longest, key=key, temperature=temperature)
        tokens, count, nats, chance, was_cut = jax.device_get(said)
        told = [int(token) for token in tokens[: int(count)]]
        markers = self.codec.markers
        end = told.index(markers.end)
        reward = told[end + 1 : -1] if outcome else []
        return state, Said(
            told,
            self.codec.tokenizer.decode(told[:end]),
            reward_of(self.codec.tokenizer.decode(reward)) if reward else None,
            outcome and told[-1] == markers.over,
            dict(zip(("observation", "reward", "terminated"), (float(x) for x in nats), strict=False)),
            float(chance),
            bool(was_cut),
        )

    def _run(self, state: TextState, ids: Sequence[int], **how: Any) -> tuple[TextState, tuple[Array, ...]]:
        forced = np.zeros(self.length, np.int32)
        forced[: len(ids)] = ids
        how["temperature"] = np.float32(how["temperature"])
        logits, context, *said = _go_on(
            self.config, self.params, *state, self._allowed, forced, np.int32(len(ids)), **how
        )
        return TextState(logits, context), tuple(said)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that tell this model from others."""
        digest = hashlib.sha256(f"{self.codec.digest} {self.length} {self.config}".encode())
        for leaf in jax.tree.leaves(self.params):
            digest.update(np.asarray(leaf).reshape(-1)[:_HASHED].tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def _allowed(self) -> dict[str, Any]:
        """What may stand in an observation and in a reward, bool `[vocabulary]`, and what ends them."""
        markers, codec = self.codec.markers, self.codec
        masks = {}
        for name, ids, ends in (
            ("observation", codec.text_ids, [markers.end]),
            ("reward", codec.reward_ids, [markers.onward, markers.over]),
        ):
            masks[name] = np.zeros(self.config.vocabulary, np.bool_)
            masks[name][: len(ids)] = ids
            masks[name][ends] = True
        closers = {"end": markers.end, "onward": markers.onward, "over": markers.over}
        return {**masks, **{name: np.int32(token) for name, token in closers.items()}}


@partial(jax.jit, static_argnums=(0, 1))
def _read(
    config: LanguageConfig, capacity: int | None, params: Params, tokens: Any, lengths: Any
) -> tuple[Array, Context]:
    return language_model(config, params).start(jnp.asarray(tokens), jnp.asarray(lengths), capacity=capacity)


@partial(jax.jit, static_argnums=0)
def _go_on(
    config: LanguageConfig,
    params: Params,
    logits: Array,
    context: Context,
    allowed: dict[str, Any],
    forced: Any,
    count: Any,
    say: Any,
    longest: Any,
    key: Any,
    temperature: Any,
) -> tuple[Any, ...]:
    """Reads `count` forced tokens, then says an observation (`say` 1) and its outcome (2), or nothing (0)."""
    model, size = language_model(config, params), len(forced)
    first = jnp.where(say > 0, _OBSERVATION, _DONE)

    def unfinished(carry: dict[str, Any]) -> Array:
        return carry["phase"] != _DONE

    def one(carry: dict[str, Any]) -> dict[str, Any]:
        phase, logits, said = carry["phase"], carry["logits"], carry["said"]
        reading = phase == _READING
        may = jnp.where(phase == _OBSERVATION, allowed["observation"], allowed["reward"])
        masked = jnp.where(may, logits[0], _NEVER)
        drawn = jax.random.categorical(jax.random.fold_in(key, said), masked / jnp.maximum(temperature, 1e-6))
        token = jnp.where(temperature > 0.0, drawn, jnp.argmax(masked)).astype(jnp.int32)
        too_long = (phase == _OBSERVATION) & (carry["inside"] >= longest)
        token = jnp.where(too_long, allowed["end"], token)
        token = jnp.where((phase == _REWARD) & (carry["inside"] >= LONGEST_REWARD), allowed["onward"], token)
        ended = (phase == _OBSERVATION) & (token == allowed["end"])
        closed = (phase == _REWARD) & ((token == allowed["onward"]) | (token == allowed["over"]))
        part = jnp.where(reading, 3, jnp.where(phase == _OBSERVATION, 0, jnp.where(closed, 2, 1)))
        nats = carry["nats"].at[part].add(jax.nn.log_softmax(masked)[token])
        chance = jax.nn.sigmoid(logits[0, allowed["over"]] - logits[0, allowed["onward"]])
        token = jnp.where(reading, forced[jnp.minimum(carry["t"], size - 1)], token)
        tokens = carry["tokens"].at[jnp.where(reading, size, said)].set(token, mode="drop")
        following = jnp.where(reading & (carry["t"] + 1 >= count), first, phase)
        following = jnp.where(ended, jnp.where(say > 1, _REWARD, _DONE), following)
        following = jnp.where(closed, _DONE, following)
        logits, context = model.step(token[None], carry["context"])
        return {
            "t": carry["t"] + 1,
            "phase": following,
            "inside": jnp.where(following == phase, carry["inside"] + 1, 0),
            "logits": logits,
            "context": context,
            "said": said + jnp.where(reading, 0, 1),
            "tokens": tokens,
            "nats": nats,
            "chance": jnp.where(phase == _REWARD, chance, carry["chance"]),
            "cut": carry["cut"] | too_long,
        }

    zero = jnp.zeros((), jnp.int32)
    start = {
        "t": zero,
        "phase": jnp.where(count > 0, _READING, first),
        "inside": zero,
        "logits": logits,
        "context": context,
        "said": zero,
        "tokens": jnp.zeros(size, jnp.int32),
        "nats": jnp.zeros(4, jnp.float32),
        "chance": jnp.zeros((), jnp.float32),
        "cut": jnp.zeros((), bool),
    }
    end = jax.lax.while_loop(unfinished, one, start)
    return end["logits"], end["context"], end["tokens"], end["said"], end["nats"], end["chance"], end["cut"]
