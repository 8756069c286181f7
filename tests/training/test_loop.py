"""The training loop: exact resume, refusals, the run folder."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.support import SMALL, tiny_columns
from worldmodel.training import TrainingConfig, load, train

CONFIG = TrainingConfig(model=SMALL, steps=40, batch_size=6, length=7, warmup=3, checkpoint_every=10, log_every=5)


@pytest.fixture(scope="module")
def logs():
    return tiny_columns("CartPole-v1", episodes=12, seed=3)


@pytest.fixture(scope="module")
def finished(logs, tmp_path_factory) -> Path:
    spec, columns = logs
    run = tmp_path_factory.mktemp("runs") / "whole"
    train(columns, spec, run, CONFIG)
    return run


def metrics(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "steps_per_second"} for line in lines]


def assert_same_bits(a: Path, b: Path) -> None:
    one, other = load(a), load(b)
    assert one.step == other.step == CONFIG.steps
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    assert metrics(a) == metrics(b)


def test_a_run_folder_holds_what_it_should(finished):
    names = {path.name for path in finished.iterdir()}
    assert names == {"config.json", "starts.npy", "metrics.jsonl", "checkpoints"}
    assert [line["step"] for line in metrics(finished)] == list(range(5, 41, 5))
    assert not any(value is None for line in metrics(finished) for value in line.values())


def test_loss_falls(finished):
    losses = [line["nll"] for line in metrics(finished)]
    assert losses[-1] < losses[0] - 1.0


def test_calling_again_trains_no_further(logs, finished):
    spec, columns = logs
    before = metrics(finished)
    seen = []
    world = train(columns, spec, finished, CONFIG, report=lambda step, values: seen.append(step))
    assert world.step == CONFIG.steps
    assert seen == []
    assert metrics(finished) == before


KILLED = """
    import os, signal, sys
    from tests.support import SMALL, tiny_columns
    from tests.training.test_loop import CONFIG
    from worldmodel.training import train
    spec, columns = tiny_columns("CartPole-v1", episodes=12, seed=3)

    def die(step, values):
        if step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

    train(columns, spec, sys.argv[1], CONFIG, report=die)
"""


@pytest.mark.parametrize("step", [5, 25])
def test_a_killed_training_ends_in_the_same_bits(logs, finished, tmp_path, step):
    spec, columns = logs
    run = tmp_path / "killed"
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(run), str(step)], cwd=Path(__file__).parents[2], timeout=300
    )
    assert result.returncode == -signal.SIGKILL
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 27, "lo')  # a line that the kill cut short
    train(columns, spec, run, CONFIG)
    assert_same_bits(finished, run)


def test_another_configuration_is_refused_with_the_difference(logs, finished):
    spec, columns = logs
    before = (finished / "config.json").read_bytes()
    with pytest.raises(ValueError, match=r"another configuration: training.learning_rate is 0.002 there, 0.1 here"):
        train(columns, spec, finished, dataclasses.replace(CONFIG, learning_rate=0.1))
    assert (finished / "config.json").read_bytes() == before


def test_other_logs_are_refused(logs, finished):
    spec, _ = logs
    _, other = tiny_columns("CartPole-v1", episodes=12, seed=4)
    with pytest.raises(ValueError, match=r"training.logs.sha256 is .* there, .* here"):
        train(other, spec, finished, CONFIG)


def test_two_trainings_in_one_folder_the_second_is_refused(logs, tmp_path):
    spec, columns = logs
    run = tmp_path / "busy"

    def again(step, values):
        if step == 5:
            with pytest.raises(ValueError, match=f"another writer \\(process {os.getpid()}\\)"):
                train(columns, spec, run, CONFIG)

    train(columns, spec, run, dataclasses.replace(CONFIG, steps=5), report=again)


def test_a_loss_that_is_not_finite_stops_and_leaves_the_last_checkpoint(logs, tmp_path):
    spec, columns = logs
    run = tmp_path / "burst"
    wild = dataclasses.replace(CONFIG, learning_rate=1e30, warmup=12, clip=1e30)
    with pytest.raises(FloatingPointError, match=r"is (nan|inf) at step \d+; the last checkpoint in .* is unharmed"):
        train(columns, spec, run, wild)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda run: shutil.rmtree(run), FileNotFoundError, "does not exist"),
        (lambda run: (run / "config.json").unlink(), FileNotFoundError, "is not a run folder: it has no config.json"),
        (lambda run: (run / "config.json").write_text("{"), ValueError, "config.json is not JSON"),
        (lambda run: (run / "config.json").write_text('{"format_version": 99}'), ValueError, "format version 99"),
        (lambda run: shutil.rmtree(run / "checkpoints"), FileNotFoundError, "holds no checkpoint yet"),
        (lambda run: (run / "starts.npy").unlink(), FileNotFoundError, "has no starts.npy"),
    ],
)
def test_load_says_in_one_line_what_is_wrong(finished, tmp_path, spoil, error, message):
    run = tmp_path / "copy"
    shutil.copytree(finished, run)
    spoil(run)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(error, match=message) as caught:
        load(run)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "training steps is 0; at least 1"),
        ({"batch_size": 7}, "batch_size 7 cannot be dealt out equally to 2 members"),
    ],
)
def test_impossible_configurations_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **change)
