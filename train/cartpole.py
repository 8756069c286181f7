"""CartPole-v1 from weak controllers: two members of 2 layers, width 64, window 16.

Command:   python train/cartpole.py corpora/cartpole --out runs/cartpole
Data:      python data/gymnasium_mixture.py CartPole-v1 corpora/cartpole
Hardware:  2 CPU cores.
Time:      `python train/cartpole.py corpora/cartpole --estimate` measures it here; on other logs this
           schedule took 79 to 94 seconds (eval/README.md, "How faithful").
Expected:  `worldmodel probe runs/cartpole --corpus corpora/cartpole` measures it; on those other logs
           the one-step NRMSE is .0003 to .0004.
"""

from __future__ import annotations

import sys

from worldmodel.cli.recipe import recipe
from worldmodel.training.recipes import RECIPES

if __name__ == "__main__":
    sys.exit(recipe(__doc__, RECIPES["cartpole"]))
