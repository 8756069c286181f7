"""Packed rows: every transition once an epoch, segments of one episode each, as full as can be, resumable."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpus.test_windows import counter_columns, take
from worldmodel.corpus import packed_batches, write_corpus
from worldmodel.corpus.packing import PackedSource, best_fit
from worldmodel.spaces import box
from worldmodel.trajectory import Spec

ACTION = {"type": "Discrete", "n": 10**6, "start": 0}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 23), min_size=1, max_size=9), st.integers(1, 20), st.integers(1, 5), st.integers(0, 99))
def test_an_epoch_holds_every_transition_once_in_segments_of_one_episode(lengths, length, batch_size, seed):
    columns = counter_columns(lengths)
    source = PackedSource(columns, length=length, batch_size=batch_size, seed=seed)
    rows = len(source._pack(0))
    batches = [source[i] for i in range(-(-rows // batch_size))]
    whole = {name: np.concatenate([batch[name] for batch in batches])[:rows] for name in batches[0]}
    real = whole["mask"] == 1
    assert sorted(whole["actions"][real].tolist()) == sorted(columns.actions.tolist())
    for row in range(rows):
        segments = whole["segment"][row]
        kept = int(real[row].sum())
        assert kept >= 1
        np.testing.assert_array_equal(real[row], np.arange(length) < kept)
        np.testing.assert_array_equal(segments > 0, real[row])
        assert not whole["position"][row, kept:].any()
        assert not whole["rewards"][row, kept:].any()
        assert not whole["terminated"][row, kept:].any()
        np.testing.assert_array_equal(whole["actions"][row, kept:], whole["actions"][row, kept - 1])
        assert segments[:kept].tolist() == sorted(segments[:kept].tolist())
        for segment in range(1, int(segments.max()) + 1):
            inside = np.flatnonzero(segments == segment)
            before, after = whole["observations"][row, inside], whole["next_observations"][row, inside]
            episode, first = before[0].astype(int)
            steps = first + np.arange(len(inside))
            np.testing.assert_array_equal(before, np.stack([np.full(len(inside), episode), steps], 1))
            np.testing.assert_array_equal(after - before, [[0, 1]] * len(inside))
            np.testing.assert_array_equal(whole["position"][row, inside], np.arange(len(inside)))
            actions = 1000 * episode + steps
            np.testing.assert_array_equal(whole["actions"][row, inside], actions)
            np.testing.assert_array_equal(whole["rewards"][row, inside], (actions + 0.5).astype(np.float32))
            ends = (steps == lengths[episode] - 1) & (episode % 2 == 0)
            np.testing.assert_array_equal(whole["terminated"][row, inside], ends)
            paid = np.where(steps > 0, actions - 0.5, np.nan).astype(np.float32)
            np.testing.assert_array_equal(whole["last_reward"][row, inside], paid)
        assert np.isnan(whole["last_reward"][row, kept:]).all()


def test_short_episodes_fill_the_rows():
    rng = np.random.default_rng(0)
    columns = counter_columns(rng.integers(5, 60, 500).tolist())
    source = PackedSource(columns, length=64, batch_size=16, seed=0)
    filled = np.mean([source[i]["mask"].mean() for i in range(len(source._pack(0)) // 16)])
    assert filled > 0.97  # one episode a row would fill half


def test_best_fit_by_hand():
    # 6 opens row 0, 5 row 1, 5 row 2; 4 fits row 0 tightest; 3 and 2 fill row 1.
    assert best_fit(np.array([2, 6, 4, 5, 5, 3]), 10).tolist() == [2, 0, 0, 1, 1, 2]
    assert best_fit(np.array([10, 10, 10]), 10).tolist() == [0, 1, 2]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_no_row_overflows(lengths):
    rows = best_fit(np.array(lengths), 30)
    filled = np.bincount(rows, weights=lengths)
    assert (filled > 0).all()
    assert (filled <= 30).all()
    assert len(filled) <= 11 / 9 * -(-sum(lengths) // 30) + max(1, len([n for n in lengths if n > 15]))


def test_saved_position_shards_and_disk_continue_to_the_bit(tmp_path):
    lengths = [9, 14, 2, 30, 5, 5]
    columns = counter_columns(lengths)
    spec = Spec(box((2,), "float32"), ACTION)
    corpus = write_corpus(tmp_path, spec, [columns.episode(i) for i in range(len(lengths))], provenance={})
    arguments = {"length": 16, "batch_size": 3, "seed": 4}
    whole = take(packed_batches(columns, **arguments), 12)
    iterator = packed_batches(corpus.stored(), **arguments, shard=(1, 2))
    take(iterator, 2)
    fresh = packed_batches(corpus.stored(), **arguments, shard=(1, 2))
    fresh.set_state(json.loads(json.dumps(iterator.get_state())))
    for got, want in zip(take(fresh, 4), whole[5::2], strict=True):
        assert {name: got[name].tobytes() for name in got} == {name: want[name].tobytes() for name in want}


def test_bad_sizes():
    with pytest.raises(ValueError, match=r"^length of windows is 0; at least 1 is needed$"):
        packed_batches(counter_columns([3]), length=0, batch_size=1, seed=0)
