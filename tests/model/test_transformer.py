"""The trunk: its cached form computes the full-history forward, and nothing sees the future or past its window."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.model.transformer import Trunk, TrunkConfig, attend, attend_backwards, rotate

CONFIG = TrunkConfig(width=24, layers=3, heads=4, kv_heads=2, mlp=31, window=7)
W = CONFIG.window
RECEPTIVE = CONFIG.layers * (W - 1) + 1
BATCH = 5


def normal(seed, *shape):
    """Float32 of NumPy's making: JAX would compile a program for every shape."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.fixture(scope="module")
def trunk():
    return Trunk(CONFIG, rng=np.random.default_rng(0))


@pytest.fixture(scope="module")
def forward(trunk):
    return jax.jit(trunk.__call__)


@pytest.fixture(scope="module")
def inputs():
    """Enough steps for rows that reset late to reach 3 W: float32 [B, T, width]."""
    return normal(1, BATCH, 3 * W + 23, CONFIG.width)


@pytest.fixture(scope="module")
def cached(trunk):
    @jax.jit
    def run(x, reset):
        """One step at a time, `x [B, T, width]`; row b starts anew before step t where `reset[t, b]`."""

        def body(carry, step):
            cache, seen = carry
            now, fresh = step
            seen = jnp.where(fresh, 0, seen)
            h, cache = trunk.step(now, cache, seen)
            return (cache, jnp.minimum(seen + 1, W)), h

        start = (trunk.empty_cache(x.shape[0]), jnp.zeros(x.shape[0], jnp.int32))
        _, h = jax.lax.scan(body, start, (jnp.swapaxes(x, 0, 1), reset))
        return jnp.swapaxes(h, 0, 1)

    return run


def test_cached_rollout_is_the_full_history_forward_though_rows_reset_at_different_times(cached, forward, inputs):
    resets = (0, 2, W, 11, 23)  # of row b, before this step
    reset = np.arange(inputs.shape[1])[:, None] == np.array(resets)
    got = np.asarray(cached(inputs, jnp.asarray(reset)))
    for row, start in enumerate(resets):
        length = 3 * W
        want = np.asarray(forward(inputs[:, start : start + length])[row])
        for step in (1, W - 1, W, W + 1, 3 * W):
            np.testing.assert_allclose(got[row, start + step - 1], want[step - 1], atol=1e-5, err_msg=f"{row} {step}")
        np.testing.assert_allclose(got[row, start : start + length], want, atol=1e-5)


def test_forgetting_to_reset_a_row_would_show(cached, forward, inputs):
    never = jnp.zeros((inputs.shape[1], BATCH), bool)
    got, want = cached(inputs, never)[:, 11 : 11 + W], forward(inputs[:, 11 : 11 + W])
    assert np.abs(np.asarray(got - want)).max() > 1e-2


def test_step_ten_thousand_is_as_good_as_step_ten(trunk, forward):
    steps, tail = 10_000, RECEPTIVE + W
    x = normal(2, 2, tail, CONFIG.width)

    @jax.jit
    def last(x, steps):
        """After `steps` steps of the repeated sequence `x`, the outputs of its last `W` steps."""

        def body(t, carry):
            cache, seen, outputs = carry
            h, cache = trunk.step(x[:, t % tail], cache, seen)
            return cache, jnp.minimum(seen + 1, W), outputs.at[:, t % tail].set(h)

        start = (trunk.empty_cache(2), jnp.zeros(2, jnp.int32), jnp.zeros_like(x))
        return jax.lax.fori_loop(0, steps, body, start)[2][:, -W:]

    want = forward(x)[:, -W:]
    rounds = steps // tail
    np.testing.assert_allclose(last(x, tail), want, atol=1e-5)
    np.testing.assert_allclose(last(x, rounds * tail), want, atol=1e-5)


def changed(forward, inputs, at):
    """Which positions' outputs differ in any bit when the input of step `at` does, bool [T]."""
    other = inputs.at[:, at].add(3.0)
    return (np.asarray(forward(inputs)) != np.asarray(forward(other))).any(axis=(0, 2))


def test_future_changes_no_bit_of_the_past(forward, inputs):
    for at in (1, W, 2 * W + 1, inputs.shape[1] - 1):
        differs = changed(forward, inputs, at)
        assert not differs[:at].any()
        assert differs[at]


def test_receptive_field_is_as_long_as_said(forward, inputs):
    at = 3
    differs = changed(forward, inputs, at)
    assert differs[at : at + RECEPTIVE].all()
    assert not differs[at + RECEPTIVE :].any()
    assert inputs.shape[1] > at + RECEPTIVE


def test_cached_form_forgets_beyond_the_receptive_field(cached, inputs):
    never = jnp.zeros((inputs.shape[1], BATCH), bool)
    other = inputs.at[:, 3].add(3.0)
    differs = (np.asarray(cached(inputs, never)) != np.asarray(cached(other, never))).any(axis=(0, 2))
    assert differs[3 : 3 + RECEPTIVE].all()
    assert not differs[3 + RECEPTIVE :].any()


def test_rows_do_not_see_each_other(forward, inputs):
    other = inputs.at[2].add(3.0)
    same = (np.asarray(forward(inputs)) == np.asarray(forward(other))).all(axis=(1, 2))
    assert same.tolist() == [True, True, False, True, True]


