"""Behaviours: what they say of the probability of their actions is true."""

import math

import numpy as np
import pytest

from worldmodel.agents.arms import arm_of
from worldmodel.agents.behaviour import DEFAULT_BEHAVIOURS, parse_behaviour, parse_behaviours
from worldmodel.agents.past import Past
from worldmodel.trajectory import Spec, Trajectory

BOX1 = {"type": "Box", "shape": [1], "dtype": "float32", "low": [-2.0], "high": [3.0]}
BOX2 = {"type": "Box", "shape": [2, 1], "dtype": "float64", "low": [-1.0, 0.0], "high": [1.0, 5.0]}
SEEN = {"type": "Box", "shape": [3], "dtype": "float32", "low": [None] * 3, "high": [None] * 3}
THREE = {"type": "Discrete", "n": 3, "start": 5}
NAMES = ["random", "sticky:0.8", "sticky:1", "sticky:0", "linear:0.3", "linear:0", "linear:1", "search:0.2"]


def past_of(spec: Spec, rng: np.random.Generator) -> Past:
    """A past with one rule in it, so that searching has a parent."""
    past = Past(spec)
    observations = observations_of(spec, 40, rng)
    policy = parse_behaviour("linear:0").begin(spec, past, rng)
    actions = np.array([policy.act(obs) for obs in observations[:-1]])
    past.absorb(Trajectory(observations, actions, np.ones(39, np.float32), True, False), policy.rule)
    return past


def observations_of(spec: Spec, count: int, rng: np.random.Generator) -> np.ndarray:
    if spec.observation_space["type"] == "Discrete":
        return spec.observation_space["start"] + rng.integers(0, spec.observation_space["n"], count)
    return rng.normal(1.0, 2.0, (count, *spec.observation_space["shape"])).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seen", [SEEN, THREE])
@pytest.mark.parametrize("space", [THREE, BOX1, BOX2])
def test_actions_fit_the_space_and_have_a_finite_log_prob(space, seen, name):
    rng = np.random.default_rng(0)
    spec = Spec(seen, space)
    policy = parse_behaviour(name).begin(spec, past_of(spec, rng), rng)
    observations = observations_of(spec, 61, rng)
    actions = np.array([policy.act(obs) for obs in observations[:-1]])
    spec.check(actions, "action")
    assert actions.dtype == (np.int64 if space["type"] == "Discrete" else np.dtype(space["dtype"]))
    gym_space = spec.to_gymnasium()[1]
    assert all(gym_space.contains(policy.act(obs)) for obs in observations)
    log_probs = policy.log_probs(observations, actions)
    assert log_probs.shape == (60,)
    assert np.isfinite(log_probs).all()


@pytest.mark.parametrize("name", ["random", "sticky:0.8", "linear:0.1"])
def test_an_episode_of_one_step_has_a_probability(name):
    spec, rng = Spec(SEEN, BOX1), np.random.default_rng(0)
    policy = parse_behaviour(name).begin(spec, Past(spec), rng)
    seen = rng.normal(size=(2, *SEEN["shape"])).astype(np.float32)
    assert np.isfinite(policy.log_probs(seen, np.array([policy.act(seen[0])]))).all()


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_of_discrete_actions_sum_to_one(name):
    rng = np.random.default_rng(1)
    spec = Spec(SEEN, THREE)
    policy = parse_behaviour(name).begin(spec, past_of(spec, rng), rng)
    observations = observations_of(spec, 10, rng)
    before = 6
    total = sum(np.exp(policy.log_probs(observations, np.array([before, action]))[1]) for action in (5, 6, 7))
    assert total == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", ["sticky:0.7", "linear:0.3", "search:0.5"])
def test_probabilities_of_discrete_actions_are_their_frequencies(name):
    spec = Spec(SEEN, THREE)
    draws = 6000
    obs = np.array([0.3, -0.2, 0.1], np.float32)
    setup = np.random.default_rng(2)
    past = past_of(spec, setup)
    # The same rule each time (rules are drawn from the same stream), the actions from streams of their own.
    policy = parse_behaviour(name).begin(spec, past, setup)
    pairs = [(policy.act(obs), policy.act(obs)) for _ in range(draws)]
    seconds = np.array([second for first, second in pairs if first == pairs[0][0]])
    for action in (5, 6, 7):
        told = np.exp(policy.log_probs(np.stack([obs, obs]), np.array([pairs[0][0], action]))[1])
        sigma = math.sqrt(max(told * (1 - told), 1e-12) / len(seconds))
        assert abs((seconds == action).mean() - told) < 5 * sigma + 1e-9  # a false alarm in 10^6


@pytest.mark.parametrize("name", NAMES)
def test_density_over_a_box_integrates_to_one(name):
    rng = np.random.default_rng(3)
    spec = Spec(SEEN, BOX1)
    policy = parse_behaviour(name).begin(spec, past_of(spec, rng), rng)
    obs = observations_of(spec, 1, rng)[0]
    first = policy.act(obs)
    edges = np.linspace(-2, 3, 4001)
    middles = ((edges[:-1] + edges[1:]) / 2).reshape(-1, 1)
    density = [np.exp(policy.log_probs(np.stack([obs, obs]), np.stack([first, x]))[1]) for x in middles]
    assert np.sum(density) * 5 / 4000 == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("name", ["sticky:0.7", "linear:0.3", "linear:0"])
