"""Finite processes: exact answers, and the thresholds that are known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from worldmodel.fidelity.tabular import TabularMDP, random_mdp
from worldmodel.study.answers import answers, estimand_name, estimand_of
from worldmodel.study.cells import finished_rows
from worldmodel.study.dials import LEARNED, Complexity, Diversity, Fidelity
from worldmodel.study.grid import Grid, Study
from worldmodel.study.tabular import RandomProcess, SafeRisky
from worldmodel.study.tabular_process import (
    PLANTED,
    Faults,
    Processes,
    best_policy,
    corrupted,
    differences,
    null,
    phased_q_learning,
    returns,
    visits,
)

RNG = np.random.default_rng


def as_processes(one: TabularMDP) -> Processes:
    ends = one.end[..., None]
    outcome = np.concatenate([(1.0 - ends) * one.transition, ends], axis=-1)
    return Processes(outcome, one.reward, one.start, one.horizon)


def test_returns_and_visits_are_those_of_the_probe():
    one = random_mdp(RNG(0), 5, 3, 7)
    policy = RNG(1).dirichlet(np.ones(3), 5)
    timed = np.broadcast_to(policy, (7, 5, 3))
    assert returns(as_processes(one), timed) == pytest.approx(one.expected_return(policy), abs=1e-12)
    assert visits(as_processes(one), timed) == pytest.approx(one.visits(policy).sum(axis=0), abs=1e-12)


def test_the_best_policy_is_best_and_a_learned_one_near_it():
    process = as_processes(random_mdp(RNG(0), 5, 3, 7))
    best = returns(process, best_policy(process, RNG(1)))
    others = RNG(2).dirichlet(np.ones(3), (200, 7, 5))
    assert best > returns(process, others).max()
    assert best - returns(process, phased_q_learning(process, 2_000, RNG(3))) < 0.02


# fidelity.md: q = .6, p ~ U(.2, .55), decisions that must all succeed, p^ = p + (1 - f)(1 - p), within 5%.
@pytest.mark.parametrize(("decisions", "threshold"), [(1, 0.723), (2, 0.777), (4, 0.819), (8, 0.847)])
def test_the_threshold_of_safe_and_risky_is_the_known_one(decisions, threshold):
    family = SafeRisky()
    real = family.instances(decisions, 0, range(8_000))
    target = 0.95 * 0.6**decisions

    def earned(fidelity: float) -> float:
        sim = corrupted(real, family.faults(real, 0), "dynamics_bias", fidelity, RNG(0))
        return float(returns(real, best_policy(sim, RNG(1))).mean())

    assert earned(threshold - 0.02) < target < earned(threshold + 0.02)


def test_it_flips_at_two_thirds():
    real = SafeRisky().instances(1, 0, range(1))
    real.outcome[0, 0, 1] = [0.0, 0.4, 0.6]  # risky succeeds with .4
    for fidelity, expected in ((0.66, 0.4), (0.67, 0.6)):
        sim = corrupted(real, SafeRisky().faults(real, 0), "dynamics_bias", fidelity, RNG(0))
        assert returns(real, best_policy(sim, RNG(0)))[0] == pytest.approx(expected)


@pytest.mark.parametrize("family", [SafeRisky(), RandomProcess()])
@pytest.mark.parametrize("kind", list(PLANTED))
def test_full_fidelity_is_exact_and_less_is_not(family, kind):
    real = family.instances(3, 0, range(2))
    faults = family.faults(real, 0)
    exact = corrupted(real, faults, kind, 1.0, RNG(0))
    assert np.array_equal(exact.outcome, real.outcome) and np.array_equal(exact.reward, real.reward)
    value = np.ones(real.reward.shape[:-1])
    halves = [differences(real, corrupted(real, faults, kind, f, RNG(0)), value) for f in (0.5, 0.0)]
    name = "reward_mae" if kind == "reward" else "total_variation"
    # Errors grow with what is planted, in proportion.
    assert 0 < halves[0][name][0] == pytest.approx(halves[1][name][0] / 2)
    rows = corrupted(real, faults, kind, 0.3, RNG(0)).outcome
    assert rows.min() >= 0 and rows.sum(axis=-1) == pytest.approx(1.0)


def test_what_cannot_be_planted_is_refused():
    real = SafeRisky().instances(1, 0, range(1))
    with pytest.raises(ValueError, match="corruption 'delay' cannot be planted in a finite process; dynamics_bias"):
        corrupted(real, Faults(real.outcome, real.outcome), "delay", 0.5, RNG(0))


def test_in_the_null_simulator_nothing_depends_on_anything():
    outcome = null(RandomProcess().instances(4, 0, range(2))).outcome
    assert np.ptp(outcome, axis=(1, 2)).max() < 1e-12


def study_of(family, kinds, levels, seeds=4, complexity=(1, 2)) -> Study:
    knob = next(iter(family.knobs))
    dials = tuple(Fidelity.of(kind, levels) for kind in kinds)
    return Study("x", (Grid(family, Complexity.of(family, knob, complexity), dials, Diversity((2,)), seeds=seeds),))


def test_a_cell_is_a_pure_function_of_its_content():
    study = study_of(SafeRisky(), ("dynamics_bias", LEARNED), (1.0,))
    for cell in study.cells():
        rows = SafeRisky().run(cell)
        assert rows == SafeRisky().run(cell)
        # Seeds do not depend on which others are run beside them.
        alone = dataclasses.replace(cell, seeds=cell.seeds[1:2])
        unit = "world_model_seed" if rows[0]["world_model_seed"] is not None else "policy_seed"
        assert SafeRisky().run(alone) == [row for row in rows if row[unit] == cell.seeds[1]]
        assert {row["deployment"] for row in rows} == {"training", "held_out", "shifted"}


def test_arms_do_what_they_say():
    cells = {cell.arm: cell for cell in study_of(SafeRisky(), (LEARNED,), (400,), complexity=(2,)).cells()}
    rows = {arm: SafeRisky().run(cell) for arm, cell in cells.items()}
    earned = {arm: np.mean([row["real_return"] for row in own]) for arm, own in rows.items()}
    assert set(rows) == set(SafeRisky.arms)
    assert earned["reference"] == pytest.approx(0.36) and earned["oracle"] == pytest.approx(0.36)
    assert earned["no_training"] < earned["cloning"] < 0.36  # half of the logged actions are the best
    assert abs(earned["null"] - earned["no_training"]) < 0.12
    assert rows["simulated"][0]["real_steps"] == rows["cloning"][0]["real_steps"] == 400
    assert rows["real_equal_budget"][0]["real_steps"] <= 1_000 < rows["reference"][0]["real_steps"]
    # Without a target of its own, cloning has no simulator, and imitates only where there are logs.
    assert rows["cloning"][0]["world_model_seed"] is None
    assert "cloning" not in study_of(SafeRisky(), ("dynamics_bias",), (0.5,)).grids[0].arms


def test_simulators_around_a_level_find_a_leap(tmp_path):
    family = SafeRisky(steps=None)
    dials = (Fidelity.of("dynamics_bias", (0.5, 0.6, 0.7, 0.8), jitter=0.1),)
    # With very many instances `risky` is overrated by the same amount in all of them: a leap, at .4 / (1 - .375).
    grid = Grid(family, Complexity.of(family, "decisions", (1,)), dials, Diversity((200,)), seeds=10)
    study = Study("x", (dataclasses.replace(grid, controls=("reference", "no_training")),))
    rows = [row for cell in study.cells() for row in finished_rows(cell, family.run(cell), 0.0)]
    fidelities = {row["fidelity"] for row in rows if row["arm"] == "simulated"}
    assert len(fidelities) == 40
    (found,) = answers(rows, study.to_json(), "training", tmp_path / "none.json", repetitions=100)["conditions"]
    (own,) = found["kinds"]["dynamics_bias"]["thresholds"]
    assert own["jump"]["mean"] == pytest.approx(0.64, abs=0.02)
    assert own["bracket"]["why"] is not None


def test_more_logs_make_a_better_simulator():
    study = study_of(RandomProcess(), (LEARNED,), (30, 3_000), complexity=(5,))
    errors = {
        cell.fidelity: np.mean([row["metrics"]["total_variation"] for row in RandomProcess().run(cell)])
        for cell in study.cells()
        if cell.arm == "simulated"
    }
    assert errors[3_000] < 0.5 * errors[30]


def test_the_analysis_finds_the_known_threshold(tmp_path):
    family, levels = SafeRisky(), (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)
    dials = (Fidelity.of("dynamics_bias", levels),)
    anchors = ("reference", "no_training")
    study = Study("x", (Grid(family, Complexity.of(family, "decisions", (1, 4)), dials, seeds=20, controls=anchors),))
    rows = [row for cell in study.cells() for row in finished_rows(cell, family.run(cell), 0.0)]
    found = answers(rows, study.to_json(), "training", tmp_path / "registration.json", repetitions=100)
    # (.6 - p*)^2 = .05^2 + .7 * .6 (1 - .9^(1/H)) and f = .4 / (1 - p*), for 10% and H decisions.
    for condition, truth in zip(found["conditions"], (0.655, 0.776), strict=True):
        kind = condition["kinds"]["dynamics_bias"]
        (own,) = kind["thresholds"]
        assert estimand_name(estimand_of(own["estimand"])) == "within 10% of training in reality"
        assert own["isotonic"]["lo"] - 0.02 < truth < own["isotonic"]["hi"] + 0.02
        assert condition["headroom"]["lo"] > 0
        assert kind["efficiency"][-1]["mean"] == pytest.approx(1.0, abs=0.05)
    assert all(row["why"].startswith("leaving one environment out needs at least 3") for row in found["league"])
    assert found["registration"]["why"] == "there is no registration at registration.json"
