"""Does `worldmodel train --estimate` say what a run on this machine takes? Predicted against measured.

Command:   python eval/estimate.py                       (a try: --runs debug --rounds 1)
Data:      recorded by the script: CartPole-v1 under the default mixture of weak policies, and ten times as much of it;
           pictures of 36x36 pixels, drawn at random.
Hardware:  2 CPU cores, about 15 minutes.
Expected:  eval/README.md. Time of a step within 20%, peak memory within 15%; a run ten times as long costs at most 10.5
           times as much, a corpus ten times as large at equal steps at most 1.05 times, and memory does not grow.

Step: the median of the times between two reports, over the steps between; of the clock, and of the processors' time,
which other work on the machine moves less.
Memory: the largest resident set of the training process. Start: seconds of that process before its first step. Each
round estimates and then runs; the table holds medians over rounds, and their extremes in brackets.

Every round is one line of JSON in `--out`, and is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from worldmodel.agents.behaviour import DEFAULT_BEHAVIOURS
from worldmodel.agents.record import record
from worldmodel.corpus import open_corpus, write_corpus
from worldmodel.spaces import box
from worldmodel.training import TrainingConfig, train
from worldmodel.training.checkpoint import describe
from worldmodel.training.claim import codec_of, fitted_on
from worldmodel.training.estimate import estimate
from worldmodel.training.presets import PRESETS
from worldmodel.training.recipes import RECIPES
from worldmodel.training.rehearsal import peak_memory
from worldmodel.trajectory import Spec, Trajectory

RESULTS = Path(__file__).parent / "results" / "estimate.jsonl"
EPISODES, LARGER = 300, 10
PICTURES, SIDE, EPISODE = 100, 36, 40
TOLERANCES = {"seconds_per_step": 0.20, "cpu_seconds_per_step": 0.20, "peak_memory": 0.15}
LONGER, LONGER_AT_MOST, LARGER_AT_MOST, GROWTH_AT_MOST = 10, 10.5, 1.05, 1.02


class Run(NamedTuple):
    """A configuration on one of the corpora."""

    corpus: str
    config: TrainingConfig


RUNS = {
    "debug": Run("cartpole", dataclasses.replace(PRESETS["debug"], steps=1_000, checkpoint_every=500)),
    "cartpole recipe": Run("cartpole", dataclasses.replace(RECIPES["cartpole"], steps=1_500)),
    "tiny": Run("cartpole", dataclasses.replace(PRESETS["tiny"], steps=300, log_every=20)),
    "small": Run("cartpole", dataclasses.replace(PRESETS["small"], batch_size=8, steps=40, log_every=5, warmup=10)),
    "pictures": Run("pictures", dataclasses.replace(RECIPES["breakout"], steps=60, log_every=10, warmup=10)),
}
SCALED = dataclasses.replace(PRESETS["debug"], steps=1_000, log_every=100, checkpoint_every=500)
"""The run that is made longer and given more data: small, so that what does not belong to its steps shows."""


def main() -> None:
    """Runs the rounds that are missing and prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="*", choices=[*RUNS, "scaled"], default=[*RUNS, "scaled"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)  # in the process that is measured
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measured_here(**options.measure)))
        return
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        corpora = Corpora(Path(folder))
        for round_ in range(options.rounds):
            for name in options.runs:
                key = {"run": name, "round": round_}
                if any(key.items() <= row.items() for row in done):
                    continue
                row = {**key, **(scaled(corpora) if name == "scaled" else compared(RUNS[name], corpora))}
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
                done.append(row)
    print(table([row for row in done if row["run"] in options.runs and row["run"] in RUNS]))
    print(scaled_table([row for row in done if row["run"] == "scaled"]))


