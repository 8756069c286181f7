"""How faithful is the model on the transitions that rivals' figures are known for?

Command:   python eval/reference_logs.py                       # CartPole and Hopper, seeds 0-4
           python eval/reference_logs.py --env hopper --seeds 0 --steps 500     (a try of a minute)
Data:      `reference_logs` of the shared corpora: 20,935 steps of CartPole-v1 and 60,000 of Hopper-v5; the held-out
           episodes are never trained on.
Hardware:  2 CPU cores; about 4 minutes a cell, of which at most 3 train.
Expected:  eval/README.md.

NRMSE: root mean square error of the members' average central prediction of the change over the standard deviation of
the true change, averaged over dimensions, on all held-out steps. Open loop at k: the logged actions replayed from 250
held-out starts with 50 further steps; root mean square over dimensions, in standard deviations of the training
observations; median over starts; `mean` follows the members' average of central paths, `member` one member's central
path, `samples` one sampled path. Coverage: share of truths inside the central 90% of what a member samples.

Every cell is one line of JSON in `--out`, and is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from worldmodel.corpus import Columns
from worldmodel.fidelity.replay import gather, open_loop_paths
from worldmodel.fidelity.single_steps import one_step
from worldmodel.training import WorldModel, train
from worldmodel.training.recipes import VECTORS
from worldmodel.trajectory import Spec, Trajectory

LOGS = Path(__file__).parents[2] / "shared" / "corpora" / "reference_logs"
RESULTS = Path(__file__).parent / "results" / "reference_logs.jsonl"
ENV_IDS = {"cartpole": "CartPole-v1", "hopper": "Hopper-v5"}
STEPS = {"cartpole": 6_000, "hopper": 8_000}
"""Train steps that fit into three minutes."""
STARTS, HORIZON = 250, 50


def main() -> None:
    """Runs the cells that are missing and prints the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", choices=list(ENV_IDS), default=list(ENV_IDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, help="of training; by default what fits into three minutes")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if not LOGS.is_dir():
        raise SystemExit(f"{LOGS} is missing: these logs come with the shared corpora")
    done = rows(options.out)
    for env in options.env:
        for seed in options.seeds:
            steps = options.steps or STEPS[env]
            if any((row["env"], row["seed"], row["steps"]) == (env, seed, steps) for row in done):
                continue
            row = {"env": env, "seed": seed, "steps": steps, **cell(env, seed, steps)}
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
            done.append(row)
    print(table([row for row in done if row["env"] in options.env and row["seed"] in options.seeds]))


def rows(path: Path) -> list[dict[str, Any]]:
    """The finished cells."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read(env: str) -> tuple[Spec, Columns, Columns]:
    """The spec, the training and the held-out episodes of one of the logs."""
    with np.load(LOGS / f"{env}.npz", allow_pickle=False) as file:
        log = {name: file[name] for name in file.files}
    made = gym.make(ENV_IDS[env])
    spec = Spec.from_gymnasium(made)
    made.close()
    held_out, sides = set(log["held_out_episodes"].tolist()), ([], [])
    for episode, last in enumerate(log["final_observations"]):
        here = log["episode"] == episode
        trajectory = Trajectory(
            observations=np.concatenate([log["observations"][here], last[None]]).astype(_dtype(spec)),
            actions=log["actions"][here],
            rewards=log["rewards"][here],
            terminated=bool(log["terminated"][episode]),
            truncated=bool(log["truncated"][episode]),
            info={"id": f"{env}-{episode}"},
        )
        sides[episode in held_out].append(trajectory)
    train_side, test_side = map(Columns.from_trajectories, sides)
    return spec, train_side, test_side


def _dtype(spec: Spec) -> np.dtype:
    return np.dtype(spec.observation_space["dtype"])


def cell(env: str, seed: int, steps: int) -> dict[str, Any]:
    """Trains once and measures."""
    spec, train_side, test_side = read(env)
    config = dataclasses.replace(VECTORS, steps=steps, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        world = train(train_side, spec, Path(folder) / "run", config)
        seconds = time.monotonic() - start
        one = one_step(world, test_side, seed, max_episodes=test_side.episodes)
        result = {
            "train_seconds": round(seconds, 1),
            "nrmse": one["nrmse"],
            "nrmse_per_dim": one["nrmse_per_dim"],
            "nll_per_dim": one["nll_per_dim"],
            "coverage_90": one["coverage_90"],
            "open_loop": open_loop(world, train_side, test_side),
        }
    return result


def open_loop(world: WorldModel, train_side: Columns, test_side: Columns) -> dict[str, dict[str, float]]:
    """Median errors after 10 and 50 steps, by mean, by one member, by samples."""
    eligible = [(e, f) for e, n in enumerate(test_side.lengths) for f in range(int(n) - HORIZON + 1)]
    chosen = np.random.default_rng(7).choice(len(eligible), min(STARTS, len(eligible)), replace=False)
    episodes, first = np.array(eligible, np.int64)[np.sort(chosen)].T
    shown = world.dynamics.config.trunk.window - 1
    before, after = gather(test_side, episodes, first - shown, shown), gather(test_side, episodes, first, HORIZON)
    central, sampled = open_loop_paths(world, before, after, 7)
    scale = train_side.observations.std(axis=0)
    truth = after.obs[1:]

    def error(paths: np.ndarray) -> dict[str, float]:
        apart = np.sqrt(np.mean(((paths - truth) / scale) ** 2, axis=-1))
        medians = np.median(np.nan_to_num(apart, nan=np.inf), axis=1)
        return {str(k): round(float(medians[k - 1]), 4) for k in (10, HORIZON)}

    return {"mean": error(central.mean(axis=1)), "member": error(central[:, 0]), "samples": error(sampled[:, 0])}


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown, a line per cell."""
    lines = [
        "| log | seed | train s | NRMSE [95%] | open loop 10 / 50, mean | one member | samples | 90% intervals cover |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(cells, key=lambda row: (row["env"], row["steps"], row["seed"])):
        error, loops = row["nrmse"], row["open_loop"]
        ways = (f"{loops[way]['10']:.4f} / {loops[way][str(HORIZON)]:.3f}" for way in ("mean", "member", "samples"))
        lines.append(
            f"| {row['env']} | {row['seed']} | {row['train_seconds']:.0f} | "
            f"{error['mean']:.4f} [{error['lo']:.4f}, {error['hi']:.4f}] | {' | '.join(ways)} | "
            f"{row['coverage_90']['mean']:.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
