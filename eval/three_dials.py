"""Complexity x diversity x fidelity: how faithful must a simulator be, and do harder tasks need more?

Command:   python eval/three_dials.py                     (a first look: --quick)
Hardware:  2 CPU cores, 6 minutes when idle.
Expected:  eval/README.md.

Faults of known size are planted in exact simulators of finite processes, whose answer is known, and of CartPole. The
same command goes on where it was stopped. `worldmodel study report runs/three_dials` prints the tables, of a held-out
variant with `--deployment held_out`.
"""

from __future__ import annotations

import sys

from worldmodel.cli import main
from worldmodel.study.recipes import three_dials

STUDY, QUICK = three_dials(), three_dials(quick=True)

if __name__ == "__main__":
    sys.exit(main(["study", "three_dials", "--out", "runs/three_dials", *sys.argv[1:]]))
