"""Mixtures: by weight all along, each corpus in its own order, resumable."""

import json

import numpy as np
import pytest

from tests.corpus.test_windows import counter_columns, take
from worldmodel.corpus import Columns, mixed_batches, window_batches, write_corpus
from worldmodel.spaces import box
from worldmodel.trajectory import Spec, Trajectory

SIZES = {"length": 4, "seed": 3}


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.7, 0.3), (5.0, 1.0, 0.25)])
def test_weights_hold_within_a_hundredth_over_10000_windows(weights):
    corpora = [counter_columns([30 + 7 * i, 5]) for i in range(len(weights))]
    batches = take(mixed_batches(corpora, weights, batch_size=50, **SIZES), 200)
    chosen = np.concatenate([batch["corpus"] for batch in batches])
    assert chosen.shape == (10_000,)
    shares = np.bincount(chosen) / len(chosen)
    np.testing.assert_allclose(shares, np.array(weights) / sum(weights), atol=0.01)
    # And all along, not only in the end.
    for part in np.split(chosen, 10):
        np.testing.assert_allclose(np.bincount(part) / 1000, np.array(weights) / sum(weights), atol=0.01)


def test_each_corpus_keeps_its_own_order_and_exact_epochs():
    corpora = [counter_columns([30, 5]), counter_columns([11, 8, 2])]
    mixed = take(mixed_batches(corpora, (2, 1), batch_size=6, **SIZES), 30)
    for place, corpus in enumerate(corpora):
        own = [
            {name: batch[name][i] for name in batch}
            for batch in mixed
            for i in np.flatnonzero(batch["corpus"] == place)
        ]
        for got, want in zip(own, window_batches(corpus, batch_size=1, **SIZES), strict=False):
            for name, value in want.items():
                np.testing.assert_array_equal(got[name], value[0])


def test_saved_position_and_shards_continue_to_the_bit():
    corpora = [counter_columns([30, 5]), counter_columns([11, 8, 2])]
    whole = take(mixed_batches(corpora, (2, 1), batch_size=4, **SIZES), 12)
    iterator = mixed_batches(corpora, (2, 1), batch_size=4, shard=(1, 2), **SIZES)
    take(iterator, 3)
    fresh = mixed_batches(corpora, (2, 1), batch_size=4, shard=(1, 2), **SIZES)
    fresh.set_state(json.loads(json.dumps(iterator.get_state())))
    for got, want in zip(take(fresh, 3), whole[7::2], strict=True):
        assert {name: got[name].tobytes() for name in got} == {name: want[name].tobytes() for name in want}


def test_memory_and_disk_mix(tmp_path):
    columns = counter_columns([11, 8, 2])
    spec = Spec(box((2,), "float32"), {"type": "Discrete", "n": 10**6, "start": 0})
    stored = write_corpus(tmp_path, spec, [columns.episode(i) for i in range(3)], provenance={}).stored()
    pairs = zip(
        take(mixed_batches([columns, stored], (1, 1), batch_size=4, **SIZES), 5),
        take(mixed_batches([columns, columns], (1, 1), batch_size=4, **SIZES), 5),
        strict=True,
    )
    for got, want in pairs:
        np.testing.assert_array_equal(got["observations"], want["observations"])


def test_what_does_not_mix():
    one = counter_columns([4])
    other = Columns.from_trajectories(
        [Trajectory(np.zeros((3, 5), np.float32), np.zeros(2, np.int64), np.zeros(2, np.float32), True, False)]
    )
    with pytest.raises(ValueError, match=r"corpora 0 and 1 differ in their spaces: .*float32\[5, 2\].*float32\[5, 5\]"):
        mixed_batches([one, other], (1, 1), batch_size=1, **SIZES)
    with pytest.raises(ValueError, match=r"^1 corpora and 2 weights; one for each is needed$"):
        mixed_batches([one], (1, 1), batch_size=1, **SIZES)
    for weight in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"^weight {weight} of a corpus; a positive number is needed$"):
            mixed_batches([one, one], (1, weight), batch_size=1, **SIZES)
    with pytest.raises(ValueError, match=r"^weight 1e-09 is less than a millionth of all weights$"):
        mixed_batches([one, one], (1, 1e-9), batch_size=1, **SIZES)
