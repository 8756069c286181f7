"""Copies are found, and what chance makes alike is not; what crosses a split is said."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.corpus.lint.logs import GRID, NUMBERS, TEXTS, texts, turns, walk, walks
from worldmodel.corpus.lint.duplicates import Copies
from worldmodel.corpus.lint.hashes import hash_rows, running
from worldmodel.corpus.lint.sample import draw_sample
from worldmodel.corpus.split import split_of
from worldmodel.trajectory import Trajectory


def findings(log, spec=NUMBERS, split_by="id"):
    copies = Copies(spec)
    for i, trajectory in enumerate(log):
        copies.add(i, trajectory)
    return {each.code: each for each in copies.findings(draw_sample(log, spec), split_by)}


def renamed(trajectory: Trajectory, name: str, **info) -> Trajectory:
    return dataclasses.replace(trajectory, info={**trajectory.info, "id": name, **info})


def cut(trajectory: Trajectory, start: int, stop: int, name: str) -> Trajectory:
    return dataclasses.replace(
        renamed(trajectory, name),
        observations=trajectory.observations[start : stop + 1],
        actions=trajectory.actions[start:stop],
        rewards=trajectory.rewards[start:stop],
    )


@pytest.mark.parametrize(("log", "spec"), [(walks(), NUMBERS), (texts(), TEXTS)])
def test_a_copy_under_another_id_is_found(log, spec):
    assert findings(log, spec) == {}
    found = findings([*log, renamed(log[3], "copy")], spec)["duplicate"]
    assert list(found.episodes) == ["copy"]
    assert found.evidence["pairs"] == [{"episode": "copy", "of": log[3].info["id"]}]
    assert found.fix == "--fix duplicate"


def test_short_episodes_of_a_small_world_are_alike_by_chance():
    log = [turns(f"t{i}", 3, seed=i) for i in range(60)]
    assert len({t.observations.tobytes() + t.actions.tobytes() for t in log}) < 60
    assert "duplicate" not in findings(log, GRID)
    long = turns("long", 60, seed=99)
    assert list(findings([*log, long, renamed(long, "again")], GRID)["duplicate"].episodes) == ["again"]


def test_recorded_seeds_tell_a_copy_from_chance_in_a_small_world():
    log = [turns(f"t{i}", 60, seed=i) for i in range(5)]
    same = [renamed(log[0], "a", seed=1), renamed(log[0], "b", seed=1), *log[1:]]
    other = [renamed(log[0], "a", seed=1), renamed(log[0], "b", seed=2), *log[1:]]
    assert "duplicate" in findings(same, GRID)
    assert "duplicate" not in findings(other, GRID)


def test_a_copied_piece_is_found_and_rounding_does_not_hide_it():
    log = walks(12, steps=80)
    piece = cut(log[4], 20, 70, "piece")
    rounded = dataclasses.replace(piece, observations=piece.observations * np.float32(1 + 1e-6))
    for copy in (piece, rounded):
        found = findings([*log, copy])
        assert set(found) - {"leak-duplicate"} == {"near-duplicate"}
        assert found["near-duplicate"].evidence["pairs"] == [{"episode": "piece", "of": "w4"}]


def test_a_shared_beginning_is_no_copy():
    # One start and a policy that begins alike: twelve episodes share their first 16 steps.
    log = walks(12, steps=80)
    same = walk("first", 16, seed=77)
    begun = [
        dataclasses.replace(
            t,
            observations=np.concatenate([same.observations[:-1], t.observations[16:]]),
            actions=np.concatenate([same.actions, t.actions[16:]]),
        )
        for t in log
    ]
    assert findings(begun) == {}


def test_a_stretch_in_which_nothing_happens_is_no_copy():
    log = [
        dataclasses.replace(t, observations=np.concatenate([t.observations[:40], np.zeros((41, 3), np.float32)]),
                            actions=np.concatenate([t.actions[:40], np.zeros((40, 1), np.float32)]))
        for t in walks(8, steps=80)
    ]  # fmt: skip
    assert findings(log) == {}


def test_a_leak_goes_by_the_named_split_or_by_the_id():
    log = [renamed(t, t.info["id"], split="train" if i < 9 else "test") for i, t in enumerate(walks())]
    assert findings(log) == {}
    found = findings([*log, renamed(log[2], "copy", split="test")])["leak-duplicate"]
    assert found.message == "1 episodes are on both sides of the split: copy (test) = w2 (train)"
    assert found.severity == "error"
    first_is_held_out = findings([*log, renamed(log[10], "copy", split="train")])["leak-duplicate"]
    assert list(first_is_held_out.episodes) == ["w10"]
    log = walks()
    held_out = next(f"x{i}" for i in range(100) if split_of(f"x{i}") == "held_out")
    train = next(f"x{i}" for i in range(100) if split_of(f"x{i}") == "train")
    source = next(t for t in log if split_of(t.info["id"]) == "train")
    assert "leak-duplicate" in findings([*log, renamed(source, held_out)])
    assert "leak-duplicate" not in findings([*log, renamed(source, train)])


def test_a_corpus_split_by_a_key_leaks_by_that_key():
    log = [renamed(t, t.info["id"], task=f"task{i}") for i, t in enumerate(walks())]
    held_out = next(f"task{i}" for i in range(100) if split_of(f"task{i}") == "held_out")
    source = next(t for t in log if split_of(t.info["task"]) == "train")
    copy = renamed(source, source.info["id"] + "!", task=held_out)
    assert "leak-duplicate" in findings([*log, copy], split_by="task")


def test_a_key_on_both_sides_is_a_fault_only_where_the_split_goes_by_it():
    def log(task, split):
        return [walk(f"w{i}", 8, seed=i, task=task(i), split=split(i)) for i in range(80)]

    by_task = log(lambda i: i // 4, lambda i: "test" if i // 4 >= 16 else "train")
    assert findings(by_task) == {}
    slipped = log(lambda i: i // 4, lambda i: "test" if i // 4 >= 16 or i == 3 else "train")
    found = findings(slipped)["leak-key"]
    assert found.evidence["examples"] == [0]
    assert list(found.episodes) == ["w3"]
    by_episode = findings(log(lambda i: i // 4, lambda i: "test" if i % 4 == 3 else "train"))
    assert by_episode["shared-key"].severity == "note"
    assert "leak-key" not in by_episode


def test_an_id_that_comes_twice_is_found():
    found = findings([*walks(3), walk("w1", seed=50)])["id-repeated"]
    assert found.message == "1 ids are of more than one episode: first w1, 2 times"


def test_hashes_ignore_rounding_and_see_everything_else():
    t = walk("w", 20)
    rows = hash_rows(t.observations, t.actions)
    assert np.mean(rows == hash_rows(t.observations.astype(np.float64) * (1 + 1e-9), t.actions)) > 0.9
    other = np.array(t.actions)
    other[7] += 0.1
    changed = hash_rows(t.observations, other) != rows
    assert changed.tolist() == [i == 7 for i in range(20)]
    assert (running(rows)[:7] == running(rows[:7])).all()
    assert not (running(rows)[7:] == running(hash_rows(t.observations, other))[7:]).any()
