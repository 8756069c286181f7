"""Several environments in one model: they share the trunk and nothing else, and each is served as any model is."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from tests.support import tiny_columns
from worldmodel.envs.gymnasium import SimEnv
from worldmodel.training import TrainingConfig, load, train
from worldmodel.training.loop import train_together
from worldmodel.training.presets import PRESETS
from worldmodel.training.stopping import Stopped

CONFIG = dataclasses.replace(PRESETS["debug"], steps=20, checkpoint_every=10, log_every=10, evaluation_batches=2)
NAMES = {"pole": "CartPole-v1", "lake": "FrozenLake-v1"}


@pytest.fixture(scope="module")
def logs():
    return {name: tiny_columns(env_id, episodes=6, seed=1) for name, env_id in NAMES.items()}


def worlds_of(logs):
    return {name: (columns, spec) for name, (spec, columns) in logs.items()}


@pytest.fixture(scope="module")
def finished(logs, tmp_path_factory):
    run = tmp_path_factory.mktemp("worlds") / "run"
    held_out = {name: columns for name, (_, columns) in logs.items()}
    return run, train_together(worlds_of(logs), run, CONFIG, held_out=held_out)


def test_the_trunk_is_shared_and_the_rest_is_each_worlds_own(finished):
    _, models = finished
    assert set(models) == set(NAMES)
    trunks = [model.params["members"]["trunk"] for model in models.values()]
    jax.tree.map(lambda *same: [np.testing.assert_array_equal(same[0], other) for other in same[1:]], *trunks)
    sizes = {name: model.params["members"]["embed"]["kernel"].shape[1] for name, model in models.items()}
    assert len(set(sizes.values())) == 2
    assert all(model.step == 20 for model in models.values())


def test_every_world_is_a_run_folder(finished):
    run, _ = finished
    for name, env_id in NAMES.items():
        world = load(run / "worlds" / name, which="best")
        assert world.spec.env_id == env_id
        env = SimEnv(run / "worlds" / name)
        env.reset(seed=0)
        obs, *_ = env.step(env.action_space.sample())
        assert env.observation_space.contains(obs)
    with pytest.raises(ValueError, match="several worlds; take the folder of one: worlds/pole, worlds/lake"):
        load(run)


def test_metrics_are_means_and_name_every_world(finished):
    run, _ = finished
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        for kind in ("nll", "held_out_nll"):
            each = [line[f"{kind}/{name}"] for name in NAMES]
            assert line[kind] == pytest.approx(np.mean(each), rel=1e-5)


@pytest.mark.slow
def test_a_world_learns_together_as_it_would_alone(logs, finished, tmp_path):
    """The first step of a world's own parameters is the same: others reach it by the trunk and by the clip alone."""
    config = dataclasses.replace(CONFIG, steps=1, checkpoint_every=1, evaluation_batches=0, clip=1e9)
    together = train_together(worlds_of(logs), tmp_path / "together", config)["pole"]
    spec, columns = logs["pole"]
    alone = train(columns, spec, tmp_path / "alone", config)
    for part in ("embed", "observation", "reward", "end"):
        sides = (model.params["members"][part] for model in (together, alone))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *sides)


@pytest.mark.slow
def test_stopped_and_resumed_gives_the_same_bits(logs, finished, tmp_path, monkeypatch):
    _, models = finished
    stop = iter([False] * 12 + [True] + [False] * 100)
    monkeypatch.setattr("worldmodel.training.stopping.Interruption.due", lambda self, step: next(stop))
    held_out = {name: columns for name, (_, columns) in logs.items()}
    with pytest.raises(Stopped):
        train_together(worlds_of(logs), tmp_path / "run", CONFIG, held_out=held_out)
    again = train_together(worlds_of(logs), tmp_path / "run", CONFIG, held_out=held_out)
    for name, model in models.items():
        jax.tree.map(np.testing.assert_array_equal, model.params, again[name].params)


def test_what_cannot_be_trained_together_is_refused(logs, finished, tmp_path):
    run, _ = finished
    worlds = worlds_of(logs)
    for wrong, message in [
        ({"pole": worlds["pole"]}, "1 world to train together; at least two are needed"),
        ({"pole": worlds["pole"], "../x": worlds["lake"]}, "world '../x': a name is made of letters"),
        ({**worlds, "lake": (dataclasses.replace(worlds["lake"][0], has_rewards=False), worlds["lake"][1])}, "'lake'"),
    ]:
        with pytest.raises(ValueError, match=message):
            train_together(wrong, tmp_path / "run", CONFIG)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"was made with another configuration: .*steps"):
        train_together(worlds, run, dataclasses.replace(CONFIG, steps=21))
    with pytest.raises(ValueError, match="leave gauge_every at 0"):
        train_together(worlds, tmp_path / "run", TrainingConfig(gauge_every=10))
    with pytest.raises(ValueError, match="was made with another configuration"):
        train(worlds["pole"][0], worlds["pole"][1], run, CONFIG)
