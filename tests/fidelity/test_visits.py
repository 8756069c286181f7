"""What the probe says of sampled steps, ends, invariants and visits, on a world whose faults are planted."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fidelity.planted import END, SPEC, following, log, log_episode, planted_world
from worldmodel.corpus.columns import Columns
from worldmodel.fidelity.effort import FULL, QUICK
from worldmodel.fidelity.ends import success_threshold
from worldmodel.fidelity.invariants import check_invariants
from worldmodel.fidelity.policy_panel import paired_returns, simulated_returns
from worldmodel.fidelity.replay import gather, teacher_forced
from worldmodel.fidelity.single_steps import one_step
from worldmodel.fidelity.visits import visits

NOISY = log(40, noise=0.05)
FIRST = {"pushed less than 1": lambda obs, action, after: np.abs(after[:, 0] - obs[:, 0]) < 1.0}


def test_a_faithful_stochastic_simulator_is_not_told_apart():
    out = one_step(planted_world(NOISY, noise=0.05), NOISY, 1, invariants=FIRST)
    json.dumps(out, allow_nan=False)
    scale = NOISY.transitions().obs.astype(np.float64).std(axis=0)[:2]
    # The CRPS of a normal about its own draws is sd / sqrt(pi); the planted noise is .05 in both dimensions.
    assert out["crps"]["mean"] == pytest.approx(np.mean(0.05 / scale) / math.sqrt(math.pi), rel=0.1)
    assert out["crps"]["mean"] < 0.5 * out["persistence_crps"]["mean"]
    assert out["c2st"]["auc"]["lo"] < 0.5 < out["c2st"]["auc"]["hi"] and out["c2st"]["effect"] < 0.05
    assert abs(out["c2st"]["log_ratio"]["mean"]) < 0.5
    assert out["calibration"]["pit_error"]["mean"] < 0.15 and sum(out["calibration"]["pit"]) == pytest.approx(1.0)
    # Of 19 normal draws the outermost two are 3.69 deviations apart.
    assert out["calibration"]["width_90"]["mean"] == pytest.approx(3.69 * np.mean(0.05 / scale), rel=0.05)
    for name in ("energy", "mmd2"):
        found = out["distances"][name]
        assert found["phi"]["mean"] == pytest.approx(1.0, abs=0.15) and found["excess"]["n"] == 40
        assert found["excess"]["lo"] < 0.01
    assert out["invariants"]["pushed less than 1"]["real"]["mean"] == 0.0
    assert out["invariants"]["pushed less than 1"]["simulated"]["hi"] < 0.02


def test_what_is_planted_is_found():
    bold = one_step(planted_world(NOISY, noise=0.01), NOISY, 1)
    assert bold["c2st"]["auc"]["lo"] > 0.75 and bold["calibration"]["pit_error"]["lo"] > 0.5
    biased = one_step(planted_world(NOISY, noise=0.05, bias=(0.3, 0.3)), NOISY, 1)
    assert biased["c2st"]["auc"]["lo"] > 0.9 and biased["c2st"]["log_ratio"]["lo"] > 1.0
    assert biased["distances"]["energy"]["excess"]["lo"] > 0.0
    assert biased["distances"]["energy"]["phi"]["hi"] < 1.0 and biased["distances"]["sliced_w1"]["excess"]["lo"] > 0.0
    jump = {"never to the right": lambda obs, action, after: after[:, 0] < obs[:, 0] + 0.25}
    seen = one_step(planted_world(NOISY, noise=0.05, bias=(1.0, 1.0)), NOISY, 1, invariants=jump)["invariants"]
    assert seen["never to the right"]["simulated"]["lo"] > seen["never to the right"]["real"]["hi"]


def test_members_that_disagree_where_they_are_wrong():
    # Members err by +-b, so that their mean is right: disagreement is the same everywhere, up to rounding.
    columns = log(20)
    assert one_step(planted_world(columns, bias=(0.1,)), columns)["uncertainty_link"]["why"] == (
        "one member disagrees with nobody"
    )
    broken = one_step(planted_world(columns, bias=(np.nan, 0.0)), columns)
    assert broken["uncertainty_link"]["why"] == "a prediction is not finite"
    assert "not finite" in broken["distances"]["why"] and "not finite" in broken["c2st"]["auc"]["why"]
    json.dumps(broken["c2st"], allow_nan=False)


def test_steps_that_change_nothing_are_judged_apart():
    columns = log(20)
    moving = one_step(planted_world(columns), columns)["unchanged"]
    assert moving["share"] == 0.0 and moving["wrong"]["why"] == "every action changes the observation"
    episode = log_episode(0)
    refused = dataclasses.replace(
        episode,
        observations=np.repeat(episode.observations[:1], len(episode) + 1, axis=0),
        rewards=np.zeros(len(episode), np.float32),
        terminated=False,
    )
    both = Columns.from_trajectories([refused, *(log_episode(i) for i in range(1, 6))])
    found = one_step(planted_world(columns), both)["unchanged"]
    assert found["share"] == pytest.approx(len(refused) / len(both))
    assert found["wrong"]["mean"] == 1.0 and found["otherwise"]["mean"] == 0.0


def test_false_successes_apart_from_false_ends():
    columns = log(30)  # an end pays more than any step that goes on: it is where the paid dimension exceeds END
    above = success_threshold(columns)
    assert above == pytest.approx(END, abs=0.1)
    ends = one_step(planted_world(columns), columns)["termination"]
    assert ends["false_success_rate"]["mean"] == 0.0 and ends["success_recall"]["mean"] == 1.0
    assert ends["ece"]["mean"] == 0.0 and ends["success_above"] == above
    early = one_step(planted_world(columns, bias=(0.3, 0.0)), columns)["termination"]
    assert early["false_success_rate"]["lo"] > 0.0 and early["ece"]["mean"] > 0.0
    assert early["false_success_rate"]["mean"] == pytest.approx(early["false_end_rate"]["mean"])
    # Where ends pay nothing more, a success cannot be told.
    flat = dataclasses.replace(columns, rewards=np.ones_like(columns.rewards))
    assert success_threshold(flat) is None
    said = one_step(planted_world(columns), flat)["termination"]
    assert "cannot be told" in said["false_success_rate"]["why"]
    assert success_threshold(dataclasses.replace(columns, has_rewards=False)) is None


def test_an_invariant_must_answer_for_each_transition():
    with pytest.raises(ValueError, match="invariant 'energy' is a int; a function is needed"):
        check_invariants({"energy": 3})
    columns = log(6)
    with pytest.raises(ValueError, match=r"invariant 'bad' returned float64\[\]; bool\[\d+\] is needed"):
        one_step(planted_world(columns), columns, invariants={"bad": lambda obs, action, after: np.asarray(1.0)})


def test_replays_of_any_size_are_the_same_in_blocks():
    world, columns = planted_world(NOISY), log(5)
    replay = gather(columns, np.arange(5), np.zeros(5, np.int64), int(columns.lengths.max()))
    whole, blocks = teacher_forced(world, replay, 0), teacher_forced(world, replay, 0, batch=2)
    np.testing.assert_allclose(whole.prediction, blocks.prediction, atol=1e-6)
    assert whole.drawn.shape == blocks.drawn.shape == (len(replay.real), 2, 5, 2, 3)


# --- under each policy's own visits -----------------------------------------------------------------------------------


def push(obs: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.ones(obs.shape[0], jnp.int32)


def episodes(first: int, count: int):
    return [log_episode(first + i, noise=0.05) for i in range(count)]


def test_every_policy_is_judged_where_it_goes():
    run = {"one": episodes(0, 20), "two": episodes(100, 16)}
    effort = dataclasses.replace(QUICK, visits=8, visit_steps=50)
    out = visits(planted_world(NOISY, noise=0.05, bias=(0.1, 0.1)), run, effort=effort, invariants=FIRST)
    json.dumps(out, allow_nan=False)
    assert [entry["name"] for entry in out["by_policy"]] == ["one", "two"]
    for entry in out["by_policy"]:
        assert entry["episodes"] == entry["nrmse"]["n"] == 8 and "c2st" not in entry
        assert entry["reward_mae"]["mean"] == pytest.approx(0.1, abs=0.02)
        value = entry["value_aware"]
        assert value["mean"]["n"] == value["squared"]["n"] == 8 and 0.2 < value["r2"] <= 1.0
        assert "pushed less than 1" in entry["invariants"]


def test_a_full_effort_compares_samples_under_each_policy_too():
    effort = dataclasses.replace(FULL, visits=6, visit_steps=40, pairs=300, rows=300)
    entry = visits(planted_world(NOISY, noise=0.05), {"one": episodes(0, 12)}, effort=effort)["by_policy"][0]
    assert entry["c2st"]["auc"]["lo"] < 0.5 < entry["c2st"]["auc"]["hi"]
    assert entry["distances"]["energy"]["excess"]["n"] == entry["episodes"] == 6
    # A perfect simulator: what single steps promise is right on average.
    assert entry["value_aware"]["mean"]["lo"] < 0 < entry["value_aware"]["mean"]["hi"]


def test_too_few_episodes_for_a_value_function_are_said():
    entry = visits(planted_world(NOISY), {"one": episodes(0, 3)})["by_policy"][0]
    assert entry["value_aware"]["mean"]["why"].startswith("a value function needs 4 real episodes")
    assert entry["episodes"] == 1


def test_paired_returns_start_where_the_real_episodes_did():
    world = planted_world(NOISY, bias=(0.0, 0.02))
    real = [log_episode(i) for i in range(5)]

    def by_hand(start: np.ndarray, bias: float) -> float:
        obs = before = start
        total = 0.0
        for _ in range(SPEC.max_episode_steps or 0):
            obs, before = following(obs, before, np.int64(1)) + np.float32([bias, 0, 0]), obs
            total += float(obs[0])
            if obs[0] > END:
                break
        return total

    for members, biases in ((1, (0.0,)), (None, (0.0, 0.02))):
        got = paired_returns(world, push, real, rows=3, seed=0, members=members)
        wanted = [np.mean([by_hand(t.observations[0], b) for b in biases]) for t in real]
        np.testing.assert_allclose(got, wanted, rtol=1e-4)
    assert simulated_returns(world, push, episodes=4, seed=0).shape == (4,)
