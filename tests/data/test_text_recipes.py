"""The recipes of text corpora: what they add to what their reader yields, and the counts that they state."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.corpora import real_log
from worldmodel.corpus import open_corpus

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "chat"


def run(recipe: str, *arguments: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [recipe, *map(str, arguments)])
    monkeypatch.syspath_prepend(str(ROOT / "data"))  # as Python does for a script: a recipe must not hide a package
    runpy.run_path(str(ROOT / "data" / recipe), run_name="__main__")


def test_tau_bench(tmp_path, monkeypatch, capsys):
    run("tau_bench.py", FIXTURES / "tau_bench.json", tmp_path / "out", monkeypatch=monkeypatch)
    corpus = open_corpus(tmp_path / "out")
    # The two tasks look up the same reservation: one group.
    assert len({t.info["group"] for t in corpus}) == 1
    assert corpus.manifest.split_by == "group"
    assert corpus.provenance["licence"] == "MIT" and corpus.provenance["format"] == "chat"
    assert "3 episodes, 4 transitions, 1 groups of tasks" in capsys.readouterr().out


def test_tau_bench_counts(tmp_path, monkeypatch, capsys):
    log = real_log("tau_bench_airline/gpt-4o-airline.json")
    run("tau_bench.py", log, tmp_path / "out", monkeypatch=monkeypatch)
    assert "200 episodes, 2,454 transitions, 33 groups of tasks" in capsys.readouterr().out
    episodes = list(open_corpus(tmp_path / "out"))
    groups: dict[str, set[str]] = {}
    for trajectory in episodes:
        for key in (*trajectory.info.get("keys", ()), trajectory.info["task"]):
            groups.setdefault(key, set()).add(trajectory.info["group"])
    assert all(len(found) == 1 for found in groups.values())  # no task and no id is in two


def test_intercode_sql(tmp_path, monkeypatch):
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps([{"db": "a"}, {"db": "b"}, {"db": "a"}]))
    run(
        "intercode_sql.py",
        FIXTURES / "intercode.json.zst",
        tmp_path / "out",
        "--tasks",
        tasks,
        monkeypatch=monkeypatch,
    )
    corpus = open_corpus(tmp_path / "out")
    assert [t.info["database"] for t in corpus] == ["a", "b", "a"]
    assert corpus.manifest.split_by == "database"
    assert [t.observations.tolist()[0] for t in corpus] == ["How many?", "Which?", "Who?"]


@pytest.mark.parametrize("arguments", [(), ("--map",)])
def test_scienceworld(tmp_path, monkeypatch, arguments):
    log = tmp_path / "log.jsonl"
    talk = [{"role": "user", "content": "Boil."}, {"role": "assistant", "content": "wait"}]
    talk.append({"role": "user", "content": "You wait."})
    rows = [
        {"messages": talk, "task_id": f"boil-it_v{i}", "instruction": "Boil.", "score": s, "wm_system_prompt": "map"}
        for i, s in enumerate((100, 33))
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("scienceworld.py", log, tmp_path / "out", *arguments, monkeypatch=monkeypatch)
    won, lost = open_corpus(tmp_path / "out")
    assert (won.terminated, won.total_reward, won.info["success"]) == (True, 100, True)
    assert (lost.terminated, lost.total_reward, lost.info["success"]) == (False, 33, False)
    assert won.info["kind"] == lost.info["kind"] == "boil-it"
    assert won.context == {"instruction": "Boil."} | ({"wm_system_prompt": "map"} if arguments else {})


def test_textworld(tmp_path, monkeypatch):
    pytest.importorskip("textworld", reason="the package textworld is not installed (extra: recipes)")
    run("textworld_games.py", tmp_path / "out", "--games", "1", "--seed", "1", "--limit", "7", monkeypatch=monkeypatch)
    corpus = open_corpus(tmp_path / "out")
    assert corpus.manifest.split_by == "task" and corpus.episodes == 5
    walkthrough = next(iter(corpus))
    assert walkthrough.info["success"] and walkthrough.terminated and walkthrough.total_reward == 1
    assert walkthrough.observations[0].startswith(walkthrough.context["instruction"])
    assert not any("=-0/" in text for t in corpus for text in t.observations)
    assert all(t.terminated or (t.truncated and len(t) == 7) for t in corpus)
