"""Faults planted in texts are found, named and placed; clean texts are not accused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.corpora import real_log
from tests.corpus.lint.logs import NUMBERS, TEXTS, texts, walks
from worldmodel.corpus.lint import planted, text, text_ends
from worldmodel.corpus.lint.sample import draw_sample
from worldmodel.sources import read


def findings(log, spec=TEXTS):
    sample = draw_sample(log, spec)
    return {each.code: each for each in [*text.check(sample), *text_ends.check(sample)]}


@pytest.mark.parametrize("seed", range(3))
def test_clean_texts_are_not_accused(seed):
    assert findings(texts(seed)) == {}


@pytest.mark.parametrize("rows", [-2, -1, 1, 2])
def test_shifted_actions_are_found_with_their_shift(rows):
    found = findings(planted.shift_actions(texts(1), rows))["action-shifted"]
    assert found.evidence["shift"] == rows
    assert f"{abs(rows)} step(s) too {'late' if rows > 0 else 'early'}" in found.message


@pytest.mark.parametrize("rows", [-1, 1])
def test_shifted_rewards_are_found_with_their_shift(rows):
    found = findings(planted.shift_rewards(texts(2), rows))
    assert set(found) == {"reward-shifted"}
    assert found["reward-shifted"].evidence["shift"] == rows


def test_glued_episodes_are_found_at_the_right_step():
    log = texts(3)
    for keep_last in (False, True):
        found = findings(planted.glue_pairs(log, keep_last=keep_last))["glued"]
        lengths = {log[i].info["id"]: len(log[i]) for i in range(0, len(log), 2)}
        assert len(found.episodes) >= 8
        for name, steps in found.evidence["steps"].items():
            assert steps == [lengths[name] - (not keep_last)]


def test_late_ends_say_how_many_steps_are_anothers():
    assert findings(planted.shift_ends(texts(4)))["end-late"].evidence["left"] == 1
    assert findings(planted.keep_reset(texts(4)))["end-late"].evidence["left"] == 0


def test_repeated_last_observations_are_found():
    found = findings(planted.repeat_last_observation(texts(5)))
    assert set(found) == {"last-repeated"}
    assert found["last-repeated"].evidence["share"] == 1.0


def test_time_limits_stored_as_terminals_are_named():
    log = texts(6)
    cut = [t.info["id"] for t in log if t.truncated]
    assert 4 <= len(cut) < len(log)
    found = findings(planted.limits_as_terminals(log))
    assert set(found) == {"time-limit-terminal"}
    assert list(found["time-limit-terminal"].episodes) == cut


def test_what_cannot_be_said_is_a_note():
    few = findings(texts(0, count=4))
    assert "ends of texts: 4 episodes; 8 are needed" in few["not-checked"].message
    constant = findings([dataclasses.replace(t, rewards=np.ones(len(t), np.float32)) for t in texts(0)])
    assert constant["not-checked"].evidence["why"] == "rewards never change"
    assert findings(walks(), NUMBERS) == {}


@pytest.mark.parametrize("texts_of", [lambda n: ["same"] * n, lambda n: [""] * n, lambda n: ["{{}[" * 4000] * n])
def test_odd_texts_are_read(texts_of):
    def odd(t):
        column = np.empty(len(t) + 1, np.object_)
        column[:] = texts_of(len(t) + 1)
        return dataclasses.replace(t, observations=column)

    assert not {"action-shifted", "reward-shifted", "glued", "end-late"} & set(findings([odd(t) for t in texts(0)]))


@pytest.mark.parametrize(
    ("log", "count"),
    [("tau_bench_airline/gpt-4o-airline.json", 80), ("intercode_sql/ic_sql_multiturn_gpt-4_10_turns.json.gz", 150)],
)
def test_real_texts_are_not_accused_and_their_shifted_actions_are_found(log, count):
    source = read(f"chat:{real_log(log)}")
    episodes = list(source)[:count]
    assert not {c for c, f in findings(episodes, source.spec).items() if f.severity != "note"}
    shifted = draw_sample(planted.shift_actions(episodes, 1), source.spec)
    assert {each.code: each.evidence.get("shift") for each in text.check(shifted)}["action-shifted"] == 1
