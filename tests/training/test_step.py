"""The train step: it learns what the logs show, step for step, and nothing that they do not hold."""

import re
from functools import cache, partial

import jax
import jax.ad_checkpoint
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from worldmodel.codec import fit_codec
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import StepConfig, init_params
from worldmodel.model.transformer import TrunkConfig
from worldmodel.training.step import (
    Batch,
    Objective,
    TrainState,
    as_batch,
    clip_by_member_norm,
    make_optimizer,
    make_train_step,
    member_loss,
)
from worldmodel.trajectory import Spec


def fresh(config, codec, optimizer, seed=0):
    params = init_params(config, codec, seed)
    return TrainState(params, jax.jit(optimizer.init)(params), jnp.zeros((), jnp.int32))


def fit_to(spec, batch):
    """Codec of all real transitions of a batch."""
    real = np.asarray(batch.mask, bool)
    before, after = (np.asarray(x)[real] for x in (batch.observations[:, :-1], batch.observations[:, 1:]))
    columns = (np.asarray(x)[real] for x in (batch.actions, batch.rewards, batch.terminated > 0))
    return fit_codec(spec, before, after, *columns)


@cache
def teacher_forced(config, codec):
    """Compiled: every member's central predictions at every step of a history that really happened, time first."""
    dynamics = StepDynamics(config, codec)

    @jax.jit
    def run(members, logs):
        params = {"members": members, "starts": logs.observations[:1, 0]}
        rows = jax.random.split(jax.random.key(0), logs.observations.shape[0])
        start, _ = dynamics.start_at(params, rows, logs.observations[:, 0])

        def body(state, now):
            action, after, reward, terminated = now
            predicted = dynamics.predict(params, state, action)
            return dynamics.observe(params, state, action, after, reward, terminated), predicted

        history = (logs.actions, logs.observations[:, 1:], logs.rewards, logs.terminated > 0)
        return jax.lax.scan(body, start, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), history))[1]

    return lambda members, logs: run(members, jax.tree.map(jnp.asarray, logs))


# --- A counter, whose reward and end come on known counts -------------------------------------------------------------

LENGTH, MODULUS, FIRST = 13, 7, 2
PAYS, ENDS = FIRST + 4, FIRST + 6
COUNTER = Spec({"type": "Discrete", "n": MODULUS, "start": FIRST}, {"type": "Discrete", "n": 2, "start": 1})
COUNTER_CONFIG = StepConfig(
    trunk=TrunkConfig(width=16, layers=1, heads=2, kv_heads=1, mlp=11, window=3),
    chain_hidden=5,
    components=2,
    head_hidden=17,
    members=1,
)
COUNTER_BATCH, COUNTER_STEPS = 32, 300


def counter_logs(seed, episodes=COUNTER_BATCH):
    """The action (1 or 2) is added to the count modulo 7; the step onto one count pays 1, the step onto another ends.

    Steps after the end are padding.
    """
    rng = np.random.default_rng(seed)
    action = rng.integers(1, 3, size=(episodes, LENGTH)).astype(np.int32)
    start = rng.integers(0, MODULUS - 1, size=(episodes, 1))
    count = np.concatenate([start, start + np.cumsum(action, axis=1)], axis=1) % MODULUS + FIRST
    landed = count[:, 1:]
    ended = (landed == ENDS).astype(np.float32)
    over = np.cumsum(ended, axis=1) - ended
    paid, real = (landed == PAYS).astype(np.float32), (over == 0).astype(np.float32)
    return Batch(count.astype(np.int32), action, paid, ended, real, *unknown(episodes))


def unknown(windows):
    """Of windows that begin their episodes, without a context: what was paid before, and the context."""
    return np.full(windows, np.nan, np.float32), np.zeros((windows, 0), np.float32)


SHIFTS = {
    "none": lambda logs: logs,
    "action": lambda logs: logs._replace(actions=np.roll(logs.actions, 1, axis=1)),
    "reward": lambda logs: logs._replace(rewards=np.roll(logs.rewards, 1, axis=1)),
    "terminated": lambda logs: logs._replace(terminated=np.roll(logs.terminated, -1, axis=1)),
}


