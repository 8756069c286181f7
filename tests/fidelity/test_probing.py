from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import worldmodel as wm
import worldmodel.fidelity as fidelity
from tests.fidelity.planted import REAL, log, planted_world
from tests.support import untrained_model, untrained_run
from worldmodel.agents.counting import StepLedger
from worldmodel.agents.policies import random_policy
from worldmodel.agents.record import record
from worldmodel.corpus import Columns, write_corpus
from worldmodel.fidelity.probing import SECTIONS, probe

SMALL = {"episodes": 3, "sim_episodes": 4, "horizon": 8, "starts": 20}


def left(obs: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.zeros(obs.shape[0], jnp.int32)


def cartpole_columns(seed: int = 7) -> Columns:
    return Columns.from_trajectories(record("CartPole-v1", behaviours=["random"], episodes=6, seed=seed)[1])


def test_probe_stays_a_function():
    assert wm.probe is fidelity.probe is probe and callable(fidelity.panel)


def test_all_sections_from_a_run_and_a_corpus_on_disk(tmp_path):
    spec, episodes = record("CartPole-v1", behaviours=["random"], episodes=30, seed=7)
    write_corpus(tmp_path / "logs", spec, episodes, provenance={})
    run, ledger = untrained_run(tmp_path / "run"), StepLedger()
    policies = {"random": random_policy(spec), "left": left}
    report = probe(run, policies=policies, corpus=tmp_path / "logs", ledger=ledger, **SMALL)
    out = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert out["env_id"] == "CartPole-v1" and out["why"] == {}
    held = wm.read(str(tmp_path / "logs")).columns("held_out")
    assert out["one_step"]["transitions"] == len(held)
    assert out["one_step"]["nrmse"]["mean"] > 0
    assert len(out["rollout"]["error"]) == len(out["rollout"]["one_step_noise"]) == len(out["rollout"]["horizons"])
    assert [entry["name"] for entry in out["policies"]] == ["random", "left"]
    assert out["ranking"]["n_policies"] == 2
    # Every real step is on the books: the policies' own, and those of the yardstick.
    taken = sum(len(t) for trajectories in report.episodes.values() for t in trajectories)
    assert out["real_steps"] == {"evaluation": taken, "noise_reference": out["rollout"]["one_step_noise_steps"]}
    timed = {"one_step", "rollout", "trust_region", "real_episodes", "sim_episodes", "visits", "attribution"}
    assert set(out["seconds"]) == timed
    assert sum(region["share"] for region in out["trust_region"]["regions"]) == pytest.approx(1.0)
    assert report.certificate is not None and 0 <= out["visits"]["by_policy"][0]["certified"]["share"] <= 1


def test_what_was_not_given_is_null_beside_why():
    out = probe(untrained_model()).to_json()
    assert [out[name] for name in SECTIONS] == [None] * len(SECTIONS)
    assert out["why"]["one_step"] == out["why"]["trust_region"] == "no corpus was given"
    assert out["why"]["policies"] == "no policies were given"
    assert out["real_steps"] == {}


def test_a_model_of_no_known_environment_keeps_what_needs_none():
    columns = log(12)
    report = probe(planted_world(columns), policies={"left": left}, corpus=columns, **SMALL)
    assert report.one_step is not None and report.rollout is not None and report.policies is None
    assert report.why["policies"] == "the model's logs name no real environment"


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_another_real_environment_of_the_same_spaces():
    assert probe(untrained_model(), "CartPole-v0").env_id == "CartPole-v0"


def test_the_same_seed_gives_the_same_report():
    columns = log(12)
    world, policies = planted_world(columns, spec=REAL, noise=0.05), {"random": random_policy(REAL), "left": left}
    one, two = (probe(world, policies=policies, corpus=columns, **SMALL).to_json() for _ in range(2))
    assert {k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in two.items() if k != "seconds"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"real": "CartPole-v9"}, "environment 'CartPole-v9' is not registered"),
        ({"real": "Pendulum-v1"}, "observation space of Pendulum-v1 is"),
        ({"policies": {}}, "policies is empty"),
        ({"episodes": 0}, "episodes is 0; at least 1 is needed"),
        ({"policies": {"left": left}, "optimised": "final"}, "optimised policy 'final' is unknown; known: left"),
        ({"corpus": log(3)}, r"corpus: observation has shape \(3,\); the space has \(4,\)"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message: str):
    with pytest.raises(ValueError, match=message) as error:
        probe(untrained_model(), **arguments)
    assert "\n" not in str(error.value)


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        probe(tmp_path / "nowhere")


def test_an_infinite_reward_in_the_logs_is_refused():
    columns = cartpole_columns()
    broken = dataclasses.replace(columns, rewards=np.full_like(columns.rewards, np.inf))
    with pytest.raises(ValueError, match="a reward is not finite"):
        probe(untrained_model(), corpus=broken)
