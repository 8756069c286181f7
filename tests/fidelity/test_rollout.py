from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fidelity.planted import END, LIMIT, SPEC, log, log_episode, planted_world
from tests.support import untrained_model
from worldmodel.agents.counting import StepLedger
from worldmodel.agents.record import record
from worldmodel.codec import BIN_FRACTION
from worldmodel.corpus.columns import Columns
from worldmodel.fidelity.noise_reference import PHASE, noise_reference
from worldmodel.fidelity.paired import paired_rollout
from worldmodel.fidelity.replay import draw_starts, gather, open_loop_paths, teacher_forced
from worldmodel.fidelity.rollout import open_loop
from worldmodel.fidelity.single_steps import one_step
from worldmodel.trajectory import Spec

COLUMNS = log(30)
LONG = int(COLUMNS.lengths.max())


def changes(columns: Columns) -> np.ndarray:
    rows = columns.transitions()
    return rows.next_obs.astype(np.float64) - rows.obs


# --- one step ---------------------------------------------------------------------------------------------------------


def test_a_perfect_model_has_no_one_step_error():
    out = one_step(planted_world(COLUMNS), COLUMNS)
    assert COLUMNS.terminated.sum() > 3
    assert out["nrmse"]["mean"] < 1e-5 and out["nrmse"]["n"] == 30
    assert out["nrmse_per_dim"][2] is None and "constant" not in out["nrmse"]
    assert out["reward_mae"]["mean"] < 1e-6
    ends = out["termination"]
    assert ends["precision"]["mean"] == ends["recall"]["mean"] == 1.0
    assert ends["brier"]["mean"] == ends["false_end_rate"]["mean"] == 0.0
    assert ends["counts"]["true_ends"] == COLUMNS.terminated.sum()
    assert out["transitions"] == len(COLUMNS) and out["episodes"] == 30 and "sample" not in out


def test_one_step_error_of_a_planted_bias_and_the_persistence_floor_by_hand():
    out = one_step(planted_world(COLUMNS, bias=(0.01, 0.03)), COLUMNS)
    spread = changes(COLUMNS).std(axis=0)
    # The members' average prediction is off by .02 in the first of the two dimensions that change.
    assert out["nrmse_per_dim"][:2] == pytest.approx([0.02 / spread[0], 0.0], abs=1e-5)
    assert out["nrmse"]["mean"] == pytest.approx(0.01 / spread[0], rel=1e-3)
    assert out["reward_mae"]["mean"] == pytest.approx(0.02, rel=1e-4)
    floor = np.sqrt(np.mean(changes(COLUMNS) ** 2, axis=0))[:2] / spread[:2]
    assert out["persistence_nrmse"]["mean"] == pytest.approx(floor.mean(), rel=1e-9)


def test_likelihood_of_the_mixture_is_in_nats_of_the_original_units_per_active_dimension():
    out = one_step(planted_world(COLUMNS, log_prob=(np.log(0.5), np.log(0.25))), COLUMNS)
    spread = COLUMNS.transitions().obs.astype(np.float64).std(axis=0)[:2]
    wanted = -np.log(0.375) / 2 + np.mean(np.log(BIN_FRACTION * spread))
    assert out["nll_per_dim"]["mean"] == pytest.approx(wanted, rel=1e-5)


def test_a_model_that_never_ends_an_episode_has_no_recall():
    ends = one_step(planted_world(COLUMNS, ends=False), COLUMNS)["termination"]
    assert ends["recall"]["mean"] == 0.0 and ends["precision"]["mean"] is None
    assert ends["brier"]["mean"] == pytest.approx(COLUMNS.terminated.sum() / len(COLUMNS))


@pytest.mark.parametrize(("claimed", "low", "high"), [(0.05, 0.87, 0.93), (0.005, 0.1, 0.3), (0.5, 0.99, 1.0)])
def test_coverage_tells_a_calibrated_model_from_a_bold_and_a_timid_one(claimed: float, low: float, high: float):
    columns = log(30, noise=0.05)
    assert low < one_step(planted_world(columns, noise=claimed), columns)["coverage_90"]["mean"] <= high


