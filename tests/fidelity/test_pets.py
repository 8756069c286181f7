"""The peer that the model is measured against: it learns what it should, and says how sure it is."""

import numpy as np
import pytest

from worldmodel.fidelity.pets import MEMBERS, fit


@pytest.mark.slow
def test_it_learns_a_change_and_its_noise():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(4_000, 3)).astype(np.float32)
    change = np.stack([inputs[:, 0] * 0.5, np.abs(inputs[:, 1])], axis=1) + 0.1 * rng.normal(size=(4_000, 2))
    peer = fit(inputs, change, np.arange(4_000) // 20, seed=0, epochs=12)
    assert peer.epochs == 12
    mean, deviation = map(np.asarray, peer.predict(inputs[:500]))
    assert mean.shape == deviation.shape == (MEMBERS, 500, 2)
    truth = np.stack([inputs[:500, 0] * 0.5, np.abs(inputs[:500, 1])], axis=1)
    assert np.sqrt(np.mean((mean.mean(axis=0) - truth) ** 2)) < 0.08
    assert 0.06 < np.median(deviation) < 0.2
    assert np.ptp(mean, axis=0).max() > 1e-4
