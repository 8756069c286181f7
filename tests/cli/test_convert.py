"""`worldmodel data convert`: from files to a corpus, on the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.corpora import real_log
from worldmodel.cli import main
from worldmodel.cli.convert import ConvertOptions, convert
from worldmodel.cli.logs import reader_options
from worldmodel.corpus import open_corpus


@pytest.fixture
def log(tmp_path):
    """Six episodes of three steps in one file; returns 0, 3, .., 15."""
    states = np.random.default_rng(0).normal(size=(6, 4, 2)).astype(np.float32)
    path = tmp_path / "log.npz"
    np.savez(
        path,
        observations=states[:, :-1].reshape(18, 2),
        next_observations=states[:, 1:].reshape(18, 2),
        actions=np.arange(18) % 2,
        rewards=np.repeat(np.arange(6, dtype=np.float32), 3),
        terminals=np.arange(18) % 3 == 2,
    )
    return path


def run(*words, code: int = 0, capsys) -> tuple[str, str]:
    assert main(["data", "convert", *map(str, words)]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_convert_prints_what_was_kept(tmp_path, log, capsys):
    out, _ = run(log, "--out", tmp_path / "c", "--min-return", "6", "--episodes", "1:", "--json", capsys=capsys)
    result = json.loads(out)
    assert (result["episodes"], result["transitions"], result["parts"], result["already"]) == (4, 12, 1, False)
    assert result["logs"][0]["uri"] == str(log)
    assert result["logs"][0]["left_out"] == {"return": 1}
    assert open_corpus(tmp_path / "c").episodes == 4
    out, _ = run(log, "--out", tmp_path / "d", capsys=capsys)
    assert "6 episodes, 18 transitions, in 1 part(s)" in out


def test_the_same_command_again_adds_nothing(tmp_path, log, capsys):
    run(log, "--out", tmp_path / "c", capsys=capsys)
    out, _ = run(log, "--out", tmp_path / "c", capsys=capsys)
    assert "this conversion was done before; nothing is added" in out
    _, err = run(log, "--out", tmp_path / "c", "--max-return", "5", code=2, capsys=capsys)
    assert "holds a corpus already; append to it, or name another folder" in err


def test_estimate_prints_intervals_and_leaves_nothing(tmp_path, log, capsys):
    words = [log, "--out", tmp_path / "c", "--estimate", "--of", "10000000"]
    result = json.loads(run(*words, "--json", capsys=capsys)[0])
    assert result["episodes"]["mean"] == 10_000_000
    assert result["bytes"]["lo"] <= result["bytes"]["mean"] <= result["bytes"]["hi"]
    assert result["shards"]["mean"] == max(1_000, np.ceil(result["bytes"]["mean"] / (64 * 2**20)))
    out, _ = run(*words, capsys=capsys)
    assert "10,000,000 (95%" in out
    assert " GB where the corpus would lie" in out
    assert [path.name for path in tmp_path.iterdir()] == ["log.npz"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--episodes", "5:2"], "episodes '5:2' hold none"),
        (["--option", "nonsense"], "--option 'nonsense' is no KEY=VALUE"),
        (["--option", "action=x"], "npz: option 'action' is unknown (did you mean 'actions'?)"),
        (["--fix", "time-limit"], "--fix 'time-limit' is no repair (did you mean"),
        (["--policy", "expert"], "no episode to write; "),
        (["--split-by", "tsk"], "has no 'tsk' to split by"),
        (["--part-mb", "0"], "part_bytes is 0; at least 1 is needed"),
        (["{log}"], "is given twice; its episodes would be doubled"),
        (["{log}.gone"], "no such file or folder"),
    ],
)
def test_bad_usage_is_one_line_and_leaves_nothing(tmp_path, log, words, message, capsys):
    words = [word.replace("{log}", str(log)) for word in words]
    out, err = run(log, *words, "--out", tmp_path / "c", code=2, capsys=capsys)
    last = err.splitlines()[-1]
    assert last.startswith("worldmodel: error: ")
    assert message in last
    assert out == ""
    assert not (tmp_path / "c").exists()


def test_reader_options_are_json_where_they_can_be():
    words = ["split=val", "limit=3", "images=true", 'keys={"a": 1}', "max-steps=7"]
    want = {"split": "val", "limit": 3, "images": True, "keys": {"a": 1}, "max_steps": 7}
    assert reader_options(words) == want
    with pytest.raises(ValueError, match="--option split is given twice"):
        reader_options(["split=a", "split=b"])


def test_reader_options_reach_the_reader(tmp_path, capsys):
    np.savez(
        tmp_path / "odd.npz",
        x=np.zeros((5, 2), np.float32),
        next_observations=np.zeros((5, 2), np.float32),
        actions=np.zeros(5, np.int64),
        terminals=np.arange(5) == 4,
    )
    run(tmp_path / "odd.npz", "--option", "observations=x", "--out", tmp_path / "c", capsys=capsys)
    assert open_corpus(tmp_path / "c").transitions == 5


def test_a_half_converted_corpus_says_so(tmp_path, log, capsys):
    run(log, "--out", tmp_path / "c", capsys=capsys)
    (tmp_path / "c" / "manifest.json").unlink()
    (tmp_path / "c" / "conversion.jsonl").write_text("{}\n")
    assert main(["data", "show", str(tmp_path / "c")]) == 2
    assert "its conversion is not finished; run the same `worldmodel data convert` again" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "wrong", "episodes"), [("cartpole", 15, 57), ("pendulum", 56, 56)])
def test_time_limits_stored_as_terminals_are_corrected(tmp_path, name, wrong, episodes, capsys):
    path = real_log(f"imitation/{name}_final.npz")
    run(path, "--out", tmp_path / "c", "--fix", "time-limit-terminal", capsys=capsys)
    corpus = open_corpus(tmp_path / "c")
    ends = [(episode.terminated, episode.truncated) for episode in corpus]
    assert ends.count((False, True)) == wrong
    assert ends.count((True, False)) == episodes - wrong
    fixes = corpus.manifest.parts[0].provenance["fixes"]
    assert fixes["time-limit-terminal"][0]["episodes"] == wrong


def test_on_beam(tmp_path, log, capsys):
    pytest.importorskip("apache_beam", reason="apache-beam is missing: pip install 'worldmodel[beam]'")
    options = ConvertOptions((str(log),), tmp_path / "c", beam="--runner=DirectRunner", json=True)
    assert convert(options)["episodes"] == 6
    assert json.loads(capsys.readouterr().out)["parts"] == 1
