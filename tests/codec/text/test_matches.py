"""Turns that are exactly right, counted from the likeliest tokens."""

from __future__ import annotations

import numpy as np
import pytest

from worldmodel.codec.text import ByteTokenizer, Kind, TextCodec, TextEpisode, own_markers
from worldmodel.codec.text.matches import matches_of

CODEC = TextCodec(ByteTokenizer(), own_markers(ByteTokenizer()))
EPISODE = TextEpisode(None, ("begin", "one", "", "three"), ("a", "b", "c"), (0.0, 0.5, 1.0), True)
TOKENS = CODEC.serialise(EPISODE)
CLOSERS = np.flatnonzero(TOKENS.kinds == Kind.CLOSER)
ENDS = np.flatnonzero(TOKENS.kinds == Kind.END)


X = ord("x")


def found(*places, other=X):
    best = TOKENS.ids.copy()
    best[list(places)] = other
    row = matches_of(TOKENS.ids, TOKENS.kinds, best, CODEC.markers)
    return [x.tolist() for x in row]


RIGHT = [[True] * 3, [True] * 3, [True] * 3, [False, False, True]]


def spoilt(which, turn):
    return [[not (i == which and t == turn) and v for t, v in enumerate(row)] for i, row in enumerate(RIGHT)]


@pytest.mark.parametrize(
    ("places", "want"),
    [
        ([], RIGHT),
        ([ENDS[1] - 3], spoilt(0, 0)),  # the first token of "one"
        ([ENDS[1]], spoilt(0, 0)),  # where it ends
        ([ENDS[2]], spoilt(0, 1)),  # an empty observation has nothing but its end
        ([ENDS[3] - 1], spoilt(0, 2)),
        ([ENDS[0], ENDS[0] - 2], RIGHT),  # the first observation is no turn's
        ([CLOSERS[1] - 1], spoilt(1, 1)),  # the last digit of 0.5
        ([CLOSERS[0] + 2], RIGHT),  # what is given is not looked at
    ],
)
def test_one_wrong_token(places, want):
    assert found(*places) == want


def test_closers():
    both = spoilt(2, 1)
    both[1][1] = False  # a further digit where the reward should end
    assert found(CLOSERS[1], other=ord("5")) == both
    assert found(CLOSERS[1], other=CODEC.markers.over) == spoilt(2, 1)
    nothing = matches_of(TOKENS.ids[:3], TOKENS.given().kinds[:3], TOKENS.ids[:3], CODEC.markers)
    assert all(len(column) == 0 for column in nothing)
