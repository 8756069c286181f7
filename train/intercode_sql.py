"""Databases that seven language models wrote SQL to: a language model of 2 layers, width 64, over 512 tokens.

Command:   python train/intercode_sql.py corpora/intercode_sql --out runs/intercode_sql
Data:      python data/intercode_sql.py --tasks ic_spider_dev.json RESULTS corpora/intercode_sql
Hardware:  2 CPU cores.
Time:      TIME
Expected:  EXPECTED
"""

from __future__ import annotations

import sys

from worldmodel.cli.recipe import recipe
from worldmodel.training.recipes import TEXT_RECIPES

if __name__ == "__main__":
    sys.exit(recipe(__doc__, TEXT_RECIPES["intercode_sql"]))
