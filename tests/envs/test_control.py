"""Trust and perturbations through the shoes: Gymnasium, its native batch, gymnax, Brax, and the real environment."""

from __future__ import annotations

import dataclasses
import json
import re

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import worldmodel as wm
from tests.support import untrained_model, untrained_run
from worldmodel.envs.control import check_control
from worldmodel.envs.functional import SimBrax, SimFuncEnv
from worldmodel.envs.gymnasium import SimEnv
from worldmodel.envs.gymnax import SimGymnax
from worldmodel.envs.perturbed import PerturbedEnv
from worldmodel.envs.vector import SimVectorEnv
from worldmodel.perturbations import (
    DelayedActions,
    DroppedActions,
    ObservationNoise,
    Perturbations,
    Progressive,
    RewardNoise,
    StickyActions,
)
from worldmodel.trust_region import Trust, TrustRegion, TrustRule

PERTURB = (DelayedActions(1), StickyActions(0.3), ObservationNoise(0.2), RewardNoise(0.5))


def model_with_region(threshold: float, env_id: str = "CartPole-v1"):
    """A model that trusts 99% of steps up to this disagreement."""
    model = untrained_model(env_id)
    return dataclasses.replace(model, trust=TrustRegion(np.full(99, threshold, np.float32), model.step))


def played(env, actions) -> list:
    told = []
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(action)
        told.append((np.asarray(obs).tobytes(), np.float64(reward).tobytes(), terminated, truncated, info["strength"]))
        if terminated or truncated:
            told.append(np.asarray(env.reset()[0]).tobytes())
    return told


def plan(env, count: int) -> list:
    env.action_space.seed(3)
    return [env.action_space.sample() for _ in range(count)]


def test_trust_says_stops_or_pays():
    model = model_with_region(0.0)  # every step is outside
    plain = SimEnv(model)
    plain.reset(seed=4)
    want = plain.step(0)
    assert "outside" not in want[4] and "disagreement" not in want[4]
    for trust in Trust:
        env = gym.make("worldmodel/Sim-v0", checkpoint=model, trust=trust.value, trust_penalty=2.5)
        env.reset(seed=4)
        obs, reward, terminated, truncated, info = env.step(0)
        np.testing.assert_array_equal(obs, want[0])
        assert reward == want[1] - (2.5 if trust is Trust.PENALISE else 0.0)
        assert (terminated, truncated) == (want[2], trust is Trust.TRUNCATE)
        if trust is not Trust.IGNORE:
            assert info["outside"] and info["disagreement"] > 0


def test_trust_in_a_batch_concerns_each_row_alone():
    model = untrained_model("CartPole-v1")
    envs = SimVectorEnv(
        16, dataclasses.replace(model, trust=TrustRegion(np.full(99, 1e9, np.float32), 0)), trust="info"
    )
    envs.reset(seed=1)
    said = envs.step(np.zeros(16, int))[4]
    middle = float(np.median(said["disagreement"]))
    envs = SimVectorEnv(16, model_with_region(middle), trust="truncate", autoreset_mode="Disabled")
    envs.reset(seed=1)
    _, _, terminated, truncated, info = envs.step(np.zeros(16, int))
    np.testing.assert_array_equal(info["outside"], said["disagreement"] > np.float32(middle))
    np.testing.assert_array_equal(truncated, info["outside"] & ~terminated)
    assert 4 < truncated.sum() < 12


