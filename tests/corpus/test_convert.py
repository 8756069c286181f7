"""Any log to a corpus: filters, merges, splits, restarts, refusals."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from tests.corpus.logs import SPEC, ToyLog, toy_episode, toy_input
from worldmodel.corpus import open_corpus, write_corpus
from worldmodel.corpus.convert import Progress, convert
from worldmodel.corpus.filters import Filters
from worldmodel.corpus.job import Input, Recipe
from worldmodel.corpus.lock import only_writer
from worldmodel.trajectory import Spec

ROOT = pathlib.Path(__file__).parents[2]
SMALL = Recipe(part_episodes=4)


def ids(corpus) -> list[str]:
    return [episode.info["id"] for episode in corpus]


def checksums(corpus) -> list[str]:
    return [part.checksum for part in corpus.manifest.parts]


def test_parts_are_full_and_say_where_their_episodes_come_from(tmp_path):
    log = toy_input(tmp_path, "a.toy", count=10)
    done = convert([log], tmp_path / "c", SMALL)
    assert not done.already
    assert done.counts == [{"read": 10, "kept": 10, "left_out": {}, "renamed": 0}]
    assert ids(done.corpus) == [f"e{number}" for number in range(10)]
    parts = done.corpus.manifest.parts
    assert [part.episodes for part in parts] == [4, 4, 2]
    said = parts[1].provenance
    assert said["uri"] == "toy:a.toy"
    assert said["log"] == {"format": "toy", "licence": "CC0-1.0", "left_out": ["the video"], "episodes": 10}
    assert said["episodes"] == [4, 8]
    assert said["counts"]["kept"] == 8
    assert said["state"]["files"] == 1
    assert len(said["state"]["sha256"]) == 64
    assert set(said["versions"]) == {"worldmodel", "numpy", "tensorflow-datasets"}
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["manifest.json", "parts"]


def test_a_part_is_closed_at_its_size(tmp_path):
    sizes = []
    log = toy_input(tmp_path, "a.toy", count=6)
    convert([log], tmp_path / "c", report=lambda progress: sizes.append(progress.bytes))
    two = dataclasses.replace(SMALL, part_bytes=sizes[1])
    parts = convert([log], tmp_path / "d", two).corpus.manifest.parts
    assert parts[0].episodes == 2
    assert sum(part.episodes for part in parts) == 6


def test_filters_are_counted_and_kept_in_the_provenance(tmp_path):
    recipe = Recipe(filters=Filters(2, 9, 4.0, 7.0, ("a",)))
    done = convert([toy_input(tmp_path, "a.toy", count=20)], tmp_path / "c", recipe)
    assert ids(done.corpus) == ["e4", "e6"]
    assert done.counts == [{"read": 7, "kept": 2, "left_out": {"policy": 3, "return": 2}, "renamed": 0}]
    filters = done.corpus.manifest.parts[0].provenance["filters"]
    assert filters == {"episodes": [2, 9], "min_return": 4.0, "max_return": 7.0, "policies": ["a"]}


def test_merging_prefixes_only_the_ids_that_clash(tmp_path):
    logs = [toy_input(tmp_path, "a.toy", count=5), toy_input(tmp_path, "b.toy", count=4, first=3)]
    done = convert(logs, tmp_path / "c", SMALL)
    assert ids(done.corpus) == ["e0", "e1", "e2", "e3", "e4", "b.toy/e3", "b.toy/e4", "e5", "e6"]
    assert [counts["renamed"] for counts in done.counts] == [0, 2]
    assert [part.provenance["uri"] for part in done.corpus.manifest.parts] == ["toy:a.toy", "toy:a.toy", "toy:b.toy"]
    everything = convert(logs, tmp_path / "d", Recipe(prefix_ids=True)).corpus
    assert ids(everything)[4:6] == ["a.toy/e4", "b.toy/e3"]


def test_logs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
    logs = [toy_input(tmp_path / name, "log.toy", count=2) for name in ("x", "y")]
    assert ids(convert(logs, tmp_path / "c").corpus) == ["e0", "e1", "y/log.toy/e0", "y/log.toy/e1"]


def test_appending_and_the_same_again(tmp_path):
    one, two = toy_input(tmp_path, "a.toy", count=3), toy_input(tmp_path, "b.toy", count=3, first=2)
    convert([one], tmp_path / "c")
    with pytest.raises(ValueError, match="holds a corpus already; append to it, or name another folder"):
        convert([two], tmp_path / "c")
    done = convert([two], tmp_path / "c", append=True)
    assert ids(done.corpus) == ["e0", "e1", "e2", "b.toy/e2", "e3", "e4"]
    before = (tmp_path / "c" / "manifest.json").read_bytes()
    for again in (one, two):
        assert convert([again], tmp_path / "c", append=True).already
        assert convert([again], tmp_path / "c").already
    assert (tmp_path / "c" / "manifest.json").read_bytes() == before
    changed = toy_input(tmp_path, "b.toy", count=4, first=2)  # the file is another now
    assert convert([changed], tmp_path / "c", append=True).corpus.episodes == 10


def test_an_id_that_is_missing_comes_from_the_log_and_the_place(tmp_path):
    class Anonymous(ToyLog):
        def __iter__(self):
            for episode in ToyLog(self.count):
                yield dataclasses.replace(episode, info={})

    corpus = convert([Input("toy:nameless", Anonymous(2))], tmp_path / "c").corpus
    assert ids(corpus) == ["toy:nameless-000000", "toy:nameless-000001"]


def test_splitting_by_a_key_keeps_its_values_together(tmp_path):
    log = toy_input(tmp_path, "a.toy", count=60)
    corpus = convert([log], tmp_path / "c", Recipe(split_by="task", part_episodes=7)).corpus
    assert corpus.manifest.split_by == "task"
    tasks = [{ids_to_task[name] for name in corpus.columns(split).ids} for split in ("train", "held_out")]
    assert tasks[0] and tasks[1]
    assert not tasks[0] & tasks[1]
    with pytest.raises(ValueError, match="is split by 'task', not by 'policy'"):
        convert([toy_input(tmp_path, "b.toy", count=2)], tmp_path / "c", Recipe(split_by="policy"), append=True)
    more = convert([toy_input(tmp_path, "b.toy", count=2)], tmp_path / "c", append=True).corpus
    assert more.manifest.split_by == "task", "what is appended follows the corpus"


ids_to_task = {f"e{number}": f"task-{number % 3}" for number in range(100)}


def test_a_key_that_is_missing_is_named_with_the_nearest(tmp_path):
    message = r"toy:a.toy: episode 0 has no 'tsk' to split by \(did you mean 'task'\?\); it has id, policy, task"
    with pytest.raises(ValueError, match=message):
        convert([toy_input(tmp_path, "a.toy", count=2)], tmp_path / "c", Recipe(split_by="tsk", drop_invalid=True))
    assert not (tmp_path / "c").exists()


def test_an_episode_that_is_not_valid_is_named_or_left_out(tmp_path):
    log = toy_input(tmp_path, "a.toy", count=9, bad=[6, 8])
    with pytest.raises(ValueError, match=r"toy:a.toy: episode 6 \(e6\): 3 observations for 3 actions.*--drop-invalid"):
        convert([log], tmp_path / "c", Recipe())
    assert not (tmp_path / "c").exists(), "nothing was written, so nothing stays"
    done = convert([log], tmp_path / "c", Recipe(drop_invalid=True, part_episodes=3))
    assert ids(done.corpus) == ["e0", "e1", "e2", "e3", "e4", "e5", "e7"]
    assert done.counts[0] == {"read": 9, "kept": 7, "left_out": {"not valid": 2}, "renamed": 0}


def test_after_an_error_the_parts_before_it_stay_for_the_same_command(tmp_path):
    log = toy_input(tmp_path, "a.toy", count=9, bad=[6])
    with pytest.raises(ValueError, match="episode 6"):
        convert([log], tmp_path / "c", SMALL)
    with pytest.raises(FileNotFoundError, match="its conversion is not finished; run the same `worldmodel data conv"):
        open_corpus(tmp_path / "c")
    with pytest.raises(ValueError, match=r"recipe.drop_invalid is false there, true here; run that command again, na"):
        convert([log], tmp_path / "c", dataclasses.replace(SMALL, drop_invalid=True))
    with pytest.raises(ValueError, match="a conversion into it is not finished; run its command again first"):
        write_corpus(tmp_path / "c", SPEC, [toy_episode(50)], provenance={})
    (tmp_path / "c" / "conversion.jsonl").unlink()  # given up
    assert convert([log], tmp_path / "c", dataclasses.replace(SMALL, drop_invalid=True)).corpus.episodes == 8
    assert sorted(p.name for p in (tmp_path / "c" / "parts").iterdir()) == ["part-00000", "part-00001"]


def test_specs_that_differ_are_shown(tmp_path):
    other = ToyLog(2, spec=Spec(SPEC.observation_space, {"type": "Discrete", "n": 5, "start": -1}, env_id="Toy-v0"))
    logs = [Input("toy:a", ToyLog(2)), Input("toy:b", other)]
    with pytest.raises(ValueError, match=r"the specs differ: action_space.n is 4 in toy:a, 5 in toy:b; one spec"):
        convert(logs, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    convert(logs[:1], tmp_path / "c")
    with pytest.raises(ValueError, match=r"action_space.n is 4 in corpus .*, 5 in the new logs"):
        convert(logs[1:], tmp_path / "c", append=True)


@pytest.mark.parametrize(
    ("logs", "recipe", "message"),
    [
        ([], Recipe(), "no log to convert"),
        ([Input("toy:a", ToyLog(2))] * 2, Recipe(), "toy:a is given twice"),
        ([Input("toy:a", ToyLog(0))], Recipe(), "no episode to write; toy:a: no episode was read"),
        (
            [Input("toy:a", ToyLog(3))],
            Recipe(filters=Filters(policies=("c",))),
            r"no episode to write; toy:a: 3 read, all left out \(3 by policy\); policies found are a, b",
        ),
        ([Input("toy:a", ToyLog(3))], Recipe(fixes=("action-shift",)), r"did you mean 'action-shifted'\?"),
    ],
)
def test_refused_jobs_leave_nothing(tmp_path, logs, recipe, message):
    with pytest.raises(ValueError, match=message):
        convert(logs, tmp_path / "c", recipe)
    assert not (tmp_path / "c").exists()


def test_bad_part_sizes():
    with pytest.raises(ValueError, match="part_episodes is 0; at least 1 is needed"):
        Recipe(part_episodes=0)


def test_a_second_conversion_is_told_who_is_there(tmp_path):
    log = toy_input(tmp_path, "a.toy", count=2)
    convert([log], tmp_path / "c")
    other = toy_input(tmp_path, "b.toy", count=2)
    message = rf"another writer \(process {os.getpid()}\) is at work here"
    with only_writer(tmp_path / "c"), pytest.raises(ValueError, match=message):
        convert([other], tmp_path / "c", append=True)


def test_progress_and_words(tmp_path):
    seen: list[Progress] = []
    said: list[str] = []
    logs = [toy_input(tmp_path, "a.toy", count=3), toy_input(tmp_path, "b.toy", count=2, first=3)]
    recipe = Recipe(filters=Filters(min_return=4.0))
    convert(logs, tmp_path / "c", recipe, report=seen.append, say=said.append)
    assert [(each.log, each.place, each.kept, each.transitions) for each in seen] == [(1, 1, 1, 1)]
    assert seen[0].bytes > 0
    assert said == ["toy:a.toy: 3 read, all left out (3 by return)"]


# --- Killed ----------------------------------------------------------------------------------------------------------

KILLER = textwrap.dedent("""
    # Forks, so that the libraries are imported once; the parent never converts, and so has no threads to lose.
    import json, os, pathlib, random, resource, signal, sys, time

    sys.path.insert(0, sys.argv[1])
    from tests.corpus.logs import toy_input
    from worldmodel.corpus import convert as _  # everything is imported before the first fork
    import tensorflow_datasets, array_record.python.array_record_module, worldmodel.corpus.rlds
    from worldmodel.corpus.convert import convert
    from worldmodel.corpus.filters import Filters
    from worldmodel.corpus.job import Recipe

    folder, plan = pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
    logs = [toy_input(folder, "a.toy", count=11, bad=[5]), toy_input(folder, "b.toy", count=6, first=8)]
    recipe = Recipe(filters=Filters(min_return=2.0), drop_invalid=True, part_episodes=4)
    STEPS = ("fsync", "rename", "replace", "unlink", "open")

    def child(out, *, before=None, limit=None, log=None):
        pid = os.fork()
        if pid:
            return pid
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if before is not None:
            left = [before]

            def counted(real):
                def call(*args, **kwargs):
                    left[0] -= 1
                    if left[0] < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*args, **kwargs)

                return call

            for name in STEPS:
                setattr(os, name, counted(getattr(os, name)))
        code = 3
        try:
            convert(logs, out, recipe)
            code = 0
        except OSError as error:
            (folder / "error").write_text(f"{error.strerror}: {error.filename}")
            code = 2
        finally:
            os._exit(code)

    def wait(pid):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    rng = random.Random(plan["seed"])
    result = {"kills": 0, "rounds": 0, "seen": []}
    began = time.perf_counter()
    assert wait(child(folder / "whole")) == 0
    seconds = time.perf_counter() - began
    while result["kills"] < plan["kills"]:
        out = folder / f"killed-{result['rounds']}"
        while True:
            pid = child(out)
            time.sleep(rng.uniform(0, seconds))
            os.kill(pid, signal.SIGKILL)
            code = wait(pid)
            if code == 0:
                break
            assert code == -9, code
            result["kills"] += 1
            result["seen"].append([(out / name).exists() for name in ("manifest.json", "conversion.jsonl")])
        result["rounds"] += 1
    for step in range(*plan["steps"]):
        out = folder / f"step-{step}"
        code = wait(child(out, before=step))
        result["last"] = code
        if code == 0:
            break
        assert code == -9, code
        assert wait(child(out)) == 0
    if plan["limit"]:
        result["full"] = wait(child(folder / "full", limit=plan["limit"]))
        assert wait(child(folder / "full")) == 0
    print(json.dumps(result))
