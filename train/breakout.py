"""Atari's Breakout in colour, 80x80 pixels: one model of 2 layers, width 64, window 16.

Command:   python train/breakout.py corpora/breakout --out runs/breakout
Data:      python data/atari_breakout.py corpora/breakout
Hardware:  2 CPU cores.
Time:      `python train/breakout.py corpora/breakout --estimate` measures it here.
Expected:  `python eval/breakout.py corpora/breakout` trains with this configuration and measures it;
           not yet run to its end.
"""

from __future__ import annotations

import sys

from worldmodel.cli.recipe import recipe
from worldmodel.training.recipes import RECIPES

if __name__ == "__main__":
    sys.exit(recipe(__doc__, RECIPES["breakout"]))
