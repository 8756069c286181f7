"""Logs of MuJoCo's Hopper, HalfCheetah and Walker2d, from random to good, under policies that the recipe trains itself.

Command:   python data/mujoco.py HalfCheetah-v5 corpora/halfcheetah
Hardware:  one CPU core; needs the extra: pip install worldmodel[mujoco]
Time:      see data/README.md.
Source:    the environment itself; the logs are yours. The checkpoints lie in OUT-policies/*.npz, graded by return.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np

from worldmodel.agents.ars import ARSConfig, LinearCheckpoint, NoisyLinearPolicy, augmented_random_search
from worldmodel.agents.behaviour import parse_behaviour
from worldmodel.agents.past import Past
from worldmodel.agents.record import run_episode
from worldmodel.corpus import write_corpus
from worldmodel.trajectory import Spec, Trajectory

# Step sizes, directions and noise as in the paper's table 9; Hopper and Walker2d pay a bonus for every step survived.
SEARCH = {
    "HalfCheetah-v5": ARSConfig(iterations=60, directions=32, top=4, step_size=0.02, noise=0.03),
    "Hopper-v5": ARSConfig(iterations=250, directions=8, top=4, step_size=0.01, noise=0.025, survival_bonus=1.0),
    "Walker2d-v5": ARSConfig(iterations=120, directions=40, top=30, step_size=0.03, noise=0.025, survival_bonus=1.0),
}
NOISE = {"": (0.0, 0.01), "-noisy": (0.05, 0.1)}
"""Each checkpoint is recorded nearly as it is, and disturbed: share of uniform actions, and deviation around the others
as a share of the range."""


def main() -> None:
    """Trains the policies (or finds them again), records the mixture, prints what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", choices=SEARCH)
    parser.add_argument("out", type=Path, help="folder of the corpus")
    parser.add_argument(
        "--transitions", type=int, default=100_000, help="shared evenly by random play and the policies"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    here = Path(__file__).parent.resolve()
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != here]  # or gymnasium imports this file
    env = gymnasium.make(options.env)
    policies = checkpoints(env, options.env, options.out.with_name(options.out.name + "-policies"), options.seed)
    spec = Spec.from_gymnasium(env)
    provenance = {"made_by": "data/mujoco.py", "env_id": options.env, "seed": options.seed, "noise": NOISE}
    provenance["policies"] = {name: policy.mean_return for name, policy in policies.items()}
    episodes = record(env, spec, policies, options.transitions, options.seed)
    corpus = write_corpus(options.out, spec, episodes, provenance=provenance)
    print(f"{options.out}: {corpus.episodes:,} episodes, {corpus.transitions:,} transitions")


def checkpoints(env: gymnasium.Env, env_id: str, folder: Path, seed: int) -> dict[str, LinearCheckpoint]:
    """The policies by name, weakest first as they were found; trained where the folder does not hold them yet."""
    config = SEARCH[env_id]
    files = [folder / f"ars-{i}.npz" for i in range(config.snapshots)]
    if not all(file.exists() for file in files):
        folder.mkdir(parents=True, exist_ok=True)
        search = augmented_random_search(env, config, seed=seed, progress=report)
        for file, checkpoint in zip(files, search, strict=True):
            checkpoint.save(file)
    return {file.stem: LinearCheckpoint.load(file) for file in files}


def report(iteration: int, mean_return: float) -> None:
    """One line now and then."""
    if iteration % 10 == 0:
        print(f"search: iteration {iteration}, mean return {mean_return:.0f}", file=sys.stderr)


def record(
    env: gymnasium.Env, spec: Spec, policies: dict[str, LinearCheckpoint], transitions: int, seed: int
) -> Iterator[Trajectory]:
    """Episodes of random play and of each policy, an equal share of transitions each (the last may run over)."""
    random = parse_behaviour("random")
    noisy = {f"{name}{how}": (policy, *NOISE[how]) for name, policy in policies.items() for how in NOISE}
    share = transitions // (1 + len(noisy))
    for kind, name in enumerate(["random", *noisy]):
        steps = index = 0
        while steps < share:
            rng = np.random.default_rng([seed, kind, index])
            if name in noisy:
                checkpoint, uniform, spread = noisy[name]
                policy = NoisyLinearPolicy(checkpoint, spec, uniform, rng, spread=spread)
            else:
                policy = random.begin(spec, Past(spec), rng)
            episode_seed = int(rng.integers(2**31))
            info = {"id": f"{spec.env_id}/{seed}/{name}/{index:05d}", "policy": name, "seed": episode_seed}
            episode = run_episode(env, policy, episode_seed, share - steps, info | {"source": "recorded"})
            steps, index = steps + len(episode), index + 1
            yield episode


if __name__ == "__main__":
    main()