def test_long_and_many_episodes_are_sampled_and_said_to_be():
    out = one_step(planted_world(COLUMNS), COLUMNS, 3, max_episodes=7, max_steps=5)
    assert out["episodes"] == 7 and out["transitions"] <= 35
    assert out["sample"] == "7 of 30 episodes, at most 5 steps of each"


def test_logs_without_rewards_say_so():
    bare = dataclasses.replace(COLUMNS, has_rewards=False)
    assert one_step(planted_world(COLUMNS), bare)["reward_mae"]["why"] == "the logs have no rewards"


def test_teacher_forcing_one_member_at_a_time_is_the_ensemble_step_by_step():
    world = untrained_model()
    _, episodes = record("CartPole-v1", behaviours=["random"], episodes=3, seed=5)
    columns = Columns.from_trajectories(episodes)
    replay = gather(columns, np.arange(3), np.zeros(3, np.int64), int(columns.lengths.max()))
    forced = teacher_forced(world, replay, 0)
    dynamics, params = world.dynamics, world.params
    state, _ = dynamics.start_at(params, jax.random.split(jax.random.key(0), 3), jnp.asarray(replay.obs[0]))

    @jax.jit
    def step(state, obs, action, reward, end):
        said = dynamics.predict(params, state, action), dynamics.score(params, state, action, obs, reward, end)
        return said, dynamics.observe(params, state, action, obs, reward, end)

    for t in range(7):
        x = (replay.obs[t + 1], replay.action[t], replay.reward[t], replay.terminated[t])
        ((obs, reward, end), score), state = step(state, *x)
        np.testing.assert_allclose(forced.prediction[t], obs, atol=1e-5)
        np.testing.assert_allclose(forced.reward[t], reward, atol=1e-5)
        np.testing.assert_allclose(forced.end[t], end, atol=1e-6)
        np.testing.assert_allclose(forced.log_prob[t], score[..., 0], rtol=1e-4)


def test_categories_have_an_accuracy_instead_of_a_distance():
    world = untrained_model("FrozenLake-v1")
    _, episodes = record("FrozenLake-v1", behaviours=["random"], episodes=8, seed=1)
    columns = Columns.from_trajectories(episodes)
    out = one_step(world, columns)
    replay = gather(columns, np.arange(8), np.zeros(8, np.int64), int(columns.lengths.max()))
    said = teacher_forced(world, replay, 0).prediction[..., 0]
    right = [said[t, m, e] == replay.obs[t + 1, e] for t, e in np.argwhere(replay.real) for m in range(said.shape[1])]
    assert out["accuracy"]["mean"] == pytest.approx(np.mean(right))
    assert out["nrmse"]["mean"] is None and "categories" in out["nrmse"]["why"] and out["nrmse_per_dim"] is None
    assert out["nll_per_dim"]["mean"] > 0
    assert "categories" in open_loop(world, columns)["why"]


# --- open loop --------------------------------------------------------------------------------------------------------


def drift(bias: float, steps: int) -> np.ndarray:
    """Error of the first dimension after 1..steps, fed with itself: the true recursion applied to a bias."""
    errors = [0.0, 0.0]
    for _ in range(steps):
        errors.append(errors[-1] + 0.9 * (errors[-1] - errors[-2]) + bias)
    return np.array(errors[2:])


def test_a_perfect_model_stays_on_the_path_from_any_start():
    # Second order: a start in mid-episode is only right if the real step before it was shown.
    out = open_loop(planted_world(COLUMNS), COLUMNS, horizon=10, starts=10_000)
    assert out["starts"] == sum(max(0, n - 9) for n in COLUMNS.lengths)
    assert max(out["error"] + out["sampled_error"] + out["ensemble_error"]) < 1e-4
    horizon = out["divergence_horizon"]
    assert horizon["mean"] == 10.0 and horizon["median"] is None and horizon["median_censored"]
    assert out["one_step_noise"] is None and out["one_step_noise_why"] == "the logs name no environment"


