"""The verdict says what the numbers say: each grade is reached by planted numbers, and so is its sentence."""

import copy

import pytest

from tests.report.fixture import cartpole_report, estimate, pendulum_report
from worldmodel.report import findings, trust_step, verdict
from worldmodel.report.numbers import strict_json, text, text_estimate


def _with(report, path, value):
    report = copy.deepcopy(report)
    *parents, last = path.split(".")
    here = report
    for parent in parents:
        here = here[parent]
    here[last] = value
    return report


def _grade(report, topic):
    return {f.topic: f.grade for f in findings(report)}.get(topic)


def test_a_good_simulator_is_trusted_with_its_numbers():
    line = verdict(cartpole_report())
    assert "\n" not in line
    assert line.startswith("Trust this simulator to step 43 of an open-loop rollout (median; 95% 38.4–48.8)")
    assert "Spearman .93 [.81,\u00a0.98] over 12 policies, noise floor .97" in line
    assert "earns 492 [487,\u00a0497] in reality against 62.8" in line
    assert "Do not trust" not in line and "Take care" not in line
    assert {f.grade for f in findings(cartpole_report())} == {"yes"}


def test_a_bad_simulator_is_not():
    line = verdict(pendulum_report())
    assert "Do not trust it to rank policies" in line
    assert "not distinguishable from" in line and "no transfer shown" in line
    assert "optimistic about its own policy" in line
    assert "24.1% of the persistence floor" in line
    assert "the longest measured" in line


def test_steps_are_judged_where_policies_go():
    entries = [
        {"name": name, "nrmse": estimate(error, 0.01), "persistence_nrmse": 1.0}
        for name, error in (("near", 0.02), ("far", 0.34))
    ]
    found = {f.topic: f for f in findings({**cartpole_report(), "visits": {"by_policy": entries}})}
    assert found["steps"].grade == "care" and "on the logs, but 34% where policy 'far' goes" in found["steps"].text
    near = findings({**cartpole_report(), "visits": {"by_policy": entries[:1]}})
    assert {f.topic: f.grade for f in near}["steps"] == "yes"


def test_states_that_are_not_certified_are_named():
    def region(rule, share, exceeding, certified):
        numbers = {"rule": rule, "share": share, "episodes": 40, "bound": 0.2}
        return {**numbers, "exceeding": exceeding, "certified": certified}

    good, bad = region("pole speed <= 1.9", 0.9, 0.01, True), region("pole speed > 1.9", 0.1, 0.4, False)

    def found(*regions):
        report = {**cartpole_report(), "trust_region": {"regions": list(regions), "tolerance": 0.25, "risk": 0.1}}
        return {finding.topic: finding for finding in findings(report)}["states"]

    assert found(good, bad).grade == "care"
    assert found(good, bad).text == (
        "not where pole speed > 1.9 (40% of steps err there by more than 0.25; "
        "10% of the logs' steps are in such states)"
    )
    assert found(good).grade == "yes" and found(bad).grade == "no"
    rare = found(good, {**bad, "exceeding": 0.0})
    assert rare.grade == "yes" and "all but 10% of their steps" in rare.text


@pytest.mark.parametrize(
    ("path", "value", "topic", "grade", "words"),
    [
        ("transfer.sim_trained_real_return", estimate(40, 5), "transfer", "no", "less than the"),
        ("transfer.sim_trained_real_return", estimate(66, 5), "transfer", "care", "not distinguishable"),
        (
            "transfer.sim_trained_real_return",
            estimate(150, 4),
            "transfer",
            "yes",
            "as many real steps as the logs held",
        ),
        ("transfer.sim_trained_sim_return", estimate(300, 4), "returns", "care", "understates"),
        ("transfer.sim_trained_real_return", estimate(300, 20), "returns", "no", "optimistic"),
        ("transfer.real_steps_after_logs", 500, "transfer", "yes", "500 further real steps: not from logs alone"),
        ("ranking.spearman", 0.6, "ranking", "care", "ranking of policies is rough"),
        ("ranking.spearman", {"mean": 0.85, "lo": -0.1, "hi": 0.97, "n": 8}, "ranking", "care", "rough"),
        ("ranking.spearman", {"mean": None, "why": "ties"}, "ranking", "unknown", "Not measured: ranking"),
        ("rollout.divergence_horizon", {**estimate(3, 1), "median": 3.0}, "horizon", "no", "beyond step 3"),
        (
            "rollout.divergence_horizon",
            {"mean": None, "why": "no start"},
            "horizon",
            "unknown",
            "Not measured: horizon",
        ),
        ("one_step.termination.false_end_rate", 0.01, "ends", "care", "ends good episodes (0.0100 a step)"),
        ("one_step.termination.recall", 0.5, "ends", "care", "misses ends of episodes (recall .50)"),
        ("one_step.nrmse", estimate(0.2, 0.1), "steps", "care", "over the 10% asked for"),
    ],
)
def test_each_failure_is_named(path, value, topic, grade, words):
    report = _with(cartpole_report(), path, value)
    assert _grade(report, topic) == grade
    assert words in verdict(report)
    # The same numbers without the failure say nothing of the kind.
    assert _grade(cartpole_report(), topic) == "yes"


def test_the_horizon_names_whose_interval_it_prints():
    own = _with(cartpole_report(), "rollout.divergence_horizon.median_lo", 40.0)
    own["rollout"]["divergence_horizon"]["median_hi"] = 47.0
    assert "(median; 95% 40–47)" in verdict(own)
    # A mean's interval that misses the median is printed as the mean's.
    skewed = _with(cartpole_report(), "rollout.divergence_horizon.median", 30.0)
    assert "to step 30 of an open-loop rollout (median; mean 43.6 [38.4,\u00a048.8])" in verdict(skewed)


def test_trust_step_is_a_bound_where_rollouts_outlive_the_measurement():
    assert trust_step(cartpole_report()) == 43
    assert trust_step(pendulum_report()) == 100
    censored = _with(cartpole_report(), "rollout.divergence_horizon", {"median": None, "median_censored": True})
    assert trust_step(censored) == 100
    assert "to step 100 of an open-loop rollout, the longest measured" in verdict(censored)
    assert trust_step({"env_id": "x"}) is None


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (492.3, "492"),
        (-1183.7, "−1\u202f184"),
        (0.03214, "0.0321"),
        (0.00003, "3.0e−5"),
        (43.0, "43"),
        (0.0, "0"),
        (None, "–"),
    ],
)
def test_numbers_are_printed_to_three_digits(value, printed):
    assert text(value) == printed


def test_a_null_is_printed_with_its_reason():
    assert text_estimate({"mean": None, "why": "no true end"}) == "– (no true end)"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), r"report\.one_step\.nrmse is nan"),
        ({"mean": float("inf")}, r"report\.one_step\.nrmse\.mean is inf"),
        ([1.0, object()], r"report\.one_step\.nrmse\[1\] is a object"),
        ({3: 1}, "has the key 3"),
    ],
)
def test_what_json_cannot_hold_is_named(value, message):
    with pytest.raises(ValueError, match=message):
        strict_json(_with(cartpole_report(), "one_step.nrmse", value))


def test_ends_that_chance_decides_are_no_fault_unless_there_are_too_many():
    report = cartpole_report()
    report["one_step"]["termination"] |= {"false_end_rate": 0.09, "simulated_rate": 0.1005, "logged_rate": 0.1}
    assert next(f for f in findings(report) if f.topic == "ends").grade == "yes"
    report["one_step"]["termination"]["simulated_rate"] = 0.11
    assert next(f for f in findings(report) if f.topic == "ends").grade == "care"
