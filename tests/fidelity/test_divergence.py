from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import jensenshannon

from worldmodel.fidelity import divergence
from worldmodel.fidelity.classifiers import accuracy_bound
from worldmodel.fidelity.text_match import exact_match, token_f1

PAIR = {"real": [0.5, 0.5], "sim": [0.8, 0.2]}


def test_reference_values():
    assert divergence.total_variation(**PAIR) == pytest.approx(0.3)
    assert divergence.kl(**PAIR) == pytest.approx(0.1927, abs=5e-5)
    assert divergence.jensen_shannon(**PAIR) == pytest.approx(0.0507, abs=5e-5)
    assert divergence.cross_entropy(**PAIR) == pytest.approx(0.9163, abs=5e-5)
    assert divergence.excess_nll(**PAIR) == pytest.approx(0.2231, abs=5e-5)
    assert divergence.excess_nll(**PAIR) == pytest.approx(math.log(1.25))
    assert accuracy_bound(float(divergence.total_variation(**PAIR))) == pytest.approx(0.65)


def test_agreement_with_scipy():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(7), size=(2, 5))
    np.testing.assert_allclose(divergence.kl(real=p, sim=q), stats.entropy(q, p, axis=1), rtol=1e-9)
    np.testing.assert_allclose(divergence.excess_nll(real=p, sim=q), stats.entropy(p, q, axis=1), rtol=1e-9)
    np.testing.assert_allclose(divergence.jensen_shannon(real=p, sim=q), jensenshannon(p, q, axis=1) ** 2, rtol=1e-9)
    entropy = divergence.cross_entropy(real=p, sim=p)
    np.testing.assert_allclose(divergence.excess_nll(real=p, sim=q) + entropy, divergence.cross_entropy(real=p, sim=q))


def test_what_one_side_alone_makes_possible():
    # The simulator makes up the second category: infinite one way, log 2 the other.
    made_up = {"real": [1.0, 0.0], "sim": [0.5, 0.5]}
    assert divergence.kl(**made_up) == math.inf
    assert divergence.excess_nll(**made_up) == pytest.approx(math.log(2))
    assert divergence.jensen_shannon(real=[1.0, 0.0], sim=[0.0, 1.0]) == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="sim must hold probabilities that sum to 1"):
        divergence.kl(real=[0.5, 0.5], sim=[0.5, 0.6])
    with pytest.raises(ValueError, match=r"shape \[2\] and sim \[3\]"):
        divergence.kl(real=[0.5, 0.5], sim=[0.5, 0.3, 0.2])


def test_words():
    assert exact_match("go  north", "go north") == 1.0 and exact_match("go North", "go north") == 0.0
    # Three words in common ("the" once), of five and four.
    assert token_f1("the red door is open", "the door is closed") == pytest.approx(2 * 3 / 9)
    assert token_f1("a a b", "a b b") == pytest.approx(2 / 3)
    assert token_f1("", " ") == 1.0 and token_f1("", "a") == 0.0
