"""`worldmodel train`: a world model from a corpus."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Annotated, Any

import tyro

from worldmodel.training.config import TrainingConfig


@dataclasses.dataclass(frozen=True)
class Options:
    """Trains a world model on a corpus; the same command resumes.

    Example: worldmodel train corpora/cartpole --out runs/cartpole --config.steps 2000
    """

    corpus: tyro.conf.Positional[str]
    """Folder of a corpus (see `worldmodel data record`)."""
    out: pathlib.Path
    """Run folder."""
    seed: int = 0
    """Of initial parameters and data order."""
    config: Annotated[TrainingConfig, tyro.conf.arg(name="config")] = TrainingConfig()
    json: bool = False
    """Print one JSON object."""


def run(options: Options) -> dict[str, Any]:
    """Trains; prints and returns where the run is and its last metrics."""
    from worldmodel.cli.progress import TrainingBar
    from worldmodel.corpus import open_corpus
    from worldmodel.training import train

    corpus = open_corpus(options.corpus)
    config = dataclasses.replace(options.config, seed=options.seed)
    last: dict[str, Any] = {}
    with TrainingBar(config.steps) as bar:

        def report(step, metrics):
            bar(step, metrics)
            last.update(step=step, **metrics)

        world = train(corpus.columns("train"), corpus.spec, options.out, config, report=report)
    result = {"run": str(options.out), "step": world.step, "metrics": last or None}
    if options.json:
        print(json.dumps(result, allow_nan=False))
    else:
        print(f"trained to step {world.step}: {options.out}")
    return result
