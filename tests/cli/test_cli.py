"""The command line: exit codes, one clear line, nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import untrained_run
from worldmodel.cli import VERBS, main
from worldmodel.cli.train import _table as estimate_table
from worldmodel.cli.train import defaults
from worldmodel.training.checkpoint import load
from worldmodel.training.presets import PRESETS

ROOT = Path(__file__).parents[2]


def run(*words: str, code: int = 0, capsys) -> tuple[str, str]:
    assert main([str(word) for word in words]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def one_line(err: str) -> str:
    assert err.startswith("worldmodel: error: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*verb.split(), "--help"])
    assert stopped.value.code == 0
    assert f"worldmodel {verb} " in capsys.readouterr().out


def test_help_lists_the_verbs_within_a_second():
    started = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-m", "worldmodel.cli", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    seconds = time.monotonic() - started
    assert result.returncode == 0
    assert all(verb in result.stdout for verb in VERBS)
    assert seconds < 5.0  # a generous bound: the machine may be busy, and a heavy import takes longer than this


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quickstar"], "there is no verb 'quickstar' (did you mean 'quickstart'?); verbs are quickstart, data record"),
        (["data", "shw"], "there is no verb 'data shw' (did you mean 'data show'?)"),
        (["data", "record", "CartPole-v9", "--out", "{tmp}/c"], "CartPole"),
        (["data", "record", "Blackjack-v1", "--out", "{tmp}/c"], "space Tuple is not supported; supported are Box and"),
        (["data", "show", "{tmp}/nothing"], "nothing"),
        (["train", "{tmp}/nothing", "--out", "{tmp}/run"], "nothing"),
        (["train", "--out", "{tmp}/run"], "no corpus is named"),
        (["probe", "{tmp}/nothing"], "run folder {tmp}/nothing does not exist"),
        (["quickstart", "--env", "CartPol-v1", "--out", "{tmp}/q"], "CartPole-v1"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_2(words, message, tmp_path, capsys):
    words = [word.replace("{tmp}", str(tmp_path)) for word in words]
    out, err = run(*words, code=2, capsys=capsys)
    assert message.replace("{tmp}", str(tmp_path)) in one_line(err[err.index("worldmodel: error") :])
    assert out == ""
    assert not list(tmp_path.rglob("manifest.json"))


def test_bad_usage_exits_with_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["data", "show"])
    assert stopped.value.code == 2
    assert main([]) == 2


def test_debug_shows_the_traceback(tmp_path):
    with pytest.raises(FileNotFoundError):
        main(["data", "show", str(tmp_path / "nothing"), "--debug"])


def test_record_show_and_train(tmp_path, capsys):
    corpus, folder = tmp_path / "corpus", tmp_path / "run"
    policies = ["--policy", "random", "sticky:0.8", "--episodes", "8", "--seed", "3"]
    run("data", "record", "CartPole-v1", *policies, "--out", corpus, "--json", capsys=capsys)
    out, _ = run("data", "show", corpus, "--json", capsys=capsys)
    shown = json.loads(out)
    assert shown["episodes"] == 8
    assert [row["name"] for row in shown["policies"]] == ["random", "sticky:0.8"]
    out, _ = run("data", "show", corpus, capsys=capsys)
    assert "CartPole-v1" in out
    sizes = {"trunk.width": 16, "trunk.layers": 1, "trunk.heads": 2, "trunk.kv-heads": 1, "trunk.mlp": 16}
    sizes |= {"members": 1, "components": 2, "chain-hidden": 8, "head-hidden": 8}
    small = [text for name, size in sizes.items() for text in (f"--config.model.{name}", str(size))]
    small += ["--config.steps", "4", "--config.batch-size", "4", "--config.length", "5", "--config.warmup", "1"]
    out, err = run("train", corpus, "--out", folder, *small, "--json", capsys=capsys)
    result = json.loads(out)
    assert result["step"] == 4
    assert result["metrics"]["nll"] > 0
    assert "4/4" in err
    _, err = run("train", corpus, "--out", folder, *small, "--seed", "1", code=2, capsys=capsys)
    assert "training.seed is 0 there, 1 here" in one_line(err)


def test_a_preset_is_where_options_begin(tmp_path, capsys):
    corpus = tmp_path / "corpus"
    run("data", "record", "CartPole-v1", "--policy", "random", "--episodes", "3", "--out", corpus, capsys=capsys)
    _, err = run("train", corpus, "--out", tmp_path / "run", "--preset", "smal", code=2, capsys=capsys)
    assert "no preset 'smal' (did you mean 'small'?)" in one_line(err)
    with pytest.raises(SystemExit, match="2"):
        main(["train", str(corpus), "--preset=debug", "--config.batch-size", "7"])
    assert "batch_size 7 cannot be dealt out equally to 2 members" in capsys.readouterr().err
    options = defaults(["x", "--preset", "1b"])
    assert options.config is PRESETS["1b"]


@pytest.mark.slow
def test_two_corpora_become_two_worlds_of_one_run(tmp_path, capsys):
    for env_id, name in (("CartPole-v1", "pole"), ("Pendulum-v1", "pendulum"), ("CartPole-v1", "other")):
        record = ("data", "record", env_id, "--policy", "random", "--episodes", "8", "--out", tmp_path / name)
        run(*record, capsys=capsys)
    pole, pendulum, folder = tmp_path / "pole", tmp_path / "pendulum", tmp_path / "run"
    debug = ("--out", folder, "--preset", "debug", "--config.steps", "2", "--json")
    for corpora, told in (
        ((pole, pole), "two of the corpora's folders have one name"),
        ((pole, tmp_path / "other"), "pole and other are of one environment"),
        ((pole, pendulum, "--estimate"), "--estimate and --continue-from take one corpus"),
    ):
        _, err = run("train", *corpora, *debug, code=2, capsys=capsys)
        assert told in one_line(err)
    out, _ = run("train", pole, pendulum, *debug, capsys=capsys)
    assert json.loads(out)["step"] == 2
    assert load(folder / "worlds" / "pendulum").spec.env_id == "Pendulum-v1"


def test_info_names_versions_and_devices(capsys):
    out, _ = run("info", "--json", capsys=capsys)
    info = json.loads(out)
    assert info["versions"]["jax"] != "absent"
    assert info["devices"]


def test_probe_prints_json_without_policies_or_corpus(tmp_path, capsys):
    folder = untrained_run(tmp_path / "run")
    out, _ = run("probe", folder, "--json", capsys=capsys)
    report = json.loads(out)
    assert report["one_step"] is None
    assert report["why"]["one_step"] == "no corpus was given"
    assert isinstance(report["verdict"], str)


def test_a_reader_that_stops_reading_is_no_error():
    command = f"{sys.executable} -m worldmodel.cli data lint --codes | head -c 100"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False)
    assert len(done.stdout) == 100
    assert done.stderr == b""
    assert done.returncode in (0, 141)


def test_an_estimate_for_people_tells_what_was_measured():
    memory = {"arguments": 1e6, "temporaries": 2e6, "outputs": 0, "program": 0, "total": 3e6}
    found = {"parameters": 10, "parameters_per_member": 5, "flops_per_step": 1e9, "flops": 1e12, "devices": 1}
    found |= {"device_kind": "cpu", "mesh": "", "memory_per_device": memory, "fits": None, "days": 0.01, "cost": None}
    found |= {"why": "no price", "seconds_per_step": 0.02, "start_seconds": 20.3, "host_memory": 9e8}
    lines = estimate_table(found)
    assert "memory of process  0.9 GB at its peak, measured" in lines
    assert "time               20 s to start, 0.02 s a step, 0.01 days" in lines
    planned = estimate_table(found | {"start_seconds": None, "host_memory": None})
    assert "time               0.02 s a step, 0.01 days" in planned
    assert not any("process" in line for line in planned)
