"""HalfCheetah-v5 from random play to good: two members of 2 layers, width 64, window 16.

Command:   python train/halfcheetah.py corpora/halfcheetah --out runs/halfcheetah
Data:      python data/mujoco.py HalfCheetah-v5 corpora/halfcheetah
Hardware:  2 CPU cores.
Time:      `python train/halfcheetah.py corpora/halfcheetah --estimate` measures it here.
Expected:  `worldmodel probe runs/halfcheetah --corpus corpora/halfcheetah` measures it; not yet run on this corpus.
"""

from __future__ import annotations

import sys

from worldmodel.cli.recipe import recipe
from worldmodel.training.recipes import RECIPES

if __name__ == "__main__":
    sys.exit(recipe(__doc__, RECIPES["halfcheetah"]))
