"""Does the model know the rules of a grid world? The next grid, cell by cell, on layouts that it has never seen.

Command:   python data/minigrid_doorkey.py corpora/doorkey && python eval/doorkey.py corpora/doorkey
Hardware:  2 CPU cores, about 8 minutes a seed.
Expected:  eval/README.md. Exact match of at least 99%.

Exact match: every one of the 64 cells of the likeliest next grid is right. An answer is not visible where the same grid
and action were followed by another grid elsewhere in the logs: it lies in what happened before (whether the key is
carried), or nowhere. An end is reaching the goal.

Every seed is one line of JSON in `--out`, and is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.corpus import Columns, open_corpus
from worldmodel.fidelity import cluster_mean_interval
from worldmodel.fidelity.replay import gather, teacher_forced
from worldmodel.training import WorldModel, train
from worldmodel.training.recipes import RECIPES

RESULTS = Path(__file__).parent / "results" / "doorkey.jsonl"
CONFIG = RECIPES["doorkey"]


def main() -> None:
    """Runs the seeds that are missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=CONFIG.steps, help="of training")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    corpus = open_corpus(options.corpus)
    train_side, test_side = corpus.columns("train"), corpus.columns("held_out")
    for seed in options.seeds:
        if any((row["seed"], row["steps"]) == (seed, options.steps) for row in done):
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            config = dataclasses.replace(CONFIG, steps=options.steps, seed=seed)
            world = train(train_side, corpus.spec, Path(folder) / "run", config)
        row = {"seed": seed, "steps": options.steps, "train_seconds": round(time.monotonic() - start, 1)}
        row |= measures(world, test_side, hidden(train_side, test_side), seed)
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        done.append(row)
    print(table(done))


def hidden(*sides: Columns) -> set[bytes]:
    """Grids with an action, as bytes, that were followed by different grids."""
    seen: dict[bytes, bytes] = {}
    unsure: set[bytes] = set()
    for columns in sides:
        t = columns.transitions()
        for before, action, after in zip(t.obs, t.actions, t.next_obs, strict=True):
            key = before.tobytes() + bytes([int(action)])
            if seen.setdefault(key, after.tobytes()) != after.tobytes():
                unsure.add(key)
    return unsure


def measures(world: WorldModel, test: Columns, unsure: set[bytes], seed: int) -> dict[str, Any]:
    """Exact match on all held-out transitions, on those whose answer is visible and on the others."""
    steps = int(test.lengths.max())
    replay = gather(test, np.arange(test.episodes), np.zeros(test.episodes, np.int64), steps)
    codec: Any = world.dynamics.codec.observation
    forced, real = teacher_forced(world, replay, seed), replay.real
    truth, before = np.asarray(codec.flatten(replay.obs[1:])), replay.obs[:-1]
    right = (forced.prediction[:, 0] == truth).all(axis=-1)[real]
    still = (np.asarray(codec.flatten(before)) == truth).all(axis=-1)[real]
    keys = [
        grid.tobytes() + bytes([int(action)]) for grid, action in zip(before[real], replay.action[real], strict=True)
    ]
    veiled = np.array([key in unsure for key in keys])
    ids = np.broadcast_to(replay.episode, real.shape)[real]

    def interval(values: np.ndarray, where: np.ndarray) -> dict[str, Any]:
        return cluster_mean_interval(values[where], ids[where], seed).to_json() | {"transitions": int(where.sum())}

    everywhere = np.ones(len(right), np.bool_)
    ends, said = replay.terminated[real], forced.end[:, 0][real] > 0.5
    return {
        "exact": interval(right, everywhere),
        "visible": interval(right, ~veiled),
        "changing": interval(right, ~veiled & ~still),
        "veiled": interval(right, veiled),
        "nothing_changes": interval(still, everywhere),
        "ends": int(ends.sum()),
        "end_recall": float(said[ends].mean()),
        "end_precision": float(ends[said].mean()) if said.any() else None,
    }


def table(cells: list[dict[str, Any]]) -> str:
    """Markdown."""
    names = ("seed", "steps", "train s", "answer visible [95%]", "and something changes", "not visible", "no change")
    lines = [f"| {' | '.join(names)} | recall, precision of ends |", "|---" * 8 + "|"]
    for row in cells:
        found = [row[name] for name in ("visible", "changing", "veiled", "nothing_changes")]
        shares = [f"{f['mean']:.4f} [{f['lo']:.4f}, {f['hi']:.4f}]" if f["n"] else "none" for f in found]
        ends = f"{row['end_recall']:.3f}, {row['end_precision']:.3f} of {row['ends']}"
        lines.append(f"| {row['seed']} | {row['steps']} | {row['train_seconds']:.0f} | {' | '.join(shares)} | {ends} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