def test_a_row_that_diverged_is_healed_by_its_reset(cached, inputs):
    bad = inputs.at[1, 4].set(jnp.nan)
    reset = np.zeros((inputs.shape[1], BATCH), bool)
    reset[6, 1] = True
    got, want = cached(bad, jnp.asarray(reset)), cached(inputs, jnp.asarray(reset))
    assert np.isnan(np.asarray(got)[1, 4:6]).all()
    np.testing.assert_array_equal(got[1, 6:], want[1, 6:])


def test_rotation_depends_on_relative_positions_alone():
    query, key = normal(3, 2, 1, 11, 3, 10)

    @partial(jax.jit, static_argnums=0)
    def scores(shift):
        positions = np.arange(11) + shift
        return jnp.einsum("bthc,bshc->bhts", rotate(query, positions), rotate(key, positions))

    np.testing.assert_allclose(scores(1000), scores(0), atol=1e-4)
    np.testing.assert_array_equal(rotate(query, np.zeros(11, int)), query)
    assert np.abs(np.asarray(rotate(query, np.arange(11)) - query)).max() > 0.1


def test_attention_is_the_textbook_formula():
    batch, steps, heads, groups, channels = 2, 5, 6, 3, 7
    query, keys, values = (
        np.asarray(normal(i, batch, steps, h, channels)) for i, h in enumerate((heads, groups, groups))
    )
    mask = np.tril(np.ones((1, steps, steps), bool))
    got = np.asarray(jax.jit(attend)(jnp.asarray(query), jnp.asarray(keys), jnp.asarray(values), jnp.asarray(mask)))
    for h in range(heads):
        group = h // (heads // groups)
        scores = np.einsum("btc,bsc->bts", query[:, :, h], keys[:, :, group]) / np.sqrt(channels)
        weights = np.exp(scores) * mask
        weights /= weights.sum(axis=-1, keepdims=True)
        want = weights @ values[:, :, group]
        np.testing.assert_allclose(got[..., h * channels : (h + 1) * channels], want, atol=1e-5)


@pytest.mark.parametrize(("steps", "window"), [(13, W), (13, None), (131, W), (131, 70), (131, None), (1_031, 67)])
def test_against_jax_dot_product_attention(steps, window):
    """Sequences of one block and of several, windows within a block and beyond it."""
    query, keys, values = normal(5, 2, steps, 4, 6), normal(6, 2, steps, 2, 6), normal(7, 2, steps, 2, 6)
    local = None if window is None else (window - 1, 0)
    reference = partial(jax.nn.dot_product_attention, is_causal=True, local_window_size=local)

    def gradients(function):
        def said(*given):
            return jnp.sum(jnp.sin(function(*given).reshape(2, steps, 24)))

        return jax.jit(lambda *given: (function(*given), jax.grad(said, (0, 1, 2))(*given)))(query, keys, values)

    want, slopes = gradients(reference)
    got, found = gradients(partial(attend_backwards, window=window))
    np.testing.assert_allclose(got, want.reshape(2, steps, 24), atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), found, slopes)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"width": 25}, "width 25 must be an even multiple of heads 4"),
        ({"width": 20}, "width 20 must be an even multiple of heads 4"),
        ({"kv_heads": 3}, "heads 4 must be a multiple of kv_heads 3"),
        ({"window": 0}, "layers, window and mlp must be at least 1"),
        ({"layers": 0}, "layers, window and mlp must be at least 1"),
        ({"head_channels": 5}, "head_channels 5 must be even: rotation pairs them"),
        ({"head_channels": 0}, "head_channels 0 must be even"),
        ({"rope_base": 0.0}, "rope_base 0.0 and norm_epsilon 1e-06 must be above 0"),
    ],
)
def test_impossible_shapes_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        TrunkConfig(**wrong)


@pytest.mark.parametrize("window", [None, 1, 3, 11, 12])
def test_pairs_that_attention_sees_are_counted(window):
    age = np.arange(11)[:, None] - np.arange(11)
    mask = (age >= 0) & (age < (window or 11))
    assert TrunkConfig(window=window).seen(11) == mask.sum()


def test_documents_packed_into_a_row_do_not_see_each_other(trunk, inputs):
    lengths = (11, 1, 23)
    ends = np.cumsum(lengths)
    segments = np.repeat(np.arange(3), lengths)[None].repeat(BATCH, 0)
    packed = jax.jit(trunk.__call__)(inputs[:, : ends[-1]], jnp.asarray(segments))
    for start, end in zip(ends - lengths, ends, strict=True):
        np.testing.assert_allclose(packed[:, start:end], trunk(inputs[:, start:end]), atol=1e-5)


def test_heads_may_be_wider_than_their_share():
    config = TrunkConfig(width=10, layers=1, heads=3, kv_heads=1, mlp=7, window=None, head_channels=8, qk_norm=False)
    block = Trunk(config, rng=np.random.default_rng(0)).blocks[0]
    assert block.qkv.kernel.shape == (10, 3 * 8 + 2 * 8)
    assert block.output.kernel.shape == (24, 10)
    assert block.norm_query is None
