"""The runner: every cell once, whatever happens in between."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.study.tiny import times_run, tiny_study
from worldmodel.corpus.lock import only_writer
from worldmodel.study.pool import Here, Processes
from worldmodel.study.ray_pool import RayPool
from worldmodel.study.runner import run_study
from worldmodel.study.store import Store

ROOT = Path(__file__).parents[2]
ROWS = 28  # four seeds of each anchor, two of the others
CELLS = 10  # two complexities, each with reference, no training, oracle and two levels


def run(study, out, **kwargs):
    return run_study(study, out, Here(study), **kwargs)


def lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def without_seconds(rows: list[dict]) -> list[str]:
    return sorted(json.dumps({**row, "seconds": 0}, sort_keys=True) for row in rows)


def test_a_second_start_runs_nothing(tmp_path):
    study = tiny_study(tmp_path / "book")
    first = run(study, tmp_path / "out")
    assert (first.run, first.reused, first.failed, first.rows) == (CELLS, 0, 0, ROWS)
    assert run(study, tmp_path / "out").reused == CELLS
    assert set(times_run(tmp_path / "book").values()) == {1}
    (row, *_) = [r for r in lines(tmp_path / "out") if r["arm"] == "simulated" and r["fidelity"] == 0.5]
    assert row["cell"] in Store(tmp_path / "out").done()
    del row["seconds"], row["cell"]
    assert row == {
        "environment": "tiny",
        "complexity": 1.0,
        "diversity": 1.0,
        "fidelity": 0.5,
        "corruption": "reward",
        "arm": "simulated",
        "world_model_seed": 0,
        "policy_seed": 0,
        "deployment": "training",
        "real_return": 0.5,
        "simulated_return": None,
        "episodes": None,
        "real_steps": 0,
        "simulated_steps": 0,
        "metrics": {"error": 0.5},
    }


def test_an_added_level_reuses_the_rest(tmp_path):
    run(tiny_study(tmp_path / "book"), tmp_path / "out")
    more = run(tiny_study(tmp_path / "book", levels=(0.0, 0.25, 0.5)), tmp_path / "out")
    assert (more.run, more.reused) == (2, CELLS)
    assert set(times_run(tmp_path / "book").values()) == {1}
    # What was asked is as it stood before the first cell.
    assert json.loads((tmp_path / "out" / "registration.json").read_text())["registration"]["seeds"] == 2


def test_an_interrupted_run_goes_on(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tiny_study(tmp_path / "book", trouble="interrupt"), tmp_path / "out")
    before = times_run(tmp_path / "book")
    assert 0 < len(Store(tmp_path / "out").done()) < CELLS
    summary = run(tiny_study(tmp_path / "book"), tmp_path / "out")
    assert summary.run + summary.reused == CELLS
    assert summary.reused == len(before) - 1  # the one that was interrupted runs again
    assert sorted(times_run(tmp_path / "book").values()) == [1] * (CELLS - 1) + [2]
    assert len(lines(tmp_path / "out")) == summary.rows == ROWS


@pytest.mark.parametrize("tear", ["half a line", "a cell's line", "a cell's file"])
def test_what_a_kill_tore_is_mended(tear, tmp_path):
    study = tiny_study(tmp_path / "book")
    run(study, tmp_path / "out")
    whole = lines(tmp_path / "out")
    results = tmp_path / "out" / "results.jsonl"
    text = results.read_text()
    if tear == "half a line":
        results.write_text(text[:-20])
    elif tear == "a cell's line":
        results.write_text("".join(text.splitlines(keepends=True)[:-2]))
    else:  # lines of a cell whose file is gone: the file is what counts
        (tmp_path / "out" / "cells" / f"{whole[0]['cell']}.json").unlink()
    again = run(study, tmp_path / "out")
    assert again.run == (1 if tear == "a cell's file" else 0)
    assert without_seconds(lines(tmp_path / "out")) == without_seconds(whole)


def test_a_failing_cell_is_kept_and_tried_again(tmp_path):
    summary = run(tiny_study(tmp_path / "book", trouble="raise"), tmp_path / "out")
    assert (summary.run, summary.failed) == (CELLS - 2, 2)
    failures = Store(tmp_path / "out").failed().values()
    assert [each["error"] for each in failures] == ["RuntimeError: the learner broke"] * 2
    assert all("in run" in each["traceback"] and "reward 0.5" in each["cell"] for each in failures)
    healed = run(tiny_study(tmp_path / "book"), tmp_path / "out")
    assert (healed.run, healed.failed, Store(tmp_path / "out").failed()) == (2, 0, {})


def test_a_return_that_is_no_number_is_a_failure(tmp_path):
    summary = run(tiny_study(tmp_path / "book", trouble="nan"), tmp_path / "out")
    assert summary.failed == 2
    assert "a real return is nan" in next(iter(Store(tmp_path / "out").failed().values()))["error"]


def test_one_and_two_processes_give_the_same_rows(tmp_path):
    study = tiny_study(tmp_path / "book", trouble="die")
    run(tiny_study(tmp_path / "book"), tmp_path / "here")
    dead = {"fidelity": 0.5, "complexity": 1.0}
    expected = without_seconds([row for row in lines(tmp_path / "here") if not dead.items() <= row.items()])
    for workers in (1, 2):
        out = tmp_path / str(workers)
        summary = run_study(study, out, Processes(study, workers))
        # The process that dies at a cell costs this one, and no other.
        assert (summary.run, summary.failed) == (CELLS - 1, 1)
        assert without_seconds(lines(out)) == expected
        errors = {each["error"] for each in Store(out).failed().values()}
        assert errors == {"the process that computed it died: signal SIGKILL"}


def test_the_budget_is_said_and_kept(tmp_path):
    study, said = tiny_study(tmp_path / "book"), []
    with pytest.raises(ValueError, match=r"need about 0.1 core-hours, more than the 0.05 allowed"):
        run(study, tmp_path / "out", max_core_hours=0.05, budget=said.append)
    assert str(said[0]) == "10 cells, about 0.1 core-hours (a guess)"
    assert not (tmp_path / "book").exists()
    left = []
    run(study, tmp_path / "out", max_core_hours=0.2, progress=lambda p: left.append((p.done, p.total)))
    assert left == [(i, CELLS) for i in range(1, CELLS + 1)]
    # What was measured replaces the guess.
    run(tiny_study(tmp_path / "book", levels=(0.25,)), tmp_path / "out", budget=said.append)
    assert said[-1].measured == 2
    assert said[-1].core_hours < 1e-4


def test_cells_of_another_version_are_passed_over(tmp_path):
    study, out = tiny_study(tmp_path / "book"), tmp_path / "out"
    (out / "cells").mkdir(parents=True)
    (out / "cells" / "0123456789abcdef.json").write_text('{"content": {"version": 0}, "seconds": 1.0, "rows": []}')
    assert run(study, out).run == CELLS
    assert len(list(Store(out).seconds())) == CELLS
    assert len(lines(out)) == ROWS


def test_without_headroom_the_rest_is_left_out(tmp_path):
    summary = run(tiny_study(tmp_path / "book", trouble="flat"), tmp_path / "out")
    assert (summary.run, len(summary.left_out)) == (4, 2)
    assert "no headroom: training in reality gains 0 over none, on 4 seeds" in next(iter(summary.left_out.values()))
    assert json.loads(json.dumps(summary.to_json()))["left_out"][0]["environment"] == "tiny"


def test_one_runner_and_one_study_per_folder(tmp_path):
    study, out = tiny_study(tmp_path / "book"), tmp_path / "out"
    out.mkdir()
    with only_writer(out), pytest.raises(ValueError, match=rf"another writer \(process {os.getpid()}\) is at work"):
        run(study, out)
    run(study, out)
    other = tiny_study(tmp_path / "book")
    object.__setattr__(other, "name", "other")
    with pytest.raises(ValueError, match="holds the study 'tiny', not 'other'; give another folder"):
        run(other, out)


def test_ray_is_an_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ValueError, match=re.escape('Ray is not installed; it comes with the extra: pip install "world')
    ):
        RayPool(tiny_study(tmp_path), "local")


@pytest.mark.slow  # needs Ray and some ten seconds of it
def test_ray_gives_the_same_rows(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed; it comes with the extra `ray`")
    study = tiny_study(tmp_path / "book")
    run(study, tmp_path / "here")
    run_study(study, tmp_path / "ray", RayPool(study, "local", workers=2))
    assert without_seconds(lines(tmp_path / "ray")) == without_seconds(lines(tmp_path / "here"))


KILLED = """
from pathlib import Path
from tests.study.tiny import tiny_study
from worldmodel.study.pool import Processes
from worldmodel.study.runner import run_study

