"""Heads: probabilities that sum to one, samples that follow them, and no infinity far away."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import special, stats

from worldmodel.model.heads import (
    SCALE_FLOOR,
    CategoricalHead,
    ChainHead,
    Perceptron,
    balance,
    logistic_mixture_log_prob,
    logistic_mixture_mean,
    logistic_mixture_sample,
    logistic_mixture_scale,
)

FALSE_ALARM = 1e-3
"""Probability that a statistical test here fails though the code is right, were its seed drawn anew."""
BINS = 0.01
WIDTH, DIMS, COMPONENTS = 11, 5, 3
SAMPLE = jax.jit(logistic_mixture_sample)


def normal(seed, *shape):
    """Float32 of NumPy's making: JAX would compile a program for every shape."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def uniform(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).uniform(size=shape), jnp.float32)


def mixtures(rows):
    """Random parameters float32 [rows, 3K]: uneven weights, means apart, scales from .05 to 2."""
    rng = np.random.default_rng(0)
    logits, means = 2.0 * rng.normal(size=(rows, COMPONENTS)), 3.0 * rng.normal(size=(rows, COMPONENTS))
    raw = rng.uniform(-3.0, 2.0, size=(rows, COMPONENTS))
    return jnp.asarray(np.concatenate([logits, means, raw], axis=-1), jnp.float32)


def mixture_cdf(parameters, value, bins=BINS):
    """The mixture's distribution function in float64, written apart from the library. Shapes [3K], [N]."""
    logits, means, raw = np.split(np.asarray(parameters, np.float64), 3)
    scales = np.log1p(np.exp(raw)) + bins * SCALE_FLOOR
    return special.expit((np.asarray(value)[:, None] - means) / scales) @ special.softmax(logits)


def test_bins_sum_to_one_and_are_differences_of_the_distribution_function():
    grid = np.arange(-5000, 5001) * BINS
    log_prob = jax.jit(logistic_mixture_log_prob)
    for parameters in mixtures(3):
        nats = log_prob(parameters, jnp.asarray(grid, jnp.float32), BINS)
        probability = np.exp(np.asarray(nats, np.float64))
        assert probability.sum() == pytest.approx(1.0, abs=1e-4)
        want = mixture_cdf(parameters, grid + BINS / 2) - mixture_cdf(parameters, grid - BINS / 2)
        np.testing.assert_allclose(probability, want, atol=1e-6)


def test_samples_follow_the_distribution():
    count = 20_011
    uniforms = uniform(1, count, 2)
    for parameters in mixtures(3):
        samples = np.asarray(SAMPLE(jnp.broadcast_to(parameters, (count, 9)), uniforms, BINS), np.float64)
        assert stats.kstest(samples, lambda x, p=parameters: mixture_cdf(p, x)).pvalue > FALSE_ALARM
        shifted = samples + 0.1 * samples.std()
        assert stats.kstest(shifted, lambda x, p=parameters: mixture_cdf(p, x)).pvalue < FALSE_ALARM


