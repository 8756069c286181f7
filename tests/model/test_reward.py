"""Rewards that are mostly one value: the atom is exact, the rest a density, and both are scored as they are drawn."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from worldmodel.codec import RewardCodec
from worldmodel.model.reward import RewardHead

WIDTH, ROWS = 5, 20_011
CODECS = {
    "numbers": RewardCodec(1.0, 2.0, False),
    "atoms": RewardCodec(0.5, 1.0, False, (0.0, 1.0), rest=False),
    "both": RewardCodec(0.5, 1.0, False, (-1.0, 0.0), rest=True),
}


@cache
def drawn(kind):
    """A head far from its beginning; rewards drawn from one row, its parameters and its mean."""
    codec = CODECS[kind]
    head = RewardHead(WIDTH, codec, hidden=7, components=2, rng=np.random.default_rng(0))
    graph, state = nnx.split(head)
    rng = np.random.default_rng(1)
    state = jax.tree.map(lambda x: x + jnp.asarray(0.7 * rng.normal(size=x.shape), jnp.float32), state)
    head = nnx.merge(graph, state)
    x = jnp.asarray(rng.normal(size=(1, WIDTH)), jnp.float32)
    uniforms = jnp.asarray(rng.uniform(size=(ROWS, 2)), jnp.float32)
    rewards = np.asarray(jax.jit(head.sample)(jnp.broadcast_to(x, (ROWS, WIDTH)), uniforms))
    return head, x, rewards


@pytest.mark.parametrize("kind", list(CODECS))
def test_samples_follow_what_is_scored(kind):
    """False-alarm rate 10^-3."""
    head, x, rewards = drawn(kind)
    codec, nats = head.codec, jax.jit(head.log_prob)
    atoms = np.array(codec.atoms, np.float32)
    shares = (
        np.exp(np.asarray(nats(jnp.broadcast_to(x, (len(atoms), WIDTH)), jnp.asarray(atoms)))) if len(atoms) else []
    )
    for atom, share in zip(atoms, shares, strict=True):
        assert stats.binomtest(int((rewards == atom).sum()), ROWS, float(share)).pvalue > 1e-3
    rest = rewards[~np.isin(rewards, atoms)]
    if kind == "atoms":
        assert not len(rest)
        return
    grid = np.arange(-30_000, 30_001) * codec.bin
    values = jnp.asarray(np.asarray(codec.decode(jnp.asarray(grid, jnp.float32))) + 1e-5, jnp.float32)
    weight = np.exp(np.asarray(nats(jnp.broadcast_to(x, (len(grid), WIDTH)), values), np.float64))
    assert weight.sum() + sum(shares) == pytest.approx(1.0, abs=2e-3)
    place = np.interp(rest, np.asarray(values), np.cumsum(weight) / weight.sum())
    assert stats.kstest(place, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("kind", list(CODECS))
def test_the_mean_is_that_of_the_samples(kind):
    head, x, rewards = drawn(kind)
    error = float(5 * rewards.std() / len(rewards) ** 0.5)
    assert float(jax.jit(head.mean)(x)[0]) == pytest.approx(float(rewards.mean()), abs=error)


def test_what_is_none_of_the_atoms_is_unlikely_and_not_impossible():
    head, x, _ = drawn("atoms")
    nats, gradient = jax.value_and_grad(lambda r: head.log_prob(x, r).sum())(jnp.float32([0.4]))
    assert -60 < float(nats) < -10
    assert np.isfinite(gradient).all()
