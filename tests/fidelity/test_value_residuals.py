"""Residuals by imagined pairs: unbiased for the exact ones, and of a trained model along real episodes."""

import jax
import numpy as np
import pytest

from worldmodel.agents.policies import PureFunction
from worldmodel.fidelity.fitted_value import fit_value
from worldmodel.fidelity.imagined import imagine
from worldmodel.fidelity.step_residuals import Transition, fitted_residuals, imagined_residuals
from worldmodel.fidelity.tabular import TabularDynamics, TabularMDP, exact_attribution, random_mdp, sample_episodes
from worldmodel.fidelity.value_residuals import Visits, draw_milestones, draw_visits, price

HORIZON, STATES, ACTIONS = 7, 5, 2


def act(policy: np.ndarray) -> PureFunction:
    def run(params, obs, keys):
        return jax.vmap(jax.random.categorical)(keys, params[obs])

    return PureFunction(run, "table")


def estimated(real, sim, policy, *, episodes: int, rollouts: int, seed: int, fitted: bool = False):
    """Visits and residual parts of every step of sampled episodes, and promises at their starts."""
    rng = np.random.default_rng(seed)
    states, actions, alive, ends = sample_episodes(real, policy, rng, episodes)
    step, episode = np.nonzero(alive)
    here, action = states[step, episode].astype(np.int32), actions[step, episode].astype(np.int32)
    after = states[step + 1, episode].astype(np.int32)
    left = (HORIZON - step - 1).astype(np.int32)
    transition = Transition(
        action, real.reward[here, action].astype(np.float32), after, ends[step, episode] & (left > 0), left
    )
    tables = TabularDynamics(), act(policy), TabularDynamics.of(sim), np.log(policy).astype(np.float32)
    key = jax.random.key(seed)
    parts, _ = imagined_residuals(*tables, key, ((here,), no_history(len(step))), transition, rollouts=rollouts)
    begin, left = ((states[0].astype(np.int32),), no_history(episodes)), np.full(episodes, HORIZON, np.int32)
    imagined = imagine(*tables, jax.random.fold_in(key, 1), begin, left, rollouts=rollouts, features=one_hot)
    if fitted:
        value = fit_value(imagined.features, imagined.left, imagined.rest, seed=seed)
        parts, _ = fitted_residuals(
            tables[0], value, one_hot, tables[2], key, ((here,), no_history(len(step))), transition
        )
    return Visits(episode, step, np.ones(len(step))), parts, imagined.returns


def one_hot(obs):
    return jax.nn.one_hot(obs, STATES)


def no_history(count: int) -> tuple[np.ndarray, ...]:
    return tuple(np.zeros((0, count), dtype) for dtype in (np.int32, np.int32, np.float32, bool))


@pytest.fixture(scope="module")
def pair():
    rng = np.random.default_rng(3)
    real = random_mdp(rng, STATES, ACTIONS, HORIZON)
    other = random_mdp(rng, STATES, ACTIONS, HORIZON)
    sim = TabularMDP(other.transition, other.reward, other.end, other.start, HORIZON)
    return real, sim, rng.dirichlet(np.ones(ACTIONS), STATES)


@pytest.mark.parametrize("rollouts", [1, 3])
def test_unbiased_by_cause(pair, rollouts):
    real, sim, policy = pair
    visits, parts, starts = estimated(real, sim, policy, episodes=4_000, rollouts=rollouts, seed=rollouts)
    sums = np.zeros((4_000, 3))
    np.add.at(sums, visits.episode, parts)
    initial, exact = exact_attribution(real, sim, policy)
    # Five standard errors: a false alarm in less than one of 10^5 runs, for all four numbers together.
    error = sums.std(axis=0) / np.sqrt(len(sums))
    assert (np.abs(sums.mean(axis=0) - exact.sum(axis=(0, 1, 2))) < 5 * error).all()
    assert (error < 0.05).all()
    promised = real.start @ sim.values(policy)[0][0]
    assert abs(starts.mean() - promised) < 5 * starts.std() / np.sqrt(len(starts))
    assert initial == pytest.approx(sim.expected_return(policy) - promised)


def test_fitted_values_hardly_miss_and_are_far_less_noisy(pair):
    real, sim, policy = pair
    spreads, exact = [], exact_attribution(real, sim, policy)[1].sum(axis=(0, 1, 2))
    for fitted in (False, True):
        visits, parts, _ = estimated(real, sim, policy, episodes=2_000, rollouts=1, seed=7, fitted=fitted)
        sums = np.zeros((2_000, 3))
        np.add.at(sums, visits.episode, parts)
        spreads.append(sums[:, 2].std())
    assert spreads[1] < 0.7 * spreads[0]
    # The fit's own error beside four standard errors.
    np.testing.assert_allclose(sums.mean(axis=0), exact, atol=0.05 + 4 * spreads[1] / np.sqrt(2_000))


def test_fitted_values_accuse_no_perfect_simulator(pair):
    real, _, policy = pair
    visits, parts, _ = estimated(real, real, policy, episodes=2_000, rollouts=1, seed=8, fitted=True)
    sums = np.zeros((2_000, 3))
    np.add.at(sums, visits.episode, parts)
    # Four standard errors, three numbers: a false alarm in one of 5,000 runs.
    assert (np.abs(sums.mean(axis=0)) <= 4 * sums.std(axis=0) / np.sqrt(2_000) + 1e-6).all()


def test_a_perfect_simulator_has_no_residual_where_random_numbers_are_shared():
    rng = np.random.default_rng(5)
    real = random_mdp(rng, STATES, ACTIONS, HORIZON)
    chain = np.eye(STATES)[(np.arange(STATES) + 1) % STATES]
    certain = TabularMDP(np.repeat(chain[:, None], ACTIONS, 1), real.reward, 0 * real.end, real.start, HORIZON)
    policy = rng.dirichlet(np.ones(ACTIONS), STATES)
    _, parts, _ = estimated(certain, certain, policy, episodes=50, rollouts=1, seed=0)
    # Both sides of a pair are the same episode, up to the order of float32 sums.
    np.testing.assert_allclose(parts, 0.0, atol=1e-6)


def test_visits_are_drawn_once_and_weighted():
    lengths = np.array([3, 10, 1])
    visits = draw_visits(lengths, 4, seed=0)
    assert np.bincount(visits.episode).tolist() == [3, 4, 1]
    assert (visits.step < lengths[visits.episode]).all()
    assert len(set(zip(visits.episode.tolist(), visits.step.tolist(), strict=True))) == 8
    weights = np.bincount(visits.episode, weights=visits.weight)
    np.testing.assert_allclose(weights, lengths)
    assert draw_milestones(lengths).tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    promises = 10 + 9 + 8 + (10 + 9 + 8 + 6 + 5 + 4 + 2 + 1) + 10
    assert price(lengths, rollouts=2, time_limit=10) == 2 * promises
    with pytest.raises(ValueError, match="per_episode is 0"):
        draw_visits(lengths, 0, seed=0)