def test_extreme_uniforms_give_finite_samples():
    parameters = jnp.tile(mixtures(1), (4, 1))
    uniforms = jnp.float32([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    samples = np.asarray(SAMPLE(parameters, uniforms, BINS))
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() < 100


def test_mean_and_scale():
    count = 50_021
    uniforms = uniform(2, count, 2)
    for parameters in mixtures(2):
        samples = np.asarray(SAMPLE(jnp.broadcast_to(parameters, (count, 9)), uniforms, BINS))
        # Five standard errors: a false alarm in less than one of 10^6.
        error = float(5 * samples.std() / count**0.5)
        assert float(logistic_mixture_mean(parameters)) == pytest.approx(samples.mean(), abs=error)
        weights = special.softmax(np.asarray(parameters[:COMPONENTS]))
        scales = np.log1p(np.exp(np.asarray(parameters[2 * COMPONENTS :]))) + BINS * SCALE_FLOOR
        assert float(logistic_mixture_scale(parameters, BINS)) == pytest.approx(weights @ scales, rel=1e-5)


NATS_AND_GRADIENTS = jax.jit(
    jax.vmap(jax.value_and_grad(logistic_mixture_log_prob, argnums=(0, 1)), in_axes=(None, 0, None))
)


@pytest.mark.parametrize("bins", [1e-4, 1e-2, 10.0])
@pytest.mark.parametrize("raw", [-30.0, 0.0, 5.0])
def test_outliers_are_finite_and_so_are_their_gradients(bins, raw):
    parameters = jnp.concatenate([jnp.zeros(2), jnp.float32([-1.0, 1.0]), jnp.full(2, raw)])
    far = 1.0 + 1e4 * (np.log1p(np.exp(raw)) + bins)
    outliers = jnp.float32([0.0, far, -far, 1e4, -1e4])
    nats, (by_parameters, by_value) = NATS_AND_GRADIENTS(parameters, outliers, bins)
    for array in (nats, by_parameters, by_value):
        assert np.isfinite(array).all()
    assert (np.asarray(nats) <= 1e-6).all()
    assert float(nats[1]) < -1e3
    assert float(by_value[1]) < 0 < float(by_value[2])


@pytest.mark.parametrize("bin_scale", [1.0, 0.01])
def test_a_bin_of_a_bin_has_its_share(bin_scale):
    parameters, value = mixtures(1)[0], jnp.float32([-2.0, 0.3, 4.0])
    nats = jax.jit(partial(logistic_mixture_log_prob, bin_scale=bin_scale))(parameters, value, BINS)
    half = bin_scale * BINS / 2
    want = mixture_cdf(parameters, np.float64(value) + half) - mixture_cdf(parameters, np.float64(value) - half)
    np.testing.assert_allclose(np.exp(nats), want, rtol=1e-3)


def test_balance_keeps_the_value_and_multiplies_the_gradient_of_means_and_scales_by_the_scale():
    parameters, value = mixtures(5), normal(14, 5)

    def values(balanced):
        def total(p):
            return logistic_mixture_log_prob(balance(p, BINS) if balanced else p, value, BINS).sum()

        return jax.jit(jax.value_and_grad(total))(parameters)

    (plain, gradient), (balanced, weighted) = values(False), values(True)
    assert plain == balanced
    scale = np.asarray(logistic_mixture_scale(parameters, BINS))[:, None]
    logits, rest = np.split(np.asarray(gradient), [COMPONENTS], axis=-1)
    np.testing.assert_allclose(weighted, np.concatenate([logits, scale * rest], axis=-1), rtol=1e-5, atol=1e-7)


CHAIN_BINS = np.float32([0.001, 0.02, 0.3, 0.004, 0.05])


class Compiled:
    """The chain's methods, compiled; weights three times the initial ones, so that the order of dimensions matters."""

    def __init__(self):
        rng = np.random.default_rng(3)
        chain = ChainHead(WIDTH, DIMS, hidden=7, components=COMPONENTS, rng=rng)
        self.graph, state = nnx.split(chain)
        self.state = jax.tree.map(lambda leaf: 3.0 * leaf, state)
        chain = nnx.merge(self.graph, self.state)
        self.parameters = jax.jit(chain.parameters)
        self.log_prob = jax.jit(lambda h, y: chain.log_prob(h, y, CHAIN_BINS))
        self.sample = jax.jit(lambda h, uniforms: chain.sample(h, uniforms, CHAIN_BINS))
        self.central = jax.jit(chain.central)

    @staticmethod
    def build():
        return ChainHead(WIDTH, DIMS, hidden=7, components=COMPONENTS, rng=np.random.default_rng(3))


@pytest.fixture(scope="module")
def chain():
    return Compiled()


def test_chain_dimension_sees_its_predecessors_alone(chain):
    h, y = normal(4, 13, WIDTH), normal(5, 13, DIMS)
    before = np.asarray(chain.parameters(h, y))
    for d in range(DIMS):
        after = np.asarray(chain.parameters(h, y.at[:, d].add(1.0)))
        np.testing.assert_array_equal(after[:, : d + 1], before[:, : d + 1])
        assert (np.abs(after - before)[:, d + 1 :].max(axis=(0, 2)) > 1e-3).all()


def test_chain_samples_from_the_distribution_it_scores(chain):
    h = normal(6, 17, WIDTH)
    uniforms = uniform(7, 17, DIMS, 2)
    y = chain.sample(h, uniforms)
    assert y.shape == (17, DIMS)
    parameters = chain.parameters(h, y)
    np.testing.assert_allclose(SAMPLE(parameters, uniforms, CHAIN_BINS), y, atol=1e-4, rtol=1e-4)
    want = jax.jit(logistic_mixture_log_prob)(parameters, y, CHAIN_BINS)
    np.testing.assert_allclose(chain.log_prob(h, y), want, rtol=1e-5)


def test_chain_conditional_distribution_functions_of_samples_are_uniform(chain):
    count = 4001
    h = jnp.tile(normal(8, 1, WIDTH), (count, 1))
    y = chain.sample(h, uniform(9, count, DIMS, 2))
    parameters = np.asarray(chain.parameters(h, y), np.float64)
    logits, means, raw = np.split(parameters, 3, axis=-1)
    scales = np.log1p(np.exp(raw)) + CHAIN_BINS[:, None] * SCALE_FLOOR
    inside = special.expit((np.asarray(y)[..., None] - means) / scales)
    places = np.sum(special.softmax(logits, axis=-1) * inside, axis=-1)
    for d in range(DIMS):
        assert stats.kstest(places[:, d], "uniform").pvalue > FALSE_ALARM / DIMS
    # Independent of the predecessors, too: a wrong conditional could be right on average.
    assert np.abs(np.corrcoef(places.T) - np.eye(DIMS)).max() < 5 / count**0.5


def test_chain_mean_is_the_chain_run_on_its_means(chain):
    h = normal(10, 13, WIDTH)
    y = chain.central(h)
    np.testing.assert_allclose(logistic_mixture_mean(chain.parameters(h, y)), y, atol=1e-4, rtol=1e-4)


def test_chain_takes_any_leading_axes(chain):
    h, y = normal(11, 2, 3, WIDTH), jnp.ones((2, 3, DIMS))
    flat = chain.log_prob(h.reshape(6, WIDTH), y.reshape(6, DIMS))
    np.testing.assert_allclose(chain.log_prob(h, y).reshape(6, DIMS), flat, rtol=1e-5)


def test_chain_outliers_are_finite_and_so_are_their_gradients(chain):
    h = normal(12, 2, WIDTH)

    def total(state, h, y):
        return nnx.merge(chain.graph, state).log_prob(h, y, CHAIN_BINS).sum()

    nats_and_gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))
    for size in (1e4, -1e4):
        nats, gradients = nats_and_gradients(chain.state, h, jnp.full((2, DIMS), size))
        assert np.isfinite(nats)
        assert nats < -1e4
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@pytest.fixture(scope="module")
def categorical():
    head = CategoricalHead(WIDTH, 7, rng=np.random.default_rng(4))
    head.logits.bias[...] = jnp.linspace(-1.0, 2.0, 7)
    return head


