"""What is left of a trajectory's texts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.codec.text.episode import CUT, TextRules, action_of, cut, prepare, without_thoughts
from worldmodel.sources.chat_messages import Call, action_text, join_messages
from worldmodel.trajectory import Trajectory

CALL = action_text("", [Call("get", {"id": "7"})])


@pytest.mark.parametrize(
    ("action", "left"),
    [
        ("<think>hm\nhm</think>\n\nGo north.", "Go north."),
        (action_text("I look that up.", [Call("get", {"id": "7"})]), CALL),
        (join_messages(["Hello.", action_text("I do.", [Call("get", {"id": "7"})])]), join_messages(["Hello.", CALL])),
        ("Go north.", "Go north."),
        ("<tool_call>{broken", "\\<tool_call>{broken"),
        ("<think>never ends", "<think>never ends"),
    ],
)
def test_thoughts(action, left):
    assert without_thoughts(action) == left
    assert action_of(action, TextRules()) == action
    assert action_of(action, TextRules(thoughts="drop")) == left


@given(st.text(max_size=40), st.integers(0, 30))
def test_what_is_cut_stays_as_it_is(text, longest):
    once = cut(text, longest)
    assert cut(once, longest) == once
    assert once == text or (longest and once == text[:longest] + CUT and len(once) < len(text))


def test_an_episode_is_cut_and_counted():
    trajectory = Trajectory(
        observations=np.array(["o" * 30, "short", "p" * 31], np.object_),
        actions=np.array(["a" * 20, "half \ud800 pair"], np.object_),
        rewards=np.array([0.5, 1], np.float32),
        terminated=False,
        truncated=True,
        context={"system": "s" * 40, "depth": [1, "t" * 40]},
    )
    episode, count = prepare(trajectory, TextRules("keep", 10, 5, 8))
    assert count == 5
    assert episode.observations == ("o" * 8 + CUT, "short", "p" * 10 + CUT)
    assert episode.actions == ("a" * 5 + CUT, "half \ufffd pair")
    assert episode.context == {"system": "s" * 8 + CUT, "depth": [1, "t" * 8 + CUT]}
    assert episode.rewards == (0.5, 1.0) and not episode.terminated
    with pytest.raises(ValueError, match="longest_action is -1; at least 0 is needed"):
        TextRules(longest_action=-1)
