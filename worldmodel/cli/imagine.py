"""`worldmodel data imagine`: a corpus out of a world model."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import tyro

from worldmodel.agents.behaviour import DEFAULT_BEHAVIOURS
from worldmodel.cli.logs import json_object

if TYPE_CHECKING:
    from worldmodel.corpus import StoredEpisodes
    from worldmodel.training import WorldModel


@dataclasses.dataclass(frozen=True)
class ImagineOptions:
    """Rolls policies out in simulated environments and writes the episodes as a corpus, marked synthetic.

    The mark is in every episode's info and in the manifest: the lint, `data show` and `train` name it, and a probe does
    not take such episodes for real ones. The same command gives the same bits.

    Example: worldmodel data imagine runs/quickstart --policy random sticky:0.8 --episodes 200 --out corpora/imagined

    With physics that the logs told: --context '{"gravity": {"uniform": [5, 15]}}' --worlds 16
    """

    run: tyro.conf.Positional[pathlib.Path]
    """Run folder of the world model."""
    out: pathlib.Path
    """Folder of the corpus."""
    policy: tuple[str, ...] = DEFAULT_BEHAVIOURS
    """Each with an equal share: random, sticky:P, linear:EPS, search:EPS, or a trained policy's FILE.npz."""
    episodes: int = 300
    """Episodes in all."""
    horizon: int | None = None
    """Steps after which an episode is cut; default: the environment's time limit."""
    starts: pathlib.Path | None = None
    """Corpus whose training episodes' observations the imagined ones start at; default: where the logs' began."""
    context: str | None = None
    """What holds for an episode, JSON; {"uniform": [low, high]} and {"choice": [..]} are drawn for each world."""
    worlds: int | None = None
    """Of how many environments the family consists; default: one for each episode."""
    env_kwargs: str = "{}"
    """Further arguments of the simulated environments, as JSON."""
    seed: int = 0
    """Of everything."""
    append: bool = False
    """Add to the corpus in the folder, if there is one."""
    json: bool = False
    """Print one JSON object."""


def imagine(options: ImagineOptions) -> dict[str, Any]:
    """Imagines and writes; prints and returns the summary of the whole corpus (as `summarise`)."""
    from worldmodel.agents.imagine import Family
    from worldmodel.agents.imagine import imagine as run
    from worldmodel.cli.progress import EpisodeBar
    from worldmodel.cli.show import ShowOptions, show
    from worldmodel.corpus.manifest import NAME
    from worldmodel.corpus.write import write_corpus
    from worldmodel.envs.snapshot import name_of
    from worldmodel.training.checkpoint import load

    if not options.append and (options.out / NAME).exists():
        raise ValueError(f"corpus {options.out}: holds a corpus already; --append adds to it")
    example = '{"gravity": {"uniform": [5, 15]}}'
    context = None if options.context is None else json_object(options.context, "--context", example)
    env_kwargs = json_object(options.env_kwargs, "--env-kwargs", '{"max_episode_steps": 50}')
    world = load(options.run)
    starts = None if options.starts is None else _starts(options.starts, world)
    provenance = {
        "made_by": "worldmodel data imagine",
        "synthetic": True,
        "run": options.run.name,
        "model": name_of(world),
        "step": world.step,
        "policies": list(options.policy),
        "episodes": options.episodes,
        "horizon": options.horizon,
        "starts": None if options.starts is None else str(options.starts),
        "context": context,
        "worlds": options.worlds,
        "env_kwargs": env_kwargs,
        "seed": options.seed,
    }
    with EpisodeBar("imagining", options.episodes) as advance:
        trajectories = run(
            world,
            policies=options.policy,
            episodes=options.episodes,
            seed=options.seed,
            family=Family(starts, context, options.worlds, env_kwargs),
            horizon=options.horizon,
            progress=advance,
        )
        write_corpus(options.out, world.spec, trajectories, provenance=provenance, append=options.append)
    return show(ShowOptions(str(options.out), json=options.json))


def _starts(folder: pathlib.Path, world: WorldModel) -> StoredEpisodes:
    """The real training episodes of a corpus; `ValueError` where its observations are not the model's."""
    from worldmodel.corpus import open_corpus

    corpus = open_corpus(folder)
    if corpus.spec.observation_space != world.spec.observation_space:
        raise ValueError(f"corpus {folder}: its observation space is not the model's: no episode can start there")
    return corpus.stored("train", keep=~corpus.index.synthetic)
