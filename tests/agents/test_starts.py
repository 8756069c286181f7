"""Starts are drawn as their outcomes vary, never less than the floor; coverage by hand; draws resume."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from scipy import stats

from worldmodel.agents.starts import StartSelector


def told(**how) -> StartSelector:
    """Four starts: one always won, one always lost, one that varies by 1, one by 3."""
    selector = StartSelector(4, floor=0.2, **how)
    selector.tell([0, 1, 2, 3], [[5, 5], [0, 0], [1, 3], [0, 6]])
    return selector


def test_probabilities_by_hand():
    np.testing.assert_allclose(told().probabilities, [0.05, 0.05, 0.05 + 0.8 / 4, 0.05 + 0.8 * 3 / 4])


def test_what_was_never_tried_counts_as_most_varied():
    selector = StartSelector(3, floor=0.3)
    np.testing.assert_allclose(selector.probabilities, np.full(3, 1 / 3))
    selector.tell([0], [[0, 4]])  # a spread of 2, and so for the others
    np.testing.assert_allclose(selector.probabilities, np.full(3, 1 / 3))
    selector.tell([1], [[1, 1]])
    np.testing.assert_allclose(selector.probabilities, [0.1 + 0.35, 0.1, 0.1 + 0.35])
    selector.tell([0, 0, 2], [[1, 1]] * 3)  # half of the spread is forgotten each time
    np.testing.assert_allclose(selector.probabilities, [0.8, 0.1, 0.1])


def test_where_nothing_varies_draws_are_uniform():
    selector = StartSelector(3)
    selector.tell([0, 1, 2], np.ones((3, 4)))
    np.testing.assert_allclose(selector.probabilities, np.full(3, 1 / 3))
    assert selector.coverage()["flat"] is None, "nothing was drawn yet"
    selector.draw(1)
    assert selector.coverage()["flat"] == 1.0


def test_draws_have_their_probabilities():
    selector = told(seed=1)
    counts = np.bincount(selector.draw(4_000), minlength=4)
    assert stats.chisquare(counts, 4_000 * selector.probabilities).pvalue > 1e-4  # a false alarm once in 10,000 seeds


def test_coverage_by_hand():
    selector = StartSelector(4)
    assert selector.coverage() == {"drawn": 0, "tried": 0.0, "effective": None, "largest": None, "flat": None}
    state = selector.get_state()
    selector.set_state({**state, "drawn": [2, 2, 0, 0], "groups": 4, "flat": 1})
    found = selector.coverage()
    assert found == pytest.approx({"drawn": 4, "tried": 0.5, "effective": 0.5, "largest": 0.5, "flat": 0.25})


def test_selection_narrows_and_the_floor_keeps_it_wide():
    effective = []
    for floor in (0.02, 0.5, 1.0):
        selector = StartSelector(50, floor=floor, seed=0)
        selector.tell(np.arange(50), np.array([[0.0, float(i == 7)] for i in range(50)]))
        selector.draw(2_000)
        effective.append(selector.coverage()["effective"])
    assert effective[0] < 0.1 < effective[1] < effective[2]
    assert effective[2] > 0.95


def test_draws_resume():
    selector = told(seed=3)
    selector.draw(5)
    state = json.loads(json.dumps(selector.get_state()))
    want = selector.draw(20)
    again = StartSelector(4, floor=0.2, seed=99)
    again.set_state(state)
    np.testing.assert_array_equal(again.draw(20), want)
    with pytest.raises(ValueError, match="the state is of 4 starts, not of 5"):
        StartSelector(5).set_state(state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StartSelector(0), "starts is 0; at least 1 is needed"),
        (lambda: StartSelector(3, floor=0.0), "floor of StartSelector is 0.0; more than 0 and at most 1 is allowed"),
        (lambda: StartSelector(3, memory=1.0), "memory of StartSelector is 1.0"),
        (lambda: StartSelector(3).tell([0], [[1.0]]), "starts have shape (1,), returns (1, 1)"),
        (lambda: StartSelector(3).tell([3], [[1.0, 2.0]]), "starts must be integers in 0..2"),
        (lambda: StartSelector(3).tell([0.5], [[1.0, 2.0]]), "starts must be integers in 0..2"),
        (lambda: StartSelector(3).tell([0], [[1.0, np.nan]]), "returns must be finite"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
