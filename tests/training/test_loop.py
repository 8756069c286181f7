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
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import SMALL, tiny_columns
from worldmodel.training import TrainingConfig, load, loop, train
from worldmodel.training.continuation import Continuation
from worldmodel.training.held_out import HeldOut
from worldmodel.training.step import TrainState, as_batch, make_optimizer, make_train_step

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


@pytest.mark.parametrize("step", [pytest.param(5, marks=pytest.mark.slow), 25])
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


@pytest.mark.slow
def test_twenty_kills_at_random_instants_end_in_the_same_bits(finished, tmp_path):
    """Also while a checkpoint is being written: every save is of a few steps."""
    rng = np.random.default_rng(0)
    run, kills = tmp_path / "killed", 0
    script = [sys.executable, "-c", textwrap.dedent(KILLED), str(run), "-1"]
    (run / "checkpoints").mkdir(parents=True)
    while kills < 20:
        process = subprocess.Popen(script, cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)
        # From the first sign of a step on, so that most kills fall into training and not into compilation.
        before = (run / "metrics.jsonl").stat().st_size if (run / "metrics.jsonl").exists() else 0
        while process.poll() is None and not _grew(run / "metrics.jsonl", before):
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        if process.wait() == 0:
            assert_same_bits(finished, run)
            shutil.rmtree(run)
            run.mkdir()
        kills += 1
    spec, columns = tiny_columns("CartPole-v1", episodes=12, seed=3)
    train(columns, spec, run, CONFIG)
    assert_same_bits(finished, run)


def _grew(path: Path, before: int) -> bool:
    return path.exists() and path.stat().st_size > before


TERMINATED = """
    import os, signal, sys
    from tests.support import tiny_columns
    from tests.training.test_loop import CONFIG
    from worldmodel.training import train
    spec, columns = tiny_columns("CartPole-v1", episodes=12, seed=3)

    def stop(step, values):
        if step == 15:
            os.kill(os.getpid(), signal.SIGTERM)

    train(columns, spec, sys.argv[1], CONFIG, report=stop)
    print("not reached")
"""


def test_sigterm_saves_and_exits_with_0_and_the_rest_has_the_same_bits(logs, finished, tmp_path):
    spec, columns = logs
    run = tmp_path / "terminated"
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TERMINATED), str(run)],
        cwd=Path(__file__).parents[2],
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout) == (0, ""), result.stderr[-2000:]
    # The signal came while step 15 was reported; the loop looks for it once a step.
    assert load(run).step == 16
    train(columns, spec, run, CONFIG)
    assert_same_bits(finished, run)


def test_a_damaged_newest_checkpoint_ends_in_the_same_bits(logs, finished, tmp_path, caplog):
    spec, columns = logs
    run = tmp_path / "damaged"
    shutil.copytree(finished, run)
    for file in (run / "checkpoints" / "40").rglob("*"):
        if file.is_file() and file.stat().st_size > 100:
            file.write_bytes(file.read_bytes()[:50])
    assert load(run).step == 30
    train(columns, spec, run, CONFIG)
    assert_same_bits(finished, run)
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"checkpoint {run / 'checkpoints' / '40'} is damaged"
    ] * 2


def test_steps_that_are_not_finite_are_skipped_and_counted(logs, finished, tmp_path, monkeypatch):
    spec, columns = logs
    real = loop.window_batches

    class Spoiled:
        """Windows of steps 3 and 4 hold a reward that no loss survives."""

        def __init__(self, *args, **kwargs):
            self._inner, self._step = real(*args, **kwargs), 0
            self.get_state, self.set_state = self._inner.get_state, self._inner.set_state

        def __next__(self):
            self._step += 1
            windows = next(self._inner)
            if self._step in (3, 4):
                windows["observations"] = np.full_like(windows["observations"], np.inf)
            return windows

    monkeypatch.setattr(loop, "window_batches", Spoiled)
    run = tmp_path / "spoiled"
    world = train(columns, spec, run, dataclasses.replace(CONFIG, log_every=1))
    assert world.step == CONFIG.steps
    found = metrics(run)
    assert [line["skipped"] for line in found] == [0, 0, 1] + [2] * 37
    assert [line["loss"] is None for line in found] == [step in (3, 4) for step in range(1, 41)]
    assert found[-1]["nll"] < found[0]["nll"] - 1.0


def test_the_checkpoint_that_predicts_held_out_episodes_best_is_kept(logs, finished, tmp_path, monkeypatch):
    spec, columns = logs
    planted = iter([5.0, 1.0, 3.0, 2.0])
    monkeypatch.setattr(loop.HeldOut, "measure", lambda self, params: {"held_out_nll": next(planted)})
    run = tmp_path / "held-out"
    assert train(columns, spec, run, CONFIG, held_out=columns).step == 40
    measured = {line["step"]: line["held_out_nll"] for line in metrics(run) if "held_out_nll" in line}
    assert measured == {10: 5.0, 20: 1.0, 30: 3.0, 40: 2.0}
    assert {int(path.name) for path in (run / "checkpoints").iterdir()} == {20, 30, 40}
    assert load(run, which="best").step == 20
    jax.tree.map(np.testing.assert_array_equal, load(run).params, load(finished).params)


