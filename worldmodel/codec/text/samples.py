"""Episodes as training samples: pieces that fit in a row, in which every turn is learned from exactly once.

An episode that does not fit is continued: each further sample begins with the head again and with as many of the last
turns before it as fit in half a row, as given; then come turns to learn from. An environment of texts forgets by the
same rule (`worldmodel.envs.text`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.codec.text.codec import TextCodec, Tokens, join
from worldmodel.codec.text.episode import prepare
from worldmodel.trajectory import Trajectory


class Sample(NamedTuple):
    """Tokens of one row or a part of it; turns `first..last-1` of the episode are learned from."""

    tokens: Tokens
    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class Cuts:
    """What was done to episodes.

    Attributes:
      texts: texts that were cut to their longest length.
      unfit: turns that fit in no row, even so: nothing is learned from them.
    """

    texts: int = 0
    unfit: int = 0

    def __add__(self, other: Cuts) -> Cuts:
        """Both together."""
        return Cuts(self.texts + other.texts, self.unfit + other.unfit)


def recent(head: int, turns: Sequence[int], length: int) -> int:
    """The first of the turns that stay when a row of `length` is begun anew: the last ones that fit in half of it.

    Args:
      head: tokens of the head.
      turns: tokens of each turn.
      length: of a row.
    """
    first, used = len(turns), head
    while first > 0 and used + turns[first - 1] <= length // 2:
        first -= 1
        used += turns[first]
    return first


def samples_of(trajectory: Trajectory, codec: TextCodec, length: int) -> tuple[list[Sample], Cuts]:
    """The samples of one episode, none longer than `length` tokens, and what was cut or left out."""
    episode, cut = prepare(trajectory, codec.rules)
    head, turns = codec.pieces(episode)
    sizes = [len(turn) for turn in turns]
    if len(head) > length:
        return [], Cuts(cut, len(turns))
    samples, unfit, place = [], 0, 0
    while True:
        start = recent(len(head), sizes[:place], length)
        used = len(head) + sum(sizes[start:place])
        last = place
        while last < len(turns) and used + sizes[last] <= length:
            used += sizes[last]
            last += 1
        if last == place and last < len(turns) and len(head) + sizes[last] <= length:
            start, last = place, place + 1  # it fits without what came before
        if last > place or place == 0:
            given = [turn.given() for turn in turns[start:place]]
            begin = head if place == 0 else head.given()
            samples.append(Sample(join([begin, *given, *turns[place:last]]), place, last))
        if last == len(turns):
            return samples, Cuts(cut, unfit)
        if last == place:
            unfit += 1
            last += 1
        place = last
