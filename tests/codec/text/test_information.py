"""Information classes of turns, and the tables of their weights."""

from __future__ import annotations

import numpy as np
import pytest

from worldmodel.codec.text.information import CLASSES, class_of, measures, weights_of


@pytest.mark.parametrize(
    ("action", "observation", "name"),
    [
        ("cat notes", "three blind mice see how they run and more of it", "retrieval"),
        ("find a b", "a b a c d e f", "expansion"),
        ("open the red door", "It opens.", "action"),
        ("sort z y x w", "x y z", "boilerplate"),
        ("one two three four five", "one two", "transform"),
        ("echo hello", "echo hello", "echo"),
        ("a b", "a b c", "boilerplate"),
        ("a b c d", "a e", "action"),
        ("", "", "action"),
    ],
)
def test_classes(action, observation, name):
    assert CLASSES[class_of(action, observation)] == name


def test_measures_count_words_with_repetition():
    overlap, novelty, ratio = measures("get get user", "user: mia, age 3")
    assert (overlap, novelty, ratio) == (pytest.approx(1 / 3), pytest.approx(3 / 4), pytest.approx(4 / 3))
    assert measures("", "word word") == (0.0, 1.0, 2.0)
    assert measures("word", "") == (0.0, 1.0, 1.0)


def test_tables():
    assert weights_of("off").tolist() == [1.0] * len(CLASSES)
    paper = dict(zip(CLASSES, weights_of("paper").tolist(), strict=True))
    assert paper == {**dict.fromkeys(CLASSES, 1.0), "transform": 0.5} | {
        "boilerplate": pytest.approx(0.1),
        "echo": pytest.approx(0.05),
    }
    own = weights_of("echo=0, action = 2.5")
    assert own[CLASSES.index("echo")] == 0.0 and own[CLASSES.index("action")] == np.float32(2.5)
    assert own.sum() == len(CLASSES) - 2 + 2.5
    with pytest.raises(ValueError, match="information class 'eco' is unknown"):
        weights_of("eco=1")
    with pytest.raises(ValueError, match="weight of echo is '-1'"):
        weights_of("echo=-1")
