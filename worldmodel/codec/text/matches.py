"""Which turns a model gets exactly right, from the likeliest token in each place.

While all tokens before are right, greedy decoding has come the same way: a turn whose every token is the likeliest is
what it would have said, and no other is. So one pass over the logged tokens tells what decoding each turn would.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from worldmodel.codec.text.codec import Kind
from worldmodel.codec.text.markers import Markers


class Matches(NamedTuple):
    """Of every turn that is learned from, in order, each bool `[N]`.

    Attributes:
      observation: the whole observation and where it ends.
      reward: given that, the reward and where it ends.
      terminated: given both, whether the episode goes on.
      over: the episode was over.
    """

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    over: np.ndarray


def matches_of(tokens: np.ndarray, kinds: np.ndarray, best: np.ndarray, markers: Markers) -> Matches:
    """The turns of a row.

    Args:
      tokens: integers `[L]`.
      kinds: `[L]`, each one's `Kind`.
      best: `[L]`, the likeliest token in its place, given those before.
      markers: between texts.
    """
    wrong = np.concatenate([[0], np.cumsum((best != tokens) & (kinds > 0))])
    closers, ends = np.flatnonzero(kinds == Kind.CLOSER), np.flatnonzero(kinds == Kind.END)
    end = ends[np.searchsorted(ends, closers) - 1] if len(ends) else closers
    others = np.flatnonzero(kinds != Kind.OBSERVATION)
    start = others[np.searchsorted(others, end) - 1] + 1
    closed = (best[closers] == markers.onward) | (best[closers] == markers.over)
    return Matches(
        wrong[end + 1] == wrong[start],
        (wrong[closers] == wrong[end + 1]) & closed,
        best[closers] == tokens[closers],
        tokens[closers] == markers.over,
    )
