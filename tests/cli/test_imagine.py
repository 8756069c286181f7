"""`worldmodel data imagine`: a corpus that everybody who reads it knows as synthetic."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_cli import one_line, run
from tests.support import tiny_columns, untrained_model, untrained_run
from worldmodel.corpus import Columns, open_corpus, write_corpus
from worldmodel.fidelity import probe

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_run(tmp_path_factory.mktemp("runs") / "cartpole")


def imagine(folder: Path, out: Path, *words: str, capsys, **options) -> dict:
    given = ("--policy", "random", "--episodes", "12", "--horizon", "6", "--json")
    text, err = run("data", "imagine", folder, "--out", out, *given, *words, capsys=capsys, **options)
    return json.loads(text) if text else {"error": err}


def test_a_corpus_is_marked_and_the_same_command_gives_the_same_bits(folder, tmp_path, capsys):
    summary = imagine(folder, tmp_path / "a", capsys=capsys)
    assert summary["episodes"] == summary["synthetic"] == 12
    imagine(folder, tmp_path / "b", capsys=capsys)
    a, b = open_corpus(tmp_path / "a"), open_corpus(tmp_path / "b")
    assert a.manifest.parts[0].checksum == b.manifest.parts[0].checksum
    assert a.provenance == b.provenance and a.provenance["synthetic"] is True and a.provenance["run"] == "cartpole"
    assert a.index.synthetic.all() and all(episode.synthetic for episode in a)
    assert all(episode.info["id"].startswith("imagined/") for episode in a)


def test_lint_show_and_convert_know(folder, tmp_path, capsys):
    imagine(folder, tmp_path / "a", capsys=capsys)
    out, _ = run("data", "show", tmp_path / "a", capsys=capsys)
    assert "12 episodes were imagined by a model" in out
    out, _ = run("data", "lint", tmp_path / "a", "--json", capsys=capsys)
    (found,) = [each for each in json.loads(out)["findings"] if each["code"] == "synthetic"]
    assert found["severity"] == "note" and found["evidence"]["count"] == 12
    run("data", "convert", tmp_path / "a", "--out", tmp_path / "c", "--json", capsys=capsys)
    assert open_corpus(tmp_path / "c").index.synthetic.all()  # whatever it went through, it stays imagined


@pytest.mark.slow
def test_train_says_how_many_and_measures_on_real_ones(folder, tmp_path, capsys):
    mixed = tmp_path / "mixed"
    spec, columns = tiny_columns("CartPole-v1", episodes=20, seed=0)
    write_corpus(mixed, spec, [columns.episode(i) for i in range(20)], provenance={})
    imagine(folder, mixed, "--append", capsys=capsys)
    corpus = open_corpus(mixed)
    assert corpus.episodes == 32 and corpus.index.synthetic.sum() == 12
    debug = ("--preset", "debug", "--config.steps", "2", "--json")
    out, err = run("train", mixed, "--out", tmp_path / "run", *debug, capsys=capsys)
    learned = corpus.split("train")
    imagined = int((corpus.index.synthetic & learned).sum())
    assert json.loads(out)["synthetic"] == imagined > 0
    assert f"{imagined} of {learned.sum()} training episodes are synthetic" in err
    # A tenth of the real ones is held out, and nothing else.
    real = corpus.held("held_out", keep=~corpus.index.synthetic)
    assert isinstance(real, Columns) and not real.synthetic.any() and real.episodes >= 1


def test_a_probe_takes_them_for_what_they_are(folder, tmp_path, capsys):
    imagine(folder, tmp_path / "a", capsys=capsys)
    _, err = run("probe", folder, "--corpus", tmp_path / "a", "--json", code=2, capsys=capsys)
    assert "its episodes are synthetic; what a model imagined is no evidence of what is real" in one_line(err)
    with pytest.raises(ValueError, match="its episodes are synthetic"):
        probe(untrained_model(), corpus=open_corpus(tmp_path / "a").columns())


def test_starts_of_another_environment_are_refused(folder, tmp_path, capsys):
    spec, columns = tiny_columns("Pendulum-v1", episodes=3, seed=0)
    write_corpus(tmp_path / "p", spec, [columns.episode(i) for i in range(3)], provenance={})
    told = imagine(folder, tmp_path / "out", "--starts", str(tmp_path / "p"), code=2, capsys=capsys)
    assert "its observation space is not the model's" in one_line(told["error"])
    assert not (tmp_path / "out").exists()
    told = imagine(folder, tmp_path / "out", "--context", "[1]", code=2, capsys=capsys)
    assert "--context '[1]' is no JSON object" in one_line(told["error"])
    imagine(folder, tmp_path / "a", capsys=capsys)
    told = imagine(folder, tmp_path / "a", code=2, capsys=capsys)
    assert "holds a corpus already; --append adds to it" in one_line(told["error"])
    told = imagine(folder, tmp_path / "a", "--append", code=2, capsys=capsys)
    assert "is in the corpus already" in one_line(told["error"])  # the same seed again


@pytest.mark.slow
def test_killed_midway_it_leaves_nothing_to_be_seen(folder, tmp_path, capsys):
    command = [sys.executable, "-m", "worldmodel.cli", "data", "imagine", str(folder), "--out", str(tmp_path / "a")]
    command += ["--policy", "random", "--episodes", "3000", "--horizon", "20"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    parts = tmp_path / "a" / "parts"
    until = time.monotonic() + 300
    while not list(parts.glob(".*.writing/*")) and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
    assert process.poll() is None, "it ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(FileNotFoundError, match="was not written to its end"):
        open_corpus(tmp_path / "a")
    imagine(folder, tmp_path / "a", capsys=capsys)  # what was left is removed
    imagine(folder, tmp_path / "b", capsys=capsys)
    a, b = open_corpus(tmp_path / "a"), open_corpus(tmp_path / "b")
    assert a.manifest.parts[0].checksum == b.manifest.parts[0].checksum
    assert [path.name for path in (tmp_path / "a" / "parts").iterdir()] == ["part-00000"]
