"""Logs of MiniGrid's DoorKey, seen whole: a planning expert, the expert disturbed, and random play.

Command:   python data/minigrid_doorkey.py corpora/doorkey
Hardware:  one CPU core; needs the package minigrid (pip install worldmodel[recipes]).
Time:      see data/README.md.
Source:    the package `minigrid` (Apache-2.0); the expert, a breadth-first search, is here; the logs are yours.

Every episode has a layout of its own, and all its behaviours share it: `info["layout"]`, by which the corpus is split.
An observation is the whole grid, kind, colour and state of every cell; the agent is one of the kinds, and its state is
where it looks. Whether it carries the key is not seen, but what happened before tells.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from minigrid.core.world_object import Door, Goal, Key
from minigrid.wrappers import FullyObsWrapper, ImgObsWrapper

from worldmodel.corpus import write_corpus
from worldmodel.trajectory import Spec, Trajectory

POLICIES = {"expert": 0.0, "expert:0.3": 0.3, "random": 1.0}
"""Share of uniformly random actions of each behaviour."""
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))
MOST_STEPS = 120
"""Of an episode: random play would go on for 640."""


def main() -> None:
    """Records and prints what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the corpus")
    parser.add_argument("--env", default="MiniGrid-DoorKey-8x8-v0", help="Gymnasium id of a DoorKey")
    parser.add_argument("--episodes", type=int, default=1_500, help="shared evenly by behaviours")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    env = ImgObsWrapper(FullyObsWrapper(gymnasium.make(options.env)))
    spec = Spec.from_gymnasium(env)
    provenance = {"made_by": "data/minigrid_doorkey.py", "env": options.env, "policies": POLICIES}
    provenance |= {"seed": options.seed, "licence": "Apache-2.0"}
    episodes = record(env, options.episodes, options.seed)
    corpus = write_corpus(options.out, spec, episodes, provenance=provenance, split_by="layout")
    print(f"{options.out}: {corpus.episodes:,} episodes, {corpus.transitions:,} transitions")


def record(env: gymnasium.Env, episodes: int, seed: int) -> Iterator[Trajectory]:
    """One layout after the other, each played by every behaviour."""
    for index in range(episodes):
        yield episode(env, seed, index // len(POLICIES), list(POLICIES)[index % len(POLICIES)])


def episode(env: gymnasium.Env, seed: int, layout: int, policy: str) -> Trajectory:
    """One episode; its layout follows from seed and number."""
    rng = np.random.default_rng([seed, layout, list(POLICIES).index(policy)])
    obs, _ = env.reset(seed=int(np.random.default_rng([seed, layout]).integers(2**31)))
    rows, actions, rewards = [obs], [], []
    terminated = truncated = False
    while not (terminated or truncated) and len(actions) < MOST_STEPS:
        random = rng.random() < POLICIES[policy]
        actions.append(int(rng.integers(DONE + 1)) if random else expert(env.unwrapped))
        obs, reward, terminated, truncated, _ = env.step(actions[-1])
        rows.append(obs)
        rewards.append(reward)
    return Trajectory(
        observations=np.stack(rows),
        actions=np.array(actions, np.int64),
        rewards=np.array(rewards, np.float32),
        terminated=terminated,
        truncated=truncated and not terminated,
        info={"id": f"{seed}-{layout}-{policy}", "policy": policy, "layout": f"{seed}-{layout}"},
    )


def expert(env: Any) -> int:
    """The next action of a shortest way: to the key, to the door with it, to the goal."""
    door, key, goal = (_place(env, kind) for kind in (Door, Key, Goal))
    carries = isinstance(env.carrying, Key)
    if door is not None and not env.grid.get(*door).is_open:
        if not carries and key is not None:
            return _towards(env, key, PICKUP)
        return _towards(env, door, TOGGLE)
    return _towards(env, goal, FORWARD)


def _place(env: Any, kind: type) -> tuple[int, int] | None:
    for x in range(env.width):
        for y in range(env.height):
            if isinstance(env.grid.get(x, y), kind):
                return x, y
    return None


def _towards(env: Any, target: tuple[int, int] | None, last: int) -> int:
    """The first action of a shortest way to stand before `target` and look at it; `last` where that is so."""
    start = (*map(int, env.agent_pos), int(env.agent_dir))
    waiting, first = deque([start]), {start: DONE}
    while waiting:
        x, y, looks = here = waiting.popleft()
        ahead = (x + STEPS[looks][0], y + STEPS[looks][1])
        if ahead == target:
            return last if here == start else first[here]
        cell = env.grid.get(*ahead)
        turns = {LEFT: (x, y, (looks - 1) % 4), RIGHT: (x, y, (looks + 1) % 4)}
        ways = turns | ({FORWARD: (*ahead, looks)} if cell is None or cell.can_overlap() else {})
        for action, there in ways.items():
            if there not in first:
                first[there] = action if here == start else first[here]
                waiting.append(there)
    return DONE


if __name__ == "__main__":
    main()
