"""Seven language models of very different strength, writing SQL to a database: InterCode results as a corpus.

Command:   python data/intercode_sql.py RESULTS corpora/intercode_sql --tasks ic_spider_dev.json
Hardware:  one CPU core.
Time:      8 seconds.
Counts:    the seven files `ic_sql_multiturn_*_10_turns.json`: 7,236 episodes of 1,034 tasks on 20 databases, 58,235
           transitions, 25% of the episodes successful.
Source:    https://github.com/princeton-nlp/intercode, folder data/results/sql, tasks in data/sql (MIT; the databases
           derive from Spider, CC BY-SA 4.0); Yang et al. 2023 (arXiv 2306.14898). Download the files into a folder.

What a query prints depends on its database, so the split goes by database where --tasks says which it is; else by task.
A last turn that the model's provider refused has no answer and is left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from worldmodel.corpus import write_corpus
from worldmodel.sources import files, read
from worldmodel.trajectory import Trajectory


def main() -> None:
    """Converts and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="file or folder of results")
    parser.add_argument("out", type=Path, help="folder of the corpus")
    parser.add_argument("--tasks", type=Path, help="ic_spider_dev.json: which database each task is about")
    options = parser.parse_args()
    log = read(f"chat:{options.results}")
    provenance = {
        **log.provenance,
        "made_by": "data/intercode_sql.py",
        "licence": "MIT; databases CC BY-SA 4.0",
        "source": "https://github.com/princeton-nlp/intercode",
    }
    tasks = None
    if options.tasks:
        with files.open_binary(options.tasks) as file:
            tasks = json.load(file)
    corpus = write_corpus(
        options.out, log.spec, named(log, tasks), provenance=provenance, split_by="database" if tasks else "task"
    )
    print(f"{options.out}: {corpus.episodes:,} episodes, {corpus.transitions:,} transitions")


def named(log: Iterable[Trajectory], tasks: list[dict[str, Any]] | None) -> Iterator[Trajectory]:
    """The episodes with the model's name as policy, and the database."""
    for trajectory in log:
        name = trajectory.info["policy"].removeprefix("ic_sql_multiturn_").removesuffix("_10_turns")
        info = {**trajectory.info, "policy": name}
        if tasks is not None:
            info["database"] = tasks[int(trajectory.info["task"])]["db"]
        yield dataclasses.replace(trajectory, info=info)


if __name__ == "__main__":
    main()
