"""The language model: losses on chosen tokens alone, cached steps that are the full forward, seeded texts."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.model import cross_entropy
from worldmodel.model.cross_entropy import token_nll, weighted_nll
from worldmodel.model.generation import generate
from worldmodel.model.language import LanguageConfig, init_params, language_model, pad_left
from worldmodel.model.transformer import TrunkConfig

VOCABULARY = 29
FULL = LanguageConfig(VOCABULARY, TrunkConfig(width=12, layers=2, heads=2, kv_heads=1, mlp=17, window=None))
WINDOWED = LanguageConfig(
    VOCABULARY, TrunkConfig(width=12, layers=2, heads=2, kv_heads=1, mlp=17, window=5), tied=False
)


def params_of(config, seed=0):
    """Far from fresh, so that logits differ."""
    return jax.tree.map(lambda x: x * 1.5 + 0.1, init_params(config, seed))


def tokens_of(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).integers(0, VOCABULARY, shape), jnp.int32)


# --- The loss ---------------------------------------------------------------------------------------------------------


def parts(seed, count, width=7):
    rng = np.random.default_rng(seed)
    hidden, table = (jnp.asarray(rng.normal(size=(n, width)), jnp.float32) for n in (count, VOCABULARY))
    weights = rng.uniform(0.5, 2.0, count) * (rng.random(count) < 0.4)
    return hidden, table, tokens_of(seed, count), jnp.asarray(weights, jnp.float32)


def plain(hidden, table, targets, weights):
    said = jax.nn.log_softmax(hidden @ table.T, axis=-1)
    return -jnp.sum(weights * said[jnp.arange(len(targets)), targets])


@pytest.mark.parametrize("held", [VOCABULARY * 101, VOCABULARY * 7, 1])
def test_taken_in_pieces_loss_and_gradients_are_the_same(held, monkeypatch):
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", held)
    for count in (13, 14, 101):
        given = parts(count, count)
        want, wanted = jax.jit(jax.value_and_grad(plain, (0, 1)))(*given)
        got, found = jax.jit(jax.value_and_grad(lambda *x: weighted_nll(*x), (0, 1)))(*given)
        np.testing.assert_allclose(got, want, rtol=1e-5)
        np.testing.assert_allclose(jax.jit(lambda *x: weighted_nll(*x))(*given), want, rtol=1e-5)
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), found, wanted)
        each = token_nll(*given[:3])
        np.testing.assert_allclose(jnp.sum(each * given[3]), want, rtol=1e-5)
        assert each.shape == (count,)


def test_positions_without_weight_are_not_computed(monkeypatch):
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", VOCABULARY * 7)
    hidden, table, targets, _ = parts(0, 101)
    weights = jnp.zeros(101).at[jnp.asarray([5, 50, 100])].set(1.0)
    poisoned = jnp.where(weights[:, None] > 0, hidden, jnp.nan)
    few = jax.jit(jax.value_and_grad(lambda *x: weighted_nll(*x), (0, 1)))(
        poisoned.at[0].set(0.0), table, targets, weights
    )
    assert np.isnan(np.asarray(few[0]))  # the piece of seven that holds three chosen ones holds four others
    nothing = jax.jit(jax.value_and_grad(lambda *x: weighted_nll(*x), (0, 1)))(
        jnp.full_like(hidden, jnp.nan), table, targets, jnp.zeros(101)
    )
    assert float(nothing[0]) == 0.0
    assert not np.any(np.asarray(nothing[1][0]))


@pytest.mark.parametrize("config", [FULL, WINDOWED])
def test_loss_is_the_mean_over_chosen_tokens(config):
    model, tokens = language_model(config, params_of(config)), tokens_of(1, 3, 11)
    weights = jnp.asarray(np.random.default_rng(2).choice([0.0, 1.0, 0.1], (3, 11)), jnp.float32)
    loss, total = jax.jit(model.loss)(tokens, weights)
    said = np.asarray(jax.nn.log_softmax(model(tokens), axis=-1))
    nats = -np.take_along_axis(said[:, :-1], np.asarray(tokens)[:, 1:, None], axis=-1)[..., 0]
    expected = (nats * np.asarray(weights)[:, 1:]).sum() / np.asarray(weights)[:, 1:].sum()
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(total) == pytest.approx(np.asarray(weights)[:, 1:].sum())
    log_prob = np.asarray(jax.jit(model.log_prob)(tokens))
    np.testing.assert_allclose(log_prob[:, 1:], -nats, atol=1e-5)
    assert not log_prob[:, 0].any()


def test_the_first_token_of_a_document_is_predicted_by_nothing():
    model, tokens = language_model(FULL, params_of(FULL)), tokens_of(3, 1, 11)
    segments = jnp.asarray([[0] * 4 + [1] * 5 + [2] * 2])
    _, total = jax.jit(model.loss)(tokens, jnp.ones((1, 11)), segments)
    assert float(total) == 3 + 4 + 1
    apart = [model.log_prob(tokens[:, a:b]) for a, b in ((0, 4), (4, 9), (9, 11))]
    packed = jax.jit(model.log_prob)(tokens, segments)
    np.testing.assert_allclose(packed, jnp.concatenate(apart, axis=1), atol=1e-5)


@pytest.mark.parametrize("held", [VOCABULARY * 101, VOCABULARY * 4])
def test_scores_say_the_likeliest_token_too(held, monkeypatch):
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", held)
    model, tokens = language_model(FULL, params_of(FULL)), tokens_of(3, 2, 11)
    segments = jnp.asarray([[0] * 4 + [1] * 5 + [2] * 2, [1] * 11])
    log_prob, best = jax.jit(model.scores)(tokens, segments)
    np.testing.assert_allclose(log_prob, model.log_prob(tokens, segments), atol=1e-6)
    want = np.argmax(np.asarray(model(tokens, segments)), axis=-1)[:, :-1]
    same = np.asarray(segments)[:, 1:] == np.asarray(segments)[:, :-1]
    np.testing.assert_array_equal(np.asarray(best)[:, 1:], np.where(same, want, -1))
    assert best[:, 0].tolist() == [-1, -1]


def test_a_batch_with_nothing_to_learn_moves_nothing():
    def loss(params, tokens):
        return language_model(FULL, params).loss(tokens, jnp.zeros(tokens.shape).at[:, 0].set(1.0))[0]

    value, gradient = jax.jit(jax.value_and_grad(loss))(params_of(FULL), tokens_of(4, 2, 5))
    assert float(value) == 0.0
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))


# --- Over the cache ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [FULL, WINDOWED])
def test_cached_steps_are_the_full_forward(config):
    model, lengths = language_model(config, params_of(config)), (1, 7, 13)
    texts = [np.asarray(tokens_of(n, n + 9)) for n in lengths]
    capacity = None if config.trunk.window else 13 + 9
    tokens, counts = pad_left([text[:n].tolist() for text, n in zip(texts, lengths, strict=True)], VOCABULARY)
    logits, context = jax.jit(partial(model.start, capacity=capacity))(jnp.asarray(tokens), jnp.asarray(counts))
    step, said = jax.jit(model.step), [logits]
    for t in range(9):
        logits, context = step(jnp.asarray([text[n + t] for text, n in zip(texts, lengths, strict=True)]), context)
        said.append(logits)
    for row, (text, n) in enumerate(zip(texts, lengths, strict=True)):
        want = np.asarray(model(jnp.asarray(text)[None]))[0, n - 1 :]
        np.testing.assert_allclose(np.asarray(said)[:, row], want, atol=2e-5)


def test_a_cache_knows_its_capacity():
    windowed = language_model(WINDOWED, params_of(WINDOWED)).trunk
    full = language_model(FULL, params_of(FULL)).trunk
    assert windowed.empty_cache(3)[0].keys.shape == (3, 5, 1, 6)
    assert full.empty_cache(3, capacity=8)[1].values.shape == (3, 8, 1, 6)
    with pytest.raises(ValueError, match="full attention has no window to size a cache by"):
        full.empty_cache(3)
    with pytest.raises(ValueError, match="a cache of capacity 8; with a window of 5 it holds just that"):
        windowed.empty_cache(3, capacity=8)
    with pytest.raises(ValueError, match="a cache of capacity 0; at least 1 is needed"):
        full.empty_cache(3, capacity=0)


# --- Texts ------------------------------------------------------------------------------------------------------------


def say(config, texts, keys=None, **options):
    tokens, lengths = pad_left(texts, VOCABULARY)
    run = jax.jit(partial(generate, config, **options))
    return run(params_of(config), jnp.asarray(tokens), jnp.asarray(lengths), keys=keys)


@pytest.mark.parametrize("config", [FULL, WINDOWED])
def test_greedy_text_is_the_likeliest_token_each_time(config):
    model, text = language_model(config, params_of(config)), [3, 1, 4, 1, 5]
    said = say(config, [text], steps=6)
    for t in range(6):
        logits = np.asarray(model(jnp.asarray(text)[None]))[0, -1]
        assert int(said.tokens[0, t]) == logits.argmax()
        assert float(said.log_prob[0, t]) == pytest.approx(float(jax.nn.log_softmax(logits).max()), abs=1e-5)
        text = [*text, int(logits.argmax())]
    assert said.lengths.tolist() == [6]


def test_sampled_text_depends_on_its_own_seed_alone():
    texts, keys = [[1, 2], [7, 8, 9]], jax.random.split(jax.random.key(0), 2)
    both = say(FULL, texts, keys, steps=8)
    again = say(FULL, texts, keys, steps=8)
    np.testing.assert_array_equal(both.tokens, again.tokens)
    swapped = say(FULL, texts[::-1], keys[::-1], steps=8)
    np.testing.assert_array_equal(both.tokens, swapped.tokens[::-1])
    other = say(FULL, texts, jax.random.split(jax.random.key(1), 2), steps=8)
    assert (both.tokens != other.tokens).any()


def test_samples_follow_the_models_probabilities():
    """Chi-squared of 4,000 first tokens; false alarm rate 1e-6 (28 degrees of freedom: 86.7)."""
    count, text = 4_000, [3, 1, 4]
    keys = jax.random.split(jax.random.key(5), count)
    said = say(FULL, [text] * count, keys, steps=1, temperature=0.7)
    logits = language_model(FULL, params_of(FULL))(jnp.asarray(text)[None])[0, -1]
    expected = count * np.asarray(jax.nn.softmax(logits / 0.7), np.float64)
    seen = np.bincount(np.asarray(said.tokens)[:, 0], minlength=VOCABULARY)
    assert expected.min() > 5
    assert ((seen - expected) ** 2 / expected).sum() < 86.7


def test_after_the_stop_token_nothing_is_said():
    free = say(FULL, [[3, 1, 4], [2]], steps=12)
    stop = int(free.tokens[0, 2])
    first = [int(np.argmax(np.append(np.asarray(row) == stop, True))) for row in free.tokens]
    said = say(FULL, [[3, 1, 4], [2]], steps=12, stop=stop)
    for row, end in enumerate(first):
        length = min(end + 1, 12)
        assert int(said.lengths[row]) == length
        np.testing.assert_array_equal(said.tokens[row, :length], free.tokens[row, :length])
        assert (np.asarray(said.tokens[row, length:]) == stop).all()
        assert not np.asarray(said.log_prob[row, length:]).any()


def test_beginnings_are_checked():
    with pytest.raises(ValueError, match="no text to begin from"):
        pad_left([], VOCABULARY)
    with pytest.raises(ValueError, match="text 1 is empty"):
        pad_left([[1], []], VOCABULARY)
    with pytest.raises(ValueError, match="text 1 holds tokens -1 to 29; they are 0 to 28"):
        pad_left([[1], [29, -1]], VOCABULARY)
    with pytest.raises(ValueError, match="a vocabulary of 1"):
        LanguageConfig(1)
