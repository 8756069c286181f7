"""Finite processes: their exact answers against numbers worked out by hand, and the identities behind attribution."""

import numpy as np
import pytest

from worldmodel.fidelity.tabular import TabularMDP, exact_attribution, random_mdp, residuals, sample_episodes


def two_stages(first: float, second: float) -> TabularMDP:
    """A leads to B with probability `first`, B pays 1 with probability `second`; everything else ends."""
    transition = np.zeros((2, 1, 2))
    transition[:, 0, 1] = 1.0
    return TabularMDP(
        transition=transition,
        reward=np.array([[0.0], [second]]),
        end=np.array([[1.0 - first], [1.0]]),
        start=np.array([1.0, 0.0]),
        horizon=2,
    )


ALWAYS = np.ones((2, 1))


@pytest.mark.parametrize(("form", "by_state"), [("A", (0.1, 0.1)), ("B", (0.08, 0.12)), ("first order", (0.1, 0.12))])
def test_two_stages_by_hand(form, by_state):
    real, sim = two_stages(0.5, 0.8), two_stages(0.6, 1.0)
    assert real.expected_return(ALWAYS) == pytest.approx(0.4)
    assert sim.expected_return(ALWAYS) == pytest.approx(0.6)
    initial, parts = exact_attribution(real, sim, ALWAYS, form)
    assert initial == 0.0
    np.testing.assert_allclose(parts.sum(axis=(0, 2, 3)), by_state, atol=1e-12)
    # The first stage errs about its end, the second about what it pays.
    np.testing.assert_allclose(parts[..., 0].sum(axis=(0, 2)), [0.0, by_state[1]], atol=1e-12)
    np.testing.assert_allclose(parts[..., 1].sum(axis=(0, 2)), [by_state[0], 0.0], atol=1e-12)


def test_what_cancels_in_the_gap_shows_in_the_parts():
    initial, parts = exact_attribution(two_stages(0.5, 0.8), two_stages(0.4, 1.0), ALWAYS)
    by_state = parts.sum(axis=(0, 2, 3))
    assert initial + by_state.sum() == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(by_state, [-0.1, 0.1], atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_forms_a_and_b_add_up_to_the_gap(seed):
    rng = np.random.default_rng(seed)
    real, sim = random_mdp(rng, 7, 3, 11), random_mdp(rng, 7, 3, 11)
    policy = rng.dirichlet(np.ones(3), 7)
    gap = sim.expected_return(policy) - real.expected_return(policy)
    for form in ("A", "B"):
        initial, parts = exact_attribution(real, sim, policy, form)
        assert initial + parts.sum() == pytest.approx(gap, abs=1e-12)
    initial, parts = exact_attribution(real, sim, policy, "first order")
    assert abs(initial + parts.sum() - gap) > 1e-6


def test_a_change_that_values_do_not_see_contributes_nothing():
    rng = np.random.default_rng(0)
    real = random_mdp(rng, 5, 2, 6)
    flat = TabularMDP(real.transition, np.full((5, 2), 0.3), np.zeros((5, 2)), real.start, 6)
    other = TabularMDP(np.roll(real.transition, 2, axis=2), flat.reward, flat.end, real.start, 6)
    policy = np.full((5, 2), 0.5)
    assert 0.5 * np.abs(other.transition - flat.transition).sum(axis=-1).mean() > 0.3
    np.testing.assert_allclose(residuals(flat, other, other.values(policy)[0]), 0.0, atol=1e-12)


def test_sampled_episodes_follow_the_visits():
    rng = np.random.default_rng(1)
    real, policy = random_mdp(rng, 5, 2, 7), rng.dirichlet(np.ones(2), 5)
    count = 20_000
    states, actions, alive, ends = sample_episodes(real, policy, rng, count)
    seen = np.zeros((7, 5, 2))
    for t in range(7):
        np.add.at(seen[t], (states[t, alive[t]], actions[t, alive[t]]), 1.0 / count)
    # Six deviations of the rarest cell's share: false alarms below one in a million.
    np.testing.assert_allclose(seen, real.visits(policy), atol=6 * 0.5 / np.sqrt(count))
    assert ends.sum() == count - (alive[-1] & ~ends[-1]).sum()


def test_refuses_what_is_no_distribution():
    real = random_mdp(np.random.default_rng(0), 3, 2, 4)
    with pytest.raises(ValueError, match="transition holds rows"):
        TabularMDP(real.transition * 1.1, real.reward, real.end, real.start, 4)
    with pytest.raises(ValueError, match="end holds a number"):
        TabularMDP(real.transition, real.reward, real.end - 1, real.start, 4)