def test_the_step_before_a_start_is_needed():
    episodes, first = draw_starts(COLUMNS, 10, 50, 0)
    central = [
        open_loop_paths(
            planted_world(COLUMNS), gather(COLUMNS, episodes, first - n, n), gather(COLUMNS, episodes, first, 10), 0
        )[0]
        for n in (0, 1)
    ]
    truth = gather(COLUMNS, episodes, first, 10).obs[1:, None]
    late = first > 0
    assert np.abs(central[1] - truth).max() < 1e-4
    assert np.abs(central[0] - truth)[:, :, late].max() > 0.1
    assert np.abs(central[0] - truth)[:, :, ~late].max() < 1e-4


def test_open_loop_error_of_a_planted_bias_and_its_divergence_by_hand():
    bias, steps = 0.02, 20
    world = planted_world(COLUMNS, bias=(bias, -bias))
    out = open_loop(world, COLUMNS, horizon=steps, starts=60, threshold=0.5)
    scale = COLUMNS.transitions().obs[:, 0].astype(np.float64).std()
    wanted = drift(bias, steps) / scale / np.sqrt(2)
    assert out["error"] == pytest.approx(wanted.tolist(), rel=1e-3)
    assert out["error_lo"] == pytest.approx(out["error"], rel=1e-3)
    assert out["sampled_error"] == pytest.approx(wanted.tolist(), rel=1e-3)
    assert max(out["ensemble_error"]) < 1e-4
    crossing = int(np.argmax(wanted > 0.5))
    assert 0 < crossing < steps - 1
    horizon = out["divergence_horizon"]
    assert horizon["median"] == horizon["mean"] == crossing and not horizon["median_censored"]


def test_persistence_by_hand():
    out = open_loop(planted_world(COLUMNS), COLUMNS, horizon=10, starts=10_000)
    scale = COLUMNS.transitions().obs.astype(np.float64).std(axis=0)[:2]
    errors = []
    for e in range(COLUMNS.episodes):
        obs = COLUMNS.episode(e).observations.astype(np.float64)[:, :2] / scale
        errors += [np.sqrt(np.mean((obs[t + 1 : t + 11] - obs[t]) ** 2, axis=1)) for t in range(len(obs) - 10)]
    assert out["persistence"] == pytest.approx(np.median(errors, axis=0).tolist(), rel=1e-6)


def test_a_model_that_breaks_is_infinitely_wrong_and_json_stays_finite():
    out = open_loop(planted_world(COLUMNS, bias=(np.inf, 0.0)), COLUMNS, horizon=5, starts=20)
    assert out["error"] == [None] * 5 and "infinite" in out["why"]
    assert out["divergence_horizon"]["mean"] == 0.0


def test_horizon_is_shortened_where_episodes_are_too_short():
    out = open_loop(planted_world(COLUMNS), COLUMNS, horizon=LIMIT + 40, starts=20)
    fifth = int(np.sort(COLUMNS.lengths)[-5])
    assert out["horizons"] == list(range(1, fifth + 1))
    assert out["note"].startswith(f"horizon shortened from {LIMIT + 40} to {fifth} steps: 0 of 30")


