"""`worldmodel quickstart`: one command, from real logs to a policy that works outside."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any


@dataclasses.dataclass(frozen=True)
class Options:
    """Records logs, trains a world model on them and a policy inside it, deploys it in reality, writes a report.

    Example: worldmodel quickstart --env Pendulum-v1 --out runs/pendulum
    """

    env: str = "CartPole-v1"
    """Gymnasium id."""
    out: pathlib.Path = pathlib.Path("runs/quickstart")
    """Run folder; the same command resumes it."""
    seed: int = 0
    """Of everything."""
    quick: bool = False
    """A small version that only shows that everything works: its numbers mean little."""
    json: bool = False
    """Print the report as one JSON object."""


def run(options: Options) -> dict[str, Any]:
    """Runs the quickstart; prints where the report is, and its verdict."""
    from worldmodel.cli.progress import TrainingBar, console
    from worldmodel.quickstart import QuickstartConfig, quick, quickstart

    config = QuickstartConfig(env=options.env, seed=options.seed)
    if options.quick:
        config = quick(config)
    with TrainingBar(config.training.steps, label="world model") as bar:
        report = quickstart(
            config, options.out, say=lambda line: console.print(line, highlight=False), training_report=bar
        )
    if options.json:
        print(json.dumps(report, allow_nan=False))
    else:
        print(report["verdict"])
        print(f"report: {options.out / 'report.html'}")
    return report
