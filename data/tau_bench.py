"""Conversations of an agent with airline tools and a simulated user: tau-bench results as a corpus.

Command:   python data/tau_bench.py gpt-4o-airline.json corpora/tau_bench_airline
Hardware:  one CPU core.
Time:      2 seconds.
Counts:    gpt-4o-airline.json: 200 episodes (50 tasks, 4 trials each), 2,454 transitions, mean return 0.42.
Source:    https://github.com/sierra-research/tau-bench, folder historical_trajectories (MIT); Yao et al. 2024
           (arXiv 2406.12045). Download the file and name it.

Results of tools are look-ups by id, so tasks that look up the same user or reservation tell of each other. They form a
group (33 of them in the airline file), and the split goes by group.
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
    parser.add_argument("results", type=Path, help="file or folder of results")
    parser.add_argument("out", type=Path, help="folder of the corpus")
    options = parser.parse_args()
    log = read(f"chat:{options.results}", layout="tau-bench")
    group_of = groups(log)
    provenance = {
        **log.provenance,
        "made_by": "data/tau_bench.py",
        "licence": "MIT",
        "source": "https://github.com/sierra-research/tau-bench",
    }
    corpus = write_corpus(options.out, log.spec, grouped(log, group_of), provenance=provenance, split_by="group")
    count = len(set(group_of.values()))
    print(f"{options.out}: {corpus.episodes:,} episodes, {corpus.transitions:,} transitions, {count} groups of tasks")


def groups(log: Iterable[Trajectory]) -> dict[str, str]:
    """The group of each task: the name of one of the tasks that share ids with it, through any number of others."""
    above: dict[str, str] = {}

    def top(name: str) -> str:
        while above.setdefault(name, name) != name:
            name = above[name]
        return name

    tasks = set()
    for trajectory in log:
        tasks.add(trajectory.info["task"])
        for key in trajectory.info.get("keys", ()):
            pair = sorted({top(f"task {trajectory.info['task']}"), top(f"id {key}")}, reverse=True)
            above[pair[-1]] = pair[0]
    return {task: top(f"task {task}") for task in sorted(tasks)}


def grouped(log: Iterable[Trajectory], group_of: dict[str, str]) -> Iterator[Trajectory]:
    """The episodes, each with its group."""
    for trajectory in log:
        info = {**trajectory.info, "group": group_of[trajectory.info["task"]]}
        yield dataclasses.replace(trajectory, info=info)


if __name__ == "__main__":
    main()
