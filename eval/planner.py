"""Planning from logs alone against planning in the true dynamics, at the same budget, by what each earns in reality.

Command:   python eval/planner.py                         (a try: --seeds 0 --episodes 4 --methods cem)
Data:      300 episodes of Pendulum-v1 under the quickstart's mixture of weak policies, recorded anew for each seed.
Hardware:  2 CPU cores; about 2 minutes of training a seed. A cell of 20 episodes with the learned model took 17 and 27
           minutes beside much other work, one with the true dynamics 20 seconds.
Expected:  eval/README.md. The cost (minus the return) with the learned model is at most 1.2 times that with the true.

A cell is a seed, a method, and what was planned in: the learned model, the true dynamics (`worldmodel.envs.
true_dynamics`), or `random` actions for scale. All cells of a seed meet the same real starts, so that returns are
compared in pairs. The same configuration plans in both; it was chosen on the true dynamics. Every cell is one line of
JSON in `--out`, and is not run again; trained models stay in `--runs`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.agents.behaviour import DEFAULT_BEHAVIOURS
from worldmodel.agents.counting import StepLedger
from worldmodel.agents.evaluate import real_episodes
from worldmodel.agents.planner import Planner
from worldmodel.agents.policies import random_policy
from worldmodel.agents.record import record
from worldmodel.agents.sequences import CEM, MPPI, SequenceSearch
from worldmodel.corpus import Columns
from worldmodel.envs.true_dynamics import true_dynamics
from worldmodel.fidelity import mean_interval
from worldmodel.fidelity.estimates import cluster_ratio_interval
from worldmodel.training import TrainingConfig, WorldModel, train

RESULTS = Path(__file__).parent / "results" / "planner.jsonl"
ENV = "Pendulum-v1"
SHARED = SequenceSearch(candidates=66, every_member=False)
"""66 candidates, 22 for each of three members: the learned model takes as many imagined steps as the true dynamics."""
SEARCHES = {
    "cem": dataclasses.replace(SHARED, update=CEM()),
    "mppi": dataclasses.replace(SHARED, update=MPPI()),
}
WHERE = ("learned", "true", "random")
FIRST_START = 3_000_000
"""Seed of the first real episode, far from those of the logs."""


def main() -> None:
    """Runs the cells that are missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=list(SEARCHES), default=list(SEARCHES))
    parser.add_argument("--episodes", type=int, default=20, help="real episodes of a cell")
    parser.add_argument("--steps", type=int, default=1_500, help="of training")
    parser.add_argument("--runs", type=Path, default=Path("runs/planner"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for seed in options.seeds:
        for method in options.methods:
            for where in WHERE:
                key = {"seed": seed, "method": method, "where": where}
                key |= {"episodes": options.episodes, "steps": options.steps}
                if where == "random":
                    key["method"] = "none"
                if any(key.items() <= cell.items() for cell in cells(options.out)):
                    continue
                world = trained(seed, options.steps, options.runs / f"{ENV}-{seed}-{options.steps}")
                cell = {**key, **measure(world, method, where, options.episodes, seed)}
                options.out.parent.mkdir(exist_ok=True)
                with options.out.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
                print(json.dumps({name: cell[name] for name in (*key, "mean", "seconds")}), flush=True)
    same = {"episodes": options.episodes, "steps": options.steps}
    print(table([cell for cell in cells(options.out) if same.items() <= cell.items()]))


def cells(path: Path) -> list[dict[str, Any]]:
    """The finished ones."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trained(seed: int, steps: int, run: Path) -> WorldModel:
    """A model of the logs of a seed; trained once."""
    spec, episodes = record(ENV, behaviours=DEFAULT_BEHAVIOURS, episodes=300, seed=seed)
    return train(Columns.from_trajectories(episodes), spec, run, TrainingConfig(steps=steps, seed=seed))


def measure(world: WorldModel, method: str, where: str, episodes: int, seed: int) -> dict[str, Any]:
    """Returns of real episodes, and seconds."""
    began = time.perf_counter()
    if where == "random":
        policy: Any = random_policy(world.spec)
    elif where == "learned":
        policy = Planner.in_model(world, SEARCHES[method])
    else:
        dynamics, params = true_dynamics(world.spec)
        policy = Planner(dynamics, SEARCHES[method], world.spec, params)
    ran = real_episodes(
        world.spec, policy, episodes=episodes, seed=FIRST_START + 1_000 * seed, ledger=StepLedger(), num_envs=episodes
    )
    returns = [round(episode.total_reward, 3) for episode in ran]
    return {
        "returns": returns,
        "mean": round(float(np.mean(returns)), 2),
        "seconds": round(time.perf_counter() - began, 1),
    }


def table(done: list[dict[str, Any]]) -> str:
    """Markdown: returns, and what the learned model costs more, by seed and over all of them."""
    lines = ["| seed | search | random | true dynamics | learned model | difference [95%] | cost ratio [95%] |"]
    lines.append("|---" * 7 + "|")
    by = {(cell["seed"], cell["method"], cell["where"]): np.array(cell["returns"]) for cell in done}
    for method in SEARCHES:
        seeds = sorted(seed for seed, m, where in by if m == method and where == "true")
        seeds = [seed for seed in seeds if (seed, method, "learned") in by]
        for chosen in [[seed] for seed in seeds] + ([seeds] if len(seeds) > 1 else []):
            true, learned = (np.concatenate([by[s, method, w] for s in chosen]) for w in ("true", "learned"))
            random = np.concatenate([by[s, "none", "random"] for s in chosen])
            # Over several seeds a seed is the unit: a model is trained once for each.
            unit = None if len(chosen) == 1 else np.repeat(chosen, len(true) // len(chosen))
            apart = learned - true
            if unit is not None:
                apart = apart.reshape(len(chosen), -1).mean(axis=1)
            apart, ratio = mean_interval(apart), cluster_ratio_interval(-learned, -true, unit)
            entries = (
                chosen[0] if len(chosen) == 1 else f"all {len(chosen)}",
                method,
                f"{random.mean():,.0f}",
                f"{true.mean():.1f}",
                f"{learned.mean():.1f}",
                f"{apart.mean:+.1f} [{apart.lo:+.1f}, {apart.hi:+.1f}]",
                f"{ratio.mean:.2f} [{ratio.lo:.2f}, {ratio.hi:.2f}]",
            )
            lines.append("| " + " | ".join(map(str, entries)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
