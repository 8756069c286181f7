"""Samples of episodes: each turn is learned from once, behind as much of the past as fits."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.codec.text import ByteTokenizer, Kind, TextCodec, TextRules, own_markers, prepare, samples_of
from worldmodel.codec.text.samples import recent
from worldmodel.trajectory import Trajectory

CODEC = TextCodec(ByteTokenizer(), own_markers(ByteTokenizer()), TextRules("keep", 0, 0, 0))


def episode(observations, actions):
    return Trajectory(
        observations=np.array(observations, np.object_),
        actions=np.array(actions, np.object_),
        rewards=np.zeros(len(actions), np.float32),
        terminated=True,
        truncated=False,
    )


@given(
    sizes=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60)), min_size=1, max_size=9), first=st.integers(0, 99)
)
def test_every_turn_is_learned_from_once(sizes, first):
    length = 64
    actions = [chr(65 + i) * n for i, (n, _) in enumerate(sizes)]
    observations = ["-" * first, *(chr(97 + i) * n for i, (_, n) in enumerate(sizes))]
    trajectory = episode(observations, actions)
    samples, cuts = samples_of(trajectory, CODEC, length)
    head, turns = CODEC.pieces(prepare(trajectory, CODEC.rules)[0])
    learned = [t for sample in samples for t in range(sample.first, sample.last)]
    unfit = [t for t, turn in enumerate(turns) if len(head) + len(turn) > length]
    assert cuts.unfit == len(unfit)
    assert learned == [t for t in range(len(turns)) if t not in unfit]
    for sample in samples:
        assert len(sample.tokens) <= length
        assert (sample.tokens.ids[: len(head)] == head.ids).all()
        assert (sample.tokens.kinds == Kind.CLOSER).sum() == sample.last - sample.first
        assert bool(sample.tokens.kinds[: len(head)].any()) == (sample.first == 0)
    whole = CODEC.serialise(prepare(trajectory, CODEC.rules)[0])
    if len(whole) <= length:
        np.testing.assert_array_equal(samples[0].tokens.ids, whole.ids)


def test_half_a_row_of_the_past_stays():
    assert recent(10, [5, 5, 5, 5], 40) == 2
    assert recent(10, [5, 5, 5, 5], 200) == 0
    assert recent(21, [5], 40) == 1
    assert recent(10, [], 40) == 0