@cache
def counter_codec():
    return fit_to(COUNTER, counter_logs(0, 501))


@cache
def counter_train_step():
    optimizer = make_optimizer(learning_rate=3e-2, warmup=10, steps=COUNTER_STEPS, weight_decay=0.0, clip=1e9)
    return optimizer, make_train_step(COUNTER_CONFIG, counter_codec(), optimizer)


def train_on_counter(shift):
    optimizer, train_step = counter_train_step()
    state = fresh(COUNTER_CONFIG, counter_codec(), optimizer)
    for step in range(COUNTER_STEPS):
        state, metrics = train_step(state, SHIFTS[shift](counter_logs(step)))
    return state.params, metrics


def counter_faults(members):
    """Which of observation, reward and end are predicted wrongly anywhere on new, true episodes, and by how much."""
    logs = counter_logs(10_007, 101)
    predicted = teacher_forced(COUNTER_CONFIG, counter_codec())(members, logs)
    obs, reward, end = (np.swapaxes(np.asarray(x)[:, 0], 0, 1) for x in predicted)
    errors = {
        "observation": obs - logs.observations[:, 1:],
        "reward": reward - logs.rewards,
        "terminated": end - logs.terminated,
    }
    worst = {name: float(np.abs(error * logs.mask).max()) for name, error in errors.items()}
    return {name for name, error in worst.items() if not error < 0.02}, worst


@pytest.mark.parametrize(
    ("shift", "expected"),
    [("none", set()), ("action", {"observation"}), ("reward", {"reward"}), ("terminated", {"terminated"})],
)
def test_counter_catches_any_shift_by_a_step(shift, expected):
    members, metrics = train_on_counter(shift)
    faults, errors = counter_faults(members)
    assert np.isfinite(metrics["loss"])
    if not expected:
        assert not faults, errors
    else:
        assert expected <= faults, errors


# --- A small random log -----------------------------------------------------------------------------------------------

CONFIG = StepConfig(
    trunk=TrunkConfig(width=8, layers=1, heads=2, kv_heads=1, mlp=11, window=3),
    chain_hidden=5,
    components=2,
    head_hidden=7,
    members=2,
)
WALK = Spec(
    {"type": "Box", "shape": [2], "dtype": "float32", "low": [None, None], "high": [None, None]},
    {"type": "Box", "shape": [1], "dtype": "float32", "low": [-1.0], "high": [1.0]},
)


def walk(seed, windows=14, length=5, *, ends=0.1):
    """Windows of a driven random walk; the last transitions of some windows are padding."""
    rng = np.random.default_rng(seed)
    action = rng.uniform(-1, 1, size=(windows, length, 1)).astype(np.float32)
    moves = np.concatenate([action, 0.1 * rng.normal(size=action.shape)], axis=-1)
    start = rng.normal(size=(windows, 1, 2))
    obs = np.concatenate([start, start + np.cumsum(moves, axis=1)], axis=1).astype(np.float32)
    mask = np.arange(length) < rng.integers(2, length + 1, size=(windows, 1))
    reward = obs[:, 1:, 0] + 0.1 * rng.normal(size=(windows, length))
    terminated = (rng.random(size=(windows, length)) < ends) & mask
    columns = (reward, terminated, mask)
    return Batch(obs, action, *(column.astype(np.float32) for column in columns), *unknown(windows))


@cache
def endless_walk():
    """60,000 transitions; every window was cut by a time limit."""
    logs = walk(10, 12_000, ends=0.0)
    return logs._replace(mask=np.ones_like(logs.mask))


@cache
def walk_learner():
    codec = fit_to(WALK, endless_walk())
    optimizer = make_optimizer(learning_rate=3e-3, warmup=2, steps=1000, weight_decay=1e-3, clip=1e9)
    return codec, optimizer, make_train_step(CONFIG, codec, optimizer)


def run(state, seeds):
    _, _, train_step = walk_learner()
    losses = []
    for seed in seeds:
        state, metrics = train_step(state, walk(seed))
        losses.append(float(metrics["nll"]))
    return state, losses


def test_loss_falls():
    codec, optimizer, _ = walk_learner()
    state, nll = run(fresh(CONFIG, codec, optimizer), range(101))
    assert np.isfinite(nll).all()
    assert np.mean(nll[-11:]) < np.mean(nll[:11]) - 0.5
    assert int(state.step) == 101


