"""Logs of Atari's Breakout in colour, 80x80 pixels: a player that follows the ball, the same disturbed, random play.

Command:   python data/atari_breakout.py corpora/breakout
Hardware:  one CPU core; needs the package ale-py (pip install worldmodel[recipes]).
Time:      see data/README.md.
Source:    the package `ale-py` (GPL-2.0, the game's ROM inside); the logs are yours.

Four frames of the game pass with every action. A picture is the field between the walls, every second pixel of it: the
nine colours stay as they are. An episode is one life: it terminates when the ball is lost. The score is not shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import ale_py
import gymnasium
import numpy as np

from worldmodel.corpus import write_corpus
from worldmodel.spaces import box
from worldmodel.trajectory import Spec, Trajectory

ENV = "ALE/Breakout-v5"
POLICIES = {"follow:0.1": 0.1, "follow:0.4": 0.4, "random": 1.0}
"""Share of uniformly random actions of each behaviour."""
NOOP, FIRE, RIGHT, LEFT = range(4)
SHAPE = (80, 80, 3)
RED = (200, 72, 72)
ABOVE_PADDLE, BELOW_BRICKS = 78, 31
"""Rows of the picture: the paddle's, and the first one where nothing red is but the ball."""
MOST_STEPS = 500


def main() -> None:
    """Records and prints what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the corpus")
    parser.add_argument("--transitions", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    spec = Spec(box(SHAPE, "uint8", 0.0, 255.0), {"type": "Discrete", "n": 4, "start": 0})
    provenance = {"made_by": "data/atari_breakout.py", "policies": POLICIES, "seed": options.seed}
    corpus = write_corpus(options.out, spec, record(options.transitions, options.seed), provenance=provenance)
    print(f"{options.out}: {corpus.episodes:,} episodes, {corpus.transitions:,} transitions")


def picture(frame: np.ndarray) -> np.ndarray:
    """The field of a whole frame `[210, 160, 3]`, uint8 `[80, 80, 3]`."""
    return np.ascontiguousarray(frame[34:194:2, ::2])


def record(transitions: int, seed: int) -> Iterator[Trajectory]:
    """Life after life, behaviour after behaviour, until there are so many transitions."""
    gymnasium.register_envs(ale_py)
    env = gymnasium.make(ENV, frameskip=4, repeat_action_probability=0.0)
    done = index = 0
    while done < transitions:
        for life in game(env, seed, index, list(POLICIES)[index % len(POLICIES)]):
            yield life
            done += len(life)
        index += 1
    env.close()


def game(env: gymnasium.Env, seed: int, index: int, policy: str) -> Iterator[Trajectory]:
    """The lives of one game."""
    rng = np.random.default_rng([seed, index])
    frame, info = env.reset(seed=int(rng.integers(2**31)))
    over, number = False, 0
    while not over:
        pictures, actions, rewards, lives = [picture(frame)], [], [], info["lives"]
        while not over and info["lives"] == lives and len(actions) < MOST_STEPS:
            random = rng.random() < POLICIES[policy]
            actions.append(int(rng.integers(4)) if random else follow(pictures[-1], rng))
            frame, reward, terminated, truncated, info = env.step(actions[-1])
            pictures.append(picture(frame))
            rewards.append(reward)
            over = terminated or truncated
        yield Trajectory(
            observations=np.stack(pictures),
            actions=np.array(actions, np.int64),
            rewards=np.array(rewards, np.float32),
            terminated=info["lives"] < lives,
            truncated=False,
            info={"id": f"{seed}-{index}-{number}", "policy": policy, "seed": seed},
        )
        number += 1


def follow(seen: np.ndarray, rng: np.random.Generator) -> int:
    """Towards the column where the ball is; serves where there is none."""
    red = (seen == RED).all(axis=-1)
    ball = np.flatnonzero(red[BELOW_BRICKS:ABOVE_PADDLE, 4:76].any(axis=0))
    paddle = np.flatnonzero(red[ABOVE_PADDLE, 4:76])
    if not len(ball):
        return int(rng.choice([FIRE, NOOP, LEFT, RIGHT]))
    apart = ball.mean() - paddle.mean() if len(paddle) else 0.0
    return NOOP if abs(apart) < 2 else RIGHT if apart > 0 else LEFT


if __name__ == "__main__":
    main()
