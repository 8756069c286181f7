"""Ends of episodes in text logs: glued episodes, ends one step late, last observations that were lost, time limits."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import poisson

from worldmodel.corpus.lint.codes import finding
from worldmodel.corpus.lint.finding import Finding
from worldmodel.corpus.lint.sample import Record, Sample
from worldmodel.corpus.lint.text import z_of
from worldmodel.corpus.lint.text_glued import find_glued
from worldmodel.corpus.lint.words import TextEpisode, all_words, has_text, read_texts, shared_weight

MIN_EPISODES = 8
Z = 4.0
Z_ONE = 3.0
"""Where one number is tested once, and clean logs lie far on its other side."""
_LIMIT_CHANCE = 2e-3
"""Of so many ends at one length by chance; that they are unlike other ends is asked besides."""


def check(sample: Sample) -> list[Finding]:
    """Glued episodes, ends one step late, repeated last observations, time limits stored as terminals."""
    if not has_text(sample.spec.observation_space):
        return []
    episodes = read_texts(sample)
    if len(episodes) < MIN_EPISODES:
        why = f"{len(episodes)} episodes; {MIN_EPISODES} are needed"
        return [finding("not-checked", f"ends of texts: {why}", evidence={"check": "text ends", "why": why})]
    late = _late_ends(episodes)
    return [*_repeated(episodes), *(late or find_glued(episodes)), *_limits(episodes, sample.records)]


def _repeated(episodes: Sequence[TextEpisode]) -> list[Finding]:
    """The last two observations are the same far more often than the two before them."""
    last, before = [], []
    for episode in episodes:
        texts = episode.texts
        last.append(texts[-1] == texts[-2])
        before.append(len(texts) > 2 and texts[-2] == texts[-3])
    rate, usual = float(np.mean(last)), float(np.mean(before))
    z = z_of(np.array(last, np.float64) - np.array(before, np.float64))
    if rate < 0.5 or rate < usual + 0.3 or z < Z:
        return []
    return [
        finding(
            "last-repeated",
            f"in {sum(last):,} of {len(last):,} episodes the last observation is the one before it again "
            f"(elsewhere {usual:.0%}): what the last action led to was lost",
            episodes=[e.episode.record.id for e, same in zip(episodes, last, strict=True) if same],
            evidence={"share": round(rate, 4), "elsewhere": round(usual, 4)},
        )
    ]


def _late_ends(episodes: Sequence[TextEpisode]) -> list[Finding]:
    """The last step of an episode shares its rare words with the next episode of the log rather than with its own."""
    documents = [all_words(e) for e in episodes]
    spread = Counter(word for words in documents for word in words)
    weight = {word: math.log(len(episodes) / n) for word, n in spread.items()}
    nearer, anothers = [], []
    for i, (this, following) in enumerate(itertools.pairwise(episodes)):
        consecutive = following.episode.record.index == this.episode.record.index + 1
        if not consecutive or len(this) < 3:
            continue
        own = frozenset().union(*this.observations[:-2], *this.actions[:-1])
        tail = frozenset().union(*this.observations[-2:], this.actions[-1])
        nearer.append(_nearer(tail, documents[i + 1], own, weight))
        anothers.append(_nearer(this.observations[-2], documents[i + 1], documents[i - 1], weight))
    if len(nearer) < MIN_EPISODES:
        return []
    values = np.array(nearer)
    # The second last observation is of the next episode, too, rather than of any, or where all of them begin.
    left = int(not _marked(episodes, 0, -1) and (z_of(np.array(anothers)) > Z_ONE or _marked(episodes, -2, -2)))
    z = z_of(values)
    if z < Z_ONE or values.mean() < 0.05:
        return []
    return [
        finding(
            "end-late",
            f"the last step of an episode shares its words with the next episode, not with its own "
            f"({z:.0f} standard errors, {len(values):,} episodes): ends are marked one step late",
            evidence={"left": left, "z": round(z, 2), "difference": round(float(values.mean()), 4), "of": len(values)},
        )
    ]


def _marked(episodes: Sequence[TextEpisode], place: int, other: int) -> bool:
    """Whether a word stands in nearly all observations at both places and in hardly any between."""
    long = [e.observations for e in episodes if len(e) >= 3]
    shares = [Counter(w for seen in long for w in seen[at]) for at in (place, other)]
    between = Counter(w for seen in long for words in seen[1:-2] for w in words)
    total = sum(len(seen) - 3 for seen in long)
    return any(
        min(share[word] for share in shares) >= 0.9 * len(long) and n <= 0.02 * total
        for word, n in ((word, between[word]) for word in shares[0])
    )


def _nearer(words: frozenset[str], to: frozenset[str], than: frozenset[str], weight: Mapping[str, float]) -> float:
    """Share of the words' weight that is in `to`, less that in `than`."""
    total = sum(weight[word] for word in words) or 1.0
    return (shared_weight(words, to, weight) - shared_weight(words, than, weight)) / total