def test_metrics_add_up():
    codec, optimizer, train_step = walk_learner()
    state, batch = fresh(CONFIG, codec, optimizer), walk(3)
    shares = jax.tree.map(lambda x: x.reshape(2, 7, *x.shape[1:]), batch)
    losses, parts = jax.jit(jax.vmap(partial(member_loss, CONFIG, codec)))(state.params, shares)
    assert abs(float(losses[0] - losses[1])) > 1e-3
    _, metrics = train_step(state, batch)
    assert float(metrics["loss"]) == pytest.approx(float(losses.mean()), rel=1e-5)
    for name, part in parts.items():
        assert float(metrics[name]) == pytest.approx(float(part.mean()), rel=1e-4), name
    assert set(parts) == {"observation", "reward", "terminated"}
    assert float(metrics["nll"]) == pytest.approx(sum(float(metrics[name]) for name in parts), rel=1e-5)


def twice(batch):
    """The state after two steps on one batch; the learning rate of the first is zero."""
    codec, optimizer, train_step = walk_learner()
    state, _ = train_step(fresh(CONFIG, codec, optimizer), batch)
    return train_step(state, batch)[0]


def test_each_member_learns_from_its_own_share():
    batch, other = walk(4), walk(5)
    mixed = jax.tree.map(lambda a, b: np.concatenate([a[:7], b[7:]]), batch, other)
    first, second = twice(batch), twice(mixed)
    for a, b in zip(jax.tree.leaves(first.params), jax.tree.leaves(second.params), strict=True):
        np.testing.assert_array_equal(a[0], b[0])
    kernels = (state.params["embed"]["kernel"] for state in (first, second))
    assert (np.asarray(next(kernels)[1]) != np.asarray(next(kernels)[1])).any()


