from __future__ import annotations

import json
import math

import numpy as np
import pytest

from worldmodel.fidelity import sliced
from worldmodel.fidelity.fidelity_index import fidelity_index, gaussian, halves_index, resampled_halves
from worldmodel.fidelity.two_sample import energy_distance, random_directions, sliced_wasserstein


def test_reference_value():
    assert fidelity_index(sim=0.3, floor=0.1, null=0.9) == pytest.approx(0.75)
    assert math.isnan(fidelity_index(sim=0.3, floor=0.1, null=0.1))


def sample(seed: int, *, bias: float = 0.0, episodes: int = 20, steps: int = 12):
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(episodes), steps)
    given = 0.3 * rng.normal(size=(episodes, 2))[ids] + rng.normal(size=(len(ids), 2))
    real, sim = (given + shift + 0.3 * rng.normal(size=given.shape) for shift in (0.0, bias))
    return *(np.concatenate([given, side], axis=1) for side in (real, sim, np.zeros_like(real))), ids


def test_distances_by_hand():
    real, sim, null, ids = sample(0)
    got = halves_index(real, sim, null, ids, seed=4)
    half = resampled_halves(20, 4, 1)[0][ids]
    for name, side in (("floor", real), ("sim", sim), ("null", null)):
        one, two = energy_distance(real[half], side[~half]), energy_distance(real[~half], side[half])
        assert getattr(got, name) == pytest.approx(0.5 * (one + two), rel=1e-9)
    assert got.excess.mean == pytest.approx(got.sim - got.floor)
    assert got.phi.mean == pytest.approx(fidelity_index(sim=got.sim, floor=got.floor, null=got.null))
    json.dumps(got.to_json(), allow_nan=False)
    # Rows may come in any order.
    mixed = np.random.default_rng(1).permutation(len(ids))
    again = halves_index(real[mixed], sim[mixed], null[mixed], ids[mixed], seed=4)
    assert again.phi.mean == pytest.approx(got.phi.mean) and again.phi.lo == pytest.approx(got.phi.lo)


def test_sliced_by_hand():
    real, sim, _, ids = sample(0)
    got = sliced.sliced_halves(real, sim, ids, seed=4)
    half, directions = resampled_halves(20, 4, 1)[0][ids], random_directions(4, sliced.DIRECTIONS, 4)
    wanted = [sliced_wasserstein(real[h], sim[~h], directions) for h in (half, ~half)]
    assert got["sim"] == pytest.approx(np.mean(wanted), rel=1e-9)
    assert got["excess"]["mean"] == pytest.approx(got["sim"] - got["floor"])


@pytest.mark.parametrize("dissimilarity", [None, gaussian(0.2)])
def test_perfect_and_null_simulators_have_index_one_and_zero(dissimilarity):
    options = {} if dissimilarity is None else {"dissimilarity": dissimilarity}
    perfect, hits = [], 0
    for seed in range(40):
        real, sim, null, ids = sample(seed)
        got = halves_index(real, sim, null, ids, seed=seed, repetitions=200, **options)
        perfect.append(got.phi.mean)
        hits += got.phi.lo <= 1.0 <= got.phi.hi
        if seed < 3:
            assert halves_index(real, null, null, ids, seed=seed, **options).phi.mean == pytest.approx(0.0)
    # Four standard errors (false alarm 6e-5); an interval that covers 90% is accepted (false alarm below 1e-4 at 28).
    assert abs(np.mean(perfect) - 1.0) < 4 * np.std(perfect, ddof=1) / math.sqrt(40) + 0.01
    assert hits >= 28


def test_a_biased_simulator_lies_between():
    real, sim, null, ids = sample(0, bias=0.8)
    got = halves_index(real, sim, null, ids)
    assert got.excess.lo > 0 and got.phi.hi < 1.0
    assert sliced.sliced_halves(real, sim, ids)["excess"]["lo"] > 0


def test_too_few_episodes_are_said():
    real, sim, null, ids = sample(0, episodes=3)
    got = halves_index(real, sim, null, ids)
    assert got.phi.why == "two halves need at least 4 episodes; there are 3" and got.sim is None
    assert sliced.sliced_halves(real, sim, ids)["excess"]["why"].endswith("there are 3")
    with pytest.raises(ValueError, match="must share one shape"):
        halves_index(real, sim[:, :2], null, ids)
