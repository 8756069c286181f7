"""Do actions and rewards stand in the row where they belong? Each is tried one and two rows to either side.

A row counts as better placed elsewhere only where the fit there is better in most blocks of the log, by a wide margin:
a fit that is merely less bad (a behaviour that repeats its actions, a reward that hangs on the next state) is not.
"""

from __future__ import annotations

import numpy as np

from worldmodel.corpus.lint.codes import finding
from worldmodel.corpus.lint.ends import late_ends
from worldmodel.corpus.lint.finding import Finding
from worldmodel.corpus.lint.regress import (
    Rows,
    block_means,
    design,
    local_noise,
    local_residuals,
    out_of_fold,
    rows_of,
    t_value,
)
from worldmodel.corpus.lint.sample import Sample

SHIFTS = (-2, -1, 0, 1, 2)
_STANDARD_ERRORS = 5.0
_ACTION_GAIN = 0.1
_REWARD_GAIN = 0.4
"""Nats by which the squared error must fall."""
_LEAST_ROWS = 150
_MOST_ROWS = 5_000
_BLOCK = 25
_FEW = 4
"""Dimensions up to which neighbours are near enough for local regression."""
_RARE = 0.9
_LEAST_EVENTS = 5
_MOST_EVENTS_KEPT = 0.2


def check(sample: Sample) -> list[Finding]:
    """`action-shifted`, `reward-shifted`; `evidence["shift"]` is how many steps too late they are logged."""
    rows = rows_of(sample)
    if rows is None:
        return []
    return [*_actions(rows), *_rewards(rows)]


def _inner(rows: Rows, most: int = _MOST_ROWS) -> np.ndarray:
    """Transitions that have two more on either side."""
    return np.flatnonzero((rows.step >= 2) & (rows.left >= 2))[:most]