def _limits(episodes: Sequence[TextEpisode], records: Sequence[Record]) -> list[Finding]:
    """Terminated episodes of the greatest length, where many stop there and their last steps are unlike other ends."""
    ended = [r for r in records if r.terminated and r.fault is None]
    if not ended:
        return []
    limit = max(r.steps for r in records if r.fault is None)
    lengths = Counter(r.steps for r in ended)
    near = np.mean([lengths[limit - i] for i in range(1, 6)])
    at_limit = lengths[limit]
    by_chance = float(poisson.sf(at_limit - 1, max(float(near), 0.2)))
    if limit < 3 or at_limit < max(4, 0.02 * len(ended)) or by_chance > _LIMIT_CHANCE:
        return []
    scores = _end_like(episodes, limit)
    ends_too = {name for name, score in scores.items() if score > 0}
    found = [r.id for r in ended if r.steps == limit and r.id not in ends_too]
    if len(found) < max(4, 0.3 * at_limit):
        return []
    return [
        finding(
            "time-limit-terminal",
            f"{len(found):,} of {len(ended):,} terminated episodes stop at exactly {limit} steps, and their last step "
            "is not like those of other ends: a time limit stored as a terminal",
            episodes=found,
            evidence={"length": limit, "count": len(found), "of": len(ended), "usual": round(float(near), 2)},
        )
    ]


def _end_like(episodes: Sequence[TextEpisode], limit: int) -> dict[str, float]:
    """Log-odds that the last of `limit` steps is an end, by the kinds of its texts and its reward, by episode."""
    ends: list[Counter[float]] = [Counter(), Counter(), Counter()]
    others: list[Counter[float]] = [Counter(), Counter(), Counter()]
    last: dict[str, tuple[float, ...]] = {}
    counts = [0, 0]
    for episode in episodes:
        rewards = episode.episode.rewards
        rewards = np.zeros(len(episode)) if rewards is None else np.round(rewards, 3)
        steps = list(zip(episode.action_kinds, episode.observation_kinds[1:], rewards, strict=True))
        short = len(episode) < limit and episode.episode.record.terminated
        for step, values in enumerate(steps):
            is_end = short and step == len(steps) - 1
            if step == len(steps) - 1 and not short:
                continue
            counts[is_end] += 1
            for place, value in enumerate(values):
                (ends if is_end else others)[place][value] += 1
        if len(episode) == limit:
            last[episode.episode.record.id] = steps[-1]
    if counts[1] < 5:
        return {}
    return {
        name: math.log(counts[1] / max(counts[0], 1))
        + sum(
            math.log((ends[p][v] + 0.5) / (counts[1] + 1)) - math.log((others[p][v] + 0.5) / (counts[0] + 1))
            for p, v in enumerate(values)
        )
        for name, values in last.items()
    }
