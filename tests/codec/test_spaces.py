"""Codecs: values survive the round trip, and what the logs never show cannot break the numbers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.codec import BIN_FRACTION, QUANTILES, BoxCodec, DiscreteCodec, RewardCodec, StepCodec, fit_codec
from worldmodel.trajectory import Spec


def box(shape=(3,), dtype="float32", low=None, high=None):
    size = int(np.prod(shape))
    return {
        "type": "Box",
        "shape": list(shape),
        "dtype": dtype,
        "low": [low if low is None else float(low)] * size,
        "high": [high if high is None else float(high)] * size,
    }


def discrete(n, start=0):
    return {"type": "Discrete", "n": n, "start": start}


def fit(observation, before, after, *, rewards=None, terminated=None, action=None, actions=None):
    count = len(before)
    return fit_codec(
        Spec(observation, action or discrete(2)),
        np.asarray(before),
        np.asarray(after),
        np.zeros(count, np.int64) if actions is None else actions,
        np.zeros(count, np.float32) if rewards is None else rewards,
        np.zeros(count, bool) if terminated is None else terminated,
    )


@pytest.fixture(scope="module")
def walk():
    """Before and after, float32 [101, 3]; the second dimension never changes."""
    rng = np.random.default_rng(0)
    before = (rng.normal(size=(101, 3)) * [1.0, 0.0, 100.0] + [0.0, 7.0, -300.0]).astype(np.float32)
    after = before + (rng.normal(size=(101, 3)) * [0.1, 0.0, 3.0] + [0.02, 0.0, 0.0]).astype(np.float32)
    return jnp.asarray(before), jnp.asarray(after)


DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64")


@st.composite
def box_logs(draw):
    """Shape, dtype and 13 transitions in a Box of that shape."""
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    low, high = (0, 120) if dtype.kind == "u" else (-110, 120)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    before, after = rng.uniform(low, high, size=(2, 13, *shape))
    if dtype.kind in "iu":
        before, after = np.round(before), np.round(after)
    return shape, dtype, low, high, before.astype(dtype), after.astype(dtype)


@pytest.mark.filterwarnings("error:Explicitly requested dtype")
@settings(max_examples=17)
@given(box_logs())
def test_box_round_trip(logs):
    shape, dtype, low, high, before, after = logs
    codec = fit(box(shape, str(dtype), low, high), before, after).observation
    before, after = jnp.asarray(before), jnp.asarray(after)
    target = codec.encode(after, before)
    assert target.shape == (13, codec.size)
    assert target.dtype == jnp.float32
    got = codec.decode(target, before)
    assert got.shape == after.shape
    assert got.dtype == jax.dtypes.canonicalize_dtype(dtype)
    if dtype.kind in "iu":
        np.testing.assert_array_equal(got, after)
    else:
        moves = np.array(codec.active).reshape(shape)
        tolerance = 0.1 if dtype == np.float16 else 1e-3
        np.testing.assert_allclose(np.where(moves, got, 0), np.where(moves, after, 0), atol=tolerance)


@settings(max_examples=19)
@given(n=st.integers(1, 11), start=st.integers(-5, 100), data=st.data())
def test_discrete_round_trip(n, start, data):
    logged = np.array(data.draw(st.lists(st.integers(start, start + n - 1), min_size=7, max_size=7)))
    codec = fit(discrete(n, start), logged, logged).observation
    values = jnp.asarray(logged)
    target = codec.encode(values, values)
    assert target.dtype == jnp.int32
    np.testing.assert_array_equal(codec.decode(target, values), values)
    features = np.asarray(codec.features(values))
    assert features.shape == (7, n)
    np.testing.assert_array_equal(features.argmax(axis=-1), values - start)
    np.testing.assert_array_equal(features.sum(axis=-1), 1.0)
    np.testing.assert_array_equal(codec.pieces(values), features)


def test_any_leading_axes(walk):
    before, after = walk
    codec = fit(box(), before, after).observation
    grid = before[:77].reshape(7, 11, 3)
    np.testing.assert_array_equal(np.asarray(codec.features(grid)).reshape(77, 3), codec.features(before[:77]))
    np.testing.assert_array_equal(codec.features(before[0]), codec.features(before)[0])
    assert codec.pieces(grid).shape == (7, 11, codec.pieces_size)


def test_features_and_targets_are_standardised(walk):
    before, after = walk
    codec = fit(box(), before, after).observation
    for values in (codec.features(before), codec.encode(after, before)):
        moving = np.asarray(values)[:, [0, 2]]
        np.testing.assert_allclose(moving.mean(axis=0), 0.0, atol=1e-4)
        np.testing.assert_allclose(moving.std(axis=0), 1.0, atol=1e-4)


def test_bins_are_thousandths_of_a_deviation_of_the_values(walk):
    before, after = walk
    codec = fit(box(), before, after).observation
    moving = np.array([0, 2])
    width = codec.bins * np.std(after - before, axis=0)  # in original units
    np.testing.assert_allclose(width[moving], BIN_FRACTION * np.std(before, axis=0)[moving], rtol=1e-3)


def test_constant_dimension_is_copied_and_finite(walk):
    before, after = walk
    codec = fit(box(), before, after).observation
    assert codec.active == (True, False, True)
    assert np.isfinite(codec.features(before)).all()
    assert np.isfinite(codec.encode(after, before)).all()
    wild = jnp.full((101, 3), 1e4, jnp.float32)
    got = np.asarray(codec.decode(wild, before))
    np.testing.assert_array_equal(got[:, 1], before[:, 1])
    assert (got > np.asarray(before))[:, [0, 2]].all()
    # Also a value that the logs never held is kept as it is.
    np.testing.assert_array_equal(codec.decode(wild[:1], jnp.float32([[0.0, 8.5, 0.0]]))[0, 1], 8.5)


def test_a_constant_speed_is_predicted_not_copied():
    before = jnp.arange(13, dtype=jnp.float32)[:, None]
    codec = fit(box((1,)), before, before + 2).observation
    assert codec.active == (True,)
    np.testing.assert_allclose(codec.decode(codec.encode(before + 2, before), before), before + 2)
    np.testing.assert_allclose(codec.decode(jnp.zeros((13, 1)), before), before + 2)


def test_bounds_clip_and_integers_round():
    before = jnp.array([[10, 10], [20, 30]], jnp.uint8)
    after = jnp.array([[12, 10], [19, 40]], jnp.uint8)
    codec = fit(box((2,), "uint8", 0, 255), before, after).observation
    assert codec.decode(jnp.full((2, 2), 1e6), before).tolist() == [[255, 255], [255, 255]]
    assert codec.decode(jnp.full((2, 2), -1e6), before).tolist() == [[0, 0], [0, 0]]
    nearly = codec.encode(after, before) + 0.3 / np.float32(codec.delta_scale)
    np.testing.assert_array_equal(codec.decode(nearly, before), after)
    low = jnp.float32([[0.1, 0.1], [0.2, 0.3]])
    half_open = fit({**box((2,)), "low": [None, -1.0], "high": [1.0, None]}, low, low * 1.5).observation
    out = np.asarray(half_open.decode(jnp.float32([[1e6, 1e6], [-1e6, -1e6]]), low))
    assert out[0, 0] == 1.0
    assert out[0, 1] > 1.0
    assert out[1, 0] < -1.0
    assert out[1, 1] == -1.0


@pytest.mark.filterwarnings("error:Explicitly requested dtype")
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_bounds_beyond_float32_do_not_wrap_around(dtype):
    limits = np.iinfo(dtype)
    before = jnp.array([[100], [200]], dtype=jax.dtypes.canonicalize_dtype(dtype))
    codec = fit(box((1,), dtype, limits.min, limits.max), before, before + 3).observation
    high, low = np.asarray(codec.decode(jnp.float32([[1e30], [-1e30]]), before)).ravel()
    assert high > 2**30
    assert low <= 0


def test_bool_box_rounds():
    values = jnp.array([[True, False], [False, True], [True, True]])
    codec = fit(box((2,), "bool", 0, 1), values[:-1], values[1:]).observation
    nearly = codec.encode(values[1:], values[:-1]) + 0.3 / np.float32(codec.delta_scale)
    got = codec.decode(nearly, values[:-1])
    assert got.dtype == bool
    np.testing.assert_array_equal(got, values[1:])


def test_pieces_say_how_much_of_each_gap_lies_below(walk):
    before, after = walk
    codec = fit(box(), before, after).observation
    knots = np.array(codec.knots)
    assert knots.shape == (3, QUANTILES)
    assert (np.diff(knots, axis=1) > 0).all()
    assert codec.pieces_size == 3 * (QUANTILES - 1)
    pieces = np.asarray(codec.pieces(before)).reshape(101, 3, QUANTILES - 1)
    assert (pieces >= 0).all()
    assert (pieces <= 1).all()
    for d in (0, 2):  # the sum of shares is the place among the knots
        place = np.interp(np.asarray(before)[:, d], knots[d], np.arange(QUANTILES))
        np.testing.assert_allclose(pieces[:, d].sum(axis=-1), place, atol=1e-3)
    assert np.asarray(codec.pieces(jnp.full((1, 3), 1e9))).tolist() == [[1.0] * codec.pieces_size]


def test_ends_put_knots_on_both_sides_of_the_threshold():
    rng = np.random.default_rng(1)
    before = rng.uniform(-1, 1, size=(997, 1)).astype(np.float32)
    after = before + np.float32(0.1)
    ends = after[:, 0] > 1.0
    without = np.array(fit(box((1,)), before, after).observation.knots[0])
    knots = np.array(fit(box((1,)), before, after, terminated=ends).observation.knots[0])
    assert len(knots) == 3 * QUANTILES + 4
    # The gap between what was survived and the nearest end beyond is marked, however few ends there are.
    np.testing.assert_allclose(knots[np.searchsorted(knots, after[~ends].max() - 1e-4)], after[~ends].max(), atol=1e-4)
    np.testing.assert_allclose(knots[np.searchsorted(knots, after[ends].min() - 1e-5)], after[ends].min(), atol=1e-4)
    assert ((knots > 0.9) & (knots <= 1.0)).sum() >= QUANTILES / 2
    assert ((knots > 1.0) & (knots <= 1.1)).sum() >= QUANTILES / 2
    assert len(knots) - len(without) == 2 * QUANTILES + 4


def test_constant_reward_is_exact():
    values = np.zeros((7, 1), np.float32)
    codec = fit(box((1,)), values, values, rewards=np.full(7, 0.3, np.float32)).reward
    assert codec.constant
    assert np.isfinite(codec.encode(jnp.float32([0.3, 5.0]))).all()
    decoded = codec.decode(jnp.float32([-3.0, 0.0, 1e6]))
    assert decoded.dtype == jnp.float32
    assert decoded.tolist() == [np.float32(0.3)] * 3


@given(mean=st.floats(-1e3, 1e3), scale=st.floats(1e-3, 1e3), standard=st.floats(-10, 10))
def test_reward_round_trip(mean, scale, standard):
    reward = jnp.float32(mean + scale * standard)
    codec = RewardCodec(mean=mean, scale=scale, constant=False)
    got = codec.decode(codec.encode(reward))
    np.testing.assert_allclose(got, reward, rtol=1e-5, atol=1e-5 * (abs(mean) + scale))


def test_reward_statistics():
    rewards = np.random.default_rng(2).normal(-16.0, 3.0, size=97).astype(np.float32)
    values = np.zeros((97, 1), np.float32)
    codec = fit(box((1,)), values, values, rewards=rewards).reward
    encoded = np.asarray(codec.encode(jnp.asarray(rewards)))
    assert not codec.constant
    assert encoded.mean() == pytest.approx(0.0, abs=1e-4)
    assert encoded.std() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(("ends", "count"), [(0, 59_999), (5, 99), (99, 99)])
def test_end_rate_is_never_zero_or_one(ends, count):
    values = np.zeros((count, 1), np.float32)
    rate = fit(box((1,)), values, values, terminated=np.arange(count) < ends).end_rate
    assert rate == pytest.approx((ends + 0.5) / (count + 1))
    assert 0 < rate < 1


@pytest.mark.parametrize("ends", [False, True])
def test_a_single_transition(ends):
    before, after = jnp.float32([[1.0, -2.0]]), jnp.float32([[1.5, -2.0]])
    codec = fit(box((2,)), before, after, rewards=np.float32([3.0]), terminated=np.array([ends]))
    assert codec.observation.active == (True, False)
    assert codec.reward.constant
    for value in (codec.observation.features(before), codec.observation.pieces(after)):
        assert np.isfinite(value).all()
    np.testing.assert_allclose(codec.observation.decode(codec.observation.encode(after, before), before), after)


@pytest.mark.parametrize(
    ("observation", "before", "after"),
    [
        (box((2,), "float32", -1.0, None), np.float32([[0, 1], [2, 3]]), np.float32([[1, 1], [4, 9]])),
        (box((), "int64", 0, 9), np.array([1, 2]), np.array([3, 4])),
        (discrete(5, start=3), np.array([3, 7]), np.array([4, 5])),
    ],
)
def test_json_round_trip(observation, before, after):
    codec = fit(
        observation,
        before,
        after,
        rewards=np.float32([0.1, 0.7]),
        terminated=np.array([False, True]),
        action=box((1,), "float32", -2.0, 2.0),
        actions=np.float32([[0.5], [-0.25]]),
    )
    text = json.dumps(codec.to_json(), allow_nan=False)
    again = StepCodec.from_json(json.loads(text))
    assert again == codec
    assert hash(again) == hash(codec)  # a codec is a static argument of compiled functions
    assert isinstance(again.observation, DiscreteCodec if observation["type"] == "Discrete" else BoxCodec)
    values = jnp.asarray(before)
    np.testing.assert_array_equal(again.observation.features(values), codec.observation.features(values))
