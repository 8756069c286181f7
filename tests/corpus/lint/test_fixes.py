"""A repaired log is what the clean one was, less what the fault had lost."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpora import real_log
from tests.corpus.lint.logs import NUMBERS, TEXTS, texts, walk, walks
from worldmodel.corpus.lint import CODES, LintReport, lint, planted
from worldmodel.corpus.lint.codes import finding
from worldmodel.corpus.lint.finding import Finding
from worldmodel.corpus.lint.fixes import FIXES, apply, fix, piece
from worldmodel.corpus.lint.structure import Structure
from worldmodel.sources import read


def report(*findings: Finding) -> LintReport:
    return LintReport(findings, 0, 0)


def repaired(log, code, spec=NUMBERS, **evidence):
    return list(apply(log, report(finding(code, "", evidence=evidence)), [code], spec=spec))


def same(first, second) -> bool:
    return (
        np.array_equal(first.observations, second.observations)
        and np.array_equal(first.actions, second.actions)
        and np.array_equal(first.rewards, second.rewards)
        and (first.terminated, first.truncated) == (second.terminated, second.truncated)
    )


def test_every_code_with_a_repair_has_one_and_no_other():
    assert set(FIXES) == {code for code, kind in CODES.items() if kind.repair}


@given(st.integers(-2, 9), st.integers(-2, 9))
def test_a_piece_is_valid_and_keeps_its_end_only_if_it_is_the_last(start, stop):
    steps = [0.1 * i for i in range(7)]
    t = dataclasses.replace(walk("w", 7, duration=steps), action_log_prob=np.zeros(7, np.float32))
    found = piece(t, start, stop)
    start, stop = max(start, 0), min(stop, 7)
    if stop <= start:
        assert found is None
        return
    found.validate(NUMBERS)
    assert len(found) == stop - start
    assert found.truncated is (stop == 7)
    assert found.info["duration"] == steps[start:stop]
    assert np.array_equal(found.observations, t.observations[start : stop + 1])


@pytest.mark.parametrize("late", [-2, -1, 1, 2])
@pytest.mark.parametrize("role", ["action", "reward"])
def test_what_was_shifted_is_moved_back(role, late):
    log = walks(3, 10)
    shifted = {"action": planted.shift_actions, "reward": planted.shift_rewards}[role](log, late)
    back = repaired(shifted, f"{role}-shifted", shift=late)
    for t, original in zip(back, log, strict=True):
        assert same(t, piece(original, max(-late, 0), 10 - max(late, 0)))
        t.validate(NUMBERS)


def test_an_episode_shorter_than_the_shift_is_dropped():
    assert repaired([walk("w", 1)], "action-shifted", shift=1) == []


def test_glued_episodes_are_cut_and_named():
    log = texts(3)
    glued = planted.glue_pairs(log, keep_last=True)
    found = lint(glued, TEXTS)
    back = list(apply(glued, found, ["glued"]))
    named = next(f for f in found.findings if f.code == "glued").episodes
    assert len(back) == len(glued) + len(named)
    whole = {t.info["id"]: t for t in log}
    first = named[0]
    assert same(next(t for t in back if t.info["id"] == first), dataclasses.replace(whole[first], terminated=False))
    assert f"{first}/2" in {t.info["id"] for t in back}


def test_ends_that_are_late_are_put_back():
    log = walks(3, 10)
    kept = repaired(planted.keep_reset(log), "end-late", left=0)
    assert all(same(t, original) for t, original in zip(kept, log, strict=True))
    for t in repaired(planted.shift_ends(log), "end-late", left=1):
        original = next(o for o in log if o.info["id"] == t.info["id"])
        assert np.array_equal(t.observations, original.observations[1 : 2 + len(t)])
        assert not t.truncated


def test_lost_observations_take_their_transition_along():
    log = walks(3, 10)
    for planted_log, code in (
        (planted.drop_last_observation(log), "observations-T"),
        (planted.repeat_last_observation(log), "last-repeated"),
    ):
        for t, original in zip(repaired([*planted_log, walk("good", 4)], code)[:-1], log, strict=True):
            assert same(t, piece(original, 0, 9))
        assert len(repaired([walk("good", 4)], code)[0]) == 4


def test_faulty_episodes_are_dropped_and_the_others_kept():
    bad = walk("bad", 5)
    bad.rewards[2] = np.nan
    assert [t.info["id"] for t in repaired([walk("a", 5), bad, walk("b", 5)], "nan")] == ["a", "b"]
    empty = without_steps()
    assert [t.info["id"] for t in repaired([empty, walk("b", 5)], "empty-episode")] == ["b"]


def without_steps():
    t = walk("empty", 5)
    return dataclasses.replace(t, observations=t.observations[:1], actions=t.actions[:0], rewards=t.rewards[:0])


def test_both_ends_become_the_terminal_one():
    t = repaired([dataclasses.replace(walk("w", 5), terminated=True)], "both-ends")[0]
    assert (t.terminated, t.truncated) == (True, False)


def test_actions_are_clipped_only_when_asked_by_name():
    wide = walk("w", 5)
    wide.actions[3] = 1.5
    structure = Structure(NUMBERS)
    structure.add("w", wide)
    found = report(*structure.findings())
    assert next(apply([wide], found, ["all"], spec=NUMBERS)).actions.max() == 1.5
    clipped = next(apply([wide], found, ["action-outside"], spec=NUMBERS))
    assert clipped.actions.max() == 1.0
    assert clipped.actions.dtype == np.float32
    text = texts(0, count=1)[0]
    text.actions[0] = "x" * 100
    assert repaired([text], "action-outside", spec=TEXTS) == []
    with pytest.raises(ValueError, match="action-outside: clipping needs the log's spec"):
        repaired([wide], "action-outside", spec=None)


def test_copies_are_dropped_and_leaks_are_moved():
    log = walks()
    copy = dataclasses.replace(log[2], info={"id": "copy"})
    found = lint([*log, copy], NUMBERS)
    assert [t.info["id"] for t in apply([*log, copy], found, ["all"])] == [t.info["id"] for t in log]
    log = planted.split(log)
    copy = dataclasses.replace(log[2], info={"id": "copy", "split": "test"})
    found = lint([*log, copy], NUMBERS)
    assert [t.info for t in apply([*log, copy], found, ["leak-duplicate"])][-1] == {"id": "copy", "split": "train"}


def test_unknown_codes_are_refused_at_once():
    with pytest.raises(ValueError, match=r"'actions-shifted' has no repair \(did you mean 'action-shifted'\?\)"):
        apply([], report(), ["actions-shifted"])
    with pytest.raises(ValueError, match="'cut' has no repair"):
        apply([], report(), ["cut"])


def test_a_report_read_back_from_json_repairs_as_well():
    log = planted.shift_actions(walks(12, 40), 1)
    found = finding("action-shifted", "", evidence={"shift": 1})
    again = Finding(**json.loads(json.dumps(report(found).to_json()))["findings"][0])
    assert all(
        same(a, b) for a, b in zip(apply(log, report(found), ["all"]), apply(log, report(again), ["all"]), strict=True)
    )
    assert len(fix("action-shifted", log[0], again)) == 39


@pytest.mark.parametrize(("name", "wrong", "episodes"), [("cartpole", 15, 57), ("pendulum", 56, 56)])
def test_time_limits_of_real_logs_are_found_and_repaired(name, wrong, episodes):
    source = read(f"npz:{real_log(f'imitation/{name}_final.npz')}")
    found = lint(source)
    assert [f.code for f in found.findings if f.severity != "note"] == ["time-limit-terminal"]
    assert len(found.findings[0].episodes) == wrong
    back = list(apply(source, found, ["all"]))
    assert len(back) == episodes
    assert sum(t.truncated for t in back) == wrong
    assert sum(t.terminated for t in back) == episodes - wrong
    for before, after in zip(source, back, strict=True):
        assert np.array_equal(before.observations, after.observations)
        if after.truncated:
            assert before.info["id"] in found.findings[0].episodes
