"""Certified regions: what is promised holds, where it is bad is not certified, and the simulator acts on it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fidelity.planted import log, planted_world
from tests.support import untrained_model
from worldmodel.certificate import FILE, Certificate, Node, Region
from worldmodel.envs.control import check_control
from worldmodel.fidelity.certify import certify, hierarchical_bound, judge_regions, risk_p_value
from worldmodel.simulator import Simulator
from worldmodel.trust_region import CertifiedStates, Trust, TrustRule

ASKED = {"tolerance": 1.0, "risk": 0.1, "confidence": 0.9}


def episodes(count: int, length: int, rng: np.random.Generator, bad: float = 0.4):
    """Errors of steps: a tenth of them exceed 1 (hardly) where x <= 1, a share `bad` where x > 1; dependent in time."""
    episode = np.repeat(np.arange(count), length)
    x = rng.normal(0.0, 1.0, (count, 1)) + rng.normal(0.0, 0.7, (count, length))
    mood = rng.normal(0.0, 0.15, (count, 1))
    errors = np.abs(rng.normal(0.0, np.where(x > 1, 1 / 0.8416 if bad == 0.4 else bad, 0.45)) * np.exp(mood))
    return errors.ravel(), episode, x.reshape(-1, 1)


def test_bounds_need_enough_episodes_and_are_their_quantile():
    scores, alone = np.arange(1.0, 10.0), np.arange(9)
    assert hierarchical_bound(scores, alone, 0.05) is None
    assert hierarchical_bound(scores, alone, 0.2) == 8.0
    assert hierarchical_bound(scores, alone, 0.1) == 9.0
    assert hierarchical_bound(np.zeros(0), np.zeros(0, int), 0.5) is None
    # Of each episode all steps together weigh as much as the single one of another.
    twice = hierarchical_bound(np.repeat(scores, 3), np.repeat(alone, 3), 0.2)
    assert twice == 8.0
    assert hierarchical_bound(np.r_[scores, np.inf], np.arange(10), 0.05) is None


def test_a_bound_covers_a_step_of_a_new_episode():
    """Four hundred calibrations of 40 episodes of dependent steps: coverage within 2 points above its target."""
    rng = np.random.default_rng(0)

    def draw(count):
        lengths = rng.integers(1, 30, count)
        mood = np.exp(rng.normal(0, 0.8, count))
        return np.abs(rng.normal(size=lengths.sum())) * np.repeat(mood, lengths), np.repeat(np.arange(count), lengths)

    covered = []
    for _ in range(400):
        bound = hierarchical_bound(*draw(40), 0.2)
        errors, episode = draw(100)
        first = np.r_[0, np.flatnonzero(np.diff(episode)) + 1]
        covered.append(np.mean(errors[first] <= bound))
    assert 0.79 < np.mean(covered) < 0.83


def test_the_p_value_is_valid_and_falls_with_evidence():
    assert risk_p_value(np.zeros(0), 0.1) == 1.0
    assert risk_p_value(np.full(50, 0.3), 0.1) == 1.0
    assert risk_p_value(np.ones(50), 0.1) == 1.0
    # All stakes are the highest allowed: each share of 0 multiplies the capital by 1 + 0.9 / 0.9 * 0.1.
    assert risk_p_value(np.zeros(25), 0.1) == pytest.approx(1.1**-25, rel=0.2)
    rng = np.random.default_rng(1)
    for draw in (lambda: rng.binomial(1, 0.1, 60).astype(float), lambda: rng.beta(1, 9, 60)):
        found = np.array([risk_p_value(draw(), 0.1) for _ in range(2000)])
        assert np.mean(found <= 0.1) <= 0.11  # its mean is exactly the risk; standard error .007
    assert risk_p_value(rng.beta(3, 97, 60), 0.1) < 0.05


def test_bad_states_are_left_out_and_the_rest_keeps_the_risk():
    """Thirty certificates from 120 episodes: what they certify errs too often in at most 10% of them."""
    rng = np.random.default_rng(2)
    test = episodes(4000, 10, rng)
    broken, certified, bad_states = 0, [], []
    features = np.c_[test[2], np.abs(test[2])]
    for seed in range(30):
        found = judge_regions(*episodes(120, 10, rng), ["x"], **ASKED, seed=seed)
        inside = ~np.asarray(found.outside(jnp.asarray(test[2], jnp.float32)))
        certified.append(inside.mean())
        bad_states.append(inside[test[2][:, 0] > 1.2].mean())
        label = found.root.label(features)
        for number in (n for n, region in enumerate(found.regions) if region.certified):
            steps = np.bincount(test[1], label == number, 4000)
            over = np.bincount(test[1], (label == number) & (test[0] > 1.0), 4000)
            if (over[steps > 0] / steps[steps > 0]).mean() > 0.1:
                broken += 1
                break
    assert broken <= 7  # 30 x 10% and two and a half standard errors
    assert np.mean(bad_states) < 0.05
    assert np.mean(certified) > 0.5


def test_a_bias_that_all_members_share_is_seen():
    columns = log(80)
    good, bad = (planted_world(columns, bias=(b, b)) for b in (0.0, 0.08))
    assert all(region.certified for region in certify(good, columns).regions if region.episodes > 18)
    assert not any(region.certified for region in certify(bad, columns).regions)


def test_another_policys_episodes_judge_the_same_rules():
    rng = np.random.default_rng(3)
    first = judge_regions(*episodes(200, 10, rng), ["x"], **ASKED)
    again = judge_regions(*episodes(300, 10, rng), ["x"], **ASKED, rules=first)
    assert [region.rule for region in again.regions] == [region.rule for region in first.regions]
    assert again.root == first.root
    assert max(region.episodes for region in again.regions) > 200
    worse = judge_regions(*episodes(300, 10, rng, bad=3.0), ["x"], **ASKED, rules=first)
    assert sum(r.certified for r in worse.regions) <= sum(r.certified for r in again.regions)


def test_it_is_kept_with_the_run_and_damage_is_said(tmp_path):
    certificate = judge_regions(*episodes(60, 10, np.random.default_rng(4)), ["x"], **ASKED, step=7)
    assert Certificate.load(tmp_path) is None
    certificate.save(tmp_path)
    assert Certificate.load(tmp_path) == certificate
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text()[:80])
    with pytest.raises(ValueError, match=r"certificate\.json is damaged"):
        Certificate.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"risk": 1.0}, "risk is 1.0"), ({"confidence": 0.0}, "confidence is 0.0"), ({"tolerance": 0.0}, "tolerance is")],
)
def test_what_is_asked_must_make_sense(change, words):
    with pytest.raises(ValueError, match=words):
        judge_regions(*episodes(4, 5, np.random.default_rng(5)), ["x"], **{**ASKED, **change})


def test_the_simulator_stops_where_nothing_is_certified():
    model = untrained_model("CartPole-v1")
    middle = float(np.median(model.params["starts"][:, 2]))
    sides = tuple(Region(rule, 0.5, 50, 0.1, 0.0, certified) for rule, certified in (("low", True), ("high", False)))
    root = Node(2, middle, Node(region=0), Node(region=1))
    certificate = Certificate(root, (0, 1, 2, 3), sides, 0.25, 0.1, 0.9, model.step)
    world = dataclasses.replace(model, certificate=certificate)
    rule = check_control(world, trust="truncate").trust
    assert rule == TrustRule(Trust.TRUNCATE, None, 1.0, CertifiedStates(certificate, model.dynamics.codec.observation))
    simulator = Simulator(model.dynamics, None, rule)
    state, _ = simulator.reset(model.params, jax.random.split(jax.random.key(0), 64))
    _, step = jax.jit(lambda state: simulator.step(model.params, state, jnp.zeros(64, jnp.int32)))(state)
    outside = np.asarray(step.obs[:, 2]) > np.float32(middle)
    assert 5 < outside.sum() < 59
    np.testing.assert_array_equal(step.info["outside"], outside)
    np.testing.assert_array_equal(step.truncated, outside & ~np.asarray(step.terminated))
    assert "disagreement" not in step.info
    broken = certificate.outside(jnp.full((1, 4), jnp.nan))
    assert broken.tolist() == [True]
