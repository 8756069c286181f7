"""A model of pictures: it follows what moves, from a picture to the next, and serves it as an environment."""

import dataclasses

import numpy as np
import pytest

from worldmodel.corpus import Columns
from worldmodel.envs.gymnasium import SimEnv
from worldmodel.fidelity.rollout import open_loop
from worldmodel.fidelity.single_steps import one_step
from worldmodel.spaces import box
from worldmodel.training import train
from worldmodel.training.presets import PRESETS
from worldmodel.trajectory import Spec, Trajectory

SIDE, BALL, LENGTH = 36, 4, 20
SPEC = Spec(box((SIDE, SIDE, 1), "uint8", 0.0, 255.0), {"type": "Discrete", "n": 3, "start": 0})
GREY, WHITE, RED = 40, 255, 120
CONFIG = dataclasses.replace(
    PRESETS["debug"],
    model=dataclasses.replace(PRESETS["debug"].model, head_hidden=48, members=1),
    steps=500,
    batch_size=8,
    length=10,
    learning_rate=5e-3,
    checkpoint_every=500,
    evaluation_batches=0,
)


def episodes(count, seed):
    """A ball flies and bounces off the walls; the action moves a bar. Touching the right wall pays 1."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        place, speed, bar = rng.integers(4, SIDE - 8, size=2), rng.choice([-3, -2, 2, 3], size=2), 12
        actions, pictures, rewards = rng.integers(0, 3, size=LENGTH), [], []
        for action in [1, *actions]:
            bar = int(np.clip(bar + 4 * (action - 1), 0, SIDE - 8))
            picture = np.full((SIDE, SIDE, 1), GREY, np.uint8)
            picture[-2:, bar : bar + 8] = RED
            picture[place[0] : place[0] + BALL, place[1] : place[1] + BALL] = WHITE
            pictures.append(picture)
            rewards.append(float(place[1] + BALL >= SIDE - 2))
            turn = (place + speed < 0) | (place + speed > SIDE - BALL - np.array([2, 0]))
            speed = np.where(turn, -speed, speed)
            place = place + speed
        yield Trajectory(
            observations=np.stack(pictures),
            actions=actions,
            rewards=np.array(rewards[1:], np.float32),
            terminated=False,
            truncated=True,
            info={"id": f"{seed}-{i}"},
        )


def trained(folder, steps):
    config = dataclasses.replace(CONFIG, steps=steps, checkpoint_every=steps)
    return train(Columns.from_trajectories(episodes(200, 0)), SPEC, folder / "run", config)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Has hardly begun to learn."""
    return trained(tmp_path_factory.mktemp("begun"), 12)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("learned"), 500)


@pytest.fixture(scope="module")
def fresh():
    return Columns.from_trajectories(episodes(20, 1))


@pytest.mark.slow
def test_the_next_picture_is_predicted_far_better_than_by_nothing_changes(learned, fresh):
    world = learned
    from worldmodel.fidelity.replay import gather, teacher_forced

    replay = gather(fresh, np.arange(20), np.zeros(20, np.int64), LENGTH)
    said = teacher_forced(world, replay, 0).prediction[:, 0]
    codec = world.dynamics.codec.observation
    truth = np.asarray(codec.flatten(replay.obs))
    error, still = np.abs(said - truth[1:])[2:].mean(), np.abs(truth[1:] - truth[:-1])[2:].mean()
    assert error < 0.2 * still


@pytest.mark.slow
def test_the_probe_sees_what_was_learned_and_the_bar_obeys(learned, fresh):
    report = one_step(learned, fresh, 0)
    assert report["nll_per_dim"]["mean"] < 0.05
    assert report["pixel_accuracy"]["mean"] > report["persistence_pixel_accuracy"]["mean"]
    env = SimEnv(learned)
    first, _ = env.reset(seed=0)
    for _ in range(5):
        obs, *_ = env.step(2)
    bars = [np.flatnonzero(picture[-1, :, 0] == RED).mean() for picture in (first, obs)]
    assert bars[1] - bars[0] > 8


@pytest.mark.slow
def test_the_probe_measures_it(world, fresh):
    report = one_step(world, fresh, 0)
    assert 0.5 < report["pixel_accuracy"]["mean"] < 1
    assert 0.9 < report["persistence_pixel_accuracy"]["mean"] < 1
    assert "no distance" in open_loop(world, fresh)["why"]


def test_it_is_an_environment(world):
    env = SimEnv(world)
    first, _ = env.reset(seed=0)
    assert env.observation_space.contains(first)
    for _ in range(5):
        obs, *_ = env.step(2)
        assert env.observation_space.contains(obs)
    assert set(np.unique(obs)) <= {GREY, WHITE, RED}
