"""Many categories of one step at once: a mixture of products, each site near what it was or what another site was."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from worldmodel._types import Array, Float, Int
from worldmodel.codec import GridCodec, TreeCodec
from worldmodel.model.heads import UNSEEN
from worldmodel.model.transformer import Dense, normal

MOST_COPIED = 64
"""With more sites than this a site looks at its own present category only: the pairs would fill the memory."""

MOVES = 8
"""How many ways the sites of a view may move at once."""

GAIN = 3.0
"""Gain of the first layer's initial weights: most of what it reads is a grid, whose many numbers are small."""

SELF = 1.0
"""Log-odds at the start that a site comes from itself and not from any other."""


NEAR = 16
"""Numbers that stand for a neighbouring cell."""


class Neighbours(nnx.Module):
    """What a rule that is the same at every cell of a grid says of each, from the cells around it and what is given."""

    def __init__(self, leaf: GridCodec, given: int, hidden: int, *, rng: np.random.Generator):
        self.grid = leaf.shape[:2]
        self.table = nnx.Param(normal(rng, (len(leaf.cells), NEAR), 1.0))
        self.near = Dense(9 * NEAR, given, rng=rng, bias=0.0)
        self.given = Dense(given, given, rng=rng)
        self.second = Dense(given, given, rng=rng, bias=0.0)
        self.out = Dense(given, hidden, rng=rng)

    def __call__(self, given: Array, cells: Float[Array, "... S V"]) -> Float[Array, "... S hidden"]:
        """From `given` `[..., given]` and one-hot cells, row by row."""
        x = neighbourhood(cells[..., : self.table.shape[0]] @ self.table[...], self.grid)
        x = jax.nn.silu(self.near(x) + self.given(given)[..., None, :])
        return self.out(x + jax.nn.silu(self.second(x)))


def neighbourhood(cells: Array, grid: tuple[int, ...]) -> Array:
    """Every cell of a grid beside the eight around it, zeros beyond the edge.

    Cells row by row: `[..., rows * columns, size]` -> `[..., rows * columns, 9 * size]`.
    """
    (rows, columns), lead, size = grid, cells.shape[:-2], cells.shape[-1]
    board = cells.reshape(*lead, rows, columns, size)
    board = jnp.pad(board, [(0, 0)] * len(lead) + [(1, 1), (1, 1), (0, 0)])
    around = [board[..., i : i + rows, j : j + columns, :] for i in range(3) for j in range(3)]
    return jnp.concatenate(around, axis=-1).reshape(*lead, rows * columns, 9 * size)


