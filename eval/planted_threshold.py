"""The fidelity that training in a simulator needs, by the kind of what is wrong in it.

Command:   python eval/planted_threshold.py               (a first look: --quick)
Hardware:  2 CPU cores, 2 minutes when idle.
Expected:  eval/README.md.

Faults of known size are planted in exact simulators of finite processes and of CartPole: steps that are too good, noisy
or too certain, wrong rewards, false ends, late actions, faults in a part of the states only; and one simulator is
learned from logs. The same command goes on where it was stopped. `worldmodel study report runs/planted_threshold`
prints the tables.
"""

from __future__ import annotations

import sys

from worldmodel.cli import main
from worldmodel.study.recipes import planted_threshold

STUDY, QUICK = planted_threshold(), planted_threshold(quick=True)

if __name__ == "__main__":
    sys.exit(main(["study", "planted_threshold", "--out", "runs/planted_threshold", *sys.argv[1:]]))
