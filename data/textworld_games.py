"""Text games made by TextWorld, played by their walkthrough, at random, and by both in turn.

Command:   pip install 'worldmodel[recipes]'
           python data/textworld_games.py corpora/textworld
Hardware:  one CPU core.
Time:      40 seconds, nearly all of it to compile the games.
Counts:    20 games with 5 episodes each: 1 walkthrough, 2 random, 2 mixed.
Source:    the package textworld (MIT), Cote et al. 2018 (arXiv 1806.11532); the logs are yours.

The split goes by game. Games of one seed are the same in every run; their rooms and things differ between seeds. A
walkthrough does not win every game: where two things share a part of their names, the game asks which one is meant.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import textworld

from worldmodel.corpus import write_corpus
from worldmodel.trajectory import Spec, Trajectory

TEXT = {"type": "Text", "max_length": None}
POLICIES = {"walkthrough": 0.0, "random": 1.0, "mixed": 0.3}
"""Share of random actions; the others follow the walkthrough, which a random action can spoil."""
PLAYED = ("walkthrough", "random", "random", "mixed", "mixed")


def main() -> None:
    """Makes the games, plays them and prints what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the corpus")
    parser.add_argument("--games", type=int, default=20)
    parser.add_argument("--rooms", type=int, default=5)
    parser.add_argument("--objects", type=int, default=10)
    parser.add_argument("--quest", type=int, default=5, help="steps of the quest, as TextWorld counts them")
    parser.add_argument("--limit", type=int, default=40, help="most steps of an episode")
    parser.add_argument("--seed", type=int, default=0, help="of the first game")
    options = parser.parse_args()
    arguments = {name: value for name, value in vars(options).items() if name != "out"}
    provenance = {"made_by": "data/textworld_games.py", "licence": "MIT", "arguments": arguments}
    provenance["left_out"] = ["the title's picture and the line of status under each text"]
    provenance["source"] = f"textworld {importlib.metadata.version('textworld')}"
    spec = Spec(TEXT, TEXT, max_episode_steps=options.limit)
    corpus = write_corpus(options.out, spec, episodes(options), provenance=provenance, split_by="task")
    print(f"{options.out}: {corpus.episodes:,} episodes, {corpus.transitions:,} transitions")


def episodes(options: argparse.Namespace) -> Iterator[Trajectory]:
    """All episodes, game after game."""
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.games):
            settings = textworld.GameOptions()
            settings.nb_rooms, settings.nb_objects, settings.seeds = options.rooms, options.objects, seed
            settings.quest_length = options.quest
            settings.path = f"{folder}/game-{seed}.z8"
            file, game = textworld.make(settings)
            asked = textworld.EnvInfos(feedback=True, admissible_commands=True, score=True, won=True, lost=True)
            env = textworld.start(file, request_infos=asked)
            for number, policy in enumerate(PLAYED):
                rng = np.random.default_rng([seed, number])
                info = {"id": f"game-{seed}/{number}", "task": f"game-{seed}", "policy": policy, "seed": seed}
                yield play(env, game, POLICIES[policy], rng, options.limit, {**info, "source": "textworld"})
            env.close()


def play(env: Any, game: Any, share: float, rng: np.random.Generator, limit: int, info: dict) -> Trajectory:
    """One episode: random actions with probability `share`, else the walkthrough's next."""
    state = env.reset()
    plan = list(game.walkthrough)
    start = state.feedback.find(game.objective)
    observations, actions, rewards, score, done = [words(state.feedback[max(start, 0) :])], [], [], 0, False
    while not done and len(actions) < limit and (plan or share):
        at_random = rng.random() < share or not plan
        action = str(rng.choice(sorted(state.admissible_commands))) if at_random else plan.pop(0)
        state, _, done = env.step(action)
        observations.append(words(state.feedback))
        actions.append(action)
        rewards.append(state.score - score)
        score = state.score
    return Trajectory(
        observations=np.array(observations, np.object_),
        actions=np.array(actions, np.object_),
        rewards=np.array(rewards, np.float32),
        terminated=bool(done),
        truncated=not done and len(actions) == limit,
        context={"instruction": game.objective},
        info={**info, "success": bool(state.won)},
    )


def words(feedback: str) -> str:
    """What the game says, without the prompt and the line of status that follow it."""
    return re.sub(r"\n>\s*(-= .* =-\S*)?\s*$", "", feedback).strip()


if __name__ == "__main__":
    main()
