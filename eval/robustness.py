"""Does disturbing the simulated world make a policy robust in the real one, and at what price?

Command:   python eval/robustness.py                      (a try: --envs Pendulum-v1 --kinds delay --seeds 0)
Hardware:  2 CPU cores; 3 minutes for the world model of a seed, a minute for each cell.
Expected:  eval/README.md. Every trained-with less trained-without is above 0, by its interval over 10 seeds.

For each environment and seed a world model is learned from 300 logged episodes of weak behaviours, and PPO learns in it
once undisturbed, and once for each kind of disturbance and each schedule: `constant`, or `progressive`, which grows
while episodes return nine tenths of what the undisturbed policy was paid in training. Both policies of a cell are then
tested in the real environment, under the same disturbance by `PerturbedEnv` and without, in the same episodes with the
same draws. What is reported is the difference of the pair, over seeds; the undisturbed real return stands beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from worldmodel.agents.counting import StepLedger
from worldmodel.agents.evaluate import real_episodes
from worldmodel.agents.ppo import PPOConfig, TrainingResult
from worldmodel.agents.record import record
from worldmodel.corpus import Columns
from worldmodel.envs.perturbed import PerturbedEnv
from worldmodel.fidelity.estimates import cluster_mean_interval
from worldmodel.perturbations import (
    DelayedActions,
    DroppedActions,
    ObservationNoise,
    Perturbation,
    Perturbations,
    Progressive,
    StickyActions,
)
from worldmodel.quickstart import QuickstartConfig, train_in_simulation
from worldmodel.training import WorldModel, train

RESULTS = Path(__file__).parent / "results" / "robustness.jsonl"
KINDS: dict[str, Perturbation] = {
    "noise": ObservationNoise(0.3),
    "delay": DelayedActions(2),
    "drop": DroppedActions(0.4),
    "sticky": StickyActions(0.6),
}
SCHEDULES = ("constant", "progressive")
EPISODES = 100


def main() -> None:
    """Runs the cells that are missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=["CartPole-v1", "Pendulum-v1"])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=list(SCHEDULES))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--runs", type=Path, default=Path("runs/robustness"), help="where world models are kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for env in options.envs:
        for seed in options.seeds:
            keys = [
                {"env": env, "seed": seed, "kind": kind, "schedule": schedule}
                for kind in options.kinds
                for schedule in options.schedules
            ]
            missing = [key for key in keys if not any(key.items() <= cell.items() for cell in done)]
            if not missing:
                continue
            world = world_of(env, seed, options.runs / f"{env}-{seed}")
            plain = train_in_simulation(world, PPOConfig(), seed=seed)
            for key in missing:
                cell = {**key, **pair(world, plain, KINDS[key["kind"]], key["schedule"], seed)}
                with options.out.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
                print(json.dumps(cell), flush=True)
                done.append(cell)
    print(table([c for c in done if c["env"] in options.envs and c["kind"] in options.kinds]))


def world_of(env: str, seed: int, run: Path) -> WorldModel:
    """The quickstart's world model of this environment; a finished run is taken as it is."""
    asked = QuickstartConfig(env=env, seed=seed)
    spec, episodes = record(env, behaviours=asked.behaviours, episodes=asked.episodes, seed=seed)
    config = dataclasses.replace(asked.training, seed=seed)
    return train(Columns.from_trajectories(episodes), spec, run, config)


def pair(world: WorldModel, plain: TrainingResult, kind: Perturbation, schedule: str, seed: int) -> dict[str, Any]:
    """Real returns of the policy trained with the disturbance and of that trained without, disturbed and not."""
    mastered = float(plain.train_return[-1])
    progressive = Progressive(mastered - 0.1 * abs(mastered)) if schedule == "progressive" else None
    disturbed = Perturbations((kind,), schedule=progressive)
    trained = train_in_simulation(world, PPOConfig(), seed=seed, perturb=disturbed)
    wrap = partial(PerturbedEnv, perturb=kind, like=world)
    out: dict[str, Any] = {"simulated_return": mastered}
    returns: dict[tuple[str, str], np.ndarray] = {}
    for name, result in (("with", trained), ("without", plain)):
        for where, wrapper in (("disturbed", wrap), ("calm", None)):
            episodes = real_episodes(
                world.spec,
                result.policies[-1],
                episodes=EPISODES,
                seed=10_000 + seed,
                ledger=StepLedger(),
                wrap=wrapper,
            )
            returns[name, where] = np.array([episode.total_reward for episode in episodes])
            out[f"{name}_{where}"] = cluster_mean_interval(returns[name, where], None, seed).to_json()
    for where in ("disturbed", "calm"):
        difference = returns["with", where] - returns["without", where]
        out[f"difference_{where}"] = cluster_mean_interval(difference, None, seed).to_json()
    return out


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown: means over seeds, and the paired differences with their 95% intervals (Student's t over seeds)."""
    lines = [
        "| environment | disturbance | schedule | seeds | without, disturbed | with, disturbed | difference [95%] | "
        "without, calm | with, calm | difference [95%] |",
        "|---" * 10 + "|",
    ]
    for env, kind, schedule in sorted({(c["env"], c["kind"], c["schedule"]) for c in cells}):
        own = [c for c in cells if (c["env"], c["kind"], c["schedule"]) == (env, kind, schedule)]
        parts = []
        for where in ("disturbed", "calm"):
            without, trained = (np.array([c[f"{n}_{where}"]["mean"] for c in own]) for n in ("without", "with"))
            parts += [f"{without.mean():.0f}", f"{trained.mean():.0f}", _interval(trained - without)]
        lines.append(f"| {env} | {kind} | {schedule} | {len(own)} | {' | '.join(parts)} |")
    return "\n".join(lines)


def _interval(values: np.ndarray) -> str:
    if len(values) < 2:
        return f"{values[0]:+.0f} (one seed)"
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.0f} [{values.mean() - half:+.0f}, {values.mean() + half:+.0f}]"


if __name__ == "__main__":
    main()
