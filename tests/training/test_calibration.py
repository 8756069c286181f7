"""The region covers the share of held-out steps that it says, and less of what lies elsewhere."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import SMALL, tiny_columns, untrained_model
from worldmodel.corpus import Columns
from worldmodel.simulator import Simulator
from worldmodel.training import TrainingConfig, load, train
from worldmodel.training.calibration import calibrated, measure_trust
from worldmodel.trust_region import FILE, Trust, TrustRule

COVERAGE = 0.9


@pytest.fixture(scope="module")
def held_out():
    return tiny_columns("CartPole-v1", episodes=100, seed=11)[1]


@pytest.fixture(scope="module")
def world(trained_run):
    return load(trained_run)


def blocks(columns: Columns, count: int) -> list[Columns]:
    parts = np.array_split(np.arange(columns.episodes), count)
    return [Columns.from_trajectories([columns.episode(int(i)) for i in part]) for part in parts]


def test_the_share_outside_is_what_coverage_says(world, held_out):
    # Two halves of episodes of one kind. A share's error is taken between blocks of whole episodes, for both halves;
    # four of them are passed by chance once in 16,000 times.
    fitted, fresh = blocks(held_out, 2)
    threshold = measure_trust(world, fitted).threshold(COVERAGE)
    shares, errors = [], []
    for half in (fitted, fresh):
        each = [float(np.mean(measure_trust(world, part).disagreement > threshold)) for part in blocks(half, 10)]
        shares.append(float(np.mean(measure_trust(world, half).disagreement > threshold)))
        errors.append(np.std(each, ddof=1) / np.sqrt(10))
    assert shares[0] == pytest.approx(1 - COVERAGE, abs=2 / len(fitted))
    assert abs(shares[1] - (1 - COVERAGE)) < 4 * np.hypot(*errors)
    assert np.hypot(*errors) < 0.05, "the test can fail"


def test_states_outside_the_logs_are_outside(world, held_out):
    # Held-out states, each as the first of an episode, and the same five times as far from the logs' mean. Drawn by
    # chance from one distribution, shares of 512 states would differ by 0.13 less than once in 10,000 times.
    threshold = measure_trust(world, held_out).threshold(COVERAGE)
    codec, dynamics = world.dynamics.codec.observation, world.dynamics
    t = held_out.transitions()
    inside = jnp.asarray(t.obs[:512])
    far = (np.asarray(codec.mean) + 5.0 * (t.obs[:512] - np.asarray(codec.mean))).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 512)

    @jax.jit
    def outside(obs):
        state, _ = dynamics.start_at(world.params, keys, obs)
        return dynamics.disagreement(world.params, state, jnp.asarray(t.actions[:512], jnp.int32)) > threshold

    near_share, far_share = float(outside(inside).mean()), float(outside(jnp.asarray(far)).mean())
    assert far_share > 0.5 and far_share > near_share + 0.2


def test_what_is_measured_is_what_a_step_reports(world, held_out):
    # One episode, teacher-forced by `observe`, with `advance` looked at on the way.
    episode = held_out.episode(3)
    region = measure_trust(world, Columns.from_trajectories([episode]))
    dynamics, keys = world.dynamics, jax.random.split(jax.random.key(0), 64)

    def rows(value):
        return jnp.broadcast_to(jnp.asarray(value), (64, *np.shape(value)))

    state, _ = dynamics.start_at(world.params, keys, rows(episode.observations[0]))
    advance = jax.jit(lambda state, action: dynamics.advance(world.params, state, action, keys, uncertainty=True))
    observe = jax.jit(lambda *x: dynamics.observe(world.params, *x))
    found = []
    for t in range(len(episode)):
        action = rows(np.int32(episode.actions[t]))
        found.append(float(advance(state, action)[4]["disagreement"][0]))
        obs, reward = rows(episode.observations[t + 1]), rows(episode.rewards[t])
        state = observe(state, action, obs, reward, jnp.zeros(64, bool))
    np.testing.assert_allclose(np.sort(found), region.disagreement, rtol=1e-4)


def test_training_with_held_out_episodes_leaves_a_region(tmp_path):
    spec, columns = tiny_columns("CartPole-v1", episodes=30, seed=0)
    _, others = tiny_columns("CartPole-v1", episodes=6, seed=1)
    config = TrainingConfig(model=SMALL, steps=4, batch_size=8, length=8, checkpoint_every=2, evaluation_batches=1)
    world = train(columns, spec, tmp_path / "run", config, held_out=others)
    assert world.trust is not None and world.trust.step == 4
    assert len(world.trust.disagreement) == len(others)
    assert load(tmp_path / "run").trust.disagreement.tobytes() == world.trust.disagreement.tobytes()
    # What a killed run has not written, the same command writes.
    (tmp_path / "run" / FILE).unlink()
    assert load(tmp_path / "run").trust is None
    again = train(columns, spec, tmp_path / "run", config, held_out=others)
    assert again.trust.disagreement.tobytes() == world.trust.disagreement.tobytes()
    # A region of another checkpoint is none of this one's.
    dataclasses.replace(world.trust, step=2).save(tmp_path / "run")
    assert load(tmp_path / "run").trust is None


def test_one_member_has_nobody_to_disagree_with(held_out):
    model = untrained_model("CartPole-v1")
    alone = dataclasses.replace(model.dynamics, config=dataclasses.replace(SMALL, members=1))
    single = dataclasses.replace(model, dynamics=alone)
    assert calibrated(single, held_out) is single
    with pytest.raises(ValueError, match="trust needs an ensemble: this model has one member"):
        measure_trust(single, held_out)


@pytest.mark.parametrize("trust", [None, Trust.INFO, Trust.TRUNCATE, Trust.PENALISE])
def test_the_simulator_follows_the_rule(trust):
    model = untrained_model("CartPole-v1")
    keys, action = jax.random.split(jax.random.key(1), 64), jnp.zeros(64, jnp.int32)
    plain = Simulator(model.dynamics, max_episode_steps=5)
    state, _ = plain.reset(model.params, keys)
    _, step = jax.jit(lambda state: plain.step(model.params, state, action, uncertainty=True))(state)
    threshold = float(jnp.median(step.info["disagreement"]))
    rule = None if trust is None else TrustRule(trust, threshold, 7.0)
    judged = dataclasses.replace(plain, trust=rule)
    _, found = jax.jit(lambda state: judged.step(model.params, state, action))(state)
    np.testing.assert_allclose(found.obs, step.obs, atol=1e-5)
    if trust is None:
        assert "disagreement" not in found.info and "outside" not in found.info
        return
    outside = np.asarray(found.info["outside"])
    assert 20 < outside.sum() < 44
    np.testing.assert_allclose(found.reward, step.reward - (7.0 * outside if trust is Trust.PENALISE else 0), atol=1e-5)
    stops = outside & ~np.asarray(step.terminated) if trust is Trust.TRUNCATE else np.zeros(64, bool)
    np.testing.assert_array_equal(found.truncated, stops)
