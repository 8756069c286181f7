"""What does a model lose that learns several things: two environments at once, or three corpora in succession?

Command:   python eval/together.py                        (a try: --seeds 0 --steps 300)
Data:      recorded by the script: CartPole and Pendulum; Pendulum with gravity 10, 5 and 15, which nothing tells.
Hardware:  2 CPU cores, about 10 minutes a seed.
Expected:  eval/README.md.

`pair`: each environment alone and both in one model, equal steps for each; negative log-likelihood on held-out
episodes, nats per transition in the bins that training uses, by which it is always positive.
`succession`: a model learns the first corpus, goes on with the second, then with the third; a quarter of what it sees
is replayed from earlier ones. `first`: of the first corpus, after each of the three. `learned`: of the newest one after
1.1 times the steps, beside that of a fresh model.

Every cell is one line of JSON in `--out`, and is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.agents.behaviour import DEFAULT_BEHAVIOURS
from worldmodel.agents.record import record
from worldmodel.corpus import Columns, window_batches
from worldmodel.training import TrainingConfig, WorldModel, train
from worldmodel.training.continuation import Continuation
from worldmodel.training.held_out import HeldOut
from worldmodel.training.loop import train_together
from worldmodel.training.step import as_batch
from worldmodel.trajectory import Spec

RESULTS = Path(__file__).parent / "results" / "together.jsonl"
EPISODES, HELD_OUT, BATCHES = 240, 40, 16
GRAVITIES = (10.0, 5.0, 15.0)


def main() -> None:
    """Runs the cells that are missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=2_000, help="of training on each corpus")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for seed in options.seeds:
        for kind, cell in (("pair", pair), ("succession", succession)):
            key = {"kind": kind, "seed": seed, "steps": options.steps}
            if any(key.items() <= row.items() for row in done):
                continue
            config = TrainingConfig(steps=options.steps, batch_size=24, seed=seed, checkpoint_every=options.steps)
            with tempfile.TemporaryDirectory() as folder:
                row = {**key, **cell(Path(folder), config)}
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
            done.append(row)
    print(table([row for row in done if row["steps"] == options.steps]))


def logs(env_id: str, seed: int, **kwargs: Any) -> tuple[Spec, Columns, Columns]:
    """The spec, and episodes to learn from and to be measured on."""
    spec, episodes = record(env_id, behaviours=DEFAULT_BEHAVIOURS, episodes=EPISODES, seed=seed, env_kwargs=kwargs)
    whole = list(episodes)
    order = np.random.default_rng(seed).permutation(len(whole))
    sides = (Columns.from_trajectories(whole[i] for i in side) for side in (order[HELD_OUT:], order[:HELD_OUT]))
    return spec, *sides  # pyright: ignore[reportReturnType]


def nll(world: WorldModel, columns: Columns) -> float:
    """Held-out nats per transition, as training's own metric."""
    dynamics, source = world.dynamics, window_batches(columns, length=32, batch_size=24, seed=0)
    batches = [as_batch(next(source), dynamics.codec) for _ in range(BATCHES)]
    return HeldOut(dynamics.config, dynamics.codec, batches).measure(world.params["members"])["held_out_nll"]


def pair(folder: Path, config: TrainingConfig) -> dict[str, Any]:
    """Alone and together."""
    found = {name: logs(name, config.seed) for name in ("CartPole-v1", "Pendulum-v1")}
    both = train_together({name: (shown, spec) for name, (spec, shown, _) in found.items()}, folder / "both", config)
    row: dict[str, Any] = {}
    for name, (spec, shown, test) in found.items():
        alone = nll(train(shown, spec, folder / name, config), test)
        row[name] = {"alone": alone, "together": nll(both[name], test)}
    return row


def succession(folder: Path, config: TrainingConfig) -> dict[str, Any]:
    """One corpus after the other."""
    found = [logs("Pendulum-v1", config.seed, g=gravity) for gravity in GRAVITIES]
    spec = found[0][0]
    longer = dataclasses.replace(config, steps=round(1.1 * config.steps), checkpoint_every=round(1.1 * config.steps))
    world = train(found[0][1], spec, folder / "0", config)
    row: dict[str, Any] = {"first": [nll(world, found[0][2])], "learned": []}
    for number in (1, 2):
        earlier = [side.episode(i) for _, side, _ in found[:number] for i in range(side.episodes)]
        again = Continuation(world.run, Columns.from_trajectories(earlier), 0.25)
        world = train(found[number][1], spec, folder / str(number), longer, continuation=again)
        fresh = train(found[number][1], spec, folder / f"fresh {number}", config)
        row["first"].append(nll(world, found[0][2]))
        row["learned"].append({"continued": nll(world, found[number][2]), "fresh": nll(fresh, found[number][2])})
    return row


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown: two tables."""
    lines = ["| seed | environment | NLL alone | together | more |", "|---" * 5 + "|"]
    for row in (row for row in cells if row["kind"] == "pair"):
        for name in ("CartPole-v1", "Pendulum-v1"):
            alone, together = row[name]["alone"], row[name]["together"]
            lines.append(f"| {row['seed']} | {name} | {alone:.3f} | {together:.3f} | {together / alone - 1:+.1%} |")
    lines += ["", "| seed | first corpus: before | after two more | more | second: fresh, continued | third |"]
    lines.append("|---" * 6 + "|")
    for row in (row for row in cells if row["kind"] == "succession"):
        first = row["first"]
        newest = [
            f"{each['fresh']:.3f}, {each['continued']:.3f} ({each['continued'] / each['fresh'] - 1:+.1%})"
            for each in row["learned"]
        ]
        more = f"{first[-1] / first[0] - 1:+.1%}"
        lines.append(f"| {row['seed']} | {first[0]:.3f} | {first[-1]:.3f} | {more} | {' | '.join(newest)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
