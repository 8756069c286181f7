"""Databases that seven language models wrote SQL to: a language model of 2 layers, width 64, over 512 tokens.

Command:   python train/intercode_sql.py corpora/intercode_sql --out runs/intercode_sql
Data:      python data/intercode_sql.py --tasks ic_spider_dev.json RESULTS corpora/intercode_sql
Hardware:  2 CPU cores.
Time:      4 CPU minutes; 12 minutes beside much other work.
Expected:  2.40 nats a token (2.18 to 2.64) on the 112 held-out episodes, all of one database that was never seen: the
           intervals are over episodes and say nothing of other databases. Of their 1,037 next observations .032
           (.009 to .060) are exactly right; repeating the last one gives .606 (.542 to .667), the nearest logged turn
           .037 (.010 to .071): so small a model learns what the databases it saw hold, and does not yet copy. Of the
           196 that no log could tell, none. All 15 ends found, .003 invented. Trained longer (4,000 steps) it knows
           the seen databases better, not this one: 2.59 nats, .034. Split by task instead (without --tasks), so that
           every database is seen: 1.33 nats (1.06 to 1.59), .232 (.177 to .288) exact of 1,641 observations of 200
           episodes, "as before" .586, nearest logged .567.
"""

from __future__ import annotations

import sys

from worldmodel.cli.recipe import recipe
from worldmodel.training.recipes import TEXT_RECIPES

if __name__ == "__main__":
    sys.exit(recipe(__doc__, TEXT_RECIPES["intercode_sql"]))
