"""The first steps of a training run, in a process of its own: how long a step takes here, and how much memory the run.

The process does what training does (it reads the corpus, compiles, feeds, logs, measures held-out episodes, saves), so
that what is slow or large in any of this is in the numbers.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.training.config import TrainingConfig

CHUNKS = 6
"""How many stretches there are at least; the first compiles and the last saves: those between are timed."""
LEAST, MOST = 2, 40
"""Steps of a stretch, or fewer where the run reports more often."""
SECONDS, SPEED = 2.0, 2e10
"""How long a stretch should take, on a machine of so many FLOP/s."""


def rehearse(corpus: str | Path, config: TrainingConfig, flops_per_step: float) -> dict[str, Any]:
    """Trains a few steps on a corpus and forgets them.

    Args:
      corpus: its folder.
      config: of the run that is planned.
      flops_per_step: arithmetic of one step, by which so many steps are taken that they can be timed.

    Returns:
      `seconds_per_step`, the median over stretches of several steps; `cpu_seconds_per_step`, the same of the
      processors' time, which other work on the machine moves less; `start_seconds`, from the start of the process to
      its first step, what it compiles included; `peak_memory`, bytes, the largest resident set of the process.

    Raises:
      ValueError: training could not begin; the message is its own.
    """
    stretch = int(np.clip(SECONDS * SPEED / max(flops_per_step, 1.0), LEAST, MOST))
    log_every = min(config.log_every, stretch)
    steps = max(CHUNKS * stretch // log_every, CHUNKS) * log_every
    few = dataclasses.replace(config, steps=steps, log_every=log_every, checkpoint_every=steps, gauge_every=0)
    question = json.dumps({"corpus": str(corpus), "training": dataclasses.asdict(few)})
    began = time.monotonic()
    command = [sys.executable, "-m", "worldmodel.training.rehearsal"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, input=question, capture_output=True, text=True, env=environment)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ValueError(f"the first steps could not be taken: {lines[-1].removeprefix('ValueError: ')}")
    answer = json.loads(done.stdout.splitlines()[-1])
    seconds, cpu_seconds = (
        float(np.median(np.diff(answer[name])[:-1])) / log_every for name in ("times", "processor_times")
    )
    return {
        "seconds_per_step": seconds,
        "cpu_seconds_per_step": cpu_seconds,
        "start_seconds": answer["times"][0] - began - log_every * seconds,
        "peak_memory": answer["peak_memory"],
    }


def peak_memory() -> int:
    """The largest resident set of this process so far, bytes."""
    # Kilobytes on Linux, bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _rehearsed(question: Mapping[str, Any]) -> dict[str, Any]:
    from worldmodel.corpus import open_corpus
    from worldmodel.model.step import StepConfig
    from worldmodel.model.transformer import TrunkConfig
    from worldmodel.training.loop import train

    fields = dict(question["training"])
    model = fields.pop("model")
    config = TrainingConfig(StepConfig(**model | {"trunk": TrunkConfig(**model["trunk"])}), **fields)
    corpus = open_corpus(question["corpus"])
    times: list[float] = []
    processor_times: list[float] = []

    def report(step: int, metrics: Mapping[str, float]) -> None:
        times.append(time.monotonic())
        processor_times.append(time.process_time())

    held_out = corpus.held("held_out") if corpus.split("held_out").any() else None
    with tempfile.TemporaryDirectory() as folder:
        train(
            corpus.held("train"),
            corpus.spec,
            Path(folder) / "run",
            config,
            held_out=held_out,
            report=report,
        )
    return {"times": times, "processor_times": processor_times, "peak_memory": peak_memory()}


if __name__ == "__main__":
    try:
        print(json.dumps(_rehearsed(json.load(sys.stdin))))
    except (ValueError, OSError, FloatingPointError) as error:
        sys.exit(f"ValueError: {' '.join(str(error).split())}")
