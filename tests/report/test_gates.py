"""Gates and differences: what a report must show, and what moved between two."""

import copy
import json

import pytest

from tests.report.fixture import cartpole_report, estimate, pendulum_report
from worldmodel.cli import main
from worldmodel.report import Gate, check_gates, differences, load_report


def only(report, written):
    return check_gates(report, [Gate.of(written)])[0]


@pytest.mark.parametrize(
    ("written", "value", "passed"),
    [
        ("spearman>=.9", 0.93, True),
        ("spearman_lo>=0.8", 0.81, True),
        ("spearman_hi < .9", 0.98, False),
        ("ranking.noise_floor.spearman>0", 0.97, True),
        ("trust_horizon>=43", 43, True),
        ("trust_horizon>=44", 43, False),
        ("trust_horizon_lo>=38", 38.4, True),
        ("sim_trained_real_return_lo>4e2", 487, True),
    ],
)
def test_a_gate_reads_the_number_it_names(written, value, passed):
    found = only(cartpole_report(), written)
    assert found.value == pytest.approx(value)
    assert found.passed is passed
    assert str(found).startswith("passed" if passed else "FAILED")


def test_what_was_not_measured_never_passes():
    report = cartpole_report()
    report["ranking"]["spearman"] = {"mean": None, "lo": None, "hi": None, "n": 0, "why": "all returns are equal"}
    for written in ("spearman<=1", "spearman_lo>=-1"):
        found = only(report, written)
        assert not found.passed and found.value is None
        assert str(found) == f"FAILED: {Gate.of(written)}: it could not be formed (all returns are equal)"
    report |= {"ranking": None, "why": {"ranking": "no policies were given"}}
    found = only(report, "mmrv<=1")
    assert not found.passed and found.why == "not measured: ranking, no policies were given"
    report["rollout"] = None
    assert only(report, "trust_horizon>=1").why == "no rollout was measured"
    assert only(cartpole_report(), "threshold_lo>=0").why == "it has no interval"


@pytest.mark.parametrize("written", ["spearman", "spearman=1", "spearman>=one", ">=1", "spearman>=nan", "a b>=1", ""])
def test_a_gate_that_cannot_be_read_says_how_to_write_one(written):
    with pytest.raises(ValueError, match="write a name, >=, <=, >, <, and a number"):
        Gate.of(written)


def test_an_unknown_or_ambiguous_name_is_an_error():
    with pytest.raises(ValueError, match=r"no number called 'spaerman' \(did you mean 'spearman'"):
        only(cartpole_report(), "spaerman>=1")
    report = {"one_step": {"nrmse": 1.0}, "rollout": {"nrmse": 2.0}}
    with pytest.raises(ValueError, match=r"may mean one_step.nrmse or rollout.nrmse; write the path"):
        only(report, "nrmse>=1")
    assert only(report, "rollout.nrmse>=1.5").passed


def test_differences_say_which_moved_further_than_luck():
    before, after = cartpole_report(), copy.deepcopy(cartpole_report())
    after["ranking"]["spearman"] = estimate(0.5, 0.1)
    after["one_step"]["nrmse"]["mean"] += 1e-4
    after["one_step"]["new"] = 3
    after["policies"][0]["real_return"] = estimate(400.0, 1.0)
    found = differences(before, after)
    moved = {each.path: each.apart for each in found}
    first = before["policies"][0]["name"]
    assert moved == {
        "ranking.spearman": True,
        f"policies[{first}].real_return": True,
        "one_step.nrmse": False,
        "one_step.new": None,
    }
    assert [each.apart for each in found] == [True, True, None, False]
    assert differences(before, before) == []
    with pytest.raises(ValueError, match="one report is of CartPole-v1, the other of Pendulum-v1"):
        differences(before, pendulum_report())


def test_the_verbs_print_and_exit(tmp_path, capsys):
    before, after = tmp_path / "before", tmp_path / "after.json"
    before.mkdir()
    (before / "report.json").write_text(json.dumps(cartpole_report()))
    worse = cartpole_report()
    worse["ranking"]["spearman"] = estimate(0.5, 0.1)
    after.write_text(json.dumps(worse))
    gates = ["--require", "spearman_lo>=0.8", "--require", "trust_horizon>=40"]
    assert main(["report", "check", str(before), *gates]) == 0
    assert capsys.readouterr().out.count("passed: ") == 2
    with pytest.raises(SystemExit) as stopped:
        main(["report", "check", str(after), *gates, "--json"])
    printed = capsys.readouterr()
    assert stopped.value.code == 1
    assert printed.err == "FAILED: spearman_lo>=0.8: it is 0.4\n"
    assert [gate["passed"] for gate in json.loads(printed.out)["gates"]] == [False, True]
    assert main(["report", "diff", str(before), str(after)]) == 0
    assert "ranking.spearman: 0.93" in capsys.readouterr().out
    assert main(["report", "diff", str(before), str(tmp_path)]) == 2
    assert "no report" in capsys.readouterr().err
    assert main(["report", "check", str(before)]) == 2
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(ValueError, match="no report of a probe"):
        load_report(tmp_path)
