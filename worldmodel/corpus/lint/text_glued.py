"""Were episodes of a text log glued together? What starts or ends others stands in the middle."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy.stats import binom

from worldmodel.corpus.lint.codes import finding
from worldmodel.corpus.lint.finding import Finding
from worldmodel.corpus.lint.words import TextEpisode, all_words, shared_weight

MIN_EPISODES = 8
_MOST_WORDS = 2000
_SEPARATION = 0.9
"""Share of the known starts (or ends) that what is suspected has to resemble as much as."""
_COMMON = 0.3
"""Where more of the middle than this looks like a start, starts look like anything."""
_LOOSE = 0.35
"""An episode breaks where its two sides share less than this of what the halves of an episode usually share."""
_HALFWAY = 0.25
"""Starts stand apart where fewer than this, of as many as look like them, look half like them."""
_STRAY = 0.02
_OTHERS = 5
_NEAR = 2
_MOST_TRIED = 400
_FALSE_ALARM = 1e-7


def find_glued(episodes: Sequence[TextEpisode]) -> list[Finding]:
    """First observations, or the last steps of terminated episodes, in the middle of others."""
    asked = Counter(e.texts[0] for e in episodes)
    starts: list[_Marked] = []
    stops: list[_Marked] = []
    for number, episode in enumerate(episodes):
        texts, steps = episode.texts, len(episode)
        rare = asked[texts[0]] <= max(2, 0.02 * len(episodes))  # then a second one is the agent asking again
        repeated = [t for t in range(1, steps + 1) if texts[t] == texts[t - 1] or (rare and texts[t] == texts[0])]
        starts.append(_Marked(number, episode.observations, 0, [t for t in range(1, steps + 1) if t not in repeated]))
        if episode.episode.record.terminated and steps > 1:
            words = [
                _union(a, (f"> {w}" for w in o)) for a, o in zip(episode.actions, episode.observations[1:], strict=True)
            ]
            stops.append(_Marked(number, words, steps - 1, list(range(steps - 1))))
    suspects: dict[int, list[int]] = defaultdict(list)
    clear: dict[int, list[int]] = defaultdict(list)
    for marked, jump in (
        (starts, -1),
        (stops, 1),
    ):  # the jump is the step before a first observation, after a last step
        places_of, is_clear = _out_of_place(marked)
        for number, places in places_of.items():
            for step in (place + jump for place in places):
                if not any(abs(step - other) <= _NEAR for other in suspects[number]):
                    suspects[number].append(step)
                    if is_clear:
                        clear[number].append(step)
    least = max(2, 0.02 * len(episodes))
    found = {number: steps for number, steps in clear.items() if steps}
    if len(found) < least:
        found = _broken(episodes, suspects)
    if len(found) < least:
        return []
    found = {episodes[number].episode.record.id: sorted(steps) for number, steps in sorted(found.items())}
    name, at = next(iter(found.items()))
    return [
        finding(
            "glued",
            f"{len(found):,} of {len(episodes):,} episodes hold in their middle what stands at the first or the last "
            f"step of others: first {name} at step {at[0]}",
            episodes=list(found),
            evidence={"steps": found, "of": len(episodes)},
        )
    ]


def _broken(episodes: Sequence[TextEpisode], suspects: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """Those of the suspect transitions at which episodes break, where others break far more rarely."""
    breaks = _Breaks(episodes)
    found = {number: broken for number, steps in suspects.items() if (broken := breaks.at(number, steps))}
    count, tried = sum(map(len, found.values())), sum(map(len, suspects.values()))
    by_chance = binom.sf(count - 1, tried, breaks.usual_rate(suspects)) if found else 1.0
    return found if by_chance < _FALSE_ALARM else {}


class _Breaks:
    """Where what follows in an episode has no more to do with what came before than another episode has."""

    def __init__(self, episodes: Sequence[TextEpisode]):
        self._episodes = episodes
        self._documents = [all_words(e) for e in episodes]
        spread = Counter(word for words in self._documents for word in words)
        self._weight = {word: math.log(len(episodes) / n) for word, n in spread.items()}
        halves = [self._tie(i, len(e) // 2) for i, e in enumerate(episodes) if len(e) >= 4]
        self._usual = float(np.median(halves)) if halves else 0.0

    def at(self, number: int, steps: Sequence[int]) -> list[int]:
        """Those of the transitions `steps` of episode `number` at which it breaks."""
        return [step for step in steps if self._tie(number, step) < _LOOSE * self._usual]

    def usual_rate(self, suspects: Mapping[int, Sequence[int]]) -> float:
        """Share of other transitions in the middle at which an episode breaks, with one more that does."""
        other = [
            (i, step)
            for i, episode in enumerate(self._episodes)
            for step in range(1, len(episode) - 1)
            if not any(abs(step - at) <= _NEAR for at in suspects.get(i, ()))
        ]
        other = other[:: -(-len(other) // _MOST_TRIED)] if other else []
        return (sum(bool(self.at(i, [step])) for i, step in other) + 1) / (len(other) + 2)

    def _tie(self, number: int, step: int) -> float:
        """Share of the words after a transition that were there before it, less that which other episodes share."""
        episode = self._episodes[number]
        head = frozenset().union(*episode.observations[: step + 1], *episode.actions[:step])
        tail = frozenset().union(*episode.observations[step + 1 :], *episode.actions[step + 1 :])
        total = sum(self._weight[word] for word in tail) or 1.0
        others = [
            self._documents[(number + i) % len(self._documents)]
            for i in range(1, 1 + min(_OTHERS, len(self._documents) - 1))
        ]
        # Of texts of other lengths another number of words is known by chance.
        chance = np.mean(
            [shared_weight(tail, words, self._weight) * min(1.0, len(head) / max(len(words), 1)) for words in others]
        )
        return (shared_weight(tail, head, self._weight) - float(chance)) / total


@dataclasses.dataclass(frozen=True)
class _Marked:
    """Sets of words of one episode, the place of the one that is known, and the places where none like it belongs."""

    number: int
    words: Sequence[frozenset[str]]
    known: int
    middle: Sequence[int]


def _out_of_place(marked: Sequence[_Marked]) -> tuple[dict[int, list[int]], bool]:
    """Places in the middle that look like the known ones, by episode, and whether hardly any look half like them."""
    if len(marked) < MIN_EPISODES or not any(m.middle for m in marked):
        return {}, False
    scores = _known_like(marked)
    known = np.array([score[m.known] for m, score in zip(marked, scores, strict=True)])
    middle = np.concatenate([score[list(m.middle)] for m, score in zip(marked, scores, strict=True)])
    low, half, high = np.quantile([np.median(middle), np.median(known)], (0.25, 0.5, 0.75))
    clear = high > 0 and int(((middle > low) & (middle < high)).sum()) <= _HALFWAY * int((middle >= high).sum())
    threshold = float(half if clear else np.quantile(known, 1 - _SEPARATION))
    if (not clear and threshold <= 0) or (middle >= threshold).mean() > _COMMON:
        return {}, False
    suspects = {
        m.number: places
        for m, score in zip(marked, scores, strict=True)
        if (places := [t for t in m.middle if score[t] >= threshold])
    }
    return suspects, bool(clear) and _has_marker(marked, suspects)


def _has_marker(marked: Sequence[_Marked], suspects: Mapping[int, Sequence[int]]) -> bool:
    """Whether some word stands in nearly all known places and in hardly any other that is not suspect.

    Without one, what looks like an end may be just another kind of step, as an agent's second try is like its last.
    """
    known = Counter(word for m in marked for word in m.words[m.known])
    markers = {word for word, n in known.items() if n >= _SEPARATION * len(marked)}
    others = [m.words[t] & markers for m in marked for t in m.middle if t not in suspects.get(m.number, ())]
    seen = Counter(word for words in others for word in words)
    return any(seen[word] <= _STRAY * len(others) for word in markers)


def _known_like(marked: Sequence[_Marked]) -> list[np.ndarray]:
    """Log-odds, by its words, that a set of words is a known one; each episode leaves itself out.

    Naive Bayes over the presence of words. What looks known in the middle is taken out of the others, and the odds are
    formed again, because glued episodes would teach that such words stand in the middle, too.
    """
    shares = Counter(word for m in marked for words in m.words for word in words)
    vocabulary = {w: i for i, (w, n) in enumerate(shares.most_common(_MOST_WORDS)) if n >= 3}
    rows = [[np.array([vocabulary[w] for w in words if w in vocabulary], int) for words in m.words] for m in marked]
    known = np.zeros(len(vocabulary))
    for m, words in zip(marked, rows, strict=True):
        known[words[m.known]] += 1
    excluded: list[set[int]] = [set() for _ in marked]
    scores: list[np.ndarray] = []
    for _ in range(2):
        other, others = np.zeros(len(vocabulary)), 0
        for m, words, out in zip(marked, rows, excluded, strict=True):
            for t in m.middle:
                if t not in out:
                    other[words[t]] += 1
                    others += 1
        absent = np.log1p(-(other + 0.5) / (others + 1.0))
        present = np.log((other + 0.5) / (others + 1.0))
        scores = []
        for m, words in zip(marked, rows, strict=True):
            mine = np.zeros(len(vocabulary))
            mine[words[m.known]] = 1.0
            share = (known - mine + 0.5) / len(marked)
            odds = np.log(share) - present - (np.log1p(-share) - absent)
            scores.append(float((np.log1p(-share) - absent).sum()) + np.array([odds[w].sum() for w in words]))
        threshold = np.quantile([score[m.known] for m, score in zip(marked, scores, strict=True)], 1 - _SEPARATION)
        excluded = [
            {t for t in m.middle if score[t] >= max(threshold, 0.0)} for m, score in zip(marked, scores, strict=True)
        ]
    return scores


def _union(first: frozenset[str], second: Iterable[str]) -> frozenset[str]:
    return first.union(second)
