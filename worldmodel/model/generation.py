"""Texts continued by a language model, greedily or sampled."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from worldmodel._types import Array, Float, Int, Key
from worldmodel.model.language import LanguageConfig, language_model
from worldmodel.model.params import Params


class Continuation(NamedTuple):
    """What was said.

    Attributes:
      tokens: int32 `[B, steps]`; after the end, the stop token again.
      lengths: int32 `[B]`, how many of them were said, the stop token included.
      log_prob: float32 `[B, steps]`, nats of each under the model at temperature 1; 0 after the end.
    """

    tokens: Int[Array, "B steps"]
    lengths: Int[Array, " B"]
    log_prob: Float[Array, "B steps"]


def generate(
    config: LanguageConfig,
    params: Params,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    *,
    steps: int,
    stop: int | None = None,
    keys: Key[Array, " B"] | None = None,
    temperature: float = 1.0,
) -> Continuation:
    """Continues texts by up to `steps` tokens each; pure, for `jax.jit`.

    Args:
      config: sizes of the model.
      params: its parameters.
      tokens: how the texts begin, see `pad_left`.
      lengths: of each beginning.
      steps: the most tokens that are said.
      stop: the token that ends a text; None: none does.
      keys: one for each row, whatever the batch around it; None: always the likeliest token.
      temperature: that the logits are divided by before a token is drawn.
    """
    model = language_model(config, params)
    whole = None if config.trunk.window is not None else tokens.shape[1] + steps
    logits, context = model.start(tokens, lengths, capacity=whole)
    batch, ended = len(tokens), -1 if stop is None else stop

    def unfinished(carry):
        return (carry[0] < steps) & ~jnp.all(carry[1])

    def say(carry):
        t, done, logits, context, said = carry
        token = _pick(logits, keys, t, temperature)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), token[:, None], axis=-1)[:, 0]
        said = Continuation(
            said.tokens.at[:, t].set(jnp.where(done, ended, token)),
            said.lengths + jnp.where(done, 0, 1),
            said.log_prob.at[:, t].set(jnp.where(done, 0.0, log_prob)),
        )
        logits, context = model.step(token, context)
        return t + 1, done | (token == ended), logits, context, said

    nothing = Continuation(
        jnp.full((batch, steps), max(ended, 0), jnp.int32),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros((batch, steps), jnp.float32),
    )
    start = (jnp.zeros((), jnp.int32), jnp.zeros(batch, bool), logits, context, nothing)
    return jax.lax.while_loop(unfinished, say, start)[-1]


def _pick(logits: Array, keys: Array | None, t: Array, temperature: float) -> Array:
    if keys is None:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    own = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
    return jax.vmap(jax.random.categorical)(own, logits / temperature).astype(jnp.int32)
