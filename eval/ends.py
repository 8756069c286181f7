"""Does a simulator end episodes when reality does? False ends on good steps, recall of true ends.

Command:   python eval/ends.py runs/quickstart
Hardware:  2 CPU cores, about a minute.
Expected:  eval/README.md.

Good steps: 200 real episodes of the run's own policy (10^5 steps on CartPole). True ends: fresh logs under the
behaviours of the run's corpus, another seed. Both are replayed: the simulator sees the real past. `false_end_rate` is
the mean probability of an end over good steps, given the next observations that the simulator samples; `recall` the
share of true ends to which its central prediction gives more than one half.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import worldmodel as wm
from worldmodel.agents.batch_env import Interface
from worldmodel.agents.counting import StepLedger
from worldmodel.agents.evaluate import real_episodes
from worldmodel.agents.ppo import load_policy
from worldmodel.agents.record import record
from worldmodel.corpus import Columns, open_corpus
from worldmodel.fidelity.single_steps import one_step

FRESH_SEED = 31_337


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a quickstart")
    parser.add_argument("--episodes", type=int, default=300, help="fresh logged episodes")
    options = parser.parse_args()
    world = wm.load(options.run)
    policy = load_policy(options.run / "policy.npz", Interface(world.spec, world.dynamics.codec))
    good = real_episodes(world.spec, policy, episodes=200, seed=FRESH_SEED, ledger=StepLedger())
    behaviours = open_corpus(options.run / "corpus").provenance["policies"]
    _, fresh = record(world.spec.env_id, behaviours=behaviours, episodes=options.episodes, seed=FRESH_SEED)
    result = {}
    for name, episodes in (("good_steps", good), ("fresh_logs", fresh)):
        columns = Columns.from_trajectories(episodes)
        found = one_step(world, columns, 0, max_episodes=columns.episodes, max_steps=1_000)
        result[name] = {"transitions": found["transitions"], **found["termination"]}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
