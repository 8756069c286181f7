import numpy as np
import pytest

from worldmodel.corpus.split import held_out_mask, split_of

KNOWN = ["episode-00006", "episode-00010", "episode-00032"]
MANY = [f"CartPole-v1/0/{i:06d}" for i in range(5000)]


def test_a_tenth_is_held_out():
    share = np.mean([split_of(name) == "held_out" for name in MANY])
    assert abs(share - 0.1) < 4 * np.sqrt(0.09 / len(MANY))  # four standard deviations: a false alarm in 16,000


def test_mask_follows_the_id_alone():
    mask = held_out_mask(MANY)
    np.testing.assert_array_equal(mask, [split_of(name) == "held_out" for name in MANY])
    order = np.random.default_rng(0).permutation(len(MANY))
    np.testing.assert_array_equal(held_out_mask([MANY[i] for i in order]), mask[order])


def test_known_ids_stay_where_they_are():
    # Fixed for ever: a corpus recorded today must split the same way tomorrow.
    assert [name for name in (f"episode-{i:05d}" for i in range(40)) if split_of(name) == "held_out"] == KNOWN


@pytest.mark.parametrize("side", ["train", "held_out"])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_both_sides_have_one_of_few(side, count):
    ids = [name for name in MANY if split_of(name) == side][:count]
    mask = held_out_mask(ids)
    assert mask.any()
    assert not mask.all()
    assert min(mask.sum(), (~mask).sum()) == 1


def test_one_episode_stays_whole():
    assert len(held_out_mask(["a"])) == 1
    assert len(held_out_mask([])) == 0
