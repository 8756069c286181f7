"""What one step holds is drawn together: numbers with numbers, categories with categories, categories with numbers."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.codec import fit_codec
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import StepConfig, init_params
from worldmodel.model.transformer import TrunkConfig
from worldmodel.training.step import Batch, TrainState, make_optimizer, make_train_step
from worldmodel.trajectory import Spec

pytestmark = pytest.mark.slow  # one training for all; what is drawn is scored exactly in tests/model/test_step.py

CONFIG = StepConfig(
    trunk=TrunkConfig(width=16, layers=1, heads=2, kv_heads=1, mlp=16, window=3),
    chain_hidden=16,
    components=4,
    head_hidden=32,
    members=1,
)
LENGTH, ROWS, STEPS = 5, 48, 300
PLANE = {"type": "Box", "shape": [2], "dtype": "float32", "low": [None] * 2, "high": [None] * 2}
SPEC = Spec(
    {
        "type": "Dict",
        "spaces": {
            "points": PLANE,
            "ring": PLANE,
            "board": {"type": "Box", "shape": [3, 3], "dtype": "uint8", "low": 0.0, "high": 255.0},
            "coins": {"type": "MultiBinary", "shape": [3]},
            "above": {"type": "Discrete", "n": 2, "start": 0},
        },
    },
    {"type": "MultiDiscrete", "nvec": [3, 3], "start": [-1, -1]},
)
NOISE = 0.05


def logs(seed, rows=ROWS):
    """Windows whose next step is, whatever the present one:

    points: one of two, equally likely; ring: anywhere on a noisy circle; board: the piece 7 moved by the action, within
    the board; coins: all heads or all tails; above: whether the ring's second coordinate is above zero.
    """
    rng = np.random.default_rng(seed)
    shape = (rows, LENGTH + 1)
    side = 2.0 * rng.integers(0, 2, size=(*shape, 1)) - 1.0
    angle = rng.uniform(0, 2 * np.pi, size=shape)
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=-1) + NOISE * rng.normal(size=(*shape, 2))
    action = rng.integers(-1, 2, size=(rows, LENGTH, 2))
    piece = [rng.integers(0, 3, size=(rows, 2))]
    for t in range(LENGTH):
        piece.append(np.clip(piece[-1] + action[:, t], 0, 2))
    board = np.full((*shape, 3, 3), 2, np.uint8)
    r, t = np.indices(shape)
    place = np.stack(piece, axis=1)
    board[r, t, place[..., 0], place[..., 1]] = 7
    obs = {
        "points": (side + NOISE * rng.normal(size=(*shape, 2))).astype(np.float32),
        "ring": ring.astype(np.float32),
        "board": board,
        "coins": np.repeat(rng.integers(0, 2, size=(*shape, 1)), 3, axis=-1).astype(np.int8),
        "above": (ring[..., 1] > 0).astype(np.int64),
    }
    ones, unpaid = np.ones((rows, LENGTH), np.float32), np.full(rows, np.nan, np.float32)
    paid = (board[:, 1:, 0, 0] == 7).astype(np.float32)
    return Batch(obs, action, paid, 0 * ones, ones, unpaid, np.zeros((rows, 0), np.float32))


def at(columns, where):
    return jax.tree.map(lambda column: column[where], columns)


@cache
def imagined():
    """Sampled and central next steps of 2,000 new ones after training, the true ones, and the codec."""
    before, after = np.s_[:, :-1], np.s_[:, 1:]
    batch = logs(0, 400)
    columns = (at(batch.observations, before), at(batch.observations, after), *batch[1:4])
    codec = fit_codec(SPEC, *jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), columns))
    optimizer = make_optimizer(learning_rate=1e-2, warmup=10, steps=STEPS, weight_decay=0.0, clip=1.0)
    train_step, params = make_train_step(CONFIG, codec, optimizer), init_params(CONFIG, codec, 0)
    state = TrainState(params, jax.jit(optimizer.init)(params), jnp.zeros((), jnp.int32))
    for seed in range(1, STEPS + 1):
        state, _ = train_step(state, logs(seed))
    test, dynamics = logs(STEPS + 1, 2_000), StepDynamics(CONFIG, codec)
    keys = jax.random.split(jax.random.key(0), 2_000)
    params = {"members": state.params, "starts": at(test.observations, np.s_[:, 0])}

    @jax.jit
    def step(params, obs, action):
        start, _ = dynamics.start_at(params, keys, obs)
        drawn = dynamics.advance(params, start, action, keys)
        return drawn[1], drawn[2], at(dynamics.predict(params, start, action)[0], 0)

    now, action = at(test.observations, np.s_[:, 0]), test.actions[:, 0]
    drawn, reward, central = jax.tree.map(np.asarray, step(params, now, action))
    return drawn, reward, central, at(test.observations, np.s_[:, 1]), test.rewards[:, 0]


def test_one_of_two_points_and_nothing_between():
    points = imagined()[0]["points"]
    right = points > 0
    assert np.mean(right[:, 0] != right[:, 1]) < 0.01
    assert np.mean(right[:, 0]) == pytest.approx(0.5, abs=0.05)
    assert np.mean(np.abs(np.abs(points) - 1).max(axis=1) > 5 * NOISE) < 0.05


def test_a_ring_is_no_disc():
    drawn, _, _, true, _ = imagined()
    radius, true_radius = (np.hypot(*x["ring"].T) for x in (drawn, true))
    assert np.mean(np.abs(true_radius - 1) < 4 * NOISE) > 0.99
    assert np.mean(np.abs(radius - 1) < 4 * NOISE) > 0.8
    # Independent coordinates of the same marginals: what a model without the chain draws.
    shuffled = np.hypot(drawn["ring"][:, 0], np.roll(drawn["ring"][:, 1], 1))
    assert np.mean(np.abs(shuffled - 1) < 4 * NOISE) < 0.6
    eighths = np.bincount(((np.arctan2(*drawn["ring"].T) + np.pi) / (np.pi / 4)).astype(int) % 8, minlength=8)
    assert eighths.min() / len(radius) > 0.5 / 8


def test_a_moved_piece_is_moved_exactly():
    drawn, _, central, true, _ = imagined()
    for board in (drawn["board"], central["board"]):
        assert np.mean((board == true["board"]).all(axis=(1, 2))) > 0.99


def test_coins_that_fall_alike_are_drawn_alike():
    coins = imagined()[0]["coins"]
    assert np.mean(coins.min(axis=1) == coins.max(axis=1)) > 0.98
    assert np.mean(coins) == pytest.approx(0.5, abs=0.05)


def test_a_category_follows_the_numbers_drawn_before_it():
    drawn = imagined()[0]
    assert np.mean((drawn["ring"][:, 1] > 0) == (drawn["above"] == 1)) > 0.97


def test_the_reward_is_one_of_its_atoms_and_follows_what_was_drawn():
    drawn, reward, *_ = imagined()
    assert set(reward.tolist()) == {0.0, 1.0}
    assert np.mean(reward == (drawn["board"][:, 0, 0] == 7)) > 0.99
