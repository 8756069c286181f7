"""Spaces of several parts, cells of grids and atoms of rewards: what comes back is what went in."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.codec import (
    BoxCodec,
    GridCodec,
    MultiDiscreteCodec,
    RewardCodec,
    StepCodec,
    TreeCodec,
    check_spec,
    fit_codec,
)
from worldmodel.trajectory import Spec

STEPS = 101
NUMBER = {"type": "Box", "shape": [2], "dtype": "float32", "low": [None, -1.0], "high": [None, 1.0]}
GO = {"type": "Discrete", "n": 3, "start": -1}


def integers(*shape, dtype="uint8", high=255):
    return {"type": "Box", "shape": list(shape), "dtype": dtype, "low": 0.0, "high": float(high)}


NESTED = {
    "type": "Dict",
    "spaces": {
        "view": integers(2, 3, 2),
        "self": {"type": "Tuple", "spaces": [NUMBER, {"type": "MultiBinary", "shape": [2, 2]}, GO]},
        "counts": {"type": "MultiDiscrete", "nvec": [4, 7], "start": [1, 0]},
    },
}


def nested_values(seed=0, steps=STEPS):
    """Columns `[steps, ...]` of `NESTED`; the last bit never changes."""
    rng = np.random.default_rng(seed)
    cells = np.array([[0, 0], [2, 1], [2, 5], [9, 0]], np.uint8)
    bits = rng.integers(0, 2, size=(steps, 2, 2)).astype(np.int8)
    bits[:, 1, 1] = 1
    number = rng.uniform(-1, 1, size=(steps, 2)).astype(np.float32)
    return {
        "view": cells[rng.integers(0, 4, size=(steps, 2, 3))],
        "self": (number, bits, rng.integers(-1, 2, size=steps)),
        "counts": rng.integers([1, 0], [5, 7], size=(steps, 2)),
    }


def fit(space, values, *, action=None, actions=None, rewards=None):
    count = len(jax.tree.leaves(values)[0]) - 1
    return fit_codec(
        Spec(space, action or GO),
        jax.tree.map(lambda x: x[:-1], values),
        jax.tree.map(lambda x: x[1:], values),
        np.zeros(count, np.int64) if actions is None else actions,
        np.zeros(count, np.float32) if rewards is None else rewards,
        np.zeros(count, bool),
    )


@pytest.fixture(scope="module")
def nested():
    return fit(NESTED, nested_values()).observation


def assert_same(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.dtype, a.shape) == (jax.dtypes.canonicalize_dtype(b.dtype), b.shape)
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_nested_value_survives_the_round_trip(nested):
    assert [type(leaf) for leaf in nested.leaves] == [
        GridCodec,
        BoxCodec,
        MultiDiscreteCodec,
        MultiDiscreteCodec,
        MultiDiscreteCodec,
    ]
    assert (nested.numbers, nested.sites, nested.uniforms) == (2, 6 + 4 + 1 + 2, 2 * 2 + 1 + 13)
    assert nested.nvec == (4,) * 6 + (2,) * 4 + (3,) + (4, 7)
    before = jax.tree.map(lambda x: x[:-1], nested_values(1))
    after = jax.tree.map(lambda x: x[1:], nested_values(1))
    moved = nested.decode(nested.encode(after, before), before)
    np.testing.assert_array_equal(moved["counts"], before["counts"])
    assert_same(nested.decode_index(nested.index(after), moved), after)


def test_features_are_standardised_numbers_and_one_hots(nested):
    values = nested_values()
    features = np.asarray(nested.features(values))
    assert features.shape == (STEPS, nested.size) == (STEPS, 2 + 6 * 4 + 4 * 2 + 3 + 4 + 7)
    np.testing.assert_allclose(features[:, :2].std(axis=0), 1.0, atol=0.05)
    hot = np.split(features[:, 2:], np.cumsum(nested.nvec)[:-1], axis=1)
    np.testing.assert_array_equal(np.stack([h.argmax(axis=1) for h in hot], axis=1), nested.index(values))
    assert all((h.sum(axis=1) == 1).all() for h in hot)
    grid = jax.tree.map(lambda x: x[:77].reshape(7, 11, *x.shape[1:]), values)
    np.testing.assert_array_equal(np.asarray(nested.features(grid)).reshape(77, -1), features[:77])


def test_what_the_logs_never_held_has_an_index_of_its_own(nested):
    value = jax.tree.map(lambda x: jnp.asarray(x[0]), nested_values())
    odd = {**value, "view": value["view"].at[0, 0].set(jnp.uint8([9, 5])), "counts": jnp.array([5, 6])}
    index = np.asarray(nested.index(odd))
    assert index[0] == 4 and index[11] == 4 and index[12] == 6
    assert np.asarray(nested.leaves[0].features(odd["view"]))[:4].tolist() == [0.0] * 4


def test_a_site_that_never_changes_is_copied_whatever_it_holds(nested):
    assert nested.sites_active == (True,) * 9 + (False,) + (True,) * 3
    assert nested.stays[9] == 1.0
    value = jax.tree.map(lambda x: jnp.asarray(x[0]), nested_values())
    number, bits, go = value["self"]
    value["self"] = (number, bits.at[1, 1].set(0), go)
    got = nested.decode_index(jnp.ones(13, jnp.int32), value)
    assert got["self"][1].tolist() == [[1, 1], [1, 0]]


def test_cells_are_vectors_in_the_order_of_their_values(nested):
    assert nested.leaves[0].cells == ((0, 0), (2, 1), (2, 5), (9, 0))
    flat = fit(integers(3, 2), nested_values()["view"][:, 0]).observation
    assert isinstance(flat, TreeCodec)
    assert flat.paths == ((),)
    assert flat.leaves[0].cells == ((0,), (1,), (2,), (5,), (9,))


@pytest.mark.parametrize(
    ("steps", "values", "dtype", "grid"),
    [(101, 5, "uint8", True), (31, 5, "uint8", False), (1001, 33, "int64", False), (1001, 5, "float32", False)],
)
def test_integers_are_cells_where_few_are_seen_often(steps, values, dtype, grid):
    rng = np.random.default_rng(2)
    logged = np.concatenate([np.arange(values), rng.integers(0, values, size=steps - values)])[:, None].astype(dtype)
    codec = fit(integers(1, dtype=dtype), logged).observation
    assert isinstance(codec, TreeCodec if grid else BoxCodec)


def test_cells_over_the_whole_range_of_a_dtype_do_not_overflow():
    limits = np.iinfo(np.int64)
    logged = np.array([limits.min, 0, limits.max] * 30)[:, None]
    space = {"type": "Box", "shape": [1], "dtype": "int64", "low": [None], "high": [None]}
    assert isinstance(fit(space, logged).observation, BoxCodec)


def test_actions_of_several_parts_are_read():
    space = {
        "type": "Dict",
        "spaces": {"arm": NUMBER, "keys": {"type": "MultiDiscrete", "nvec": [2, 3], "start": [0, 0]}},
    }
    rng = np.random.default_rng(3)
    actions = {
        "arm": rng.uniform(-1, 1, size=(STEPS - 1, 2)).astype(np.float32),
        "keys": rng.integers(0, [2, 3], size=(STEPS - 1, 2)),
    }
    codec = fit(NUMBER, nested_values()["self"][0], action=space, actions=actions).action
    assert np.asarray(codec.features(actions)).shape == (STEPS - 1, 2 + 5)
    # A key that was never pressed in the logs may be pressed: it has a feature.
    assert codec.nvec == (2, 3)


def test_json_round_trip(nested):
    codec = fit(NESTED, nested_values(), rewards=np.arange(STEPS - 1, dtype=np.float32) % 2)
    again = StepCodec.from_json(json.loads(json.dumps(codec.to_json(), allow_nan=False)))
    assert again == codec
    assert hash(again) == hash(codec)
    values = nested_values(4)
    np.testing.assert_array_equal(again.observation.index(values), codec.observation.index(values))


@pytest.mark.parametrize(
    ("rewards", "atoms"),
    [
        (np.arange(100) % 16, 16),
        (np.arange(100) % 17, 0),  # too many values
        (np.arange(7) % 2, 0),  # too few steps to tell
        (np.full(100, 0.3), 0),  # one value: constant
    ],
)
def test_rewards_of_few_values_are_atoms(rewards, atoms):
    codec = RewardCodec.fit(rewards.astype(np.float32))
    assert len(codec.atoms) == atoms
    assert codec.constant == (len(set(rewards)) == 1)
    if atoms:
        np.testing.assert_array_equal(codec.values, np.unique(rewards).astype(np.float32))


def test_a_reward_that_is_often_the_same_is_an_atom_beside_numbers():
    rng = np.random.default_rng(0)
    rewards = np.where(rng.random(1_000) < 0.9, 0.0, rng.normal(size=1_000))
    codec = RewardCodec.fit(rewards)
    assert (codec.atoms, codec.rest) == ((0.0,), True)
    assert RewardCodec.fit(rng.normal(size=1_000)).atoms == ()


def test_what_cannot_be_modelled_is_refused_with_its_place():
    def refuse(space, match):
        with pytest.raises(ValueError, match=match):
            check_spec(Spec(space, GO))

    refuse(
        {"type": "Dict", "spaces": {"said": {"type": "Text", "max_length": None}}},
        r"^observation space 'said' is Text, which the step model does not read; supported are Box, Discrete, ",
    )
    pixels = {"type": "Dict", "spaces": {"cam": {"type": "Tuple", "spaces": [integers(97, 96, 3)]}}}
    refuse(pixels, r"^observation space 'cam/0' is a picture of 97x96 pixels; supported are at most 96x96: ")
    many = {"type": "Tuple", "spaces": [{**NUMBER, "shape": [200]}, {**NUMBER, "shape": [57]}]}
    refuse(many, r"^observation space has 257 numbers in all; supported are at most 256$")
    refuse(
        {"type": "MultiBinary", "shape": [1025]}, r"^observation space has 1,025 categories in all; supported are at"
    )


def test_a_large_box_of_integers_is_refused_where_it_is_no_grid():
    rng = np.random.default_rng(5)
    logged = rng.integers(0, 256, size=(STEPS, 300)).astype(np.uint8)
    with pytest.raises(ValueError, match=r"^observation space is a Box of shape \(300,\), 300 numbers of more values"):
        fit(integers(300), logged)
    assert fit(integers(300), logged % 3).observation.sites == 300