if __name__ == "__main__":
    study = tiny_study(Path({book!r}), levels=tuple(i / 40 for i in range(40)), trouble="slow")
    run_study(study, Path({out!r}), Processes(study, 2))
"""


@pytest.mark.slow  # starts and kills processes
def test_a_killed_run_goes_on(tmp_path):
    out, book = tmp_path / "out", tmp_path / "book"
    script = tmp_path / "script.py"
    script.write_text(KILLED.format(book=str(book), out=str(out)))
    process = subprocess.Popen([sys.executable, str(script)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 120
    while len(Store(out).done()) < 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    done = Store(out).done()
    assert 20 <= len(done) < 86
    study = tiny_study(book, levels=tuple(i / 40 for i in range(40)))
    summary = run(study, out)
    assert (summary.reused, summary.run) == (len(done), 86 - len(done))
    counts = times_run(book)
    assert all(counts[key] == 1 for key in done)
    assert len({(row["cell"], row["world_model_seed"], row["policy_seed"]) for row in lines(out)}) == len(lines(out))


def test_who_hands_out_cells_loads_no_jax():
    code = (
        "import sys; from worldmodel.study.source import Source; import worldmodel.study.pool\n"
        "cells = Source('three_dials', True).load().cells(); print(len(cells), 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["180", "False"], done.stderr
