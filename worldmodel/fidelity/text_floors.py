"""What a simulator of texts must beat: repeating the last observation, and looking up the nearest logged turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from worldmodel.trajectory import Trajectory

_TOKEN = r"\w+|[^\w\s]"
_OBSERVATION_SHARE = 0.5
"""Weight of the last observation beside the action in what is near."""
_AT_ONCE = 64


class Answer(NamedTuple):
    """What followed a turn: an observation, a reward (None: not logged), whether the episode was over."""

    observation: str
    reward: float | None
    over: bool


def turns_of(trajectory: Trajectory) -> list[tuple[str, str, Answer]]:
    """Every turn of an episode of texts: the observation before it, the action, and what followed."""
    texts = [str(text) for text in trajectory.observations]
    last = len(trajectory) - 1
    return [
        (
            texts[t],
            str(trajectory.actions[t]),
            Answer(
                texts[t + 1],
                None if trajectory.rewards is None else float(trajectory.rewards[t]),
                trajectory.terminated and t == last,
            ),
        )
        for t in range(len(trajectory))
    ]


class NearestLogged:
    """Answers with what followed the nearest (observation, action) of the logs.

    Near is what shares words: the cosine of TF-IDF vectors of the actions, and, half as heavy, of the observations
    before them. Of equally near turns it is the first.

    Args:
      episodes: the logs; `ValueError` where they hold no word.
    """

    def __init__(self, episodes: Iterable[Trajectory]):
        from sklearn.feature_extraction.text import TfidfVectorizer

        before, actions, self._answers = [], [], []
        for trajectory in episodes:
            for observation, action, answer in turns_of(trajectory):
                before.append(observation)
                actions.append(action)
                self._answers.append(answer)
        told: dict[str, Any] = {"lowercase": False, "token_pattern": _TOKEN, "dtype": np.float32}
        self._actions, self._before = TfidfVectorizer(**told), TfidfVectorizer(**told)
        self._logged = self._actions.fit_transform(actions).T.tocsr(), self._before.fit_transform(before).T.tocsr()

    def answer(self, turns: Sequence[tuple[str, str]]) -> list[Answer]:
        """What followed the nearest turn to each `(observation, action)`."""
        found = []
        for start in range(0, len(turns), _AT_ONCE):
            some = turns[start : start + _AT_ONCE]
            actions = self._actions.transform([action for _, action in some]) @ self._logged[0]
            before = self._before.transform([observation for observation, _ in some]) @ self._logged[1]
            near = (actions + _OBSERVATION_SHARE * before).argmax(axis=1)
            found += [self._answers[place] for place in np.asarray(near).reshape(-1).tolist()]
        return found
