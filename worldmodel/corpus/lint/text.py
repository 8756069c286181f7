"""Do the actions and the rewards of a text log belong where they stand? Without a language model.

Two kinds of evidence, both in nats, summed over an episode and compared between the log as it is and the log with its
actions moved, episode by episode:

- *kinds*: how much better the kind of the next observation is guessed from the kind of the action than without it.
  The environment answers the call it was given; what is not its answer is guessed worse.
- *echoes*: where a word that both sides use was used first. An answer takes up the words of the call one step after
  it; a call takes up words of the observation before it. Words first seen two steps apart are rare, either way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from worldmodel.corpus.lint.codes import finding
from worldmodel.corpus.lint.finding import Finding
from worldmodel.corpus.lint.sample import Sample
from worldmodel.corpus.lint.words import TextEpisode, has_text, read_texts

SHIFTS = (-2, -1, 1, 2)
MIN_EPISODES = 8
Z = 3.0
"""Standard errors by which a moved log must be better: 1 in 100 logs that say nothing either way is accused."""
_FIRST_USE = {-3: 0.05, -2: 0.06, -1: 0.12, 0: 0.36, 1: 0.36, 2: 0.03, 3: 0.02}
"""Share of words by the step at which the environment first uses one minus that at which the agent does."""
_MOST_WORDS = 8
"""Words of a transition that count at most, so that one long listing does not decide."""
_BINS = 6


def check(sample: Sample) -> list[Finding]:
    """Actions and rewards one or two steps off."""
    if not has_text(sample.spec.observation_space):
        return []
    episodes = [episode for episode in read_texts(sample) if len(episode) >= 2]
    if len(episodes) < MIN_EPISODES:
        why = f"{len(episodes)} episodes of two steps or more; {MIN_EPISODES} are needed"
        return [finding("not-checked", f"alignment of texts: {why}", evidence={"check": "text", "why": why})]
    return [*_actions(episodes), *_rewards(episodes)]


def _actions(episodes: Sequence[TextEpisode]) -> list[Finding]:
    table = _Table(episodes)
    kinds = table.gains(table.actions, table.observations, table.episode)
    echoes = _echoes(episodes)
    gains = {shift: kinds[shift] + echoes[shift] for shift in kinds}
    return _verdict([gains], "action", "the next observation", len(episodes))


def _rewards(episodes: Sequence[TextEpisode]) -> list[Finding]:
    known = [e for e in episodes if e.episode.rewards is not None]
    rewards = np.concatenate([np.zeros(0), *(np.asarray(e.episode.rewards, np.float64) for e in known)])
    if len(known) < MIN_EPISODES or np.ptp(rewards) == 0.0:
        why = "rewards never change" if known else "the log has no rewards"
        return [finding("not-checked", f"alignment of rewards: {why}", evidence={"check": "text reward", "why": why})]
    table, rewards = _Table(known), _binned(rewards)
    # In one long table of rows what leaves an episode enters the next; elsewhere the last reward is lost.
    within = [table.gains(rewards, column, table.episode) for column in (table.actions, table.observations)]
    across = [table.gains(rewards, column, table.run) for column in (table.actions, table.observations, table.last)]
    gains = [
        {shift: np.sum([part[shift] for part in parts], axis=0) for shift in parts[0]} for parts in (within, across)
    ]
    return _verdict(gains, "reward", "the transition", len(known))


def _binned(values: np.ndarray) -> np.ndarray:
    levels = np.unique(values)
    if len(levels) > _BINS:
        levels = np.unique(np.quantile(values, np.linspace(0, 1, _BINS + 1)[1:-1]))
    return np.searchsorted(levels, values)


class _Table:
    """Every transition of the episodes, one after the other, int64 `[N]`: kinds, its episode, its run of neighbours."""

    def __init__(self, episodes: Sequence[TextEpisode]):
        lengths = [len(e) for e in episodes]
        places = np.array([e.episode.record.index for e in episodes])
        self.episodes = len(episodes)
        self.episode = np.repeat(np.arange(len(episodes)), lengths)
        self.run = np.cumsum(np.diff(places, prepend=places[0] - 1) != 1)[self.episode]
        self.actions = np.concatenate([e.action_kinds for e in episodes])
        self.observations = np.concatenate([e.observation_kinds[1:] for e in episodes])
        self.last = np.concatenate([np.arange(n) == n - 1 for n in lengths]).astype(np.int64)

    def gains(self, moved: np.ndarray, fixed: np.ndarray, group: np.ndarray) -> dict[int, np.ndarray]:
        """Nats per transition by which `moved` foretells `fixed`, float64 `[E]` for each shift.

        Shift `s` pairs what is fixed at row `t` with what is logged at row `t+s`, where both are of one group.
        """
        return {shift: self._gain(moved, fixed, group, shift) for shift in (0, *SHIFTS)}

    def _gain(self, moved: np.ndarray, fixed: np.ndarray, group: np.ndarray, shift: int) -> np.ndarray:
        at = np.arange(max(-shift, 0), len(group) - max(shift, 0))
        at = at[group[at] == group[at + shift]]
        if not len(at):
            return np.zeros(self.episodes)
        _, cause = np.unique(moved[at + shift], return_inverse=True)
        _, effect = np.unique(fixed[at], return_inverse=True)
        kinds = int(effect.max()) + 1
        pair = cause * kinds + effect
        # Every count leaves its own transition out, so that what is only noise gains nothing.
        base = (np.bincount(effect)[effect] - 0.5) / (len(effect) - 1.0 + 0.5 * kinds)
        with_cause = (np.bincount(pair)[pair] - 1.0 + 2.0 * base) / (np.bincount(cause)[cause] + 1.0)
        gain = np.log(with_cause) - np.log(base)
        steps = np.maximum(np.bincount(self.episode[at], minlength=self.episodes), 1)
        return np.bincount(self.episode[at], gain, minlength=self.episodes) / steps


def _echoes(episodes: Sequence[TextEpisode]) -> dict[int, np.ndarray]:
    """Log-likelihood of the first uses of words were the actions logged `shift` steps late, nats per transition."""
    gains = {shift: np.zeros(len(episodes)) for shift in (0, *SHIFTS)}
    for number, episode in enumerate(episodes):
        seen, used = _first(episode.observations), _first(episode.actions)
        apart = [seen[word] - step for word, step in used.items() if word in seen]
        weight = min(1.0, _MOST_WORDS * len(episode) / max(len(apart), 1)) / len(episode)
        for shift in gains:
            gains[shift][number] = weight * sum(_first_use(gap + shift) for gap in apart)
    return gains


def _first(texts: Sequence[frozenset[str]]) -> dict[str, int]:
    first: dict[str, int] = {}
    for step, words in enumerate(texts):
        for word in words:
            first.setdefault(word, step)
    return first


def _first_use(gap: int) -> float:
    return math.log(_FIRST_USE[max(-3, min(3, gap))])


def _verdict(trials: Sequence[dict[int, np.ndarray]], what: str, explained: str, episodes: int) -> list[Finding]:
    """A finding where, in one of the trials, a moved log beats the log as it is by `Z` standard errors."""
    scored = [(z_of(gains[shift] - gains[0]), shift, gains) for gains in trials for shift in SHIFTS]
    z, shift, gains = max(scored, key=lambda score: score[0])
    if z < Z:
        return []
    better = float((gains[shift] - gains[0]).mean())
    return [
        finding(
            f"{what}-shifted",
            f"{what}s are logged {abs(shift)} step(s) too {'late' if shift > 0 else 'early'}: moved back, they explain "
            f"{explained} better by {better:.2f} nats a step ({z:.0f} standard errors, {episodes:,} episodes)",
            evidence={
                "shift": shift,
                "gain": round(better, 4),
                "z": round(z, 2),
                "episodes": episodes,
                "nats": {str(s): round(float(g.mean()), 4) for s, g in sorted(gains.items())},
            },
        )
    ]


def z_of(differences: np.ndarray) -> float:
    """Mean of differences in standard errors."""
    spread, mean = float(differences.std(ddof=1)), float(differences.mean())
    if spread == 0.0:
        return math.copysign(1e6, mean) if abs(mean) > 1e-9 else 0.0
    return mean / (spread / math.sqrt(len(differences)))
