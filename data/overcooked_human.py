"""Two people cooking together: the human trials of Carroll et al. 2019 (Overcooked-AI), with joint actions.

Command:   pip install --no-deps overcooked-ai
           python data/overcooked_human.py corpora/overcooked
Hardware:  one CPU core; needs the package pandas.
Time:      see data/README.md.
Counts:    39 train and 37 test trials of about 1,200 joint steps on 5 layouts: 46,729 + 44,373 transitions.
Source:    the wheel `overcooked-ai` 1.1.0 (MIT), `data/human_data/clean_*_trials.pickle`; Carroll et al. 2019, "On the
           utility of learning about humans for human-AI coordination" (arXiv 1910.05789).

The trials are PICKLE files: reading one runs whatever code its author put there. The library never does that; this
recipe does, with files of a package that you chose to install. Give --folder only for a folder you trust.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from worldmodel.corpus import write_corpus
from worldmodel.trajectory import Spec, Trajectory

HEIGHT, WIDTH = 5, 9
"""The largest layouts; smaller ones are padded with counters."""
TERRAIN = "X PODS"  # counter, floor, pot, onions, dishes, serving hatch
THINGS = (None, "onion", "dish", "soup")
FACING = ([0, -1], [0, 1], [1, 0], [-1, 0])
ACTIONS = ([0, -1], [0, 1], [1, 0], [-1, 0], [0, 0], "INTERACT")
LONGEST_COOKING = 255


def main() -> None:
    """Converts both sets and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the corpus")
    parser.add_argument("--folder", type=Path, help="where clean_train_trials.pickle and clean_test_trials.pickle lie")
    options = parser.parse_args()
    folder = options.folder or installed()
    provenance = {"made_by": "data/overcooked_human.py", "licence": "MIT", "source": "overcooked-ai 1.1.0"}
    provenance["left_out"] = ["time that a soup had cooked when it was taken from the pot", "the order list: constant"]
    corpus = write_corpus(options.out, spec(), trials(folder), provenance=provenance)
    print(f"{options.out}: {corpus.episodes:,} episodes, {corpus.transitions:,} transitions")


def installed() -> Path:
    """The folder inside the installed package, which is not imported."""
    found = importlib.util.find_spec("overcooked_ai_py")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the package overcooked-ai is not installed: pip install --no-deps overcooked-ai, or --folder")
    return Path(found.submodule_search_locations[0]) / "data" / "human_data"


def spec() -> Spec:
    """The kitchen as grids, the cooks apart; a joint action has one entry for each."""
    cook = {
        "position": {"type": "MultiDiscrete", "nvec": [WIDTH, HEIGHT], "start": [0, 0]},
        "facing": {"type": "Discrete", "n": len(FACING), "start": 0},
        "holding": {"type": "Discrete", "n": len(THINGS), "start": 0},
    }
    kitchen = {
        "terrain": grid(len(TERRAIN)),
        "objects": grid(len(THINGS)),
        "onions": grid(4),
        "cooking": grid(LONGEST_COOKING + 1),
    }
    agents = {name: {"type": "Dict", "spaces": cook} for name in ("agent_0", "agent_1")}
    joint = {name: {"type": "Discrete", "n": len(ACTIONS), "start": 0} for name in agents}
    return Spec({"type": "Dict", "spaces": kitchen | agents}, {"type": "Dict", "spaces": joint})


def grid(kinds: int) -> dict[str, Any]:
    """One category per cell, `[HEIGHT, WIDTH]`."""
    nvec, start = np.full((HEIGHT, WIDTH), kinds).tolist(), np.zeros((HEIGHT, WIDTH), int).tolist()
    return {"type": "MultiDiscrete", "nvec": nvec, "start": start}


def trials(folder: Path) -> Iterator[Trajectory]:
    """Every trial of both sets."""
    for split in ("train", "test"):
        rows = pd.read_pickle(folder / f"clean_{split}_trials.pickle")
        for key, trial in rows.groupby(["workerid_num", "layout_name", "round_num", "run"], sort=False):
            yield _trial(split, key, trial)


def _trial(split: str, key: Any, trial: pd.DataFrame) -> Trajectory:
    """Row t holds s_t, both actions, the reward and s_{t+1}, which is the next row's state wherever there is one."""
    states = [ast.literal_eval(state) for state in [*trial["state"], trial["next_state"].iloc[-1]]]
    joint = [ast.literal_eval(action) for action in trial["joint_action"]]
    terrain = _terrain(ast.literal_eval(trial["layout"].iloc[0]))
    drawn = [_objects(state) for state in states]
    observations: dict[str, Any] = {"terrain": np.broadcast_to(terrain, (len(states), HEIGHT, WIDTH)).copy()}
    observations |= {name: np.stack([d[i] for d in drawn]) for i, name in enumerate(("objects", "onions", "cooking"))}
    actions = {}
    for i, name in enumerate(("agent_0", "agent_1")):
        observations[name] = _cook([state["players"][i] for state in states])
        actions[name] = np.array([ACTIONS.index(action[i]) for action in joint], np.int64)
    worker, layout, number, run = key
    return Trajectory(
        observations=observations,
        actions=actions,
        rewards=trial["reward"].to_numpy(np.float32),
        terminated=False,
        truncated=True,  # a trial lasts three minutes
        context=layout,
        info={
            "id": f"{split}/{layout}/{worker}/{run}/{int(number)}",
            "source": "overcooked-ai",
            "policy": "human",
            "task": layout,
            "split": split,
            "duration": np.diff(trial["time_elapsed"].to_numpy(float), prepend=0.0).round(4).tolist(),
        },
    )


def _terrain(rows: list[str]) -> np.ndarray:
    terrain = np.zeros((HEIGHT, WIDTH), np.int64)
    for y, row in enumerate(rows):
        for x, cell in enumerate(row):
            terrain[y, x] = TERRAIN.index(" " if cell in "12" else cell)  # the digits are where the cooks start
    return terrain


def _objects(state: dict[str, Any]) -> np.ndarray:
    """int64 `[3, HEIGHT, WIDTH]`: what lies there, onions in a soup, steps it has cooked."""
    drawn = np.zeros((3, HEIGHT, WIDTH), np.int64)
    for thing in state["objects"].values():
        x, y = thing["position"]
        drawn[0, y, x] = THINGS.index(thing["name"])
        if thing["name"] == "soup":
            _, onions, cooked = thing["state"]
            drawn[1:, y, x] = onions, min(cooked, LONGEST_COOKING)
    return drawn


def _cook(states: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    held = [state.get("held_object") for state in states]
    return {
        "position": np.array([state["position"] for state in states], np.int64),
        "facing": np.array([FACING.index(list(state["orientation"])) for state in states], np.int64),
        "holding": np.array([THINGS.index(thing["name"] if thing else None) for thing in held], np.int64),
    }


if __name__ == "__main__":
    main()
