"""Ends of episodes: observations lost after them, time limits stored as terminals, ends marked a step late."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import scipy.stats

from worldmodel.corpus.lint.codes import finding
from worldmodel.corpus.lint.finding import Finding
from worldmodel.corpus.lint.jumps import at_start, surprise, table
from worldmodel.corpus.lint.regress import Rows, rows_of
from worldmodel.corpus.lint.sample import Episode, Sample

_LEAST = 5
"""Episodes from which something is said of all."""
_LEAST_AT_LIMIT = 3
_SHORTEST_LIMIT = 10
_STANDARD_ERRORS = 4.0
_FALSE_ALARM = 1e-8
_JUMP = 4.0


def check(sample: Sample) -> list[Finding]:
    """`last-repeated`, `time-limit-terminal`, `end-late`."""
    if not sample.observation_features:
        return []
    rows = rows_of(sample)
    return [*_repeated(sample), *_limits(sample), *(_late(rows) if rows else [])]


def _repeated(sample: Sample) -> list[Finding]:
    """The last two observations are the same more often than any two before them, action by action."""
    episodes = [e for e in sample.episodes if len(e) >= 2]
    if len(episodes) < _LEAST:
        return []
    same = np.concatenate([(e.observations[1:] == e.observations[:-1]).all(axis=1) for e in episodes])
    last = np.zeros(len(same), bool)
    last[np.cumsum([len(e) for e in episodes]) - 1] = True
    actions = np.concatenate([e.actions for e in episodes])
    _, action = np.unique(actions, axis=0, return_inverse=True)
    action = action.ravel()
    if action.max() > len(same) // 20:  # hardly any action comes again: one rate for all
        action[:] = 0
    # Every episode counts once: a long one may stand still all the time.
    weight = np.concatenate([np.full(len(e), 1.0 / len(e)) for e in episodes])[~last]
    seen = np.bincount(action[~last], weight, minlength=action.max() + 1)
    rate = (np.bincount(action[~last], weight * same[~last], minlength=len(seen)) + 0.05) / (seen + 0.1)
    usual = rate[action[last]]
    count, expected = int(same[last].sum()), float(usual.sum())
    error = np.sqrt((usual * (1 - usual)).sum() + 0.25)
    if count < max(_LEAST, 0.5 * len(episodes)) or (count - expected) / error < _STANDARD_ERRORS:
        return []
    names = [e.record.id for e, repeated in zip(episodes, same[last], strict=True) if repeated]
    share, elsewhere = count / len(episodes), expected / len(episodes)
    return [
        finding(
            "last-repeated",
            f"in {count:,} of {len(episodes):,} episodes the last observation is the one before it again "
            f"(elsewhere {elsewhere:.0%}): what the last action led to was lost",
            episodes=names,
            evidence={"share": round(share, 4), "elsewhere": round(elsewhere, 4)},
        )
    ]


def _limits(sample: Sample) -> list[Finding]:
    """Terminals at the greatest length of all whose last row is one that other episodes live through."""
    episodes = [e for e in sample.episodes if len(e)]
    longest = max((r.steps for r in sample.records), default=0)
    group = [e for e in episodes if e.record.terminated and e.record.steps == longest]
    least = 1 if sample.spec.max_episode_steps == longest else _LEAST_AT_LIMIT
    if longest < _SHORTEST_LIMIT or len(group) < least:
        return []
    low, high = _survived(episodes)
    found = [e for e in group if ((_last_row(e) >= low) & (_last_row(e) <= high)).all()]
    if len(found) < max(least, 0.5 * len(group)):
        return []
    ended = sum(r.terminated for r in sample.records)
    return [
        finding(
            "time-limit-terminal",
            f"{len(found):,} of {len(sample.records):,} episodes are terminated after exactly {longest:,} steps, the "
            "most of all, in an observation that others live through: a time limit stored as a terminal",
            episodes=[e.record.id for e in found],
            evidence={"length": longest, "count": len(found), "terminated": ended, "of": len(sample.records)},
        )
    ]


def _last_row(episode: Episode) -> np.ndarray:
    """The last observation and the reward that came with it."""
    reward = [] if episode.rewards is None else episode.rewards[-1:]
    return np.concatenate([episode.observations[-1], reward])


def _survived(episodes: list[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """Range of the observations that do not end an episode, and of the rewards on the way to them."""
    lows, highs = [], []
    for episode in episodes:
        rows = episode.observations[:-1]
        rewards = np.zeros((len(rows), 0)) if episode.rewards is None else episode.rewards[:, None].copy()
        if rewards.size:
            rewards[-1] = rewards[-2] if len(rewards) > 1 else np.nan
        rows = np.concatenate([rows, rewards], axis=1)
        lows.append(np.nanmin(rows, axis=0, initial=np.inf))
        highs.append(np.nanmax(rows, axis=0, initial=-np.inf))
    return np.min(lows, axis=0), np.max(highs, axis=0)


@dataclasses.dataclass(frozen=True)
class LateEnds:
    """Jumps near the ends: `left` transitions before them, in `jumped` of `seen` episodes; `usual` elsewhere."""

    left: int
    jumped: int
    seen: int
    usual: float


@functools.lru_cache(maxsize=1)
def late_ends(rows: Rows) -> LateEnds | None:
    """Where the last transition of episodes, or the one before it, is the reset of the environment."""
    found = table(rows)
    if found is not None:
        jumped, seen = found.odd, found.repeated
    else:
        jumped, seen = (surprise(rows) > _JUMP) & at_start(rows), np.ones(len(rows), bool)
    elsewhere = seen & (rows.left >= 3)
    usual = float(jumped[elsewhere].mean()) if elsewhere.any() else 1.0
    for left in (1, 0):
        here = seen & (rows.left == left) & (rows.step >= 1)
        count, total = int((jumped & here).sum()), int(here.sum())
        chance = scipy.stats.binom.sf(count - 1, total, max(usual, 0.01))
        if total >= _LEAST and count >= 0.5 * total and usual < 0.2 * count / total and chance < _FALSE_ALARM:
            return LateEnds(left, count, total, usual)
    return None


def _late(rows: Rows) -> list[Finding]:
    late = late_ends(rows)
    if late is None:
        return []
    place = "last" if late.left == 0 else "second last"
    return [
        finding(
            "end-late",
            f"the {place} transition of {late.jumped:,} of {late.seen:,} episodes leads, unexplained by its action, to "
            f"the start of another (elsewhere {late.usual:.1%}): ends are marked one step late",
            evidence={**dataclasses.asdict(late), "usual": round(late.usual, 5)},
        )
    ]
