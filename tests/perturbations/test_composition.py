"""Perturbations together, around a world: chances, shares, groups, schedules, branches, independent rows."""

from __future__ import annotations

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.perturbations.test_transforms import ALL
from tests.perturbations.worlds import CHOICES, NUMBERS, Echo
from worldmodel.perturbations import (
    DelayedActions,
    ObservationNoise,
    Perturbations,
    PerturbedDynamics,
    Progressive,
    RewardNoise,
    StickyActions,
    StuckActuator,
)
from worldmodel.simulator import Simulator

STEPS = 12


def keys(seed, count):
    return jax.random.split(jax.random.key(seed), count)


def simulator(*transforms, codec=NUMBERS, longest=1_000, **how):
    return Simulator(PerturbedDynamics(Echo(longest), Perturbations(transforms, **how), codec))


def plans(rows, seed=0):
    return jax.random.uniform(jax.random.key(seed), (STEPS, rows, 2), minval=-1.0)


def run(sim, key, plan, steps=STEPS):
    """Observations `[T, B, 2]` and rewards `[T, B]`, compiled as one scan."""

    def body(state, action):
        state, step = sim.step(None, state, action)
        return state, (step.obs, step.reward, step.info["strength"])

    return jax.jit(lambda key, plan: jax.lax.scan(body, sim.reset(None, key)[0], plan))(key, plan[:steps])[1]


def test_actions_and_outcomes_pass_in_order():
    # A delay of one, then a repeat of everything executed before: the world sees the action at rest for ever.
    obs, _, _ = run(simulator(DelayedActions(1), StickyActions(1.0)), keys(0, 3), plans(3))
    np.testing.assert_array_equal(obs[..., 0], 0)
    # The other way round the first action is repeated, one step late.
    obs, _, _ = run(simulator(StickyActions(1.0), DelayedActions(1)), keys(0, 3), plans(3))
    np.testing.assert_array_equal(obs[0, :, 0], 0)
    np.testing.assert_array_equal(obs[1:, :, 0], np.broadcast_to(plans(3)[0, :, 0], (STEPS - 1, 3)))


def test_the_world_draws_as_it_would_undisturbed():
    plain = Simulator(Echo(1_000))
    state, _ = plain.reset(None, keys(0, 4))
    chances = []
    for action in plans(4):
        state, step = plain.step(None, state, action)
        chances.append(step.obs[:, 1])
    obs, reward, _ = run(simulator(StickyActions(0.5), RewardNoise(1.0)), keys(0, 4), plans(4))
    np.testing.assert_array_equal(obs[..., 1], np.stack(chances))
    assert len(set(np.ravel(reward).tolist())) == STEPS * 4, "every step has noise of its own"


def test_rows_are_independent():
    sim, everything = simulator(DelayedActions(1), StickyActions(0.25), ObservationNoise(), RewardNoise()), plans(5)
    together = run(sim, keys(3, 5), everything)
    for row in (0, 4):
        alone = run(sim, keys(3, 5)[row : row + 1], everything[:, row : row + 1])
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a[:, row : row + 1], b, atol=1e-6)
    broken = everything.at[4, 2].set(jnp.nan)
    harmed = run(sim, keys(3, 5), broken)
    others = np.array([0, 1, 3, 4])
    np.testing.assert_array_equal(harmed[0][:, others], together[0][:, others])
    assert np.isnan(harmed[0][:, 2]).any()


def test_a_share_of_episodes_is_disturbed():
    _, _, strength = run(simulator(ObservationNoise(1.0), share=0.3), keys(1, 2_000), plans(2_000), steps=2)
    met = np.asarray(strength[0])
    assert set(met) == {0.0, 1.0}
    np.testing.assert_array_equal(strength[0], strength[1])
    assert abs(met.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 2_000)  # passed by chance once in 16,000 times


def test_a_group_shares_its_draws_and_others_do_not():
    same = jnp.broadcast_to(plans(1), (STEPS, 6, 2))
    sim = simulator(StickyActions(0.5), StuckActuator(0.2), RewardNoise(1.0), share=0.5, group=3)
    key = keys(8, 6)
    obs, reward, _ = run(sim, key, same)
    for first in (0, 3):
        for other in (first + 1, first + 2):
            np.testing.assert_array_equal(reward[:, first], reward[:, other])
            np.testing.assert_array_equal(obs[:, first, 0], obs[:, other, 0])  # the executed action
            assert not np.array_equal(obs[:, first, 1], obs[:, other, 1]), "the world's own chances differ"
    several = np.concatenate([np.asarray(run(sim, keys(s, 6), same)[2][0, ::3]) for s in range(4)])
    assert set(several) == {0.0, 1.0}, "groups differ"
    with pytest.raises(ValueError, match="5 environments cannot be split into groups of 3"):
        sim.reset(None, keys(0, 5))