""")


def run_killer(folder: pathlib.Path, **plan) -> dict:
    plan = {"seed": 0, "kills": 0, "steps": [0, 0, 1], "limit": 0} | plan
    command = [sys.executable, "-c", KILLER, str(ROOT), str(folder), json.dumps(plan)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    want = open_corpus(folder / "whole")
    names = [f"e{number}" for number in range(2, 11) if number != 5]
    names += [f"b.toy/e{number}" if number < 11 else f"e{number}" for number in range(8, 14)]
    assert ids(want) == names
    others = [path for path in folder.iterdir() if path.is_dir() and path.name != "whole"]
    assert others
    for path in others:
        got = open_corpus(path)
        assert checksums(got) == checksums(want), path
        for ours, theirs in zip(got.manifest.parts, want.manifest.parts, strict=True):
            assert ours.provenance == theirs.provenance
        # A kill in the very last step leaves the lock of a dead process, which the next writer takes over.
        assert sorted({p.name for p in path.iterdir()} - {".lock"}) == ["manifest.json", "parts"]
        assert sorted(p.name for p in (path / "parts").iterdir()) == [part.name for part in got.manifest.parts]
    return json.loads(done.stdout)


def test_killed_at_twenty_random_instants_it_ends_in_the_same_bytes(tmp_path):
    result = run_killer(tmp_path, kills=20)
    assert result["kills"] >= 20
    assert any(journal for _, journal in result["seen"]), "some kill came in the middle"


def test_killed_at_steps_of_its_writing_it_ends_in_the_same_bytes(tmp_path):
    run_killer(tmp_path, steps=[0, 400, 17])


@pytest.mark.slow
def test_killed_before_every_step_of_its_writing_it_ends_in_the_same_bytes(tmp_path):
    result = run_killer(tmp_path, kills=200, seed=1, steps=[0, 10_000, 1])
    assert result["last"] == 0, "the last step was reached"


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    assert run_killer(tmp_path, limit=6_000)["full"] == 2
    assert (tmp_path / "error").read_text() == (
        f"File too large (the parts written are kept: make room, and run the same command again): {tmp_path / 'full'}"
    )


def test_a_damaged_journal_is_one_line(tmp_path):
    log = toy_input(tmp_path, "a.toy", count=9, bad=[6])
    with pytest.raises(ValueError, match="episode 6"):
        convert([log], tmp_path / "c", SMALL)
    journal = tmp_path / "c" / "conversion.jsonl"
    journal.write_bytes(b"[]\n" + journal.read_bytes())
    with pytest.raises(ValueError, match=r"conversion.jsonl is damaged .*; delete it and convert anew"):
        convert([log], tmp_path / "c", SMALL)


def test_a_journal_line_that_was_cut_short_is_dropped(tmp_path):
    log = toy_input(tmp_path, "a.toy", count=9, bad=[6])
    with pytest.raises(ValueError, match="episode 6"):
        convert([log], tmp_path / "c", SMALL)
    with open(tmp_path / "c" / "conversion.jsonl", "ab") as file:
        file.write(b'{"part": {"name"')
    with pytest.raises(ValueError, match="episode 6"):
        convert([log], tmp_path / "c", SMALL)
    assert (tmp_path / "c" / "conversion.jsonl").read_bytes().count(b"\n") == 2


def test_a_log_that_changed_meanwhile_is_another_job(tmp_path):
    log = toy_input(tmp_path, "a.toy", count=9, bad=[6])
    with pytest.raises(ValueError, match="episode 6"):
        convert([log], tmp_path / "c", SMALL)
    changed = toy_input(tmp_path, "a.toy", count=9)
    with pytest.raises(ValueError, match=r"another conversion was begun here .* logs\[0\].state.bytes is \d+ there"):
        convert([changed], tmp_path / "c", SMALL)


def test_episodes_arrive_as_they_were(tmp_path):
    corpus = convert([toy_input(tmp_path, "a.toy", count=3)], tmp_path / "c").corpus
    for got, want in zip(corpus, map(toy_episode, range(3)), strict=True):
        np.testing.assert_array_equal(got.observations, want.observations)
        np.testing.assert_array_equal(got.actions, want.actions)
        np.testing.assert_array_equal(got.rewards, want.rewards)
        assert (got.terminated, got.truncated, got.info) == (want.terminated, want.truncated, want.info)
