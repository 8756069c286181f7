"""Training on texts: what a run folder holds, that it resumes in the same bits, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal

import jax
import numpy as np
import pytest

import worldmodel as wm
from tests.support import text_corpus, untrained_run
from tests.training.many_devices import finished, python
from worldmodel.corpus import open_corpus
from worldmodel.model.transformer import TrunkConfig
from worldmodel.training.stopping import Stopped
from worldmodel.training.text import TEXT_PRESETS, TextConfig, TextWorldModel, load_texts, train_texts

CONFIG = dataclasses.replace(
    TEXT_PRESETS["debug"],
    trunk=TrunkConfig(8, 1, 2, 1, 8, window=None),
    steps=6,
    checkpoint_every=3,
    log_every=3,
    batch_size=2,
    length=192,
    evaluation_batches=1,
)


def bits(run):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(load_texts(run).dynamics.params)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return text_corpus(tmp_path_factory.mktemp("counting") / "corpus", 30)


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """A run that was never stopped."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train_texts(corpus, run, CONFIG)
    return run


def test_a_run_folder(text_run):
    names = {path.name for path in text_run.iterdir()}
    assert {"config.json", "metrics.jsonl", "checkpoints", "beginnings.json", "samples.json"} <= names
    described = json.loads((text_run / "config.json").read_text())
    assert described["kind"] == "text" and described["codec"]["common"] == {"system": "You count."}
    assert described["model"]["vocabulary"] == 256 + 6
    rows = [json.loads(line) for line in (text_run / "metrics.jsonl").read_text().splitlines()]
    first, last = (row for row in rows if "held_out_nll" in row)
    assert last["held_out_nll"] < first["held_out_nll"] < np.log(262)
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]
    assert 0.0 <= last["held_out_terminated_match"] <= 1.0
    counted = json.loads((text_run / "samples.json").read_text())
    assert counted["nothing_to_learn"] == counted["turns_too_long"] == 0 and counted["samples"] > 40


def test_load_gives_what_was_trained(text_run):
    world = wm.load(text_run)
    assert isinstance(world, TextWorldModel) and world.step == 120
    assert world.spec.observation_space["type"] == "Text"
    assert load_texts(text_run, which="best").step in (60, 120)
    tools = world.dynamics.beginnings.tools
    assert tools == ["add"] and world.dynamics.beginnings.reward == "0"
    held = open_corpus(text_run / "corpus").split("held_out")
    assert 0 < held.sum() < 20


@pytest.mark.parametrize("stop", [3, 4])
def test_a_run_that_was_stopped_ends_in_the_same_bits(corpus, whole, tmp_path, stop):
    def report(step, metrics):
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    run = tmp_path / "run"
    early = dataclasses.replace(CONFIG, log_every=3)
    with pytest.raises(Stopped) as stopped:
        train_texts(corpus, run, early, report=report)
    assert 3 <= stopped.value.step < 6
    if stop == 4:  # killed: what was done since the last checkpoint is done again
        shutil.rmtree(run / "checkpoints")
    train_texts(corpus, run, early)
    assert bits(run) == bits(whole)
    rows = [[json.loads(line) for line in (each / "metrics.jsonl").read_text().splitlines()] for each in (run, whole)]
    ours, theirs = ([{k: v for k, v in r.items() if k != "steps_per_second"} for r in each] for each in rows)
    assert ours[-1] == theirs[-1]


def test_a_folder_belongs_to_one_configuration(corpus, whole, tmp_path):
    with pytest.raises(ValueError, match=r"made with another configuration: training\.length is 192 there, 128 here"):
        train_texts(corpus, whole, dataclasses.replace(CONFIG, length=128))
    other = text_corpus(tmp_path / "corpus", 31)
    with pytest.raises(ValueError, match=r"training\.logs\.episodes"):
        train_texts(other, whole, CONFIG)
    before = bits(whole)
    train_texts(corpus, whole, dataclasses.replace(CONFIG, evaluation_batches=0))
    assert bits(whole) == before


def test_taken_in_pieces_and_with_less_memory_it_is_the_same_training(corpus, whole, tmp_path):
    lean = dataclasses.replace(CONFIG, accumulate=2, remat="products", evaluation_batches=0)
    train_texts(corpus, tmp_path / "run", lean)
    ours, theirs = (load_texts(run).dynamics.params for run in (tmp_path / "run", whole))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), ours, theirs)


@pytest.mark.slow
def test_on_a_mesh_it_is_the_same_training(tmp_path):
    meshes = ("", "data=2,fsdp=2", "fsdp=2,tensor=2")
    assert float(finished(python("texts", str(tmp_path), *meshes, devices=4))) < 1e-5


def test_what_is_not_of_texts_is_refused(corpus, whole, tmp_path):
    run = untrained_run(tmp_path / "steps")
    with pytest.raises(ValueError, match="is the run of a model that is not of texts"):
        train_texts(corpus, run, CONFIG)
    with pytest.raises(ValueError, match="is the run of a model that is not of texts"):
        load_texts(run)
    with pytest.raises(ValueError, match="this run is of texts"):
        wm.training.checkpoint.load(whole)
    with pytest.raises(ValueError, match="episodes of texts are simulated one by one"):
        wm.make(whole, num_envs=2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 0}, "training steps is 0; at least 1 is needed"),
        ({"batch_size": 3, "accumulate": 2}, "batch_size 3 cannot be taken in 2 equal micro-batches"),
        ({"vocabulary": 100}, "a vocabulary of 100; at least 256 tokens"),
        ({"lora": 4}, "lora changes a pretrained model"),
        ({"weights": "often"}, "information class 'often' is unknown"),
        ({"lora": -1}, "training lora is -1; at least 0 is needed"),
    ],
)
def test_configurations_that_cannot_be(fields, message):
    with pytest.raises(ValueError, match=message):
        TextConfig(**fields)