def test_the_penalty_is_a_deviation_of_the_logs_rewards():
    for env_id, unit in (("Pendulum-v1", lambda rewards: rewards.scale), ("CartPole-v1", lambda rewards: 1.0)):
        model = model_with_region(0.5, env_id)
        rule = check_control(model, trust="penalise").trust
        assert rule == TrustRule(Trust.PENALISE, 0.5, unit(model.dynamics.codec.reward))
        assert check_control(model, trust="penalise", trust_penalty=0.0).trust.penalty == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trust": "inform"}, "trust is 'inform'; allowed are ignore, info, truncate, penalise"),
        ({"trust": "info", "trust_coverage": 1.0}, "trust_coverage is 1.0; it must lie between 0 and 1"),
        ({"trust": "info", "trust_coverage": 0.999}, "99 held-out steps certify at most 0.99"),
        ({"trust": "penalise", "trust_penalty": -1.0}, "trust_penalty is -1.0; a finite number, 0 or more, is needed"),
        ({"perturb": "noise"}, "perturb holds 'noise'; known perturbations are ObservationNoise"),
        ({"perturb": [1]}, "perturb holds 1; known perturbations are"),
        ({"perturb": DroppedActions(category=2)}, "category of DroppedActions is 2; 0 to 1 are allowed"),
    ],
)
@pytest.mark.parametrize("make", [SimEnv, SimFuncEnv, SimBrax, SimGymnax, lambda *a, **k: SimVectorEnv(2, *a, **k)])
def test_what_is_not_allowed_is_one_line(make, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        make(model_with_region(1.0), **arguments)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_region_or_with_one_member_is_refused():
    model = untrained_model("CartPole-v1")
    with pytest.raises(
        ValueError, match=r"trust='info' needs a trust region of step 0, and untrained has none: training"
    ):
        SimEnv(model, trust="info")
    single = dataclasses.replace(model.dynamics, config=dataclasses.replace(model.dynamics.config, members=1))
    with pytest.raises(
        ValueError, match=r"trust='truncate' needs an ensemble or a certificate: untrained has one member"
    ):
        SimEnv(dataclasses.replace(model, dynamics=single), trust="truncate")
    with pytest.raises(ValueError, match="5 environments cannot be split into groups of 2"):
        SimVectorEnv(5, model, perturb=Perturbations(PERTURB, group=2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*different initialization:UserWarning")
def test_check_env_passes_with_both():
    env = SimEnv(model_with_region(0.5), trust="truncate", perturb=PERTURB)
    check_env(env, skip_render_check=True)


def test_the_spec_goes_through_json(tmp_path):
    run = untrained_run(tmp_path / "run")
    TrustRegion(np.ones(99, np.float32), 0).save(run)
    perturb = Perturbations(PERTURB, share=0.5, schedule=Progressive(10.0))
    env = wm.make(run, trust=Trust.INFO, trust_coverage=0.9, perturb=perturb)
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    told = [(e.reset(seed=2), played(e, plan(e, 12)))[1] for e in (env, again)]
    assert told[0] == told[1]
    assert json.loads(env.spec.to_json())["kwargs"]["perturb"]["share"] == 0.5


def test_snapshot_and_branch_are_exact_with_both_on(tmp_path):
    how = {"trust": "info", "perturb": Perturbations(PERTURB, schedule=Progressive(20.0, start=0.5))}
    env = SimEnv(model_with_region(0.5), **how)
    env.reset(seed=5)
    played(env, plan(env, 9))
    moment = env.snapshot()
    first = played(env, plan(env, 50))
    assert any(isinstance(told, bytes) for told in first), "an episode ends within, and the next one is the same, too"
    assert len({told[-1] for told in first if not isinstance(told, bytes)}) > 1, "the strength moves"
    moment.save(tmp_path / "moment.npz")
    other = SimEnv(model_with_region(0.5), **how)
    other.restore(type(moment).load(tmp_path / "moment.npz"))
    assert played(other, plan(env, 50)) == first
    other.restore(moment)
    futures = other.branch(4)
    actions = plan(env, 6)
    for action in actions:
        want, got = other.step(action), futures.step(np.full(4, action))
        np.testing.assert_array_equal(got[0][0], want[0])
        assert got[1][0] == want[1]
        assert len(set(got[1].tolist())) == 4, "every other future has noise of its own"
        if want[2] or got[2].any():
            break
    with pytest.raises(ValueError, match="the snapshot's arrays are not of these environments"):
        SimEnv(model_with_region(0.5)).restore(moment)


@pytest.mark.slow
def test_eight_in_a_batch_are_eight_alone_when_disturbed():
    model = model_with_region(0.5)
    batch = SimVectorEnv(8, model, perturb=PERTURB, trust="penalise", autoreset_mode="NextStep")
    alone = gym.vector.SyncVectorEnv(
        [lambda: SimEnv(model, perturb=PERTURB, trust="penalise")] * 8, autoreset_mode="NextStep"
    )
    batch.action_space.seed(0)
    np.testing.assert_array_equal(batch.reset(seed=11)[0], alone.reset(seed=11)[0])
    for _ in range(25):
        action = batch.action_space.sample()
        for a, b in zip(batch.step(action)[:4], alone.step(action)[:4], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_progressive_strength_starts_again_with_a_seed():
    env = SimEnv(untrained_model("CartPole-v1"), perturb=Perturbations(PERTURB, schedule=Progressive(-1.0, step=0.5)))
    strengths = []
    for seed in (0, None, None, 0):
        env.reset(seed=seed)
        strengths.append(float(env.step(0)[4]["strength"]))
    assert strengths == [0.0, 0.5, 1.0, 0.0]


@pytest.mark.slow
def test_groups_of_a_batch_share_what_is_lost():
    model = untrained_model("CartPole-v1")
    envs = SimVectorEnv(4, model, perturb=Perturbations((RewardNoise(1.0),), group=2), autoreset_mode="Disabled")
    envs.reset(seed=3)
    plain = SimVectorEnv(4, model, autoreset_mode="Disabled")
    plain.reset(seed=3)

    def noise():
        return envs.step(np.zeros(4, int))[1] - plain.step(np.zeros(4, int))[1]

    first = noise()
    assert first[0] == first[1] != first[2] == first[3]
    for env in (envs, plain):
        env.reset(options={"reset_mask": np.array([False, False, True, True])})
    again = noise()
    assert again[0] == again[1] and again[2] == again[3] and len({*first, *again}) == 4


@pytest.mark.slow
def test_pure_adapters_follow_the_rule_and_the_perturbations():
    model = model_with_region(0.0)
    key, go = jax.random.split(jax.random.key(0))
    disturbed = {"perturb": (DroppedActions(1.0), RewardNoise(1.0))}
    gymnax = SimGymnax(model, trust="truncate", **disturbed)
    params = gymnax.default_params
    _, state = jax.jit(gymnax.reset_env)(key, params)
    steps = [jax.jit(gymnax.step_env)(go, state, a, params) for a in (0, 1)]
    np.testing.assert_array_equal(steps[0][0], steps[1][0])  # the action is lost
    assert bool(gymnax.is_truncated(steps[0][1], params)) != bool(steps[0][1].terminated)
    assert bool(steps[0][4]["outside"]) and float(steps[0][4]["strength"]) == 1.0

    functional = SimFuncEnv(model, trust="info", **disturbed)
    state = functional.initial(key)
    after = jax.jit(functional.transition)(state, 1, go)
    np.testing.assert_allclose(after.observation, steps[0][0], atol=1e-6)
    assert bool(functional.transition_info(state, 1, after)["outside"])
    assert float(after.reward) == pytest.approx(float(steps[0][2]), abs=1e-6) != 1.0

    brax = SimBrax(model, trust="truncate", **disturbed)

    def body(state, _):
        state = brax.step(state, jnp.int32(1))
        return state, (state.done, state.info["truncation"], state.metrics["outside"])

    done, truncation, outside = jax.vmap(lambda k: jax.lax.scan(body, brax.reset(k), None, 3)[1], out_axes=1)(
        jax.random.split(key, 4)
    )
    assert (np.asarray(outside) == 1).all() and (np.asarray(done) == 1).all() and np.asarray(truncation).any()


@pytest.mark.parametrize("env_id", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
def test_reality_is_disturbed_as_its_simulation(env_id):
    # The executed action and the added noise are what seed, episode and step say, in either world.
    model = untrained_model(env_id)
    perturb = Perturbations((DroppedActions(0.5), RewardNoise(1.0)), share=0.7)

    class Told(gym.Wrapper):
        def step(self, action):
            self.action = action
            told = self.env.step(action)
            self.paid = told[1]
            return told

    real = PerturbedEnv(Told(gym.make(env_id)), perturb, like=model)
    simulated, plain = SimEnv(model, perturb=perturb), SimEnv(model, max_episode_steps=-1)
    strengths = set()
    for episode in range(4):
        seed = 6 if episode == 0 else None
        obs, _ = real.reset(seed=seed)
        assert real.observation_space.contains(obs)
        for env in (simulated, plain):
            env.reset(seed=seed)
        for action in plan(real, 4):
            obs, reward, _, _, info = real.step(action)
            assert real.observation_space.contains(obs)
            _, shown, ended, _, said = simulated.step(action)
            _, clean, *_ = plain.step(real.env.action)
            assert info["strength"] == said["strength"]
            strengths.add(float(info["strength"]))
            np.testing.assert_allclose(reward - real.env.paid, shown - clean, atol=1e-4)
            if ended:
                break
    assert strengths == {0.0, 1.0}


def test_reality_of_other_spaces_is_refused():
    with pytest.raises(ValueError, match=r"the observation space is Box.*; the world model's is Box"):
        PerturbedEnv(gym.make("Pendulum-v1"), PERTURB, like=untrained_model("CartPole-v1"))
    env = PerturbedEnv(gym.make("CartPole-v1"), PERTURB, like=untrained_model("CartPole-v1"))
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
