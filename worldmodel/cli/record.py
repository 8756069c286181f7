"""`worldmodel data record`: a real environment's logs as a corpus."""

from __future__ import annotations

import dataclasses
import pathlib
from importlib import metadata
from typing import Any

import tyro

from worldmodel.agents.behaviour import DEFAULT_BEHAVIOURS
from worldmodel.cli.logs import json_object


@dataclasses.dataclass(frozen=True)
class RecordOptions:
    """Runs a real Gymnasium environment under a mixture of weak policies and writes the episodes as a corpus.

    Example: worldmodel data record CartPole-v1 --policy random sticky:0.8 --episodes 300 --out corpora/cartpole
    """

    env: tyro.conf.Positional[str]
    """Gymnasium id."""
    out: pathlib.Path
    """Folder of the corpus."""
    policy: tuple[str, ...] = DEFAULT_BEHAVIOURS
    """Behaviours, each with an equal share: random, sticky:P, linear:EPS, search:EPS."""
    episodes: int = 300
    """Episodes in all."""
    seed: int = 0
    """Of environment and policies."""
    env_kwargs: str = "{}"
    """Keyword arguments of gymnasium.make, as JSON."""
    append: bool = False
    """Add to the corpus in the folder, if there is one."""
    json: bool = False
    """Print one JSON object."""


def record(options: RecordOptions) -> dict[str, Any]:
    """Records and writes; prints and returns the summary of the whole corpus (as `summarise`)."""
    from worldmodel.agents.record import record as run
    from worldmodel.cli.progress import EpisodeBar
    from worldmodel.cli.show import ShowOptions, show
    from worldmodel.corpus.manifest import NAME
    from worldmodel.corpus.write import write_corpus

    env_kwargs = json_object(options.env_kwargs, "--env-kwargs", '{"g": 9.8}')
    if not options.append and (options.out / NAME).exists():
        raise ValueError(f"corpus {options.out}: holds a corpus already; --append adds to it")
    provenance = {
        "made_by": "worldmodel data record",
        "env_id": options.env,
        "env_kwargs": env_kwargs,
        "policies": list(options.policy),
        "episodes": options.episodes,
        "seed": options.seed,
        "versions": {name: metadata.version(name) for name in ("gymnasium", "numpy")},
    }
    with EpisodeBar("recording", options.episodes) as advance:
        spec, trajectories = run(
            options.env,
            behaviours=options.policy,
            episodes=options.episodes,
            seed=options.seed,
            env_kwargs=env_kwargs,
            progress=advance,
        )
        write_corpus(options.out, spec, trajectories, provenance=provenance, append=options.append)
    return show(ShowOptions(str(options.out), json=options.json))
