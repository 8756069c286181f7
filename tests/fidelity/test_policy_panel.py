from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fidelity.planted import END, LIMIT, REAL, SPEC, following, log, planted_world
from worldmodel.agents.counting import StepLedger
from worldmodel.agents.evaluate import real_episodes
from worldmodel.agents.policies import random_policy
from worldmodel.fidelity.policy_panel import panel, simulated_returns
from worldmodel.simulator import DEFAULT_TIME_LIMIT

COLUMNS = log(20)


def push(obs: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.ones(obs.shape[0], jnp.int32)


def pull(obs: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.zeros(obs.shape[0], jnp.int32)


def return_by_hand(action: int, bias: float, *, limit: int = LIMIT) -> float:
    obs = before = np.array([0.0, 0.0, 0.7], np.float32)
    total = 0.0
    for _ in range(limit):
        obs, before = following(obs, before, np.int64(action)) + np.float32([bias, 0, 0]), obs
        total += float(obs[0])
        if obs[0] > END:
            break
    return total


@pytest.mark.parametrize(("policy", "action"), [(push, 1), (pull, 0)])
def test_returns_by_hand_every_member_ruling_its_share(policy, action: int):
    world = planted_world(COLUMNS, bias=(0.0, 0.01, -0.01))
    returns = simulated_returns(world, policy, episodes=7, seed=0)
    wanted = np.repeat([return_by_hand(action, bias) for bias in (0.0, 0.01, -0.01)], 3)
    np.testing.assert_allclose(returns, wanted, rtol=1e-4)


def test_without_a_time_limit_episodes_stop_all_the_same():
    spec = dataclasses.replace(SPEC, max_episode_steps=None)
    returns = simulated_returns(planted_world(COLUMNS, spec=spec), pull, episodes=2, seed=0)
    np.testing.assert_allclose(returns, return_by_hand(0, 0.0, limit=DEFAULT_TIME_LIMIT), rtol=1e-3)


def test_the_seed_decides_and_differs():
    world = planted_world(COLUMNS, noise=0.05)
    one, again, other = (simulated_returns(world, random_policy(SPEC), episodes=8, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_panel_pairs_simulation_with_reality_and_counts_steps():
    world, ledger = planted_world(COLUMNS, noise=0.05), StepLedger()
    policies = {"random": random_policy(REAL), "left": pull}
    known = real_episodes(REAL, pull, episodes=4, seed=9, ledger=StepLedger())
    out = panel(
        world,
        policies,
        sim_episodes=6,
        real_episodes=5,
        seed=0,
        ledger=ledger,
        spec=REAL,
        already_run={"left": known},
        optimised="left",
    )
    assert [entry["name"] for entry in out["policies"]] == ["random", "left"]
    assert [entry["episodes"] for entry in out["policies"]] == [5, 4]
    assert [entry["sim_return"]["n"] for entry in out["policies"]] == [6, 6]
    assert out["policies"][1]["real_return"]["mean"] == pytest.approx(np.mean([t.total_reward for t in known]))
    fresh = real_episodes(REAL, policies["random"], episodes=5, seed=0, ledger=StepLedger())
    assert out["policies"][0]["real_return"]["mean"] == pytest.approx(np.mean([t.total_reward for t in fresh]))
    # Only the policy without known episodes took real steps.
    assert ledger.to_json() == {"evaluation": sum(map(len, fresh))}
    assert out["ranking"]["n_policies"] == 2 and out["ranking"]["mmrv_convention"] == "real_gap_xor"
    means = [entry["sim_return"]["mean"] - entry["real_return"]["mean"] for entry in out["policies"]]
    gap = out["ranking"]["exploitation_gap"]
    assert (gap["gap"]["mean"], gap["others"]["mean"]) == pytest.approx((means[1], means[0]))
    for entry in out["policies"]:
        assert entry["run_to_run"]["runs"] == 2 and entry["prediction_powered"]["n"] == entry["episodes"]
        assert {"floor", "p", "excess"} <= set(entry["spread_ratio"]) & set(entry["worst_decile_error"])
    with pytest.raises(ValueError, match="optimised policy 'best' is unknown; known: random, left"):
        panel(world, policies, ledger=ledger, optimised="best")


def test_one_policy_has_no_ranking():
    out = panel(planted_world(COLUMNS), {"left": pull}, sim_episodes=2, real_episodes=2, ledger=StepLedger(), spec=REAL)
    assert out["ranking"] is None and out["why"] == "a ranking needs at least 2 policies; there is 1"


def test_a_simulator_that_breaks_has_no_ranking():
    world = planted_world(COLUMNS, bias=(np.nan, 0.0))
    known = {name: real_episodes(REAL, pull, episodes=2, seed=0, ledger=StepLedger()) for name in "ab"}
    out = panel(world, {"a": pull, "b": push}, sim_episodes=2, ledger=StepLedger(), already_run=known)
    assert out["ranking"] is None and out["why"] == "simulated returns of 'a' are not finite"
    assert out["policies"][0]["sim_return"]["mean"] is None


def test_nothing_to_compare_is_one_line():
    with pytest.raises(ValueError, match="at least one policy"):
        panel(planted_world(COLUMNS), {}, ledger=StepLedger())
    with pytest.raises(ValueError, match="episodes is 0"):
        simulated_returns(planted_world(COLUMNS), pull, episodes=0, seed=0)
