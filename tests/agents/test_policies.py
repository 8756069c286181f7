from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import untrained_model
from worldmodel.agents.batch_env import Interface
from worldmodel.agents.policies import as_function, graded_panel, noise_ladder, noised, random_policy
from worldmodel.agents.ppo import LearnedPolicy, TrainingResult
from worldmodel.trajectory import Spec


def interface(env_id: str = "CartPole-v1") -> Interface:
    world = untrained_model(env_id)
    return Interface(world.spec, world.dynamics.codec)


class Linear:
    """The smallest network: the sign of a weighted sum, as a category."""

    def apply(self, params, features, method):
        return SimpleNamespace(mode=lambda: (features @ params > 0).astype(jnp.int32))


def training_result(snapshots: int, *, share: int = 50_000) -> TrainingResult:
    shared, network = interface(), Linear()
    weights = np.random.default_rng(0).normal(size=(snapshots, 4)).astype(np.float32)
    policies = tuple(LearnedPolicy(shared, network, jnp.asarray(w)) for w in weights)
    return TrainingResult(policies, np.arange(1, snapshots + 1) * share, np.zeros(snapshots))


def rows(n: int) -> tuple[jax.Array, jax.Array]:
    obs = jax.random.normal(jax.random.key(1), (n, 4)) * 0.1
    return obs, jax.random.split(jax.random.key(2), n)


def test_no_noise_changes_nothing_and_all_noise_forgets_the_policy():
    (policy,) = training_result(1).policies
    obs, keys = rows(200)
    np.testing.assert_array_equal(noised(policy, 0, policy.interface)(obs, keys), policy(obs, keys))
    other = LearnedPolicy(policy.interface, policy.network, -policy.params)
    wild = [noised(p, 1, policy.interface)(obs, keys) for p in (policy, other)]
    np.testing.assert_array_equal(*wild)
    assert (policy(obs, keys) != other(obs, keys)).all()


def test_noise_takes_its_share_of_actions():
    (policy,) = training_result(1).policies
    obs, keys = rows(20_000)
    astray = np.mean(np.asarray(noised(policy, 0.4, policy.interface)(obs, keys) != policy(obs, keys)))
    # Half of the random actions agree with the policy; 5 standard errors.
    assert abs(astray - 0.2) < 5 * np.sqrt(0.2 * 0.8 / 20_000)


def test_a_row_acts_alone_as_in_a_batch():
    (policy,) = training_result(1).policies
    noisy = noised(policy, 0.5, policy.interface)
    obs, keys = rows(31)
    together = np.asarray(noisy(obs, keys))
    alone = np.concatenate([np.asarray(noisy(obs[i : i + 1], keys[i : i + 1])) for i in range(31)])
    np.testing.assert_array_equal(together, alone)


def test_random_actions_fill_the_space():
    obs, keys = rows(5000)
    shifted = Spec({"type": "Discrete", "n": 2, "start": 0}, {"type": "Discrete", "n": 3, "start": 5})
    counts = np.bincount(np.asarray(random_policy(shifted)(obs, keys)), minlength=8)[5:]
    assert counts.sum() == 5000 and (np.abs(counts - 5000 / 3) < 200).all()
    box = interface("Pendulum-v1").spec
    drawn = np.asarray(random_policy(box)(obs, keys))
    assert drawn.shape == (5000, 1) and drawn.dtype == np.float32
    assert -2 <= drawn.min() < -1.99 and 1.99 < drawn.max() <= 2 and abs(drawn.mean()) < 0.1
    whole = dataclasses.replace(
        box, action_space={"type": "Box", "shape": [2], "dtype": "int32", "low": [-1, 0], "high": [1, 1]}
    )
    drawn = np.asarray(random_policy(whole)(obs, keys))
    assert [np.unique(column).tolist() for column in drawn.T] == [[-1, 0, 1], [0, 1]]


def test_what_cannot_be_drawn_uniformly_is_refused():
    spec = Spec(
        {"type": "Discrete", "n": 2, "start": 0},
        {"type": "Box", "shape": [1], "dtype": "float32", "low": [None], "high": [1.0]},
    )
    with pytest.raises(ValueError, match="Box without bounds"):
        random_policy(spec)
    (policy,) = training_result(1).policies
    with pytest.raises(ValueError, match=r"epsilon is 1\.5"):
        noised(policy, 1.5, policy.interface)


def test_policies_that_differ_in_parameters_alone_are_one_function():
    first, second = training_result(2).policies
    (stranger,) = training_result(1).policies
    assert as_function(first)[0] == as_function(second)[0] != as_function(stranger)[0]
    noisy = [as_function(noised(p, e, p.interface))[0] for p, e in ((first, 0.1), (second, 0.9))]
    assert noisy[0] == noisy[1] and hash(noisy[0]) == hash(noisy[1]) and noisy[0] != as_function(first)[0]
    uniform = random_policy(first.interface.spec)
    assert as_function(uniform)[0] == as_function(uniform)[0] != as_function(random_policy(first.interface.spec))[0]


def test_parameters_are_arguments_not_constants():
    first, second = training_result(2).policies
    obs, keys = rows(50)
    function, _ = as_function(first)
    np.testing.assert_array_equal(function.run(second.params, obs, keys), second(obs, keys))
    noisy = noised(first, 0.3, first.interface)
    other = noised(second, 0.7, first.interface)
    np.testing.assert_array_equal(noisy(obs, keys, params=other.params), other(obs, keys))


@pytest.mark.parametrize("snapshots", [1, 2, 3, 8, 20])
def test_a_panel_has_8_to_12_named_grades_of_one_function(snapshots: int):
    result = training_result(snapshots)
    panel = graded_panel(result)
    assert 8 <= len(panel) <= 12 and max(map(len, panel)) <= 22
    assert len({as_function(policy)[0] for policy in panel.values()}) == 1
    obs, keys = rows(40)
    np.testing.assert_array_equal(panel["final"](obs, keys), result.policies[-1](obs, keys))
    if snapshots > 1:
        np.testing.assert_array_equal(panel["after 50k steps"](obs, keys), result.policies[0](obs, keys))
    levels = [float(as_function(policy)[1]["epsilon"]) for policy in panel.values()]
    assert levels[0] == 1.0 and levels[-1] == 0.0 and sorted(levels, reverse=True) == levels


def test_a_ladder_leads_from_random_to_the_policy():
    (policy,) = training_result(1).policies
    ladder = noise_ladder(policy)
    obs, keys = rows(40)
    assert next(iter(ladder)) == "100% random" and list(ladder)[-1] == "0% random" and len(ladder) == 8
    np.testing.assert_array_equal(ladder["0% random"](obs, keys), policy(obs, keys))
    np.testing.assert_array_equal(ladder["30% random"](obs, keys), noised(policy, 0.3, policy.interface)(obs, keys))


def test_names_stay_apart_when_shares_are_small():
    assert "after 300 steps" in graded_panel(training_result(3, share=300))
    assert "after 1.5M steps" in graded_panel(training_result(3, share=1_500_000))
