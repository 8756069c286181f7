"""Cells of a grid and their neighbours: who is where, and a rule that holds at every place alike."""

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel.codec import GridCodec
from worldmodel.model.categories import Neighbours, neighbourhood

CELLS, OUTER, HIDDEN = 4, 6, 5


def test_neighbours_are_the_eight_around_in_reading_order():
    cells = jnp.arange(1.0, 13.0)[None, :, None]  # three rows of four
    around = np.asarray(neighbourhood(cells, (3, 4)))[0]
    assert around.shape == (12, 9)
    np.testing.assert_array_equal(around[5], [1, 2, 3, 5, 6, 7, 9, 10, 11])
    np.testing.assert_array_equal(around[0], [0, 0, 0, 0, 1, 2, 0, 5, 6])
    np.testing.assert_array_equal(around[11], [7, 8, 0, 11, 12, 0, 0, 0, 0])


def test_the_rule_is_the_same_at_every_place():
    leaf = GridCodec((6, 7, 2), "uint8", tuple((i, 0) for i in range(CELLS)), (0.9,) * 42)
    rule = Neighbours(leaf, OUTER, HIDDEN, rng=np.random.default_rng(0))
    rng = np.random.default_rng(1)
    board = np.zeros((1, 6, 7), int)
    board[0, 1:4, 1:4] = rng.integers(0, CELLS, size=(3, 3))
    moved = np.roll(board, (1, 2), axis=(1, 2))
    given = jnp.asarray(rng.normal(size=(1, OUTER)), jnp.float32)

    @jax.jit
    def said(board):
        return rule(given, jax.nn.one_hot(board.reshape(1, -1), CELLS, dtype=jnp.float32)).reshape(1, 6, 7, HIDDEN)

    before, after = np.asarray(said(jnp.asarray(board))), np.asarray(said(jnp.asarray(moved)))
    np.testing.assert_allclose(after[0, 2:5, 3:6], before[0, 1:4, 1:4], atol=1e-5)
    assert np.abs(before[0, 2, 2] - before[0, 1, 2]).max() > 1e-2
