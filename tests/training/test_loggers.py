"""Loggers: what each line holds, and what is said where an extra is missing."""

from __future__ import annotations

import json
import sys
import types

import pytest

from worldmodel.training.loggers import JsonLines, check_loggers, open_loggers


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_lines_after_the_step_and_cut_lines_are_dropped(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 1.0}\n{"step": 3, "a": 3.0}\n{"step": 2, "a"')
    log = JsonLines(tmp_path, 2)
    log.write(3, {"a": 4.0})
    log.close()
    assert lines(tmp_path) == [{"step": 1, "a": 1.0}, {"step": 3, "a": 4.0}]


def test_what_is_not_finite_is_null(tmp_path):
    log = JsonLines(tmp_path, 0)
    log.write(1, {"loss": float("nan"), "grad_norm": float("inf"), "skipped": 1})
    log.close()
    assert lines(tmp_path) == [{"step": 1, "loss": None, "grad_norm": None, "skipped": 1}]


def test_a_full_disk_names_the_file(tmp_path):
    log = JsonLines(tmp_path, 0)
    log._file.close()
    log._file = open("/dev/full", "a")  # noqa: SIM115
    with pytest.raises(OSError, match="No space left on device") as caught:
        log.write(1, {"a": 1.0})
    assert caught.value.filename == str(tmp_path / "metrics.jsonl")


def test_an_unknown_logger_is_refused():
    with pytest.raises(ValueError, match=r"logger 'tensorbord' is unknown \(did you mean 'tensorboard'\?\)"):
        check_loggers(["tensorbord"])


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_extra_is_named_in_one_line(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    expected = rf"{package} is not installed; it comes with the extra: pip install 'worldmodel\[{name}\]'"
    with pytest.raises(ValueError, match=expected) as caught:
        open_loggers([name], tmp_path, 0)
    assert "\n" not in str(caught.value)


def test_wandb_gets_the_config_and_the_finite_metrics_of_each_step(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"training": {"steps": 3}}')
    calls = []
    run = types.SimpleNamespace(
        log=lambda values, step: calls.append((step, values)), finish=lambda: calls.append("finished")
    )
    begun = []
    wandb = types.SimpleNamespace(init=lambda **arguments: begun.append(arguments) or run)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for _ in range(2):
        *_, log = open_loggers(["wandb"], tmp_path, 0)
        log.write(2, {"loss": 1.5, "nll": float("nan")})
        log.close()
    assert calls == [(2, {"loss": 1.5}), "finished"] * 2
    assert begun[0] == begun[1], "the same folder continues the same run"
    assert begun[0]["config"] == {"training": {"steps": 3}}
    assert begun[0]["name"] == tmp_path.name
    assert begun[0]["resume"] == "allow"


def test_tensorboard_gets_the_finite_metrics_of_each_step(tmp_path, monkeypatch):
    calls = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            calls.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            calls.append((name, value, step))

        def close(self):
            calls.append("closed")

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    *_, log = open_loggers(["tensorboard"], tmp_path, 7)
    log.write(8, {"loss": 1.5, "nll": float("inf")})
    log.close()
    assert calls == [(str(tmp_path / "tensorboard"), 8), ("loss", 1.5, 8), "closed"]
