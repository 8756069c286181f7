"""Logs of BabyAI levels: a planning expert, the same expert disturbed, and random play; the mission is the context.

Command:   python data/minigrid_babyai.py corpora/babyai
Hardware:  one CPU core; needs the package minigrid (pip install worldmodel[recipes]).
Time:      see data/README.md.
Source:    the package `minigrid` (Apache-2.0) and the expert inside it; the logs are yours.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import minigrid  # noqa: F401  (registers the levels)
import numpy as np
from minigrid.utils.baby_ai_bot import BabyAIBot, DisappearedBoxError

from worldmodel.corpus import write_corpus
from worldmodel.trajectory import Spec, Trajectory

LEVELS = ("BabyAI-GoToLocal-v0", "BabyAI-PickupLoc-v0", "BabyAI-PutNextLocal-v0", "BabyAI-UnlockLocal-v0")
POLICIES = {"expert": 0.0, "expert:0.3": 0.3, "random": 1.0}
"""Share of uniformly random actions of each behaviour."""
ACTIONS = 7
VIEW = (7, 7, 3)


def main() -> None:
    """Records and prints what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the corpus")
    parser.add_argument("--levels", nargs="+", default=LEVELS, help="Gymnasium ids")
    parser.add_argument("--episodes", type=int, default=1_200, help="shared evenly by levels and behaviours")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    provenance = {"made_by": "data/minigrid_babyai.py", "levels": list(options.levels), "policies": POLICIES}
    provenance |= {"seed": options.seed, "licence": "Apache-2.0"}
    episodes = record(options.levels, options.episodes, options.seed)
    corpus = write_corpus(options.out, spec(), episodes, provenance=provenance)
    print(f"{options.out}: {corpus.episodes:,} episodes, {corpus.transitions:,} transitions")


def spec() -> Spec:
    """What the agent sees, cell by cell (kind, colour, state), and where it looks; all levels share it."""
    view = {"type": "Box", "shape": list(VIEW), "dtype": "uint8", "low": [0] * 147, "high": [255] * 147}
    direction = {"type": "Discrete", "n": 4, "start": 0}
    action = {"type": "Discrete", "n": ACTIONS, "start": 0}
    return Spec({"type": "Dict", "spaces": {"direction": direction, "image": view}}, action)


def record(levels: list[str], episodes: int, seed: int) -> Iterator[Trajectory]:
    """Level by level, behaviour by behaviour."""
    cells = list(itertools.product(levels, POLICIES))
    for cell, (level, policy) in enumerate(cells):
        env = gymnasium.make(level)
        for index in range(episodes // len(cells) + (cell < episodes % len(cells))):
            # The same layouts for every behaviour of a level.
            yield _episode(env, level, policy, seed, index)
        env.close()


def _episode(env: gymnasium.Env, level: str, policy: str, seed: int, index: int) -> Trajectory:
    rng = np.random.default_rng([seed, index, list(POLICIES).index(policy)])
    layout = int(np.random.default_rng([seed, index]).integers(2**31))
    obs, _ = env.reset(seed=layout)
    mission, uniform = obs["mission"], POLICIES[policy]
    expert = BabyAIBot(env) if uniform < 1 else None
    rows, actions, rewards, log_probs, action = [obs], [], [], [], None
    terminated = truncated = False
    while not (terminated or truncated):
        wanted = _wanted(expert, action)
        expert = None if wanted is None else expert  # once lost, it stays so
        if wanted is None or rng.random() < uniform:
            action = int(rng.integers(ACTIONS))
        else:
            action = wanted
        share = 1.0 if wanted is None else uniform
        log_probs.append(np.log(share / ACTIONS + (1.0 - share) * (action == wanted)))
        obs, reward, terminated, truncated, _ = env.step(action)
        rows.append(obs)
        actions.append(action)
        rewards.append(reward)
    observations = {
        "direction": np.array([row["direction"] for row in rows], np.int64),
        "image": np.stack([row["image"] for row in rows]).astype(np.uint8),
    }
    info = {"id": f"{level}/{seed}/{policy}/{index:05d}", "source": "recorded", "policy": policy, "seed": layout}
    return Trajectory(
        observations=observations,
        actions=np.array(actions, np.int64),
        rewards=np.array(rewards, np.float32),
        terminated=bool(terminated),
        truncated=bool(truncated and not terminated),
        action_log_prob=np.array(log_probs, np.float32),
        context=mission,
        info=info | {"task": level},
    )


def _wanted(expert: Any, last_action: int | None) -> int | None:
    """The expert's action; None where there is no expert, or where it has no plan."""
    if expert is None:
        return None
    try:
        return int(expert.replan(last_action))
    except (DisappearedBoxError, AssertionError, RecursionError):  # how the bot says that it is lost
        return None


if __name__ == "__main__":
    main()
