"""All checks over any log: one report, no crash, nothing skipped without a word."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from tests.corpus.lint.logs import NUMBERS, TEXTS, texts, walk, walks
from worldmodel.corpus.lint import CODES, lint, planted, run
from worldmodel.spaces import box, leaves
from worldmodel.trajectory import Spec, Trajectory


def codes(report) -> set[str]:
    return {each.code for each in report.findings if each.severity != "note"}


def test_clean_logs_have_no_errors_and_no_warnings():
    for log, spec in ((walks(12), NUMBERS), (texts(0), TEXTS)):
        report = lint(log, spec)
        assert codes(report) == set()
        assert report.episodes == len(log)
        assert report.transitions == sum(map(len, log))


@pytest.mark.parametrize(
    ("plant", "code"),
    [
        (lambda log: planted.shift_actions(log, 1), "action-shifted"),
        (lambda log: planted.drop_last_observation(log), "observations-T"),
        (lambda log: [*log, dataclasses.replace(log[2], info={"id": "again"})], "duplicate"),
    ],
)
def test_faults_of_every_kind_reach_the_report(plant, code):
    log, spec = walks(40), NUMBERS
    found = {f.code: f for f in lint(plant(log), spec).findings}
    assert found[code].fix == f"--fix {code}"
    assert found[code].evidence["repair"] == CODES[code].repair


def test_errors_come_first_and_the_json_is_plain():
    log = walks(12)
    log[3].actions[2] = np.nan
    log[4] = dataclasses.replace(log[4], rewards=None, truncated=False)
    report = lint(log, NUMBERS)
    assert [f.severity for f in report.findings] == sorted(
        (f.severity for f in report.findings), key=["error", "warning", "note"].index
    )
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert data["episodes"] == 12
    assert set(data["findings"][0]) == {"code", "severity", "message", "episodes", "evidence", "fix"}
    assert report.errors == 1


def test_a_spec_is_needed_and_taken_from_the_log():
    with pytest.raises(ValueError, match="the trajectories come without a spec; give one"):
        lint(walks(2))

    class Source(list):
        spec = NUMBERS

    assert lint(Source(walks(3))).episodes == 3


def test_what_a_kind_of_log_does_not_allow_is_a_note():
    notes = [f.message for f in lint(texts(0), TEXTS).findings if f.code == "not-checked"]
    assert notes == ["units: observations hold no numbers"]
    invalid = lint(planted.drop_last_observation(walks(3)), NUMBERS)
    notes = [f for f in invalid.findings if f.code == "not-checked"]
    assert len(notes) == len(run.CHECKS)
    assert "no episode is valid" in notes[0].message
    assert [f.code for f in lint([], NUMBERS).findings] == ["empty-log"]


def test_a_check_that_stops_is_a_warning_and_the_others_go_on(monkeypatch):
    def stop(sample):
        raise ZeroDivisionError("of all things")

    monkeypatch.setitem(run.CHECKS, "units", ((stop,), ()))
    log = walks(12)
    log[0].rewards[0] = np.nan
    found = {f.code: f for f in lint(log, NUMBERS).findings}
    assert found["check-failed"].message == "units: ZeroDivisionError: of all things"
    assert "nan" in found


def test_numbers_and_texts_in_one_space_are_one_finding_each():
    spec = Spec(
        {"type": "Dict", "spaces": {"text": TEXTS.observation_space, "at": box((3,), np.float32)}}, TEXTS.action_space
    )
    log = [
        dataclasses.replace(t, observations={"text": t.observations, "at": walk("w", len(t), seed=i).observations})
        for i, t in enumerate(texts(1))
    ]
    report = lint(planted.shift_actions(log, 1), spec)
    assert [f.code for f in report.findings].count("action-shifted") == 1


IMAGE = {"type": "Box", "shape": [8, 8, 3], "dtype": "uint8", "low": 0, "high": 255}
SPACES = {
    "image": (IMAGE, np.zeros((9, 8, 8, 3), np.uint8)),
    "scalar": (box((), np.float64), np.arange(9.0)),
    "discrete": ({"type": "Discrete", "n": 4, "start": 1}, np.ones(9, np.int64)),
    "bits": ({"type": "MultiBinary", "shape": [2]}, np.zeros((9, 2), np.int8)),
    "counts": ({"type": "MultiDiscrete", "nvec": [3, 4], "start": [0, 0]}, np.ones((9, 2), np.int64)),
}


@pytest.mark.parametrize("observed", SPACES)
@pytest.mark.parametrize("acted", SPACES)
def test_no_space_makes_a_check_fail(observed, acted):
    (space, rows), (action_space, actions) = SPACES[observed], SPACES[acted]
    spec = Spec({"type": "Dict", "spaces": {"x": space}}, {"type": "Tuple", "spaces": [action_space]})
    log = [
        Trajectory({"x": rows[: n + 1]}, (actions[:n],), None, n % 2 == 0, False, info={"id": str(n)})
        for n in range(1, 9)
    ]
    report = lint(log, spec)
    assert "check-failed" not in codes(report)
    assert len(list(leaves(spec.observation_space))) == 1


ODD = [
    {"observations": None},
    {"observations": np.zeros(5)},
    {"observations": np.full((31, 3), None, object)},
    {"observations": np.full((31, 3), np.nan, np.float32)},
    {"observations": np.full((31, 3), 1e38, np.float32)},
    {"actions": np.zeros((0, 1), np.float32)},
    {"actions": [1, 2, 3]},
    {"rewards": np.full(30, -np.inf, np.float32)},
    {"rewards": np.zeros((30, 2), np.float32)},
    {"rewards": np.array(["a"] * 30)},
    {"action_log_prob": np.array([None] * 30)},
    {"info": {"id": 7, "split": ["x"], "task": float("nan"), "seed": None}},
    {"terminated": True},
]


@pytest.mark.parametrize("fields", ODD, ids=lambda f: next(iter(f)))
@pytest.mark.parametrize("all_of_them", [False, True])
def test_odd_episodes_never_stop_the_lint(fields, all_of_them):
    log = walks(9)
    log = [dataclasses.replace(t, **fields) if all_of_them or i == 4 else t for i, t in enumerate(log)]
    report = lint(log, NUMBERS)
    assert report.episodes == 9
    assert "check-failed" not in codes(report)
    json.dumps(report.to_json(), allow_nan=False)
