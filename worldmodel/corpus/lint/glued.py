"""Were episodes glued together? A jump to where episodes start, or an end that the log runs past."""

from __future__ import annotations

import numpy as np
import scipy.stats

from worldmodel.corpus.lint.codes import finding
from worldmodel.corpus.lint.ends import late_ends
from worldmodel.corpus.lint.finding import Finding
from worldmodel.corpus.lint.jumps import Table, at_start, surprise, table
from worldmodel.corpus.lint.regress import Rows, rows_of
from worldmodel.corpus.lint.sample import Sample

JUMPS = (135.0, 45.0, 15.0, 5.0)
"""A transition is a jump where it is this many times as far off as nine in ten are; the greatest that tells is used."""
_FALSE_ALARM = 1e-4
_LEAST_PASSED = 3
_UNRULY = 0.03
_END_SHARE = 0.15
_PASSED_SHARE = 0.1


def check(sample: Sample) -> list[Finding]:
    """`glued`: episodes that hold the end of one and the start of another."""
    rows = rows_of(sample)
    if rows is None or late_ends(rows):
        return []
    again = table(rows)
    # Where observations come again and again, nearly all look like starts; where they do not, no transition does.
    events, how = _jumps(rows) if again is None else _passed_ends(rows, again)
    steps: dict[str, list[int]] = {}
    for at in np.flatnonzero(events):
        steps.setdefault(rows.episodes[rows.episode[at]].record.id, []).append(int(rows.step[at]))
    if not steps:
        return []
    first = next(iter(steps))
    return [
        finding(
            "glued",
            f"{len(steps):,} of {len(rows.episodes):,} episodes {how}: first {first} at step {steps[first][0]}",
            episodes=list(steps),
            evidence={"steps": steps, "of": len(rows.episodes)},
        )
    ]


def _jumps(rows: Rows) -> tuple[np.ndarray, str]:
    """Jumps to a start in the middle of an episode, where they are more than jumps elsewhere would make by chance."""
    starts = at_start(rows)
    middle = (rows.step >= 1) & (rows.left >= 1)
    how = "jump, unexplained by the action, to where episodes start"
    score, here = surprise(rows), starts & middle
    for least in JUMPS:
        jumped = score > least
        events = jumped & here
        usual = (jumped[~starts].sum() + 0.5) / ((~starts).sum() + 1) * here.sum()
        if scipy.stats.poisson.sf(events.sum() - 1, usual) < _FALSE_ALARM / len(JUMPS):
            return events, how
    return np.zeros(len(rows), bool), how


def _passed_ends(rows: Rows, found: Table) -> tuple[np.ndarray, str]:
    """Transitions that end other episodes and are followed by more here, in a log that otherwise repeats itself."""
    how = "run on after a transition that ends others"
    none = np.zeros(len(rows), bool)
    lengths = np.array([e.record.steps for e in rows.episodes])
    limited = (lengths == lengths.max()) & ((lengths == lengths.max()).sum() > 1)  # as a time limit would do
    terminal = (rows.left == 0) & (np.array([e.record.terminated for e in rows.episodes]) & ~limited)[rows.episode]
    ends = np.bincount(found.key, terminal)
    key_ends = (ends >= 2) & (ends >= _END_SHARE * np.bincount(found.key))
    others = found.repeated & ~key_ends[found.key]
    if not others.any() or found.odd[others].mean() > _UNRULY:
        return none, how
    passed = key_ends[found.key] & (rows.left >= 1)
    if passed.sum() < max(_LEAST_PASSED, _PASSED_SHARE * ends[key_ends].sum()):
        return none, how
    # The jump is the transition itself, or the one after it where what it usually leads to was kept.
    at = np.flatnonzero(passed)
    jumps = np.minimum(np.where(found.odd[at], at, at + 1), len(rows) - 1)
    events = np.zeros(len(rows), bool)
    events[jumps[rows.episode[jumps] == rows.episode[at]]] = True
    return events, how
