"""Pendulum-v1 from weak controllers: two members of 2 layers, width 64, window 16.

Command:   python train/pendulum.py corpora/pendulum --out runs/pendulum
Data:      python data/gymnasium_mixture.py Pendulum-v1 corpora/pendulum
Hardware:  2 CPU cores.
Time:      `python train/pendulum.py corpora/pendulum --estimate` measures it here.
Expected:  `worldmodel probe runs/pendulum --corpus corpora/pendulum` measures it; not yet run on this corpus.
"""

from __future__ import annotations

import sys

from worldmodel.cli.recipe import recipe
from worldmodel.training.recipes import RECIPES

if __name__ == "__main__":
    sys.exit(recipe(__doc__, RECIPES["pendulum"]))