def test_held_out_likelihood_is_the_training_metrics_likelihood_of_the_same_windows(logs, finished):
    _, columns = logs
    dynamics, members = load(finished).dynamics, load(finished).params["members"]
    source = loop.window_batches(columns, length=CONFIG.length, batch_size=CONFIG.batch_size, seed=5)
    batches = [as_batch(next(source), dynamics.codec) for _ in range(2)]
    optimizer = make_optimizer(
        learning_rate=CONFIG.learning_rate, warmup=CONFIG.warmup, steps=CONFIG.steps, weight_decay=1e-4, clip=1.0
    )
    step = make_train_step(dynamics.config, dynamics.codec, optimizer)
    expected = []
    for batch in batches:
        copy = jax.tree.map(jnp.copy, members)
        _, values = step(TrainState(copy, jax.jit(optimizer.init)(copy), jnp.zeros((), jnp.int32)), batch)
        expected.append(float(values["nll"]))
    found = HeldOut(dynamics.config, dynamics.codec, batches).measure(members)
    assert found["held_out_nll"] == pytest.approx(np.mean(expected), rel=1e-5)
    parts = sum(found[f"held_out_{name}"] for name in ("observation", "reward", "terminated"))
    assert found["held_out_nll"] == pytest.approx(parts, rel=1e-6)


def test_a_run_without_held_out_episodes_has_no_best(finished):
    with pytest.raises(FileNotFoundError, match="holds no checkpoint that was measured on held-out episodes"):
        load(finished, which="best")


def test_how_the_work_is_spread_may_change_between_calls(logs, finished, tmp_path):
    spec, columns = logs
    run = tmp_path / "again"
    shutil.copytree(finished, run)
    config = dataclasses.replace(CONFIG, mesh="data=1", accumulate=3, remat="products", gauge_every=7)
    assert train(columns, spec, run, config).step == CONFIG.steps
    with pytest.raises(ValueError, match=r'training.precision is "float32" there, "bfloat16" here'):
        train(columns, spec, run, dataclasses.replace(CONFIG, precision="bfloat16"))


def test_a_run_of_before_these_options_is_resumed(logs, finished, tmp_path):
    spec, columns = logs
    run = tmp_path / "old"
    shutil.copytree(finished, run)
    config = json.loads((run / "config.json").read_text())
    for name in ("mesh", "accumulate", "precision", "remat", "evaluation_batches", "gauge_every"):
        del config["training"][name]
    del config["model"]["chain"]
    (run / "config.json").write_text(json.dumps(config))
    assert train(columns, spec, run, CONFIG).step == CONFIG.steps


def test_a_run_continues_another_on_new_logs_with_some_of_the_old(logs, finished, tmp_path, monkeypatch):
    spec, columns = logs
    _, new = tiny_columns("CartPole-v1", episodes=12, seed=4)
    seen = []
    real = loop.mixed_batches
    monkeypatch.setattr(loop, "mixed_batches", lambda *a, **k: _noted(real(*a, **k), seen))
    continuation = Continuation(finished, replay=columns, fraction=1 / 3)
    run = tmp_path / "continued"
    train(new, spec, run, CONFIG, continuation=continuation)
    assert np.mean([batch["corpus"] for batch in seen]) == pytest.approx(1 / 3, abs=0.01)
    assert metrics(run)[0]["nll"] < metrics(finished)[0]["nll"] - 1.0, "it begins where the other ended"
    assert load(run).dynamics.codec == load(finished).dynamics.codec
    assert json.loads((run / "config.json").read_text())["training"]["continues"]["run"] == str(finished)
    with pytest.raises(ValueError, match=r"training.continues is .*, null here"):
        train(new, spec, run, CONFIG)


def _noted(batches, seen):
    class Noted:
        get_state, set_state = batches.get_state, batches.set_state

        def __next__(self):
            seen.append(next(batches))
            return seen[-1]

    return Noted()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fraction": 1.0}, "replay fraction 1.0; a share between 0 and 1"),
        ({"model": dataclasses.replace(SMALL, head_hidden=9)}, "has another model: .*head_hidden=8.* there, .*=9"),
        ({"env": "Pendulum-v1"}, "was trained on another observation space"),
    ],
)
def test_what_cannot_continue_is_refused(finished, tmp_path, change, message):
    spec, columns = tiny_columns(change.get("env", "CartPole-v1"), episodes=12, seed=3)
    config = dataclasses.replace(CONFIG, model=change.get("model", SMALL))
    with pytest.raises(ValueError, match=message):
        train(
            columns,
            spec,
            tmp_path / "x",
            config,
            continuation=Continuation(finished, None, change.get("fraction", 0.5)),
        )


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
    (batch,) = run.glob("not_finite_step_*.npz")
    with np.load(batch, allow_pickle=False) as saved:
        assert saved["['observations']"].shape == (6, 8, 4)
    steps = [int(path.name) for path in (run / "checkpoints").iterdir()]
    assert steps == [], "a state whose every loss is infinite is not saved"


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
        ({"accumulate": 4}, "batch_size 6 cannot be dealt out equally to 2 members and 4 micro-batches"),
        ({"accumulate": 0}, "training accumulate is 0; at least 1"),
        ({"gauge_every": -1}, "training gauge_every is -1; at least 0"),
        ({"mesh": "date=4"}, r"mesh axis 'date' is unknown \(did you mean 'data'\?\)"),
    ],
)
def test_impossible_configurations_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **change)
