"""Every fault of a single episode has its code, its count and a line with the place."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.corpus.lint.logs import GRID, NUMBERS, TEXTS, column, turns, walk, walks
from worldmodel.corpus.lint.structure import LISTED, Structure
from worldmodel.images import EncodedImages, encode_png
from worldmodel.spaces import box
from worldmodel.trajectory import Spec, Trajectory


def findings(log, spec=NUMBERS):
    structure = Structure(spec)
    for i, trajectory in enumerate(log):
        structure.add(str(trajectory.info.get("id", f"episode {i}")), trajectory)
    return {each.code: each for each in structure.findings()}


def changed(**fields) -> list[Trajectory]:
    """Three walks, the second one with other fields."""
    log = walks(3, steps=5)
    return [log[0], dataclasses.replace(log[1], **fields), log[2]]


def at(values: np.ndarray, index, value) -> np.ndarray:
    values = np.array(values)
    values[index] = value
    return values


WALK = walk("w1", 5, seed=1)

FAULTS = {
    "observations-T": (
        {"observations": WALK.observations[:-1]},
        "1 of 3 episodes: first w1 has 5 observations for 5 actions, not 6",
    ),
    "empty-episode": (
        {"observations": WALK.observations[:1], "actions": WALK.actions[:0], "rewards": WALK.rewards[:0]},
        "1 of 3 episodes: first w1 has 1 observation(s) and no action",
    ),
    "nan": (
        {"observations": at(WALK.observations, (4, 2), np.inf)},
        "1 of 3 episodes: first w1: observation at step 4 is inf",
    ),
    "action-outside": (
        {"actions": at(WALK.actions, (3, 0), 1.5)},
        "1 of 3 episodes: first w1: action at step 3 is 1.5, outside its space",
    ),
    "dtype": (
        {"actions": column(["a"] * 5).reshape(5, 1)},
        "1 of 3 episodes: first w1: action has dtype object; a Box of float32 is needed",
    ),
    "both-ends": ({"terminated": True}, "1 of 3 episodes: first w1 is both terminated and truncated"),
    "cut": ({"truncated": False}, "1 of 3 episodes: first w1 is neither terminated nor truncated"),
    "some-rewards": ({"rewards": None}, "1 of 3 episodes have no rewards, the others have"),
    "log-prob": (
        {"action_log_prob": at(np.zeros(5, np.float32), 2, -np.inf)},
        "1 of 3 episodes: first w1: log-probability at step 2 is -inf",
    ),
    "id-missing": ({"info": {}}, "1 of 3 episodes: first episode 1"),
    "malformed": (
        {"rewards": WALK.rewards[:-1]},
        "1 of 3 episodes: first w1: rewards have shape (4,); (5,) is needed",
    ),
}


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_has_its_code_and_says_where(code):
    fields, message = FAULTS[code]
    assert code not in findings(walks(3, steps=5))
    found = findings(changed(**fields))[code]
    assert found.message == message
    if code not in ("some-rewards", "id-missing"):
        assert list(found.episodes) == ["w1"]
        assert found.evidence["count"] == 1


def test_a_clean_log_has_no_finding_but_notes():
    assert findings(walks(3)) == {}
    assert set(findings([dataclasses.replace(t, rewards=None) for t in walks(3)])) == {"no-rewards"}
    assert set(findings([])) == {"empty-log"}


@pytest.mark.parametrize(
    ("observations", "line"),
    [
        ({"a": 1}, "w1: observation: values are ['a']; the space"),
        (np.zeros((6, 4), np.float32), "observation has shape (4,); the space has (3,)"),
        (3.5, "object of type 'float' has no len()"),
        (None, "object of type 'NoneType' has no len()"),
    ],
)
def test_columns_that_are_not_built_as_the_space_are_malformed(observations, line):
    spec = (
        NUMBERS
        if not isinstance(observations, dict)
        else Spec({"type": "Dict", "spaces": {"b": box((3,), np.float32)}}, NUMBERS.action_space)
    )
    log = changed(observations=observations)
    if isinstance(observations, dict):
        log, line = [log[1]], "values are ['a']; the space has the keys ['b']"
    assert line in findings(log, spec)["malformed"].message


def test_what_cannot_be_measured_is_kept_from_the_other_checks():
    structure = Structure(NUMBERS)
    assert structure.add("a", walk("a"))
    assert not structure.add("b", dataclasses.replace(walk("b"), observations=None))
    spec = Spec({"type": "Tuple", "spaces": [box((), np.float32)] * 2}, NUMBERS.action_space)
    ragged = dataclasses.replace(walk("c", 3), observations=(np.zeros(4, np.float32), np.zeros(3, np.float32)))
    assert not Structure(spec).add("c", ragged)


def test_log_probabilities_above_zero_are_wrong_of_discrete_actions_only():
    density = np.full(5, 0.5, np.float32)
    assert "log-prob" not in findings(changed(action_log_prob=density))
    log = [dataclasses.replace(turns("t", 5, 0), action_log_prob=density)]
    assert "step 0 is 0.5, above 0" in findings(log, GRID)["log-prob"].message


def test_integers_and_texts_outside_their_space():
    log = [dataclasses.replace(turns("t", 5, 0), actions=np.array([0, 1, 3, 0, 1]))]
    assert "action at step 2 is 3, outside its space" in findings(log, GRID)["action-outside"].message
    text = Trajectory(column(["a", "b"]), column(["x" * 61]), None, True, False, info={"id": "t"})
    assert "action at step 0 has 61 characters" in findings([text], TEXTS)["action-outside"].message
    text = dataclasses.replace(text, observations=column(["a", 3]), actions=column(["x"]))
    assert "observation at step 1 is a int; a Text space takes str" in findings([text], TEXTS)["dtype"].message


def test_bounds_have_the_tolerance_of_float32():
    assert "action-outside" not in findings(changed(actions=at(WALK.actions, 0, 1.0 + 5e-6)))


def test_constant_dimensions_are_named():
    log = [dataclasses.replace(t, observations=at(t.observations, (slice(None), 1), 4.0)) for t in walks(3)]
    found = findings(log)["constant-dimension"]
    assert found.severity == "note"
    assert found.evidence["dimensions"] == ["observation[1]"]


def test_images_stay_encoded():
    class Unseen(EncodedImages):
        def __array__(self, dtype=None, copy=None):
            raise AssertionError("decoded")

    image = {"type": "Box", "shape": [8, 8, 3], "dtype": "uint8", "low": 0, "high": 255}
    images = Unseen([encode_png(np.zeros((8, 8, 3), np.uint8))] * 3, (8, 8, 3))
    log = [Trajectory(images, np.zeros((2, 1), np.float32), None, True, False, info={"id": "i"})]
    assert set(findings(log, Spec(image, NUMBERS.action_space))) == {"no-rewards", "constant-dimension"}
    small = {**image, "shape": [8, 9, 3]}
    assert "malformed" in findings(log, Spec(small, NUMBERS.action_space))


def test_many_episodes_are_counted_and_some_are_named():
    log = [dataclasses.replace(walk(f"w{i}", 1), truncated=False) for i in range(LISTED + 5)]
    found = findings(log)["cut"]
    assert found.evidence == {"count": LISTED + 5, "of": LISTED + 5}
    assert len(found.episodes) == LISTED
