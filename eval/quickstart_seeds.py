"""Does the quickstart work by luck? The same command over seeds, one committed line of JSON per cell.

Command:   python eval/quickstart_seeds.py --env CartPole-v1 --seeds 0 1 2 3 4 100 101 102 103 104
Hardware:  2 CPU cores (two seeds side by side, one core each).
Time:      about 4 minutes a seed and core. Finished cells are skipped, whatever revision they are of: delete a line to
           measure its cell anew.
Expected:  eval/results/quickstart_seeds.jsonl, summed up in eval/README.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "quickstart_seeds.jsonl"
LOCK = threading.Lock()
CORES: queue.Queue[int] = queue.Queue()
"""Processor cores that are free: each run is held on one, so that two do not fight over both."""


def main() -> None:
    """Runs the cells that are missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4, 100, 101, 102, 103, 104])
    parser.add_argument("--workers", type=int, default=2, help="runs side by side, one core each")
    options = parser.parse_args()
    done = {(row["env"], row["seed"]) for row in rows()}
    todo = [seed for seed in options.seeds if (options.env, seed) not in done]
    for core in sorted(os.sched_getaffinity(0))[: options.workers]:
        CORES.put(core)
    with ThreadPoolExecutor(options.workers) as pool:
        for row in pool.map(lambda seed: cell(options.env, seed), todo):
            print(json.dumps(row), flush=True)
    summarise(options.env, options.seeds)


def rows() -> list[dict]:
    """The finished cells."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def cell(env: str, seed: int) -> dict:
    """One quickstart in its own process; appends and returns what it found."""
    core = CORES.get()
    try:
        row = measure(env, seed, core)
    finally:
        CORES.put(core)
    with LOCK:
        RESULTS.parent.mkdir(exist_ok=True)
        with open(RESULTS, "a") as file:
            file.write(json.dumps(row) + "\n")
    return row


def measure(env: str, seed: int, core: int) -> dict:
    """Runs the command on one core and picks the figures of the table."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "worldmodel.cli", "quickstart", "--json"]
        command += ["--env", env, "--seed", str(seed), "--out", f"{folder}/run"]
        pin = functools.partial(os.sched_setaffinity, 0, {core})
        result = subprocess.run(command, stdout=subprocess.PIPE, check=True, preexec_fn=pin)
    report = json.loads(result.stdout)
    transfer, one_step, rollout = report["transfer"], report["one_step"], report["rollout"]
    error = rollout["error"] or []
    noise = rollout["one_step_noise"] or []
    return {
        "env": env,
        "seed": seed,
        "commit": commit(),
        "transitions": report["corpus"]["transitions"],
        "behaviour": transfer["behaviour_return"]["mean"],
        "best_behaviour": max(b["return_mean"]["mean"] for b in report["corpus"]["behaviours"]),
        "sim_trained_real": transfer["sim_trained_real_return"],
        "sim_trained_sim": transfer["sim_trained_sim_return"]["mean"],
        "real_same_budget": transfer["real_trained_same_budget_return"]["mean"],
        "real_full": transfer["real_trained_full_return"]["mean"],
        "real_steps_after_logs": transfer["real_steps_after_logs"],
        "nrmse": one_step["nrmse"]["mean"],
        "persistence_nrmse": one_step["persistence_nrmse"]["mean"],
        "termination": {k: (one_step["termination"].get(k) or {}).get("mean") for k in ("precision", "recall")},
        "horizon": rollout["horizons"][-1] if rollout["horizons"] else None,
        "error_at_20": error[19] if len(error) > 19 else None,
        "one_step_noise_at_20": noise[19] if len(noise) > 19 else None,
        "divergence_horizon_median": rollout["divergence_horizon"]["median"],
        "spearman": report["ranking"]["spearman"]["mean"],
        "seconds": report["timings"]["total"],
    }


def commit() -> str:
    """The revision that is measured; `+` marks uncommitted changes."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()


def summarise(env: str, seeds: list[int]) -> None:
    """Prints the table of one environment."""
    found = {row["seed"]: row for row in rows() if row["env"] == env}
    head = ("seed", "logs", "best", "sim-trained, real", "in sim", "real, same", "real, full", "NRMSE", "Spearman", "s")
    print(("{:>18}" * len(head)).format(*head))
    for seed in seeds:
        if seed in found:
            r = found[seed]
            real = r["sim_trained_real"]
            values = (
                f"{r['behaviour']:.0f}",
                f"{r['best_behaviour']:.0f}",
                f"{real['mean']:.0f} [{real['lo']:.0f}, {real['hi']:.0f}]",
                f"{r['sim_trained_sim']:.0f}",
                f"{r['real_same_budget']:.0f}",
                f"{r['real_full']:.0f}",
                f"{r['nrmse']:.4f}",
                f"{r['spearman']:.2f}",
                f"{r['seconds']:.0f}",
            )
            print(("{:>18}" * len(head)).format(seed, *values))
    groups = ([s for s in seeds if s in found and s < 100], [s for s in seeds if s in found and s >= 100])
    for name, group in zip(("tuned on", "held out"), groups, strict=True):
        if group:
            real = [found[s]["sim_trained_real"]["mean"] for s in group]
            same = [found[s]["real_same_budget"] for s in group]
            print(
                f"{name} seeds {group}: median {statistics.median(real):.1f}, worst {min(real):.1f}; "
                f"same learner in reality on as many steps: median {statistics.median(same):.1f}"
            )


if __name__ == "__main__":
    main()
