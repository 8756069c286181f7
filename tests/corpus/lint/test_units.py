"""A change of unit is found with its factor and its place; a change of behaviour is none."""

import dataclasses

import numpy as np
import pytest

from tests.corpus.lint.toys import CART, cart_log, codes_of, grid_log, sample_of
from worldmodel.corpus.lint import units
from worldmodel.corpus.lint.sample import draw_sample


def scaled(log, dimension, factor, episode, step=0):
    changed = list(log)
    for i in range(episode, len(log)):
        observations = log[i].observations.copy()
        observations[step if i == episode else 0 :, dimension] *= factor
        changed[i] = dataclasses.replace(log[i], observations=observations)
    return changed


@pytest.mark.parametrize("make", [cart_log, grid_log])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_clean_log_is_not_accused(make, seed):
    assert units.check(sample_of(make(seed))) == []


def test_another_behaviour_is_no_other_unit():
    log = cart_log(4)
    assert units.check(sample_of([*log[::2], *log[1::2]])) == []


@pytest.mark.parametrize("factor", [1000.0, 2.54, 0.3048])
@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_factor_and_place_are_found(factor, dimension):
    log = cart_log(4)
    (finding,) = units.check(sample_of(scaled(log, dimension, factor, 17, step=9)))
    assert finding.code == "unit-changed"
    assert finding.evidence["dimension"] == f"[{dimension}]"
    assert finding.evidence["factor"] == pytest.approx(factor, rel=0.05)
    assert finding.evidence["episode"] == log[17].info["id"]
    assert finding.evidence["step"] == pytest.approx(9, abs=2)
    assert finding.episodes[0] == log[17].info["id"] and len(finding.episodes) == len(log) - 17


def test_whole_numbers_are_compared_by_their_values():
    log = grid_log(4)
    (finding,) = units.check(sample_of(scaled(log, 1, 10, 20)))
    assert finding.evidence["factor"] == 10
    assert (finding.evidence["episode"], finding.evidence["step"]) == (log[20].info["id"], 0)


def test_values_that_only_differ_are_no_other_unit():
    """A goal drawn for every episode."""
    rng = np.random.default_rng(0)
    log = []
    for t in cart_log(4):
        goal = np.full((len(t) + 1, 1), rng.uniform(-1, 1))
        log.append(dataclasses.replace(t, observations=np.concatenate([t.observations[:, :2], goal], axis=1)))
    assert units.check(draw_sample(log, CART)) == []


@pytest.mark.parametrize("episodes", [0, 1, 2])
def test_a_tiny_log_is_not_judged(episodes):
    assert codes_of(units.check(draw_sample(cart_log(1)[:episodes], CART))) == []