def test_what_is_padded_changes_no_bit():
    """Finite garbage only: NaN times a weight of zero is NaN, and no NaN gets past `Trajectory.validate`."""
    codec, optimizer, train_step = walk_learner()
    batch = walk(6)
    padded = batch.mask == 0
    assert padded.any(axis=1).sum() > 3
    rng = np.random.default_rng(7)

    def garbage(column, where):
        noise = 1e3 * rng.normal(size=column.shape).astype(np.float32)
        return np.where(where.reshape(*where.shape, *[1] * (column.ndim - 2)), noise, column)

    after = np.concatenate([np.zeros((len(padded), 1), bool), padded], axis=1)
    dirty = batch._replace(
        observations=garbage(batch.observations, after),
        actions=garbage(batch.actions, padded),
        rewards=garbage(batch.rewards, padded),
        terminated=np.where(padded, 1 - batch.terminated, batch.terminated),
    )
    assert (dirty.observations != batch.observations).any()
    clean, soiled = (train_step(fresh(CONFIG, codec, optimizer), b)[1] for b in (batch, dirty))
    for name in clean:
        np.testing.assert_array_equal(clean[name], soiled[name], err_msg=name)
    for a, b in zip(jax.tree.leaves(twice(batch)), jax.tree.leaves(twice(dirty)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_batch_of_padding_alone_is_finite():
    codec, optimizer, train_step = walk_learner()
    batch = walk(8)
    state, metrics = train_step(fresh(CONFIG, codec, optimizer), batch._replace(mask=np.zeros_like(batch.mask)))
    assert float(metrics["loss"]) == 0.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path):
    codec, optimizer, _ = walk_learner()
    whole, _ = run(fresh(CONFIG, codec, optimizer), range(6))
    half, _ = run(fresh(CONFIG, codec, optimizer), range(3))
    leaves, tree = jax.tree.flatten(half)
    np.savez(tmp_path / "state.npz", *map(np.asarray, leaves))
    with np.load(tmp_path / "state.npz", allow_pickle=False) as file:
        restored = jax.tree.unflatten(tree, [jnp.asarray(file[f"arr_{i}"]) for i in range(len(leaves))])
    resumed, _ = run(restored, range(3, 6))
    for a, b in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_a_batch_that_the_members_do_not_divide_is_refused():
    codec, optimizer, train_step = walk_learner()
    with pytest.raises(ValueError, match="a batch of 13 windows; a multiple of the 2 members is needed"):
        train_step(fresh(CONFIG, codec, optimizer), walk(9, 13))


def test_learning_rate_warms_up_and_decays_to_zero():
    optimizer = make_optimizer(learning_rate=0.5, warmup=3, steps=11, weight_decay=0.0, clip=1e9)
    params = {"w": jnp.ones((1, 2, 2))}
    state, sizes = optimizer.init(params), []
    for _ in range(12):
        with jax.numpy_dtype_promotion("standard"):  # optax's schedules mix types
            updates, state = optimizer.update({"w": jnp.ones((1, 2, 2))}, state, params)
        sizes.append(float(-updates["w"][0, 0, 0]))  # Adam's step on a constant gradient is the learning rate
    np.testing.assert_allclose(sizes[:4], [0.0, 0.5 / 3, 1.0 / 3, 0.5], atol=1e-4)
    assert (np.diff(sizes[3:]) < 0).all()
    assert sizes[11] == pytest.approx(0.0, abs=1e-6)


def test_logs_without_terminals_hardly_end():
    """Under 10^-5 a step, before and after some training."""
    codec, optimizer, train_step = walk_learner()
    logs = endless_walk()
    assert codec.end_rate < 1e-5
    run = teacher_forced(CONFIG, codec)
    state = fresh(CONFIG, codec, optimizer)
    probabilities = []
    for first in range(0, 31 * 14, 14):
        probabilities.append(np.asarray(run(state.params, jax.tree.map(lambda x: x[:1009], logs))[2]))
        state, _ = train_step(state, jax.tree.map(lambda x, i=first: x[i : i + 14], logs))
    untrained, trained = probabilities[0], probabilities[-1]
    assert untrained.shape == (5, 2, 1009)
    assert (trained > 0).all()
    assert untrained.mean() < 1e-5
    assert untrained.max() < 2e-5
    assert trained.max() < 1e-5


def test_window_of_the_pipeline_as_a_batch():
    raw = walk(11)._asdict()
    raw["terminated"], raw["context"] = raw["terminated"] > 0, np.full(len(raw["mask"]), None)
    batch = as_batch(raw, walk_learner()[0])
    assert {column.dtype for column in batch} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(batch.terminated, walk(11).terminated)
    np.testing.assert_array_equal(batch.last_reward, walk(11).last_reward)


def test_the_reward_before_a_window_is_read_and_the_mean_stands_for_none():
    codec, _, _ = walk_learner()
    params = jax.tree.map(lambda leaf: leaf[0], init_params(CONFIG, codec, 0))
    logs = walk(12)
    mean = np.full_like(logs.last_reward, codec.reward.mean)

    @jax.jit
    def nll(last_reward):
        batch = jax.tree.map(jnp.asarray, logs._replace(last_reward=last_reward))
        return member_loss(CONFIG, codec, params, batch)[1]["observation"]

    assert nll(logs.last_reward) == nll(mean)
    assert nll(mean + 2 * codec.reward.scale) != nll(mean)


def test_members_gradients_are_clipped_apart():
    grads = {"a": jnp.array([[3.0, 0.0], [0.3, 0.0]]), "b": jnp.array([[[4.0]], [[0.4]]])}
    clipped, _ = clip_by_member_norm(1.0).update(grads, optax.EmptyState())
    np.testing.assert_allclose(clipped["a"], [[0.6, 0.0], [0.3, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [[[0.8]], [[0.4]]], rtol=1e-6)


def test_weights_decay_and_biases_and_gains_do_not():
    codec, _, _ = walk_learner()
    params = init_params(CONFIG, codec, 0)
    optimizer = make_optimizer(learning_rate=0.5, warmup=0, steps=10, weight_decay=0.1, clip=1.0)
    still = jax.tree.map(jnp.zeros_like, params)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = jax.jit(optimizer.update)(still, jax.jit(optimizer.init)(params), params)
    moved = {jax.tree_util.keystr(p) for p, u in jax.tree_util.tree_leaves_with_path(updates) if np.any(u)}
    everything = {jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(updates)}
    assert moved == {name for name in everything if name.endswith(("['kernel']", "['previous']", "['mix']"))}


# --- How the work is spread -------------------------------------------------------------------------------------------


@cache
def gradients(**options):
    """`((loss, parts), gradients)` of fresh parameters on one batch whose windows are padded unequally."""
    codec, _, _ = walk_learner()
    objective = Objective(CONFIG, codec, **options)
    return jax.jit(objective.gradients)(init_params(CONFIG, codec, 0), walk(13))


@pytest.mark.parametrize("options", [{"accumulate": 7}, {"remat": "products"}, {"remat": "stream"}])
def test_how_the_work_is_spread_changes_no_gradient(options):
    (loss, parts), grads = gradients()
    (other_loss, other_parts), other_grads = gradients(**options)
    np.testing.assert_allclose(other_loss, loss, rtol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), other_parts, parts)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5), other_grads, grads)