def test_density_over_a_box_is_that_of_the_draws(name):
    rng = np.random.default_rng(4)
    spec = Spec(SEEN, BOX1)
    policy = parse_behaviour(name).begin(spec, past_of(spec, rng), rng)
    obs = np.array([0.5, 0.5, 0.5], np.float32)
    actions = np.stack([policy.act(obs) for _ in range(4000)])
    told = policy.log_probs(np.stack([obs] * 4000), actions)[1:]
    # E over draws of 1/p(a | past) is the volume of the Box, if and only if p is the density they came from
    # (conditional on each past, so also for sticky ones); the weights are bounded where the mixture has a uniform part.
    weights = np.exp(-told)
    if name != "linear:0":
        assert abs(weights.mean() - 5) < 5 * weights.std() / math.sqrt(len(weights))
    edges = np.linspace(-2, 3, 11)
    counts, _ = np.histogram(actions[1:], edges)
    if name.startswith("linear"):
        fine = np.linspace(-2, 3, 2001)
        middles = ((fine[:-1] + fine[1:]) / 2).reshape(-1, 1)
        mass = np.exp(policy.log_probs(np.stack([obs] * 2000), middles)).reshape(10, 200).sum(1) * 5 / 2000
        sigma = np.sqrt(np.maximum(mass * (1 - mass), 1e-9) / counts.sum())
        assert (np.abs(counts / counts.sum() - mass) < 5 * sigma + 2e-3).all()


def test_sticky_repeats_as_often_as_it_says():
    rng = np.random.default_rng(5)
    spec = Spec(SEEN, THREE)
    policy = parse_behaviour("sticky:0.8").begin(spec, Past(spec), rng)
    actions = np.array([policy.act(None) for _ in range(4000)])
    expected = 0.8 + 0.2 / 3
    assert abs((actions[1:] == actions[:-1]).mean() - expected) < 5 * math.sqrt(expected * (1 - expected) / 4000)


def test_sticky_in_a_box_stays_near():
    rng = np.random.default_rng(6)
    spec = Spec(SEEN, BOX1)
    policy = parse_behaviour("sticky:1").begin(spec, Past(spec), rng)
    actions = np.array([policy.act(None) for _ in range(500)])
    assert np.abs(np.diff(actions[:, 0])).mean() < 0.12 * 5


def test_past_has_the_moments_of_all_it_saw():
    rng = np.random.default_rng(7)
    spec = Spec(SEEN, THREE)
    past = Past(spec)
    np.testing.assert_array_equal(past.mean, np.zeros(3))
    np.testing.assert_array_equal(past.deviation, np.ones(3))
    pieces = [observations_of(spec, count, rng) for count in (2, 7, 40)]
    for piece in pieces:
        past.absorb(Trajectory(piece, np.full(len(piece) - 1, 5), None, True, False), None)
    everything = np.concatenate(pieces).astype(np.float64)
    np.testing.assert_allclose(past.mean, everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(past.deviation, everything.std(0), rtol=1e-12)


def test_constant_observations_are_not_divided_by_zero():
    spec = Spec(SEEN, THREE)
    past = Past(spec)
    past.absorb(Trajectory(np.ones((5, 3), np.float32), np.full(4, 5), None, True, False), None)
    np.testing.assert_array_equal(past.deviation, np.ones(3))


def test_past_ranks_by_return_and_by_novelty():
    spec = Spec(SEEN, THREE)
    past = Past(spec)
    rng = np.random.default_rng(8)
    policies = [parse_behaviour("linear:0").begin(spec, past, rng) for _ in range(20)]
    assert past.best(0.1) == past.most_novel(0.1) == []
    for index, policy in enumerate(policies):
        observations = rng.normal(size=(4, 3)).astype(np.float32)
        observations[-1] = 50.0 if index == 3 else 0.01 * index
        rewards = np.full(3, -abs(index - 11), np.float32)
        past.absorb(Trajectory(observations, np.full(3, 5), rewards, True, False), policy.rule)
    assert [rule is policies[11].rule for rule in past.best(0.05)] == [True]
    assert [rule is policies[3].rule for rule in past.most_novel(0.05)] == [True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("randm", r"behaviour 'randm' is unknown \(did you mean 'random'\?\); known are random, sticky:P, linear:EPS"),
        ("ppo", "behaviour 'ppo' is unknown; known are random, sticky:P, linear:EPS, search:EPS"),
        ("random:0.5", "behaviour 'random:0.5': random takes no number"),
        ("sticky", r"behaviour 'sticky': needs a probability from 0 to 1, as in sticky:0\.5"),
        ("linear:x", "behaviour 'linear:x': needs a probability from 0 to 1"),
        ("linear:1.5", "behaviour 'linear:1.5': needs a probability from 0 to 1"),
        ("sticky:nan", "behaviour 'sticky:nan': needs a probability from 0 to 1"),
    ],
)
def test_bad_names(text, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        parse_behaviour(text)


def test_empty_mixture():
    with pytest.raises(ValueError, match=r"no behaviour was named; at least one is needed, e\.g\. random"):
        parse_behaviours([])


def test_the_default_mixture_parses():
    assert [b.name for b in parse_behaviours(DEFAULT_BEHAVIOURS)] == list(DEFAULT_BEHAVIOURS)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({**BOX1, "high": [None]}, "action space is a Box without bounds; behaviours need finite low and high"),
        (
            {**BOX1, "dtype": "int32"},
            "action space is a Box of int32; behaviours need a Box of floats or a Discrete space",
        ),
    ],
)
def test_refused_action_spaces(space, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        arm_of(space)
