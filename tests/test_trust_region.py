"""The predicate of the trusted region: its threshold by hand, its file, what each way of trust does to a step."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.trust_region import FILE, Trust, TrustRegion, TrustRule

NINE = TrustRegion(np.arange(1, 10, dtype=np.float32), step=5)


def test_threshold_is_the_conformal_quantile():
    # Nine scores 1..9: rank ceil(10 c).
    assert [NINE.threshold(c) for c in (0.1, 0.11, 0.5, 0.8, 0.9)] == [1, 2, 5, 8, 9]
    hundred = TrustRegion(np.arange(1, 100, dtype=np.float32), step=0)
    assert hundred.threshold(0.99) == 99  # exactly ceil(100 x 0.99), however 0.99 is rounded


@pytest.mark.parametrize(
    ("coverage", "message"),
    [
        (0.95, "trust_coverage is 0.95; 9 held-out steps certify at most 0.9"),
        (1.0, "trust_coverage is 1.0; it must lie between 0 and 1"),
        (0.0, "it must lie between 0 and 1"),
        (float("nan"), "trust_coverage is nan; it must lie between 0 and 1"),
    ],
)
def test_a_coverage_that_cannot_be_certified_is_refused(coverage, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        NINE.threshold(coverage)


def test_a_step_that_broke_the_model_counts_as_far_outside():
    region = TrustRegion(np.array([1, 2, 3, np.inf], np.float32), step=0)
    assert region.threshold(0.6) == 3
    with pytest.raises(ValueError, match=r"trust_coverage is 0\.8; on more held-out steps than that leaves out"):
        region.threshold(0.8)


@pytest.mark.parametrize(
    ("trust", "reward", "stops"),
    [
        (Trust.INFO, [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]),
        (Trust.TRUNCATE, [1, 1, 1, 1, 1], [0, 0, 1, 0, 1]),
        (Trust.PENALISE, [1, 1, -2, -2, -2], [0, 0, 0, 0, 0]),
    ],
)
def test_what_a_step_outside_does(trust, reward, stops):
    disagreement = jnp.asarray([0.0, 0.5, 0.50001, 2.0, jnp.nan])
    ended = jnp.asarray([False, True, False, True, False])
    paid, stopped, info = TrustRule(trust, 0.5, 3.0).judge(
        jnp.zeros((5, 2)), jnp.ones(5), ended, {"disagreement": disagreement}
    )
    assert paid.tolist() == reward
    assert stopped.tolist() == [bool(s) for s in stops]
    assert info["outside"].tolist() == [False, False, True, True, True]


def test_saved_and_loaded(tmp_path):
    assert TrustRegion.load(tmp_path) is None
    NINE.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    again = TrustRegion.load(tmp_path)
    assert again is not None and again.step == 5
    np.testing.assert_array_equal(again.disagreement, NINE.disagreement)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("no npz"),
        lambda path: np.savez(path, step=1),
        lambda path: np.savez(path, step=1, disagreement=np.array([2.0, 1.0], np.float32)),
        lambda path: np.savez(path, step=1, disagreement=np.array([1.0, np.nan], np.float32)),
        lambda path: np.savez(path, step=1, disagreement=np.zeros(0, np.float32)),
        lambda path: np.savez(path, step=np.arange(3), disagreement=np.ones(2, np.float32)),
    ],
)
def test_a_damaged_file_is_named(tmp_path, damage):
    NINE.save(tmp_path)
    damage(tmp_path / FILE)
    with pytest.raises(ValueError, match=r"trust\.npz is damaged"):
        TrustRegion.load(tmp_path)


def test_an_unknown_way_of_trust_is_named():
    with pytest.raises(ValueError, match=r"trust is 'penalize'; allowed are ignore, info, truncate, penalise"):
        Trust.of("penalize")
    assert Trust.of("info") is Trust.INFO and Trust.of(Trust.INFO) is Trust.INFO