def _loss(residual: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Mean over dimensions of the log squared error `[blocks]`; residuals `[N, k]` in standard deviations."""
    squared = np.minimum(residual**2, 25.0)
    return np.mean([np.log(block_means(column, episode, _BLOCK) + 1e-6) for column in squared.T], axis=0)


def _actions(rows: Rows) -> list[Finding]:
    use = _inner(rows)
    if len(use) < _LEAST_ROWS or rows.actions.shape[1] == 0 or rows.states.shape[1] == 0:
        return [_unchecked("action", "too few steps, or nothing moves")]
    before, episode = rows.states[rows.before[use]], rows.episode[use]
    change = rows.states[rows.before[use] + 1] - before
    change /= change.std(axis=0) + 1e-12
    losses = {s: _loss(out_of_fold(design(before, rows.actions[use + s]), change, episode), episode) for s in SHIFTS}
    return _verdict("action", losses, _ACTION_GAIN, "the next observation")


def _rewards(rows: Rows) -> list[Finding]:
    use = _inner(rows)
    if rows.rewards is None:
        return []
    if np.ptp(rows.rewards) < 1e-9:
        return [_unchecked("reward", "rewards never change")]
    values, counts = np.unique(rows.rewards, return_counts=True)
    if counts.max() >= _RARE * len(rows):
        return _rare(rows, rows.rewards != values[counts.argmax()])
    if len(use) < _LEAST_ROWS or rows.states.shape[1] == 0:
        return [_unchecked("reward", "too few steps, or nothing moves")]
    rewards = ((rows.rewards - rows.rewards.mean()) / rows.rewards.std())[use, None]
    episode = rows.episode[use]
    losses = {}
    for shift in SHIFTS:
        at = rows.before[use - shift]
        both = np.concatenate([rows.states[at], rows.states[at + 1] - rows.states[at]], axis=1)
        residual = out_of_fold(design(both, rows.actions[use - shift]), rewards, episode)
        losses[shift] = [_loss(residual, episode)]
        if rows.states.shape[1] <= _FEW:
            # A reward may be a rule of where one comes from, or of where one gets to.
            for state in (rows.states[at], rows.states[at + 1]) if shift == 0 else (rows.states[at],):
                losses[shift].append(_loss(_local(state, rows.actions[use - shift], rewards, episode), episode))
    best = {shift: min(tried, key=np.mean) for shift, tried in losses.items()}
    found = _verdict("reward", best, _REWARD_GAIN, "the transition")
    if not found and rows.states.shape[1] <= _FEW:
        # The reward of the next row is one of where this row leads: the two differ by the action alone.
        found = _foreseen(rows, rows.rewards, losses[0][1] - losses[-1][1])
    return found


def _local(state: np.ndarray, action: np.ndarray, rewards: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Residuals of a reward that is a smooth function of the state plus one of the action."""
    residual = local_residuals(state, np.concatenate([rewards, action, action**2], axis=1))
    return out_of_fold(residual[:, 1:], residual[:, :1], episode)


def _foreseen(rows: Rows, logged: np.ndarray, nearer: np.ndarray) -> list[Finding]:
    """Rewards that depend on an action not taken yet were logged one step early.

    `nearer` `[blocks]`: by how many nats the next state and action explain them better than this state and action.
    """
    if nearer.mean() < _REWARD_GAIN or t_value(nearer) < _STANDARD_ERRORS:
        return []
    use = _inner(rows, len(rows))  # the part of an action in a reward may be small: every row counts
    episode, rewards = rows.episode[use], logged[use, None]
    state, now, later = rows.states[rows.before[use] + 1], rows.actions[use], rows.actions[use + 1]
    residual = local_residuals(state, np.concatenate([rewards, now, now**2, later, later**2], axis=1))
    weight = 1.0 / local_noise(state, residual[:, :1])
    target, known = np.clip(residual[:, :1] * weight, -3, 3), residual[:, 1:] * weight
    without = out_of_fold(known[:, : 2 * now.shape[1]], target, episode)
    gain = without[:, 0] ** 2 - out_of_fold(known, target, episode)[:, 0] ** 2
    score = t_value(block_means(gain, episode, _BLOCK))
    if score < _STANDARD_ERRORS:
        return []
    share = float(gain.sum() / (without**2).sum())
    return [
        finding(
            "reward-shifted",
            f"rewards are logged 1 step too early: each depends on the action after it ({score:.0f} standard errors)",
            evidence={"shift": -1, "t": round(score, 1), "share_explained": round(share, 4)},
        )
    ]


def _rare(rows: Rows, event: np.ndarray) -> list[Finding]:
    """Rare rewards that come just before the ends, or at the first step after one, but not at the ends."""
    total = int(event.sum())
    ended = np.array([e.record.terminated for e in rows.episodes])[rows.episode]
    kept = int((event & (rows.left == 0) & ended).sum())
    early = int((event & (rows.left == 1) & ended).sum())
    index = np.array([e.record.index for e in rows.episodes])
    follows = np.isin(index, [e.record.index + 1 for e in rows.episodes if e.record.terminated])[rows.episode]
    late = int((event & (rows.step == 0) & follows).sum())
    late_share = late / max(int((rows.step == 0)[follows].sum()), 1)
    for shift, count, share in ((-1, early, 1.0), (1, late, late_share)):
        enough = count >= max(_LEAST_EVENTS, (1 - _MOST_EVENTS_KEPT) * total) and kept <= _MOST_EVENTS_KEPT * count
        if enough and share > 0.5 and late_ends(rows) is None:
            place = "one step before the end" if shift < 0 else "at the first step after an end"
            return [
                finding(
                    "reward-shifted",
                    f"{count:,} of {total:,} rare rewards come {place}, {kept:,} at the end: they are logged "
                    f"1 step too {'early' if shift < 0 else 'late'}",
                    evidence={"shift": shift, "count": count, "at_end": kept, "rare": total},
                )
            ]
    return []


def _verdict(what: str, losses: dict[int, np.ndarray], least: float, explained: str) -> list[Finding]:
    shift = min(losses, key=lambda s: losses[s].mean())
    gain = losses[0] - losses[shift]
    score = t_value(gain)
    if shift == 0 or score < _STANDARD_ERRORS or gain.mean() < least:
        return []
    return [
        finding(
            f"{what}-shifted",
            f"{what}s are logged {abs(shift)} step(s) too {'late' if shift > 0 else 'early'}: moved back, they explain "
            f"{explained} better by {gain.mean():.2f} nats ({score:.0f} standard errors, {len(gain):,} blocks)",
            evidence={
                "shift": shift,
                "gain": round(float(gain.mean()), 4),
                "t": round(score, 1),
                "nats": {str(s): round(float(loss.mean()), 4) for s, loss in sorted(losses.items())},
            },
        )
    ]


def _unchecked(what: str, why: str) -> Finding:
    return finding("not-checked", f"alignment of {what}s: {why}", evidence={"check": f"{what} alignment", "why": why})
