"""The quickstart's world model on a corpus of small vectors: three members of 2 layers, width 64, window 16.

Command:   python train/small_step_model.py corpora/cartpole runs/cartpole
Hardware:  2 CPU cores.
Time:      about a minute for 1,500 steps.
Expected:  see train/README.md; `worldmodel probe runs/cartpole --corpus corpora/cartpole` measures it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from worldmodel.cli.train import Options, run
from worldmodel.quickstart import QuickstartConfig


def main() -> None:
    """Trains, or resumes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="folder of a corpus")
    parser.add_argument("out", type=Path, help="run folder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run(Options((options.corpus,), options.out, seed=options.seed, config=QuickstartConfig().training))


if __name__ == "__main__":
    main()
