"""Logs of a real Gymnasium environment under the default mixture of weak behaviours.

Command:   python data/gymnasium_mixture.py CartPole-v1 corpora/cartpole
Hardware:  one CPU core.
Time:      2 seconds (CartPole-v1), 4 seconds (Pendulum-v1).
Counts:    300 episodes; with seed 0, 28,133 transitions of CartPole-v1 (mean return 94) and 60,000 of Pendulum-v1
           (mean return -1,261).
Source:    the environment itself; the logs are yours.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from worldmodel.cli.record import RecordOptions, record


def main() -> None:
    """Records and prints what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", help="Gymnasium id")
    parser.add_argument("out", type=Path, help="folder of the corpus")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    record(RecordOptions(options.env, options.out, episodes=options.episodes, seed=options.seed))


if __name__ == "__main__":
    main()