def test_categories_sum_to_one_and_samples_follow_them(categorical):
    count = 20_011
    h = jnp.tile(normal(13, 1, WIDTH), (count, 1))
    nats = np.asarray(categorical.log_prob(h[:7], jnp.arange(7)), np.float64)
    assert nats.shape == (7, 1)
    probability = np.exp(nats[:, 0])
    assert probability.sum() == pytest.approx(1.0, abs=1e-6)
    samples = categorical.sample(h, uniform(14, count, 1, 2))
    assert samples.dtype == jnp.int32
    counts = np.bincount(np.asarray(samples), minlength=7)
    expected = probability / probability.sum() * count
    assert stats.chisquare(counts, expected).pvalue > FALSE_ALARM
    assert stats.chisquare(counts[::-1], expected).pvalue < FALSE_ALARM
    assert int(categorical.central(h[:1])[0]) == probability.argmax()


def test_categories_at_the_ends_of_the_uniforms(categorical):
    h = jnp.zeros((2, WIDTH))
    uniforms = jnp.float32([[[0.0, 0.5]], [[1.0, 0.5]]])
    assert categorical.sample(h, uniforms).tolist() == [0, 6]


def test_categorical_outliers_are_finite(categorical):
    h = 1e4 * normal(15, 3, WIDTH)
    nats, gradient = jax.value_and_grad(lambda h: categorical.log_prob(h, jnp.array([0, 3, 6])).sum())(h)
    assert np.isfinite(nats)
    assert np.isfinite(gradient).all()


def test_perceptron_starts_near_its_last_bias():
    net = Perceptron(WIDTH, 13, 1, rng=np.random.default_rng(5), bias=-7.0)
    out = np.asarray(jax.jit(net.__call__)(normal(16, 101, WIDTH)))
    assert out.shape == (101, 1)
    np.testing.assert_allclose(out, -7.0, atol=1.0)