class SitesHead(nnx.Module):
    """Joint distribution of `S` categories given `x [..., width]` and the present ones: `sum_k w_k prod_s p_ks`.

    The components are shared by all sites, so that sites of one step depend on each other though all are drawn at once.
    What a site becomes is mostly what it was, or what another one was where a view moves. A move is a table of which
    site comes from which; a component mixes `MOVES` of them, and the categories that they bring are raised by a gate,
    which starts at the logs' rate of staying. The cells of a grid also follow one rule of their neighbours.
    """

    def __init__(
        self, width: int, codec: TreeCodec, *, hidden: int, outer: int, components: int, rng: np.random.Generator
    ):
        self.codec, self.hidden = codec, hidden
        self.components = components if codec.sites > 1 else 1
        sites, most = codec.sites, max(codec.nvec)
        small = 0.1 / math.sqrt(hidden)
        self.first = Dense(width, outer, rng=rng, bias=0.0, gain=GAIN)
        self.second = Dense(outer, outer, rng=rng, bias=0.0)
        self.context = Dense(outer, sites * hidden, rng=rng, bias=0.0)
        self.weights = Dense(outer, self.components, rng=rng, bias=0.0, gain=0.1)
        self.present = nnx.Param(normal(rng, (sites, most, hidden), 0.5))
        self.offset = nnx.Param(normal(rng, (self.components, sites, hidden), 0.5))
        self.mix = nnx.Param(normal(rng, (sites, hidden, most), small))
        self.gate = nnx.Param(normal(rng, (sites, hidden), small))
        n, stay = np.array(codec.nvec), np.clip(np.array(codec.stays), 1e-3, 1.0 - 1e-4)
        odds = np.log(stay / (1.0 - stay)) + np.log(np.maximum(n - 1, 1))
        # Components that began alike would stay alike.
        self.bias = nnx.Param(normal(rng, (self.components, sites, most), 0.5 if self.components > 1 else 0.0))
        self.stay = Bias(odds)
        moving = 1 < sites <= MOST_COPIED
        self.choose = Dense(outer, self.components * MOVES, rng=rng, bias=0.0) if moving else None
        grids = [leaf for _, leaf in codec.categories if isinstance(leaf, GridCodec) and len(leaf.shape) > 1]
        self.rules = nnx.List([Neighbours(leaf, outer, hidden, rng=rng) for leaf in grids])
        own = np.float32(SELF + math.log(max(sites - 1, 1))) * np.eye(sites, dtype=np.float32)
        self.moves = nnx.Param(normal(rng, (MOVES, sites, sites), 0.1) + own) if moving else None

    def __call__(self, x: Array, present: Int[Array, "... S"]) -> tuple[Float[Array, "... K"], Array]:
        """Log-weights of the components, and log-probabilities `[..., K, S, V]` of the categories in each."""
        codec, lead = self.codec, x.shape[:-1]
        now = jax.nn.one_hot(present, max(codec.nvec), dtype=jnp.float32)
        outer = jax.nn.silu(self.first(x))
        outer = outer + jax.nn.silu(self.second(outer))
        context = self.context(outer).reshape(*lead, codec.sites, self.hidden)
        context = context + jnp.einsum("...sv,svm->...sm", now, self.present[...])
        hidden = jax.nn.silu((context + self._ruled(outer, now))[..., None, :, :] + self.offset[...])
        gate = jnp.sum(hidden * self.gate[...], axis=-1) + self.stay.bias[...]
        brought = gate[..., None] * self._brought(outer, now)
        logits = jnp.einsum("...sm,smv->...sv", hidden, self.mix[...]) + self.bias[...] + brought
        exists = np.arange(logits.shape[-1]) < np.array(codec.nvec)[:, None]
        logits = jnp.where(exists, logits, -1e9)
        return jax.nn.log_softmax(self.weights(outer), axis=-1), jax.nn.log_softmax(logits, axis=-1)

    def log_prob(self, x: Array, present: Int[Array, "... S"], index: Int[Array, "... S"]) -> Array:
        """Nats `[...]` of all sites together; a site that the logs never show to change costs nothing."""
        weights, categories = self(x, present)
        n = np.array(self.codec.nvec, np.int32)
        at = jnp.minimum(index, n - 1)[..., None, :, None]
        said = jnp.take_along_axis(categories, at, axis=-1)[..., 0] + math.log1p(-UNSEEN)
        said = jnp.where((index < n)[..., None, :], said, math.log(UNSEEN))
        said = jnp.where(np.array(self.codec.sites_active), said, 0.0)
        return jax.nn.logsumexp(weights + said.sum(axis=-1), axis=-1)

    def sample(self, x: Array, present: Int[Array, "... S"], uniforms: Array) -> Int[Array, "... S"]:
        """By inversion from uniforms `[..., 1 + S]`: the first picks the component, the others a category each."""
        weights, categories = self(x, present)
        passed = uniforms[..., :1] > jnp.cumsum(jnp.exp(weights), axis=-1)[..., :-1]
        component = jnp.sum(passed.astype(jnp.int32), axis=-1)
        chosen = jnp.take_along_axis(categories, component[..., None, None, None], axis=-3)[..., 0, :, :]
        passed = uniforms[..., 1:, None] > jnp.cumsum(jnp.exp(chosen), axis=-1)[..., :-1]
        index = jnp.sum(passed.astype(jnp.int32), axis=-1)
        return jnp.minimum(index, np.array(self.codec.nvec, np.int32) - 1)  # the sum of all may fall short of one

    def central(self, x: Array, present: Int[Array, "... S"]) -> Int[Array, "... S"]:
        """The likeliest categories of the component in which they are likeliest."""
        weights, categories = self(x, present)
        best = jnp.where(np.array(self.codec.sites_active), categories.max(axis=-1), 0.0).sum(axis=-1)
        component = jnp.argmax(weights + best, axis=-1)
        chosen = jnp.take_along_axis(categories, component[..., None, None, None], axis=-3)[..., 0, :, :]
        return jnp.argmax(chosen, axis=-1).astype(jnp.int32)

    def _ruled(self, outer: Array, now: Float[Array, "... S V"]) -> Float[Array, "... S hidden"]:
        """What the grids' rules say of their cells; zeros for other sites."""
        parts, rules, first = [], iter(self.rules), 0
        for _, leaf in self.codec.categories:
            own = now[..., first : first + leaf.sites, :]
            first += leaf.sites
            if isinstance(leaf, GridCodec) and len(leaf.shape) > 1:
                parts.append(next(rules)(outer, own))
            else:
                parts.append(jnp.zeros((*own.shape[:-1], self.hidden), jnp.float32))
        return jnp.concatenate(parts, axis=-2)

    def _brought(self, outer: Array, now: Float[Array, "... S V"]) -> Float[Array, "... _ S V"]:
        """Shares of the categories that moves bring to each site from its leaf, in each component or in all alike."""
        if self.choose is None or self.moves is None:
            return now[..., None, :, :]
        leaf = np.repeat(np.arange(len(self.codec.categories)), [c.sites for _, c in self.codec.categories])
        tables = jax.nn.softmax(jnp.where(leaf[:, None] == leaf, self.moves[...], -1e9), axis=-1)
        chosen = self.choose(outer).reshape(*outer.shape[:-1], self.components, MOVES)
        sources = jnp.einsum("...kr,rsj->...ksj", jax.nn.softmax(chosen, axis=-1), tables)
        return sources @ now[..., None, :, :]


class Bias(nnx.Module):
    """A bias by itself, with initial values `[N]`."""

    def __init__(self, values: np.ndarray):
        self.bias = nnx.Param(jnp.asarray(values, jnp.float32))
