"""Cross-entropy over a large vocabulary, without ever holding the logits of all positions.

As in the fused loss of Liger Kernel (arXiv 2410.10989): positions are taken a piece at a time, and the gradient of each
piece is made together with its loss, while its logits are there. Positions of weight 0 come last and are not computed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from worldmodel._types import Array, Float, Int

MOST_LOGITS = 2**23
"""Logits that are held at once: 32 MiB."""


@jax.custom_vjp
def weighted_nll(
    hidden: Float[Array, "N width"],
    table: Float[Array, "vocabulary width"],
    targets: Int[Array, " N"],
    weights: Float[Array, " N"],
) -> Float[Array, ""]:
    """Sum of `weights` times the negative log-likelihood of `targets` under the logits `hidden @ table.T`, in nats.

    Weights are constants: no gradient reaches them.
    """
    size = _piece(hidden, table)
    if size == len(hidden):
        return jnp.sum(weights * _nll(hidden, table, targets)[0])

    def add(rows: Array, total: Array) -> Array:
        return total + jnp.sum(_rows(weights, rows) * _nll(_rows(hidden, rows), table, _rows(targets, rows))[0])

    return _over_chosen(weights, size, add, jnp.zeros((), jnp.float32))


def _forward(hidden: Array, table: Array, targets: Array, weights: Array) -> tuple[Array, tuple[Array, Array]]:
    size = _piece(hidden, table)
    if size == len(hidden):
        total, by_hidden, by_table = _slopes(hidden, table, targets, weights)
        return total, (by_hidden, by_table)

    def add(rows: Array, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        total, by_hidden, by_table = sums
        more, here, there = _slopes(_rows(hidden, rows), table, _rows(targets, rows), _rows(weights, rows))
        return total + more, by_hidden.at[rows].set(here, mode="drop", unique_indices=True), by_table + there

    zeros = (jnp.zeros((), jnp.float32), jnp.zeros_like(hidden), jnp.zeros_like(table))
    total, by_hidden, by_table = _over_chosen(weights, size, add, zeros)
    return total, (by_hidden, by_table)


def _backward(slopes: tuple[Array, Array], outer: Array) -> tuple[Array, Array, None, None]:
    by_hidden, by_table = slopes
    return outer * by_hidden, outer * by_table, None, None


weighted_nll.defvjp(_forward, _backward)


def token_nll(
    hidden: Float[Array, "N width"], table: Float[Array, "vocabulary width"], targets: Int[Array, " N"]
) -> Float[Array, " N"]:
    """Negative log-likelihood of every target, in nats."""
    return _in_pieces(lambda piece: _nll(piece[0], table, piece[1])[0], hidden, table, targets)


def token_scores(
    hidden: Float[Array, "N width"], table: Float[Array, "vocabulary width"], targets: Int[Array, " N"]
) -> tuple[Float[Array, " N"], Int[Array, " N"]]:
    """The same, and the likeliest token in each place."""

    def scores(piece: tuple[Array, Array]) -> tuple[Array, Array]:
        nll, said = _nll(piece[0], table, piece[1])
        return nll, jnp.argmax(said, axis=-1).astype(jnp.int32)

    return _in_pieces(scores, hidden, table, targets)


def _in_pieces(function: Any, hidden: Array, table: Array, targets: Array) -> Any:
    """`function` of hidden states and targets, both `[size, ..]`, for all positions; its results are `[N]`."""
    count, size = len(hidden), _piece(hidden, table)
    padding = -count % size
    hidden = jnp.pad(hidden, [(0, padding), (0, 0)]).reshape(-1, size, hidden.shape[-1])
    targets = jnp.pad(targets, (0, padding)).reshape(-1, size)
    return jax.tree.map(lambda x: x.reshape(-1)[:count], jax.lax.map(function, (hidden, targets)))


def _piece(hidden: Array, table: Array) -> int:
    """How many positions are taken at once."""
    return min(len(hidden), max(1, MOST_LOGITS // len(table)))


def _over_chosen(weights: Array, size: int, add: Any, carry: Any) -> Any:
    """`add(rows, carry)` for pieces of the positions whose weight is not 0; beyond the last, rows are out of range."""
    order = jnp.pad(jnp.argsort(weights == 0.0, stable=True), (0, -len(weights) % size), constant_values=len(weights))
    pieces = (jnp.sum(weights != 0.0) + size - 1) // size

    def body(piece: Array, carry: Any) -> Any:
        return add(jax.lax.dynamic_slice(order, (piece * size,), (size,)), carry)

    return jax.lax.fori_loop(0, pieces, body, carry)


def _rows(x: Array, rows: Array) -> Array:
    return x.at[rows].get(mode="fill", fill_value=0)


def _nll(hidden: Array, table: Array, targets: Array) -> tuple[Array, Array]:
    """Negative log-likelihoods `[N]`, and log-probabilities of the whole vocabulary `[N, vocabulary]`."""
    said = jax.nn.log_softmax(hidden @ table.T, axis=-1)
    return -jnp.take_along_axis(said, targets[:, None], axis=-1)[:, 0], said


def _slopes(hidden: Array, table: Array, targets: Array, weights: Array) -> tuple[Array, Array, Array]:
    """The weighted sum, and its gradients with respect to `hidden` and `table`."""
    nll, said = _nll(hidden, table, targets)
    right = jnp.arange(len(table)) == targets[:, None]
    slope = weights[:, None] * (jnp.exp(said) - right.astype(jnp.float32))
    return jnp.sum(weights * nll), slope @ table, slope.T @ hidden
