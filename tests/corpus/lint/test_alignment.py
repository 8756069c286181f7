"""Actions and rewards in the wrong row are found, with the direction; in the right one nothing is said."""

import dataclasses

import numpy as np
import pytest

from tests.corpus.lint.toys import CART, cart_log, codes_of, grid_log, sample_of
from worldmodel.corpus.lint import alignment, planted
from worldmodel.corpus.lint.regress import block_means, local_residuals, out_of_fold, rows_of
from worldmodel.corpus.lint.sample import draw_sample


@pytest.mark.parametrize("make", [cart_log, grid_log])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_clean_log_is_not_accused(make, seed):
    assert codes_of(alignment.check(sample_of(make(seed)))) == []


@pytest.mark.parametrize("make", [cart_log, grid_log])
@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
def test_moved_actions_are_found(make, shift):
    found = alignment.check(sample_of(planted.shift_actions(make(5), shift)))
    (finding,) = [f for f in found if f.code == "action-shifted"]
    assert finding.severity == "error" and finding.fix == "--fix action-shifted"
    assert finding.evidence["shift"] == shift
    word = "late" if shift > 0 else "early"
    assert f"actions are logged {abs(shift)} step(s) too {word}" in finding.message


@pytest.mark.parametrize("make", [cart_log, grid_log])
@pytest.mark.parametrize("shift", [-1, 1])
def test_moved_rewards_are_found(make, shift):
    found = alignment.check(sample_of(planted.shift_rewards(make(5), shift)))
    (finding,) = [f for f in found if f.code == "reward-shifted"]
    assert finding.evidence["shift"] == shift


def test_a_reward_of_the_next_state_is_no_fault():
    """Where one gets to is a rule of many environments, and looks like the next row's where one comes from."""
    log = [dataclasses.replace(t, rewards=-(t.observations[1:, 0] ** 2).astype(np.float32)) for t in cart_log(7)]
    assert codes_of(alignment.check(sample_of(log))) == []


def test_constant_rewards_are_said_to_be_unchecked():
    log = [dataclasses.replace(t, rewards=np.ones(len(t), np.float32)) for t in cart_log(7)]
    (finding,) = alignment.check(sample_of(log))
    assert (finding.code, finding.severity) == ("not-checked", "note")
    assert finding.message == "alignment of rewards: rewards never change"


@pytest.mark.parametrize("episodes", [0, 1, 2])
def test_a_tiny_log_is_not_judged(episodes):
    assert codes_of(alignment.check(draw_sample(cart_log(1)[:episodes], CART))) == []


def test_noise_is_not_accused():
    """Actions and rewards that have nothing to do with anything."""
    rng = np.random.default_rng(0)
    log = [
        dataclasses.replace(
            t,
            observations=rng.standard_normal(t.observations.shape),
            actions=rng.uniform(-1, 1, t.actions.shape),
            rewards=rng.standard_normal(len(t)).astype(np.float32),
        )
        for t in cart_log(3)
    ]
    assert codes_of(alignment.check(sample_of(log))) == []


def test_rows_keep_their_places():
    log = cart_log(2, episodes=6)
    rows = rows_of(sample_of(log))
    assert rows is not None
    np.testing.assert_array_equal(rows.observations[rows.before[rows.episode == 3]], log[3].observations[:-1])
    np.testing.assert_array_equal(rows.left[rows.episode == 3], np.arange(len(log[3]))[::-1])
    assert len(rows) == sum(map(len, log))


def test_regressions_do_not_see_what_they_are_scored_on():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((400, 1))
    group = np.repeat(np.arange(40), 10)
    features = np.concatenate([np.ones((400, 1)), rng.standard_normal((400, 30))], axis=1)
    assert out_of_fold(features, noise, group).std() > noise.std()
    points = rng.uniform(-1, 1, (400, 2))
    curved = np.sin(2 * points[:, :1]) + points[:, 1:] ** 2
    assert local_residuals(points, curved, neighbours=20).std() < 0.1 * curved.std()
    assert local_residuals(points, noise, neighbours=20).std() > noise.std()


def test_blocks_do_not_cross_episodes():
    values = np.arange(7, dtype=np.float64)
    np.testing.assert_array_equal(block_means(values, np.array([0, 0, 0, 1, 1, 1, 1]), length=2), [0.5, 2, 3.5, 5.5])
