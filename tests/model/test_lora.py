"""Low-rank changes: nothing at first, then exactly what they say, and nothing else moves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.model.language import LanguageConfig, init_params, language_model
from worldmodel.model.lora import MAPS, init_change, merge
from worldmodel.model.transformer import TrunkConfig

CONFIG = LanguageConfig(13, TrunkConfig(width=12, layers=2, heads=2, kv_heads=1, mlp=17, window=None))


def test_a_fresh_change_changes_nothing():
    params = init_params(CONFIG, 0)
    change = init_change(params, 1, rank=3)
    assert len(change) == CONFIG.trunk.layers * len(MAPS)
    assert change["trunk/blocks/1/down/kernel"]["down"].shape == (17, 3)
    jax.tree.map(np.testing.assert_array_equal, merge(params, change), params)


def test_training_moves_the_change_and_leaves_the_weights():
    params = init_params(CONFIG, 0)
    change = init_change(params, 1, rank=3, maps=["qkv", "down"])
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 13, (3, 11)), jnp.int32)

    @jax.jit
    def loss(change):
        return language_model(CONFIG, merge(params, change, scale=2.0)).loss(tokens, jnp.ones((3, 11)))[0]

    before, descend = float(loss(change)), jax.jit(jax.grad(loss))
    for _ in range(30):
        change = jax.tree.map(lambda x, slope: x - 1.0 * slope, change, descend(change))
    assert float(loss(change)) < before - 0.05
    merged = merge(params, change, scale=2.0)
    for layer in range(2):
        for name in MAPS:
            old, new = (np.asarray(p["trunk"]["blocks"][layer][name]["kernel"]) for p in (params, merged))
            rank = np.linalg.matrix_rank(new.astype(np.float64) - old, tol=1e-5)
            assert rank == (3 if name in ("qkv", "down") else 0), name
    np.testing.assert_array_equal(merged["embedding"], params["embedding"])


def test_what_cannot_be_changed_is_named():
    params = init_params(CONFIG, 0)
    with pytest.raises(
        ValueError, match=r"maps \['embedding'\] cannot be changed; of each block there are qkv, output"
    ):
        init_change(params, 0, maps=["embedding"])
    with pytest.raises(ValueError, match="a change of rank 0"):
        init_change(params, 0, rank=0)
    smaller = init_params(LanguageConfig(13, TrunkConfig(width=12, layers=1, heads=2, kv_heads=1, mlp=17)), 0)
    with pytest.raises(ValueError, match="no weights trunk/blocks/1/down/kernel, which the change is of"):
        merge(smaller, init_change(params, 0))