def test_a_progressive_strength_grows_with_mastery_and_falls_without():
    sim = simulator(RewardNoise(0.0), schedule=Progressive(target=3.0, step=0.25, start=0.5), longest=3)
    step = jax.jit(lambda state, action: sim.step(None, state, action))
    again = jax.jit(lambda where, state, obs: sim.reset_rows(None, where, state, obs))
    state, _ = sim.reset(None, keys(0, 2))
    seen = []
    for t in range(12):
        state, now = step(state, jnp.zeros((2, 2)))
        seen.append(np.asarray(now.info["strength"]))
        # The first row lives out its three steps, a return of 3; the second is cut after two.
        ended = jnp.asarray([t % 3 == 2, t % 2 == 1])
        state, _ = again(ended, state, now.obs)
    np.testing.assert_allclose([s[0] for s in seen[::3]], [0.5, 0.75, 1.0, 1.0])
    np.testing.assert_allclose([s[1] for s in seen[::2]], [0.5, 0.25, 0.0, 0.0, 0.0, 0.0])


def test_the_first_branch_goes_on_and_others_draw_their_own():
    sim = simulator(StickyActions(0.5), RewardNoise(1.0), ObservationNoise(0.1))
    state, _ = sim.reset(None, keys(2, 2))
    step = jax.jit(lambda state, action: sim.step(None, state, action))
    plan = plans(2)
    for t in range(4):
        state, _ = step(state, plan[t])
    branches = sim.branch(state, jnp.asarray([1, 0, 1, 1]))
    for t in range(4, STEPS):
        state, parent = step(state, plan[t])
        branches, child = step(branches, plan[t][jnp.asarray([1, 0, 1, 1])])
        np.testing.assert_array_equal(child.obs[:2], parent.obs[::-1])
        np.testing.assert_array_equal(child.reward[:2], parent.reward[::-1])
        assert len(set(child.reward.tolist())) == 4


def test_what_really_happened_is_undisturbed_and_counts():
    # A prefix of two steps, then a delay of two brings the prefix's actions.
    sim = simulator(DelayedActions(2))
    state, obs = sim.reset(None, keys(0, 3))
    plan = plans(3)
    for t in range(2):
        state = sim.observe(None, state, plan[t], obs, jnp.ones(3), jnp.zeros(3, bool))
    for t in range(2, 4):
        state, step = sim.step(None, state, plan[t])
        np.testing.assert_array_equal(step.obs[:, 0], plan[t - 2, :, 0])


def test_vmap_and_scan_take_it():
    sim, plan = simulator(*ALL), plans(1)
    batch = run(sim, keys(4, 3), jnp.broadcast_to(plan, (STEPS, 3, 2)))
    mapped = jax.vmap(lambda key: run(sim, key[None], plan))(keys(4, 3))
    for a, b in zip(batch, mapped, strict=True):
        np.testing.assert_array_equal(np.moveaxis(np.asarray(a), 1, 0), np.asarray(b)[:, :, 0])


def test_through_json_and_back():
    made = Perturbations(tuple(ALL), share=0.5, schedule=Progressive(10.0))
    again = Perturbations.of(json.loads(json.dumps(made.to_json())))
    assert again == made and hash(again) == hash(made)
    assert Perturbations.of(ALL[0]) == Perturbations((ALL[0],)) == Perturbations.of([ALL[0]])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"transforms": [{"kind": "StickyAction"}]}, "perturbation 'StickyAction' is not known; known are Observation"),
        ({"transforms": [{"kind": "StickyActions", "chance": 1}]}, "perturbation StickyActions cannot be read"),
        ({"transforms": [{"kind": "StickyActions"}], "rows": 1}, "perturb cannot be read"),
        ({}, "there is no perturbation; at least one is needed"),
    ],
)
def test_json_that_cannot_be_read_is_named(data, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Perturbations.of(data)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"share": 1.5}, "share of Perturbations is 1.5; 0 to 1 is allowed"),
        ({"group": 0}, "group of Perturbations is 0; at least 1 is needed"),
        ({"group": 2, "schedule": Progressive(1.0)}, "it excludes a group of several"),
    ],
)
def test_compositions_that_make_no_sense_are_refused(how, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Perturbations((StickyActions(),), **how)


def test_categories_are_disturbed_too():
    actions = jnp.full((STEPS, 64), 5, jnp.int32)
    sim = simulator(StickyActions(0.3), dataclasses.replace(DelayedActions(1), category=1), codec=CHOICES)
    obs, _, _ = run(sim, keys(0, 64), actions)
    assert set(np.unique(obs[0, :, 0])) == {4.0} and set(np.unique(obs[1:, :, 0])) == {5.0}
