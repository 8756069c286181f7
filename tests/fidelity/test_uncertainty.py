from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from worldmodel.fidelity import uncertainty


def test_largest_disagreement_by_hand():
    f = np.array([[[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]]])
    assert uncertainty.largest_disagreement(f) == pytest.approx([5.0])
    with pytest.raises(ValueError, match="at least 2 members"):
        uncertainty.largest_disagreement(f[:, :1])


def test_rank_link_is_spearman_and_its_interval_resamples_episodes():
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(20), 15)
    u = rng.gamma(2.0, size=300)
    error = u * rng.gamma(1.0, size=300)
    got = uncertainty.rank_link(u, error, ids)
    assert got.mean == pytest.approx(stats.spearmanr(u, error)[0], abs=1e-9)
    assert 0 < got.lo < got.mean < got.hi < 1 and got.n == 20
    assert uncertainty.rank_link(u, np.exp(u), ids).mean == pytest.approx(1.0)
    # One unit that holds all rows has no interval; without episodes each row is its own.
    assert uncertainty.rank_link(u, error, np.zeros(300)).lo is None
    assert uncertainty.rank_link(u, error).n == 300


def test_what_cannot_be_ranked_is_said():
    assert uncertainty.rank_link([1.0, 1.0], [1.0, 2.0]).why == "uncertainty or error is the same everywhere"
    assert uncertainty.rank_link([1.0, np.nan], [1.0, 2.0]).why == "an uncertainty or an error is not finite"
    assert uncertainty.rank_link([], []).why == "no transitions"
    with pytest.raises(ValueError, match=r"both be \[N\]"):
        uncertainty.rank_link([1.0], [1.0, 2.0])
