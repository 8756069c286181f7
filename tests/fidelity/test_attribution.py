"""The waterfall: slices that add up, intervals by episode, regions that are found on other episodes than they judge."""

import dataclasses
import json

import numpy as np
import pytest

from worldmodel.fidelity.attribution import attribute, benjamini_hochberg, difference, judging, slices
from worldmodel.fidelity.partition import find_regions, named_features
from worldmodel.fidelity.value_residuals import Residuals, Visits

EPISODES, STEPS = 211, 13


@pytest.fixture
def residuals() -> Residuals:
    """Every step of every episode visited; a fault of .5 a step where the second feature is above 1, from step 7 on."""
    rng = np.random.default_rng(0)
    episode, step = np.divmod(np.arange(EPISODES * STEPS), STEPS)
    parts = 0.1 * rng.normal(size=(len(episode), 3))
    return made(Visits(episode, step, np.ones(len(episode))), parts, rng)


def made(visits: Visits, parts: np.ndarray, rng: np.random.Generator) -> Residuals:
    """With promises of any size at three milestones."""
    episodes = int(visits.episode.max()) + 1
    promised = np.concatenate([rng.normal(5.0, 1.0, (episodes, 2)), np.zeros((episodes, 1))], axis=1)
    return Residuals(visits, parts, np.array([0, 6, STEPS]), promised, rng.normal(2.0, 1.0, (episodes, 2)), 10)


def features_of(residuals: Residuals) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(len(residuals.parts), 2))


def test_slices_of_each_kind_add_up(residuals):
    sim = residuals.promised[:, 0] + 1.0
    out = attribute(residuals, sim)
    net = out["net"]["mean"]
    assert out["initial"]["mean"] == pytest.approx(1.0)
    assert out["gap"]["mean"] == pytest.approx(1.0 + net)
    assert [(h["from"], h["to"]) for h in out["horizon"]] == [(0, 6), (6, STEPS)]
    assert sum(h["net"]["mean"] for h in out["horizon"]) == pytest.approx(net)
    assert out["gross"] == pytest.approx(sum(abs(h["net"]["mean"]) for h in out["horizon"]))
    causes = sum(c["net"]["mean"] for c in out["causes"].values())
    assert causes == pytest.approx(residuals.parts.sum() / EPISODES)
    assert out["unexplained"] == pytest.approx(net - causes)
    assert out["regions"] is None
    json.dumps(out, allow_nan=False)


def test_a_planted_region_is_found_on_one_half_and_judged_on_the_other(residuals):
    features, visits = features_of(residuals), residuals.visits
    parts = residuals.parts.copy()
    parts[:, 2] += 0.5 * ((features[:, 1] > 1.0) & (visits.step >= 7))
    planted = dataclasses.replace(residuals, parts=parts)
    total = parts.sum(axis=1)
    regions = find_regions(features, total, visits.weight, visits.episode, ["x", "y"], seed=0)
    assert len(regions.held_in) == EPISODES // 2
    out = attribute(planted, np.zeros(9), features=features, regions=regions)
    worst = out["regions"][0]
    assert worst["rule"].startswith("y > ")
    assert float(worst["rule"].split()[2]) == pytest.approx(1.0, abs=0.05)
    assert worst["p_adjusted"] < 1e-6
    assert worst["net"]["n"] == EPISODES - EPISODES // 2
    assert out["causes"]["dynamics"]["net"]["lo"] > 0 > out["causes"]["reward"]["net"]["lo"]


def test_false_alarms_stay_at_their_rate():
    """Of 100 simulators without a fault at most 16 are accused: more by chance alone in less than one of 10^4 runs."""
    rng, accused = np.random.default_rng(3), 0
    episode, step = np.divmod(np.arange(40 * 5), 5)
    visits = Visits(episode, step, np.ones(200))
    for seed in range(100):
        found = made(visits, rng.normal(size=(200, 3)), rng)
        features = rng.normal(size=(200, 3))
        regions = find_regions(features, found.parts.sum(axis=1), visits.weight, episode, "abc", seed=seed)
        out = attribute(found, np.zeros(40), features=features, regions=regions)
        accused += any(r["p_adjusted"] is not None and r["p_adjusted"] < 0.05 for r in out["regions"])
    assert accused <= 16


