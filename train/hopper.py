"""Hopper-v5 from random play to good: two members of 2 layers, width 64, window 16.

Command:   python train/hopper.py corpora/hopper --out runs/hopper
Data:      python data/mujoco.py Hopper-v5 corpora/hopper
Hardware:  2 CPU cores.
Time:      `python train/hopper.py corpora/hopper --estimate` measures it here; on other logs this schedule
           took 164 to 196 seconds (eval/README.md, "How faithful").
Expected:  `worldmodel probe runs/hopper --corpus corpora/hopper` measures it; on those other logs the
           one-step NRMSE is .086 to .089.
"""

from __future__ import annotations

import sys

from worldmodel.cli.recipe import recipe
from worldmodel.training.recipes import RECIPES

if __name__ == "__main__":
    sys.exit(recipe(__doc__, RECIPES["hopper"]))
