"""Sampling planners over planted dynamics whose best plan is known."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from worldmodel.agents.sequences import CEM, MPPI, Categories, Normals, SequenceSearch

TARGETS = jnp.array([-0.7, 0.0, 0.55, 0.9, -0.2])
"""Of each row: the position that pays most."""
SEARCH = SequenceSearch(horizon=3, candidates=66, iterations=6)


@struct.dataclass
class Place:
    """`at` and `target` float32 [R], `member` int32 [R]."""

    at: jax.Array
    target: jax.Array
    member: jax.Array


class Line(NamedTuple):
    """An action is the next position; it pays minus the squared distance to the target, moved by `apart` a member."""

    apart: float = 0.0
    broken: float = jnp.inf
    ends: bool = False
    members: int = 1

    def initial(self, params, key, context=None):
        raise NotImplementedError

    observe = score = initial

    def advance(self, params, state, action, key, *, uncertainty=False):
        where = action[..., 0] if action.ndim > 1 else action.astype(jnp.float32)
        goal = state.target + self.apart * (state.member.astype(jnp.float32) - (self.members - 1) / 2)
        reward = -((where - goal) ** 2) + (100.0 if self.ends else 0.0)
        reward = jnp.where(where > self.broken, jnp.nan, reward)
        end = (where > 0) if self.ends else jnp.zeros(where.shape, bool)
        return state.replace(at=where), where, reward, end, {}

    def for_each_member(self, state, copies):
        def spread(leaf):
            return jnp.tile(jnp.repeat(leaf, copies), self.members)

        member = jnp.repeat(jnp.arange(self.members, dtype=jnp.int32), len(state.at) * copies)
        return self, Place(spread(state.at), spread(state.target), member)


def searched(line, search=SEARCH, targets=TARGETS, categories=None, seed=0):
    """First action of each row `[B]`, and the plan that is left."""
    rows = len(targets)
    state = Place(jnp.zeros(rows), targets, jnp.zeros(rows, jnp.int32))
    plan = search.begin(rows, categories or 1, discrete=categories is not None)
    keys = jax.vmap(jax.random.key)(jnp.arange(rows) + seed)
    action, plan = jax.jit(lambda s, p, k: search.search(line, None, lambda a: a, s, p, k))(state, plan, keys)
    return np.asarray(action).reshape(rows, -1)[:, 0], plan


@pytest.mark.parametrize("update", [CEM(), MPPI()])
def test_every_row_finds_its_own_best_action(update):
    found, plan = searched(Line(), dataclasses.replace(SEARCH, update=update))
    np.testing.assert_allclose(found, TARGETS, atol=0.05 if isinstance(update, CEM) else 0.25)
    # A step on: what was planned for the second step comes first, and nothing is known of the last.
    np.testing.assert_allclose(plan.mean[:, 0, 0], TARGETS, atol=0.3)
    assert not plan.mean[:, -1].any()
    assert np.allclose(plan.deviation, SEARCH.spread)


@pytest.mark.parametrize("update", [CEM(), MPPI()])
def test_categories_are_found_too(update):
    targets = jnp.array([0.0, 3.0, 2.0, 4.0])
    found, plan = searched(Line(), dataclasses.replace(SEARCH, update=update), targets, categories=5)
    np.testing.assert_array_equal(found, targets)
    np.testing.assert_allclose(plan.probability.sum(axis=-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(plan.probability[:, -1], 0.2, atol=1e-6)
    assert plan.probability.min() > 0.05  # no action is lost for good


def test_a_row_does_not_see_the_others():
    found, plan = searched(Line())
    for row in range(len(TARGETS)):
        alone, own = searched(Line(), targets=TARGETS[row : row + 1], seed=row)
        np.testing.assert_allclose(alone[0], found[row], atol=1e-6)
        np.testing.assert_allclose(own.mean[0], plan.mean[row], atol=1e-6)


@pytest.mark.parametrize("every", [True, False])
def test_members_judge_all_candidates_or_each_its_share(every: bool):
    line, search = Line(apart=0.3, members=3), dataclasses.replace(SEARCH, candidates=6, every_member=every)
    rows = len(TARGETS)
    candidates = jax.random.uniform(jax.random.key(0), (rows, 6, 3, 1), minval=-1.0)
    state = Place(jnp.zeros(rows), TARGETS, jnp.zeros(rows, jnp.int32))
    keys = jax.random.split(jax.random.key(1), rows)
    scores = search._scores(line, None, lambda a: a, state, candidates, keys)
    goals = np.asarray(TARGETS)[None, :] + 0.3 * np.array([-1.0, 0.0, 1.0])[:, None]
    apart = (np.asarray(candidates)[None, ..., 0] - goals[:, :, None, None]) ** 2
    by_member = -(apart * 0.99 ** np.arange(3)).sum(axis=-1)
    wanted = by_member.mean(axis=0) if every else by_member[np.arange(6) // 2, :, np.arange(6)].T
    np.testing.assert_allclose(scores, wanted, atol=1e-5)


def test_a_plan_is_for_what_the_members_expect_on_average():
    found, _ = searched(Line(apart=0.3, members=3))
    np.testing.assert_allclose(found, TARGETS, atol=0.05)


def test_an_episode_pays_nothing_after_its_end():
    # Any step right of 0 ends the episode, and each step pays 100: the best row stays left of its target.
    found, _ = searched(Line(ends=True))
    assert (found <= 0.02).all()


def test_a_candidate_that_imagines_no_number_is_the_worst():
    found, plan = searched(Line(broken=0.3))
    assert np.isfinite(found).all() and np.isfinite(plan.mean).all()
    np.testing.assert_allclose(found[:2], TARGETS[:2], atol=0.05)
    assert (found <= 0.32).all()
    all_broken, _ = searched(Line(broken=-2.0))
    assert np.isfinite(all_broken).all()


def test_weights_sum_to_one_and_follow_the_scores():
    scores = jnp.array([[3.0, -1.0, 7.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    for update in (CEM(2), MPPI()):
        weights = update.weights(scores)
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(CEM(2).weights(scores)[0], [0.5, 0, 0.5, 0])
    np.testing.assert_allclose(MPPI().weights(scores)[1], 0.25, atol=1e-6)
    # In deviations of the scores: other units of reward change nothing.
    np.testing.assert_allclose(MPPI().weights(1000 * scores)[0], MPPI().weights(scores)[0], atol=1e-5)


def test_the_first_candidate_is_the_plan():
    keys = jax.random.split(jax.random.key(0), 2)
    normals = Normals(jnp.full((2, 3, 2), 0.4), jnp.ones((2, 3, 2)))
    drawn = normals.draw(keys, 7)
    assert drawn.shape == (2, 7, 3, 2)
    assert np.array_equal(drawn[:, 0], normals.mean) and np.abs(drawn).max() <= 1.0
    categories = Categories(jnp.broadcast_to(jnp.array([0.1, 0.7, 0.2]), (2, 3, 3)))
    assert (categories.draw(keys, 7)[:, 0] == 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "horizon 0, iterations 3, candidates 64: at least 1, 1 and 2 are needed"),
        ({"candidates": 1}, "candidates 1"),
        ({"update": CEM(65)}, "elites is 65; 1 to 64 candidates can be kept"),
        ({"update": MPPI(0.0)}, r"temperature is 0\.0; a positive number is needed"),
        ({"spread": 0.0}, r"spread 0\.0 and discount 0\.99 must lie above 0 and at most at 1"),
        ({"discount": 1.1}, r"discount 1\.1 must lie"),
    ],
)
def test_bad_numbers_are_one_line(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        SequenceSearch(**options)


def test_candidates_are_shared_equally():
    with pytest.raises(ValueError, match="64 candidates cannot be shared equally among 3 members"):
        searched(Line(members=3), SequenceSearch(every_member=False))