class Corpora:
    """The corpora by name, each made when it is first asked for."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._made: dict[str, Callable[[], tuple[Spec, Iterator[Trajectory]]]] = {
            "cartpole": lambda: record("CartPole-v1", behaviours=DEFAULT_BEHAVIOURS, episodes=EPISODES, seed=0),
            "more cartpole": lambda: record(
                "CartPole-v1", behaviours=DEFAULT_BEHAVIOURS, episodes=LARGER * EPISODES, seed=0
            ),
            "pictures": lambda: (Spec(box((SIDE, SIDE, 3), "uint8", 0.0, 255.0), DISCRETE), pictures()),
        }

    def __getitem__(self, name: str) -> Path:
        path = self._folder / name
        if not path.exists():
            write_corpus(path, *self._made[name](), provenance={"made_by": "eval/estimate.py"})
        return path


DISCRETE = {"type": "Discrete", "n": 3, "start": 0}


def pictures() -> Iterator[Trajectory]:
    """Episodes of squares in three colours that nothing moves."""
    rng = np.random.default_rng(0)
    colours = np.array([[0, 0, 0], [200, 72, 72], [142, 142, 142]], np.uint8)
    for index in range(PICTURES):
        cells = rng.integers(0, len(colours), (EPISODE + 1, SIDE // 4, SIDE // 4))
        yield Trajectory(
            observations=colours[cells].repeat(4, axis=1).repeat(4, axis=2),
            actions=rng.integers(0, 3, EPISODE),
            rewards=rng.integers(0, 2, EPISODE).astype(np.float32),
            terminated=index % 2 == 0,
            truncated=index % 2 == 1,
            info={"id": f"{index}"},
        )


def predicted(corpus: Path, config: TrainingConfig) -> dict[str, Any]:
    """What `worldmodel train --estimate` says."""
    opened = open_corpus(corpus)
    codec = codec_of(opened.spec, fitted_on(opened.spec, opened.held("train")))
    said = estimate(describe(opened.spec, codec, config.model, {}), config, corpus=corpus)
    return {
        **{name: said[name] for name in ("seconds_per_step", "cpu_seconds_per_step", "start_seconds")},
        "peak_memory": said["host_memory"],
        "buffers": said["memory_per_device"]["total"],
    }


def measured(corpus: Path, run: str, steps: int) -> dict[str, Any]:
    """Trains in a process of its own; `run` is a key of `RUNS`, or "scaled"."""
    question = json.dumps({"corpus": str(corpus), "run": run, "steps": steps, "began": time.time()})
    command = [sys.executable, __file__, "--measure", question]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured_here(corpus: str, run: str, steps: int, began: float) -> dict[str, float]:
    """Trains in this process, and says what it took; `began` is when it was asked to."""
    config = dataclasses.replace(SCALED if run == "scaled" else RUNS[run].config, steps=steps)
    opened, seen = open_corpus(corpus), []

    def report(step: int, metrics: Mapping[str, float]) -> None:
        seen.append((step, time.time(), time.process_time(), peak_memory()))

    with tempfile.TemporaryDirectory() as folder:
        held_out = opened.held("held_out")
        train(opened.held("train"), opened.spec, Path(folder) / "run", config, held_out=held_out, report=report)
    whole = time.time() - began
    steps, times, busy, memory = np.array(seen).T
    each, busy_each = (float(np.median(np.diff(clock) / np.diff(steps))) for clock in (times, busy))
    return {
        "seconds_per_step": each,
        "cpu_seconds_per_step": busy_each,
        "start_seconds": times[0] - began - steps[0] * each,
        "seconds": whole,
        "cpu_seconds": time.process_time(),
        "early_memory": memory[0],
        "peak_memory": peak_memory(),
    }


def compared(run: Run, corpora: Corpora) -> dict[str, Any]:
    """A round of one run."""
    name = next(name for name, other in RUNS.items() if other is run)
    corpus = corpora[run.corpus]
    return {"predicted": predicted(corpus, run.config), "measured": measured(corpus, name, run.config.steps)}


def scaled(corpora: Corpora) -> dict[str, Any]:
    """The same run, a longer one and one on a larger corpus."""
    return {
        "base": measured(corpora["cartpole"], "scaled", SCALED.steps),
        "longer": measured(corpora["cartpole"], "scaled", LONGER * SCALED.steps),
        "larger": measured(corpora["more cartpole"], "scaled", SCALED.steps),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: every run, predicted and measured."""
    if not rows:
        return ""
    lines = [
        "| run | rounds | step, ms: predicted, measured | ratio | ratio of processors' time | "
        "start, s: predicted, measured | peak memory, MB: predicted, measured | ratio | XLA's buffers, MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in RUNS:
        own = [row for row in rows if row["run"] == name]
        if not own:
            continue

        def pair(field: str, unit: float, own: Any = own) -> str:
            sides = ([row[side][field] for row in own] for side in ("predicted", "measured"))
            return ", ".join(f"{np.median(values) * unit:,.4g}" for values in sides)

        def ratio(field: str, own: Any = own) -> str:
            ratios = np.array([row["predicted"][field] / row["measured"][field] for row in own])
            inside = "" if abs(np.median(ratios) - 1.0) <= TOLERANCES[field] else " (outside)"
            return f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f}){inside}"

        buffers = np.median([row["predicted"]["buffers"] for row in own]) / 1e6
        lines.append(
            f"| {name} | {len(own)} | {pair('seconds_per_step', 1e3)} | {ratio('seconds_per_step')} | "
            f"{ratio('cpu_seconds_per_step')} | {pair('start_seconds', 1.0)} | {pair('peak_memory', 1e-6)} | "
            f"{ratio('peak_memory')} | {buffers:,.3g} |"
        )
    return "\n".join(lines)


def scaled_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: what more steps and more data cost."""
    if not rows:
        return ""

    def ratios(which: str, field: str) -> list[float]:
        return [row[which][field] / row["base"][field] for row in rows]

    lines = ["| | median (extremes) of rounds | at most |", "|---|---|---|"]
    for what, values, most in (
        (f"{LONGER} times the steps: seconds of the whole run", ratios("longer", "seconds"), LONGER_AT_MOST),
        ("the same of the processors' time", ratios("longer", "cpu_seconds"), LONGER_AT_MOST),
        (f"{LONGER} times the steps: peak memory", ratios("longer", "peak_memory"), GROWTH_AT_MOST),
        (f"{LARGER} times the corpus: seconds of the whole run", ratios("larger", "seconds"), LARGER_AT_MOST),
        ("the same of the processors' time", ratios("larger", "cpu_seconds"), LARGER_AT_MOST),
    ):
        lines.append(f"| {what} | {np.median(values):.3f} ({min(values):.3f} to {max(values):.3f}) | {most} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
