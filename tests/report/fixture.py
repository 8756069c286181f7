"""A report with planted numbers and one pair of rollouts: for tests of the pages alone, measured nowhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from worldmodel.envs import rendering
from worldmodel.report import Evidence

STEPS = 150


def estimate(mean: float, half: float, n: int = 100) -> dict[str, Any]:
    return {"mean": mean, "lo": mean - half, "hi": mean + half, "n": n}


def cartpole_evidence(*, frames: bool = True, imagined_steps: int = STEPS) -> Evidence:
    t = np.arange(STEPS + 1)
    real = np.stack(
        [
            0.9 * np.sin(t / 40),
            0.55 * np.cos(t / 40) + 0.2 * np.sin(t / 3),
            0.11 * np.sin(t / 14),
            0.5 * np.cos(t / 14) + 0.1 * np.sin(t / 3),
        ],
        axis=1,
    )
    drift = (t[:, None] / STEPS) ** 2 * np.array([0.8, 0.4, 0.07, -0.4])
    imagined = (real + drift)[: imagined_steps + 1]
    return Evidence(
        imagined_obs=imagined,
        real_obs=real,
        obs_names=("cart position (m)", "cart velocity (m/s)", "pole angle (rad)", "pole velocity (rad/s)"),
        imagined_rewards=np.ones(len(imagined) - 1),
        real_rewards=np.ones(STEPS),
        imagined_frames=rendering.frames("CartPole-v1", imagined) if frames else None,
        real_frames=rendering.frames("CartPole-v1", real) if frames else None,
        imagined_end="terminated" if imagined_steps < STEPS else None,
        step_seconds=0.02,
    )


def wide_evidence() -> Evidence:
    """Seventeen dimensions without names, frames or rewards."""
    rng = np.random.default_rng(5)
    real = np.cumsum(rng.normal(size=(81, 17)), axis=0)
    return Evidence(imagined_obs=real + np.cumsum(0.1 * rng.normal(size=(81, 17)), axis=0), real_obs=real)


def cartpole_report() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    horizons = list(range(1, 101))
    error = [0.02 + 0.00026 * h**2 for h in horizons]
    names = ["random", "push left", "weak 0.9", "weak 0.7", "weak 0.5", "weak 0.3", "ppo 5k steps", "ppo 10k steps"]
    names += ["ppo 20k steps", "ppo 40k steps", "linear", "trained in simulator"]
    real = [22, 9.4, 24, 31, 42, 68, 95, 160, 270, 410, 489, 492]
    sim = [24, 9.6, 26, 33, 47, 75, 104, 181, 300, 432, 496, 497]
    loss_steps = list(range(0, 2001, 20))
    return {
        "env_id": "CartPole-v1",
        "seed": 0,
        "versions": {
            "python": "3.11.2",
            "jax": "0.10.2",
            "flax": "0.12.8",
            "gymnasium": "1.3.0",
            "worldmodel": "0.1.0",
        },
        "timings": {"record": 3.1, "train": 141.0, "policy": 48.0, "probe": 39.0, "total": 233.4},
        "config": {"model": {"width": 64, "layers": 2, "window": 16, "members": 3}, "policy": {"steps": 500_000}},
        "corpus": {
            "episodes": 300,
            "transitions": 18_842,
            "return_mean": estimate(62.8, 5.1, 300),
            "behaviours": [
                {"name": "random", "episodes": 90, "return_mean": estimate(22, 2, 90)},
                {"name": "weak 0.5", "episodes": 120, "return_mean": estimate(58, 6, 120)},
                {"name": "weak 0.3", "episodes": 90, "return_mean": estimate(110, 12, 90)},
            ],
            "ends": {"terminated": 292, "truncated": 8, "cut": 0},
        },
        "one_step": {
            "nrmse": estimate(0.032, 0.002, 30),
            "nrmse_per_dim": [0.018, 0.041, 0.022, 0.047],
            "nll_per_dim": -2.41,
            "persistence_nrmse": 0.83,
            "reward_mae": 0.0004,
            "termination": {"precision": 0.97, "recall": 0.98, "brier": 0.0006, "false_end_rate": 0.00003},
        },
        "rollout": {
            "horizons": horizons,
            "error": error,
            "error_lo": [0.86 * e for e in error],
            "error_hi": [1.17 * e for e in error],
            "persistence": [1.5 * (1 - float(np.exp(-h / 25))) + 0.08 for h in horizons],
            "one_step_noise": [0.02 + 0.0031 * h for h in horizons],
            "divergence_horizon": {**estimate(43.6, 5.2, 64), "median": 43.0},
            "threshold": 0.5,
        },
        "policies": [
            {
                "name": name,
                "sim_return": estimate(s, 0.6 + 0.05 * s * (s < 450), 64),
                "real_return": estimate(r, 0.6 + 0.07 * r * (r < 450), 30),
                "episodes": 30,
            }
            for name, s, r in zip(names, sim, real, strict=True)
        ],
        "ranking": {
            "pearson": 0.998,
            "spearman": {"mean": 0.93, "lo": 0.81, "hi": 0.98, "n": 12},
            "mmrv": 2.1,
            "mmrv_convention": "real-side gap, either order wrong",
            "regret_at_1": 0.0,
            "noise_floor": {"pearson": 0.999, "spearman": 0.97, "mmrv": 1.2},
        },
        "transfer": {
            "behaviour_return": estimate(62.8, 5.1, 300),
            "sim_trained_real_return": estimate(492, 5, 100),
            "sim_trained_sim_return": estimate(497, 2, 100),
            "real_trained_same_budget_return": estimate(188, 31, 100),
            "real_trained_full_return": estimate(500, 0.0, 100),
            "real_steps_after_logs": 0,
            "real_steps": {"logs": 18_842, "evaluation": 61_200, "comparison": 218_842},
        },
        "training": {
            "steps": loss_steps,
            "loss": [float(3.5 * np.exp(-s / 300) + 0.12 + 0.05 * rng.random()) for s in loss_steps],
        },
        "policy_training": {
            "steps": list(range(0, 500_001, 10_000)),
            "sim_return": [float(20 + 477 * (1 - np.exp(-s / 9)) + 6 * rng.normal()) for s in range(51)],
            "note": "The last policy is the one deployed.",
        },
        "verdict": None,
    }


def pendulum_report() -> dict[str, Any]:
    """The opposite case: negative returns, an optimistic simulator, nulls with reasons, a broken ranking."""
    report = cartpole_report()
    report["env_id"] = "Pendulum-v1"
    report["one_step"]["nrmse_per_dim"] = [0.1, 0.2, 0.31]
    report["one_step"]["nrmse"] = estimate(0.2, 0.01, 30)
    report["one_step"]["termination"] = {"precision": None, "recall": None, "brier": None, "why": "no true end"}
    for key in ("error", "error_lo", "error_hi"):
        report["rollout"][key] = [0.15 * e for e in report["rollout"][key]]
    report["rollout"] |= {"divergence_horizon": {**estimate(98, 1, 64), "median": 100.0}, "one_step_noise": None}
    for index, policy in enumerate(report["policies"]):
        policy["sim_return"] = estimate(-1300 + 90 * ((5 * index) % 12), 60)
        policy["real_return"] = estimate(-1400 + 100 * index, 80)
    report["ranking"]["spearman"] = {"mean": 0.12, "lo": -0.5, "hi": 0.66, "n": 12}
    report["transfer"] |= {
        "behaviour_return": estimate(-1180, 20, 300),
        "sim_trained_real_return": estimate(-1120, 90, 100),
        "sim_trained_sim_return": estimate(-160, 12, 100),
        "real_trained_same_budget_return": {
            "mean": None,
            "lo": None,
            "hi": None,
            "n": 0,
            "why": "skipped to save time",
        },
        "real_trained_full_return": estimate(-170, 20, 100),
    }
    report["policy_training"] = None
    return report
