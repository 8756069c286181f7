"""Science experiments in a text game, played by a language model: ScienceWorld conversations as a corpus.

Command:   python data/scienceworld.py sciworld_sft_gpt_perfect.jsonl corpora/scienceworld
Hardware:  one CPU core.
Time:      1 second.
Counts:    37 episodes, 526 transitions, each a success (score 100).
Source:    https://github.com/patronus-ai/mdlm_world_modeling (Apache-2.0); the game: Wang et al. 2022
           (arXiv 2203.07540). Download the file and name it.

A game is over at a score of 100. The log's `wm_system_prompt`, which describes every room before anybody has seen it,
becomes context with --map: with it nothing that the model has to predict is hidden. The split goes by kind of task
(`boil`, `find-plant`), because variations of one kind are alike.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

from worldmodel.corpus import write_corpus
from worldmodel.sources import read
from worldmodel.trajectory import Trajectory


def main() -> None:
    """Converts and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="JSONL file of conversations")
    parser.add_argument("out", type=Path, help="folder of the corpus")
    parser.add_argument("--map", action="store_true", help="keep the description of all rooms as context")
    options = parser.parse_args()
    log = read(f"chat:{options.log}", reward="score", context="wm_system_prompt" if options.map else None)
    provenance = {
        **log.provenance,
        "made_by": "data/scienceworld.py",
        "licence": "Apache-2.0",
        "source": "https://github.com/patronus-ai/mdlm_world_modeling",
    }
    corpus = write_corpus(options.out, log.spec, ended(log), provenance=provenance, split_by="kind")
    print(f"{options.out}: {corpus.episodes:,} episodes, {corpus.transitions:,} transitions")


def ended(log: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """The episodes, over where the score says so, each with its kind of task."""
    for trajectory in log:
        kind = trajectory.info["task"].rpartition("_v")[0]
        success = trajectory.total_reward >= 100
        info = {**trajectory.info, "kind": kind, "success": success}
        yield dataclasses.replace(trajectory, terminated=success, info=info)


if __name__ == "__main__":
    main()
