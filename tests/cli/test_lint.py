"""`worldmodel data lint`: what is printed, kept, and said by the exit code."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.corpus.lint.logs import NUMBERS, walk, walks
from worldmodel.cli import main
from worldmodel.corpus import write_corpus


@pytest.fixture
def corpus(tmp_path):
    copy = walk("copy-1", seed=2)
    write_corpus(tmp_path / "corpus", NUMBERS, [*walks(), copy], provenance={})
    return tmp_path / "corpus"


def test_json_is_printed_and_kept_beside_the_manifest(corpus, capsys):
    assert main(["data", "lint", str(corpus), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["episodes"] == 13
    assert printed["transitions"] == 390
    found = {each["code"]: each for each in printed["findings"]}
    assert found["duplicate"]["episodes"] == ["copy-1"]
    assert json.loads((corpus / "lint.json").read_text()) == printed
    assert sorted(path.name for path in corpus.iterdir()) == ["lint.json", "manifest.json", "parts"]


def test_the_table_names_code_and_repair(corpus, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["data", "lint", str(corpus)]) == 0
    out = capsys.readouterr().out
    assert "1 of 13 episodes are there already under another id: copy-1 = w2" in out
    assert f"{corpus}: 13 episodes, 390 transitions: " in out
    assert f"repaired by: worldmodel data convert {corpus} --fix duplicate" in out


def test_strict_exits_with_1_on_a_warning_and_0_on_a_clean_log(corpus, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        main(["data", "lint", str(corpus), "--strict", "--json"])
    assert stopped.value.code == 1
    write_corpus(tmp_path / "clean", NUMBERS, walks(), provenance={})
    assert main(["data", "lint", str(tmp_path / "clean"), "--strict"]) == 0


def test_a_report_that_cannot_be_kept_is_said(corpus, capsys):
    (corpus / "lint.json").mkdir()
    assert main(["data", "lint", str(corpus), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["episodes"] == 13
    assert f"lint.json is not kept: {corpus}: Is a directory" in captured.err
    assert not [path for path in corpus.iterdir() if path.name.startswith(".lint")]


def test_logs_that_are_no_corpus_leave_nothing_behind(tmp_path, capsys):
    log = walks(3)
    np.savez(
        tmp_path / "log.npz",
        obs=np.concatenate([t.observations for t in log]),
        acts=np.concatenate([t.actions for t in log]),
        rews=np.concatenate([t.rewards for t in log]),
        indices=np.cumsum([len(t) for t in log])[:-1],
        terminal=np.ones(3, bool),
    )
    assert main(["data", "lint", f"npz:{tmp_path / 'log.npz'}", "--json"]) == 0
    found = {each["code"] for each in json.loads(capsys.readouterr().out)["findings"]}
    assert "time-limit-terminal" in found
    assert [path.name for path in tmp_path.iterdir()] == ["log.npz"]


def test_codes_are_explained_without_a_log(capsys, monkeypatch):
    assert main(["data", "lint", "--codes", "--json"]) == 0
    codes = json.loads(capsys.readouterr().out)["codes"]
    assert codes["nan"] == {
        "meaning": "NaN or infinity.",
        "severity": "error",
        "repair": "drops these episodes",
        "in_all": True,
        "named": False,
    }
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["data", "lint", "--codes"]) == 0
    assert "time-limit-terminal" in capsys.readouterr().out


def test_no_log_and_a_missing_log_are_one_line(tmp_path, capsys):
    assert main(["data", "lint"]) == 2
    assert capsys.readouterr().err == "worldmodel: error: no log to lint; name one, or ask for --codes\n"
    assert main(["data", "lint", str(tmp_path / "none")]) == 2
    assert "no such file or folder" in capsys.readouterr().err