def test_micro_batches_without_a_transition_weigh_nothing():
    codec, _, _ = walk_learner()
    batch = walk(13)
    empty = batch._replace(mask=np.where(np.arange(14)[:, None] % 7 == 0, 0.0, batch.mask).astype(np.float32))
    whole, pieces = (
        jax.jit(Objective(CONFIG, codec, accumulate=k).gradients)(init_params(CONFIG, codec, 0), empty) for k in (1, 7)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5), pieces, whole)


def test_remat_keeps_less(capsys):
    codec, _, _ = walk_learner()
    params = jax.tree.map(lambda leaf: leaf[0], init_params(CONFIG, codec, 0))
    batch = jax.tree.map(jnp.asarray, walk(13))
    kept = {}
    for remat in ("none", "products", "stream"):
        loss = partial(member_loss, CONFIG, codec, remat=remat)
        jax.ad_checkpoint.print_saved_residuals(lambda p, loss=loss: loss(p, batch)[0], params)
        shapes = re.findall(r"^[a-z]+\d+\[([\d,]*)\]", capsys.readouterr().out, flags=re.MULTILINE)
        kept[remat] = sum(int(np.prod([int(n) for n in shape.split(",") if n])) for shape in shapes)
    assert kept["none"] > kept["products"] > kept["stream"], kept


@pytest.mark.slow
def test_products_in_bfloat16_change_the_trunk_a_little_and_gradients_stay_float32():
    (loss, parts), grads = gradients()
    (rounded_loss, rounded_parts), rounded_grads = gradients(bfloat16=True)
    assert rounded_loss != loss
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0.02, atol=0.02), rounded_parts, parts)
    assert {leaf.dtype for leaf in jax.tree.leaves(rounded_grads)} == {np.dtype(np.float32)}
    difference = optax.tree.norm(optax.tree.sub(rounded_grads, grads)) / optax.tree.norm(grads)
    assert 0 < difference < 0.05


def test_a_step_that_is_not_finite_changes_no_bit_of_the_state():
    codec, optimizer, train_step = walk_learner()
    state, _ = train_step(fresh(CONFIG, codec, optimizer), walk(14))
    before = jax.tree.map(np.array, state)
    spoiled = walk(15)
    spoiled.observations[3, 1] = np.inf
    state, metrics = train_step(state, spoiled)
    assert metrics["skipped"] == 1
    assert not np.isfinite(metrics["loss"])
    jax.tree.map(np.testing.assert_array_equal, state, before)
    state, metrics = train_step(state, walk(16))
    assert metrics["skipped"] == 0
    assert int(state.step) == 2


@pytest.mark.parametrize("options", [{}, {"accumulate": 7, "remat": "stream", "bfloat16": True}])
def test_the_step_lowers_for_tpu_and_cuda(options):
    codec, optimizer, _ = walk_learner()
    step = make_train_step(CONFIG, codec, optimizer, **options)
    state, batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (fresh(CONFIG, codec, optimizer), walk(17))
    )
    exported = jax.export.export(step, platforms=["tpu", "cuda"])(state, batch)
    assert exported.platforms == ("tpu", "cuda")
    assert len(exported.out_avals) == len(jax.tree.leaves(state)) + len(jax.eval_shape(step, state, batch)[1])
