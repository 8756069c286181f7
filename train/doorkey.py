"""MiniGrid's DoorKey-8x8, seen whole: one model of 2 layers, width 64, which attends over 32 steps.

Command:   python train/doorkey.py corpora/doorkey --out runs/doorkey
Data:      python data/minigrid_doorkey.py corpora/doorkey
Hardware:  2 CPU cores.
Time:      `python train/doorkey.py corpora/doorkey --estimate` measures it here.
Expected:  `python eval/doorkey.py corpora/doorkey` trains with this configuration and measures it; in
           1,500 steps, 99.8% of the next grids were exact where the answer is visible (eval/README.md).
"""

from __future__ import annotations

import sys

from worldmodel.cli.recipe import recipe
from worldmodel.training.recipes import RECIPES

if __name__ == "__main__":
    sys.exit(recipe(__doc__, RECIPES["doorkey"]))
