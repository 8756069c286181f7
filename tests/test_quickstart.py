"""The whole, small: from logs to a report, resumed, and refused where it must be."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import gymnasium
import numpy as np
import pytest

from tests.support import SMALL
from worldmodel.agents.batch_env import Interface
from worldmodel.agents.counting import StepLedger, every_step_counted
from worldmodel.agents.ppo import PPOConfig, load_policy
from worldmodel.cli import main
from worldmodel.quickstart import QuickstartConfig, quickstart
from worldmodel.training import TrainingConfig, load

FIELDS = {
    "corpus": {"episodes", "transitions", "return_mean"},
    "one_step": {"nrmse", "nll_per_dim", "persistence_nrmse", "reward_mae", "termination"},
    "rollout": {"horizons", "error", "error_lo", "error_hi", "divergence_horizon"},
    "ranking": {"pearson", "spearman", "mmrv", "mmrv_convention", "regret_at_1", "noise_floor"},
    "timings": {"record", "train", "policy", "probe", "total"},
    "transfer": {
        "behaviour_return",
        "sim_trained_real_return",
        "sim_trained_sim_return",
        "real_trained_same_budget_return",
        "real_trained_full_return",
        "real_steps_after_logs",
    },
}


@pytest.fixture(scope="module")
def report(trained_run):
    return json.loads((trained_run / "report.json").read_text())


def test_report_json_holds_the_contract(report):
    assert {"env_id", "seed", "versions", "verdict", "policies", *FIELDS} <= set(report)
    for section, names in FIELDS.items():
        assert names <= set(report[section]), section
    assert {"precision", "recall", "brier"} <= set(report["one_step"]["termination"])
    assert len(report["policies"]) >= 8
    for policy in report["policies"]:
        assert {"name", "sim_return", "real_return", "episodes"} <= set(policy)
        assert {"mean", "lo", "hi", "n"} <= set(policy["real_return"])


def test_no_real_step_was_taken_after_the_logs(report):
    transfer = report["transfer"]
    assert transfer["real_steps_after_logs"] == 0
    assert transfer["real_steps"]["logs"] == report["corpus"]["transitions"]
    deployed = report["config"]["deployment_episodes"]
    assert transfer["real_steps"]["evaluation"] >= 3 * deployed  # three policies, a step an episode at the least
    assert transfer["real_steps"]["comparison"] >= report["config"]["policy"]["total_steps"]


def test_the_page_stands_alone(trained_run, report):
    text = (trained_run / "report.html").read_text()
    outside = []

    class Links(HTMLParser):
        def handle_starttag(self, tag, attrs):
            outside.extend(v for k, v in attrs if k in ("src", "href") and v and v.startswith(("http", "//")))

    Links().feed(text)
    assert outside == []
    assert (trained_run / "README.md").read_text().startswith("---\n")
    assert (trained_run / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_saved_policy_acts(trained_run):
    world = load(trained_run)
    policy = load_policy(trained_run / "policy.npz", Interface(world.spec, world.dynamics.codec))
    actions = np.asarray(policy(np.zeros((3, 4), np.float32), None))
    assert actions.shape == (3,)
    assert set(actions.tolist()) <= {0, 1}


def test_other_logs_in_the_folder_are_refused(trained_run, capsys):
    before = (trained_run / "corpus" / "manifest.json").read_bytes()
    assert main(["quickstart", "--quick", "--seed", "5", "--out", str(trained_run)]) == 2
    err = capsys.readouterr().err
    assert "holds other logs" in err
    assert "seed is 0 there, 5 here" in err
    assert (trained_run / "corpus" / "manifest.json").read_bytes() == before


def test_a_stray_real_step_is_seen():
    """The proof that none was taken must be able to fail: also for an environment that nobody wrapped."""
    ledger = StepLedger()
    watched, stray = gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1")
    stray.reset(seed=0)
    with every_step_counted(watched, ledger, "after_logs"):
        stray.step(0)
    stray.step(0)
    assert ledger.count("after_logs") == 1


@pytest.mark.slow
def test_a_share_of_training_without_an_ended_episode_is_null(tmp_path):
    """Ten steps of each environment, of episodes that take two hundred: no return is known until the end."""
    config = QuickstartConfig(
        env="Pendulum-v1",
        episodes=4,
        training=TrainingConfig(model=SMALL, steps=4, batch_size=4, length=8, warmup=1),
        policy=PPOConfig(total_steps=40, num_envs=4, num_steps=10, num_epochs=1, num_minibatches=1, evaluations=1),
        deployment_episodes=2,
        panel_episodes=2,
        simulated_episodes=2,
    )
    report = quickstart(config, tmp_path / "run")
    assert report["policy_training"]["sim_return"] == [None]
    assert json.loads((tmp_path / "run" / "report.json").read_text())["transfer"]["real_steps_after_logs"] == 0
