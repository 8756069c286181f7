"""Which episodes of a log are kept, and what is counted."""

import numpy as np
import pytest

from worldmodel.corpus.filters import Filters, Tally, parse_range, select
from worldmodel.trajectory import Trajectory


def episode(index: int, total: float | None, policy: str | None = None) -> Trajectory:
    rewards = None if total is None else np.array([total], np.float32)
    info = {"id": str(index)} | ({} if policy is None else {"policy": policy})
    return Trajectory(np.zeros((2, 1), np.float32), np.array([0]), rewards, False, False, info=info)


LOG = [
    episode(0, 1.0, "a"),
    episode(1, 2.0, "b"),
    episode(2, 3.0, "a"),
    episode(3, None, "a"),
    episode(4, float("nan")),
]


def kept(filters: Filters, log=LOG) -> tuple[list[int], Tally]:
    tally = Tally()
    return [index for index, _ in select(log, filters, tally)], tally


@pytest.mark.parametrize(
    ("filters", "want", "left_out"),
    [
        (Filters(), [0, 1, 2, 3, 4], {}),
        (Filters(1, 3), [1, 2], {}),
        (Filters(3), [3, 4], {}),
        (Filters(7), [], {}),
        (Filters(2, 2), [], {}),
        (Filters(min_return=2.0), [1, 2], {"return": 2, "no rewards": 1}),
        (Filters(max_return=2.0), [0, 1], {"return": 2, "no rewards": 1}),
        (Filters(min_return=1.5, max_return=2.5), [1], {"return": 3, "no rewards": 1}),
        (Filters(policies=("b", "c")), [1], {"policy": 4}),
        (Filters(1, 4, min_return=3.0, policies=("a",)), [2], {"policy": 1, "no rewards": 1}),
    ],
)
def test_filters(filters, want, left_out):
    got, tally = kept(filters)
    assert got == want
    assert tally.to_json()["left_out"] == left_out
    assert tally.kept == len(want)
    assert tally.read == len(want) + sum(left_out.values())


def test_nothing_is_read_beyond_the_range():
    read = []

    def log():
        for index in range(10):
            read.append(index)
            yield LOG[0]

    assert kept(Filters(1, 3), log())[0] == [1, 2]
    assert read == [0, 1, 2]


def test_a_log_of_which_nothing_is_kept_says_why():
    _, tally = kept(Filters(policies=("c",)))
    assert tally.why_none() == "5 read, all left out (5 by policy); policies found are a, b, unknown"
    _, tally = kept(Filters(min_return=9.0))
    assert tally.why_none() == "5 read, all left out (1 by no rewards, 4 by return)"
    assert Tally().why_none() == "no episode was read"


def test_tallies_add_and_survive_json():
    _, one = kept(Filters(min_return=2.0))
    _, two = kept(Filters(policies=("b",)))
    both = one.plus(two)
    assert both.to_json() == {
        "read": 10,
        "kept": 3,
        "left_out": {"no rewards": 1, "policy": 4, "return": 2},
        "renamed": 0,
    }
    assert Tally.from_json(both.to_json()).to_json() == both.to_json()


@pytest.mark.parametrize(
    ("text", "want"), [("3", (0, 3)), ("2:5", (2, 5)), (":5", (0, 5)), ("2:", (2, None)), (":", (0, None))]
)
def test_ranges(text, want):
    assert parse_range(text) == want


@pytest.mark.parametrize("text", ["", "a", "-3", "1:2:3", "1.5", "3-5"])
def test_no_ranges(text):
    with pytest.raises(ValueError, match="are no range; write N for the first N, or A:B for places A to B-1 from 0"):
        parse_range(text)


@pytest.mark.parametrize("text", ["0", "3:3", "5:2", ":0"])
def test_empty_ranges(text):
    with pytest.raises(ValueError, match="hold none; the range must end after it begins"):
        parse_range(text)


def test_filters_as_json_name_what_is_set():
    assert Filters().to_json() == {}
    assert Filters(1, None, 0.0, None, ("a",)).to_json() == {
        "episodes": [1, None],
        "min_return": 0.0,
        "policies": ["a"],
    }
