"""Augmented random search finds a better linear policy, the same one each time, and its checkpoints survive a file."""

import dataclasses

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from scipy import integrate

from worldmodel.agents.ars import ARSConfig, LinearCheckpoint, NoisyLinearPolicy, _Statistics, augmented_random_search
from worldmodel.trajectory import Spec


class Follow(gymnasium.Env):
    """Pays `1 - |action - observation|`; observations are drawn anew each step; ten steps."""

    observation_space = spaces.Box(-5, 5, (1,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.obs = self.np_random.uniform(-1, 1, 1)
        return self.obs, {}

    def step(self, action):
        reward = 1.0 - abs(float(action[0]) - float(self.obs[0]))
        self.time += 1
        self.obs = self.np_random.uniform(-1, 1, 1)
        return self.obs, reward, False, self.time == 10, {}


CONFIG = ARSConfig(iterations=60, directions=5, top=3, step_size=0.1, noise=0.1, snapshots=3)


def test_it_learns_and_repeats_itself():
    first, second = (list(augmented_random_search(Follow(), CONFIG, seed=7)) for _ in range(2))
    assert len(first) == 3
    assert first[0].mean_return < 6.5
    assert first[-1].mean_return > 8.5  # a perfect policy earns 10, a constant zero 5
    assert [c.steps for c in first] == [100, 100 * 30, 100 * 60]
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.weights, b.weights)
        assert a.mean_return == b.mean_return


def test_the_bonus_changes_the_search_but_not_the_return_that_is_reported():
    rewarded = list(augmented_random_search(Follow(), dataclasses.replace(CONFIG, survival_bonus=1.0), seed=7))
    plain = list(augmented_random_search(Follow(), CONFIG, seed=7))
    assert rewarded[0].mean_return == plain[0].mean_return  # episodes of one length: the bonus shifts all alike
    np.testing.assert_allclose(rewarded[-1].weights, plain[-1].weights, rtol=1e-9)


def test_running_statistics_are_those_of_all_rows():
    rows = np.random.default_rng(0).normal(3, [1, 20], size=(101, 2))
    statistics = _Statistics(2)
    for part in np.array_split(rows, [1, 8, 50]):
        statistics.add(part)
    np.testing.assert_allclose(statistics.mean, rows.mean(axis=0))
    np.testing.assert_allclose(statistics.scale, rows.std(axis=0))


def test_a_checkpoint_survives_a_file(tmp_path):
    checkpoint = LinearCheckpoint(np.ones((2, 3)), np.arange(3.0), np.full(3, 2.0), 12.5, 700)
    checkpoint.save(tmp_path / "c.npz")
    back = LinearCheckpoint.load(tmp_path / "c.npz")
    np.testing.assert_array_equal(back.action(np.arange(3.0) + 2), [3.0, 3.0])
    assert (back.mean_return, back.steps) == (12.5, 700)
    np.savez(tmp_path / "other.npz", weights=np.zeros(2))
    with pytest.raises(ValueError, match=r"other.npz: holds \['weights'\]; a linear checkpoint holds"):
        LinearCheckpoint.load(tmp_path / "other.npz")


@pytest.mark.parametrize("uniform", [0.0, 0.3])
def test_recorded_actions_have_a_density_that_integrates_to_one(uniform):
    checkpoint = LinearCheckpoint(np.array([[0.9]]), np.zeros(1), np.ones(1), 0.0, 0)
    policy = NoisyLinearPolicy(checkpoint, Spec.from_gymnasium(Follow()), uniform, np.random.default_rng(0), spread=0.1)
    actions = np.linspace(-1, 1, 2001, dtype=np.float32)[:, None]
    density = np.exp(policy.log_probs(np.full((2002, 1), 0.8), actions))
    assert integrate.trapezoid(density, actions[:, 0]) == pytest.approx(1.0, abs=1e-3)
    drawn = np.array([policy.act(np.array([0.8]))[0] for _ in range(3000)])
    assert np.abs(drawn).max() <= 1.0
    assert drawn.mean() == pytest.approx(float((density * actions[:, 0]).mean() * 2), abs=0.03)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top": 6}, "top is 6; 1 to 5 directions can be used"),
        ({"snapshots": 61}, "snapshots is 61; 1 to 60 are possible"),
    ],
)
def test_impossible_configurations(changes, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        next(augmented_random_search(Follow(), dataclasses.replace(CONFIG, **changes), seed=0))