def test_weights_stand_for_the_steps_left_out(residuals):
    half = residuals.visits.step % 2 == 0
    visits = Visits(residuals.visits.episode[half], residuals.visits.step[half], np.full(half.sum(), 13 / 7))
    thinned = dataclasses.replace(residuals, visits=visits, parts=residuals.parts[half])
    (one,) = slices(thinned, np.ones(half.sum()), 0 * visits.step, 1)
    assert one.net.mean == pytest.approx(STEPS) and one.mass == pytest.approx(STEPS)
    assert one.mean_residual == pytest.approx(1.0)


def test_what_cannot_be_formed_is_said(residuals):
    empty, full = slices(residuals, np.ones(len(residuals.parts)), np.ones(len(residuals.parts), np.int64), 2)
    assert empty.mean_residual is None and empty.p is None and full.mass == STEPS
    broken = dataclasses.replace(residuals, parts=np.full_like(residuals.parts, np.nan))
    assert attribute(broken, np.zeros(3)) == {"gap": None, "why": "the simulator's returns are not finite"}
    with pytest.raises(ValueError, match="a feature is not finite"):
        find_regions(np.full((4, 1), np.nan), np.zeros(4), np.ones(4), np.arange(4), ["x"])
    with pytest.raises(ValueError, match="1 episode: one half"):
        find_regions(np.zeros((4, 1)), np.zeros(4), np.ones(4), np.zeros(4, int), ["x"])


def test_judges_are_numbered_anew(residuals):
    kept = judging(residuals, np.array([0, 2]))
    assert kept.episodes == EPISODES - 2 and kept.visits.episode.max() == EPISODES - 3
    np.testing.assert_array_equal(kept.parts[:STEPS], residuals.parts[STEPS : 2 * STEPS])


def test_small_pieces():
    assert benjamini_hochberg([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.04, 0.04], abs=1e-12)
    apart = difference(np.array([1.0, 3.0]), np.array([0.0, 0.0, 0.0]))
    assert apart.mean == 2.0 and apart.lo is not None and apart.lo < 0 and apart.n == 2
    assert difference(np.ones(3), np.zeros(4)).lo == 1.0
    features, names = named_features(np.array([[1.0, -1.0], [2.0, 3.0]]), ["a", "b"])
    assert names == ["a", "b", "|b|"] and features[0].tolist() == [1.0, -1.0, 1.0]


def test_a_hint_is_followed_where_it_tells_of_the_residuals_and_no_further():
    rng = np.random.default_rng(5)
    episode, x = np.repeat(np.arange(120), 8), rng.uniform(-1, 1, (960, 2))
    noise, fault = rng.normal(0.0, 2.0, 960), 1.0 * (x[:, 0] > 0.25)
    common = {"weights": np.ones(960), "episode": episode, "names": ["x", "y"], "seed": 0}
    told = find_regions(x, fault + noise, hint=fault, **common)
    assert [rule.split()[0] for rule in told.rules] == ["x", "x"]
    assert abs(told.root.threshold - 0.25) < 0.02
    # A distractor: what is unlike reality there, and without a part in the residuals.
    misled = find_regions(x, 5 * fault + 0.1 * noise, hint=1.0 * (x[:, 1] > 0), **common)
    assert abs(misled.root.threshold - 0.25) < 0.05 and misled.root.feature == 0


def test_rules_speak_of_a_size_only_where_the_sign_is_open():
    rng = np.random.default_rng(6)
    flat = rng.uniform(-1, 1, (3000, 1))
    features, names = named_features(flat, ["x"])
    worth = np.select([flat[:, 0] > 0.8, flat[:, 0] > 0.3, flat[:, 0] < -0.5], [4.0, 2.0, -3.0])
    found = find_regions(features, worth, np.ones(3000), np.arange(3000), names)
    assert all(rule.count("x") == 1 for rule in found.rules)
    labels = found.label(features)
    for number, rule in enumerate(found.rules):
        own = flat[labels == number, 0]
        if rule.startswith("x > "):
            assert own.min() > float(rule.split()[-1]) - 1e-2