def test_starts_are_distinct_spread_over_episodes_and_leave_room():
    episodes, first = draw_starts(COLUMNS, 10, 40, 1)
    assert len(set(zip(episodes.tolist(), first.tolist(), strict=True))) == 40
    assert (first + 10 <= COLUMNS.lengths[episodes]).all()
    able = np.sum(COLUMNS.lengths >= 10)
    assert np.bincount(episodes).max() <= -(-40 // able) + 1
    again = draw_starts(COLUMNS, 10, 40, 1)
    np.testing.assert_array_equal(episodes, again[0])
    np.testing.assert_array_equal(first, again[1])


def test_bad_counts_are_one_line():
    with pytest.raises(ValueError, match="horizon and starts must be at least 1, not 0 and 250"):
        open_loop(planted_world(COLUMNS), COLUMNS, horizon=0)


# --- the yardstick of true dynamics with noise ------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0"])
def test_true_dynamics_set_to_an_observation_follow_the_logs(env_id: str):
    spec, episodes = record(env_id, behaviours=["random"], episodes=4, seed=3, max_steps=40)
    columns = Columns.from_trajectories(episodes)
    scale = columns.observations.std(axis=0).astype(np.float64)
    starts, first = draw_starts(columns, 8, 12, 0)
    after, ledger = gather(columns, starts, first, 8), StepLedger()
    zero = np.zeros(len(scale))
    out, why = noise_reference(spec, after, zero, scale, seed=0, ledger=ledger)
    assert why is None and np.abs((out - after.obs[1:]) / scale).max() < 1e-3
    assert ledger.to_json() == {PHASE: 12 * 9}
    noise = 0.05 * scale
    noisy, _ = noise_reference(spec, after, noise, scale, seed=0, ledger=ledger)
    spread = ((noisy - after.obs[1:]) / scale).std(axis=(1, 2))
    assert 0.03 < spread[0] < 0.07 and spread[-1] > spread[0]


def test_a_yardstick_that_does_not_follow_the_logs_is_refused():
    spec, episodes = record("CartPole-v1", behaviours=["random"], episodes=4, seed=3)
    columns = Columns.from_trajectories(episodes)
    after = gather(columns, *draw_starts(columns, 5, 8, 0), 5)
    scale = columns.observations.std(axis=0).astype(np.float64)
    heavy = dataclasses.replace(after, obs=after.obs + np.float32(0.1) * np.arange(6, dtype=np.float32)[:, None, None])
    out, why = noise_reference(spec, heavy, scale, scale, seed=0, ledger=StepLedger())
    assert out is None and "does not give the logged next one" in why
    unknown = dataclasses.replace(spec, env_id="Hopper-v5")
    assert "cannot be set" in noise_reference(unknown, after, scale, scale, seed=0, ledger=StepLedger())[1]


# --- an imagined episode beside a real one ----------------------------------------------------------------------------


def push(obs: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.ones(obs.shape[0], jnp.int32)


def test_a_perfect_model_imagines_the_real_episode():
    real = log_episode(0)
    always = dataclasses.replace(real, actions=np.ones(len(real), np.int64))
    pair = paired_rollout(planted_world(COLUMNS), push, always)
    obs, before = always.observations[0], always.observations[0]
    path = [obs]
    while path[-1][0] <= END and len(path) <= LIMIT:
        obs, before = obs + np.float32(0.9) * (obs - before) + np.float32([0.1, 0.05, 0.0]), obs
        path.append(obs)
    np.testing.assert_allclose(pair.imagined_obs, path, atol=1e-5)
    assert pair.imagined_end == "terminated" and len(pair.imagined_rewards) == len(path) - 1
    np.testing.assert_array_equal(pair.real_obs, always.observations)
    assert pair.real_end == ("terminated" if real.terminated else "time limit" if real.truncated else None)


def test_an_imagined_episode_stops_at_the_limit_or_where_told():
    world = planted_world(COLUMNS, ends=False)
    assert paired_rollout(world, push, log_episode(1)).imagined_end == "time limit"
    short = paired_rollout(world, push, log_episode(1), steps=5)
    assert short.imagined_end is None and len(short.imagined_obs) == 6
    endless = dataclasses.replace(world, spec=Spec(SPEC.observation_space, SPEC.action_space))
    assert len(paired_rollout(endless, push, log_episode(1)).imagined_obs) == len(log_episode(1)) + 1
