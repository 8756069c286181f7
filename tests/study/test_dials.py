"""Dials and grids: what contradicts itself is refused in one line, before anything runs."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from tests.study.tiny import Tiny, tiny_study
from worldmodel.study.cells import ARMS, Cell
from worldmodel.study.dials import CORRUPTIONS, Complexity, Diversity, Fidelity, jittered
from worldmodel.study.grid import Grid, Study
from worldmodel.study.table import ARMS as ARMS_OF_TABLES
from worldmodel.study.tabular import RandomProcess, SafeRisky

FINITE, TINY = SafeRisky(), Tiny("nowhere")
LENGTH = Complexity.of(FINITE, "decisions", (1, 2))
BIAS = Fidelity.of("dynamics_bias", (0.5, 1.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Complexity.of(FINITE, "decision", (1,)), "safe_risky has no knob 'decision' (did you mean 'decisi"),
        (lambda: Fidelity.of("bias", (1,)), "corruption 'bias' is unknown"),
        (lambda: Fidelity.of("reward", (0.5, 1.5)), "dial fidelity:reward has level 1.5; 0 to 1 is allowed"),
        (lambda: Fidelity.of("logs", (0,)), "dial fidelity:logs has level 0; 1 to inf is allowed"),
        (lambda: Fidelity.of("reward", (0.5, 0.2)), "dial fidelity:reward has levels 0.5, 0.2; they must ascend"),
        (lambda: Fidelity.of("reward", ()), "dial fidelity:reward has no levels"),
        (lambda: Fidelity.of("logs", (9,), jitter=0.1), "dial fidelity:logs has jitter 0.1; 0 (logs hold whole steps)"),
        (lambda: Diversity((0.5,)), "dial diversity has level 0.5; it counts instances, from 1"),
        (
            lambda: Grid(FINITE, Complexity.of(FINITE, "decisions", (1.5,)), (BIAS,)),
            "decisions of safe_risky cannot be 1.5; a whole number from 1 to 64 is allowed",
        ),
        (
            lambda: Grid(RandomProcess(), LENGTH, (BIAS,)),
            "dial complexity turns 'decisions', which random_process does not have; its knobs are horizon",
        ),
        (
            lambda: Grid(FINITE, LENGTH, (Fidelity.of("delay", (0.5,)),)),
            "dial fidelity plants 'delay', which safe_risky has not; it has dynamics_bias",
        ),
        (
            lambda: Grid(FINITE, LENGTH, (BIAS, Fidelity.of("dynamics_bias", (0.7,)))),
            "two dials set fidelity:dynamics_bias of safe_risky; one dial holds all its levels",
        ),
        (
            lambda: Grid(TINY, Complexity.of(TINY, "delay", (0.5,)), (Fidelity.of("delay", (0.5,)),)),
            "dials complexity:delay and fidelity:delay both set delay of tiny",
        ),
        (
            lambda: Grid(TINY, Complexity.of(TINY, "size", (1,)), (Fidelity.of("reward", (1,)),), Diversity((8,))),
            "dial diversity asks for 8 instances; tiny has 4 at most",
        ),
        (lambda: Grid(FINITE, LENGTH, ()), "safe_risky has no fidelity dial"),
        (lambda: Grid(FINITE, LENGTH, (BIAS,), seeds=0), "seeds of safe_risky is 0; at least 1 is needed"),
        (
            lambda: Grid(TINY, Complexity.of(TINY, "size", (1,)), (Fidelity.of("reward", (1,)),), controls=("null",)),
            "tiny has no control 'null'; its controls are reference, no_training, oracle",
        ),
        (lambda: Study("x", (Grid(FINITE, LENGTH, (BIAS,)),) * 2), "two grids of study 'x' are over 'safe_risky'"),
    ],
)
def test_what_contradicts_itself_is_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_a_dial_declares_its_scale():
    assert LENGTH.to_json() == {
        "name": "complexity:decisions",
        "unit": "decisions",
        "levels": [1.0, 2.0],
        "changes": "that many decisions must all succeed",
    }
    assert all(Fidelity.of(kind, (1.0,)).changes == text for kind, text in CORRUPTIONS.items())


def test_jitter_spreads_simulators_evenly_around_a_level():
    spread = sorted(jittered(0.6, 0.2, seed) for seed in range(50))
    assert spread[0] >= 0.5 and spread[-1] <= 0.7
    assert np.diff(spread).max() < 0.2 / 20  # no gap much larger than even ones of .2 / 50
    assert all(0.9 <= jittered(1.0, 0.2, seed) <= 1.0 for seed in range(50))
    assert all(jittered(0.6, 0.0, seed) == 0.6 for seed in range(3))


def test_the_hash_is_of_the_content_alone(tmp_path):
    cells = tiny_study(tmp_path / "a").cells()
    assert [cell.key for cell in cells] == [cell.key for cell in tiny_study(tmp_path / "b").cells()]
    assert len({cell.key for cell in cells}) == len(cells)
    assert all(Cell.of(cell.content()) == cell and Cell.of(cell.content()).key == cell.key for cell in cells)
    one = cells[0]
    for change in ({"seeds": (0,)}, {"complexity": 2.5}, {"family": {"kind": "Other"}}, {"policies": 2}):
        assert dataclasses.replace(one, **change).key != one.key


def test_anchors_come_first_with_twice_the_seeds(tmp_path):
    cells = tiny_study(tmp_path, seeds=7).cells()
    assert [cell.arm for cell in cells[:8]] == ["reference"] * 6 + ["no_training"] * 2
    assert [len(cell.seeds) for cell in cells if cell.arm == "reference" and cell.complexity == 1.0] == [5, 5, 4]
    # More seeds add cells, and keep those of the seeds before.
    fewer = {cell.key for cell in tiny_study(tmp_path, seeds=5).cells()}
    assert fewer < {cell.key for cell in tiny_study(tmp_path, seeds=10).cells()}


def test_arms_are_those_of_the_tables():
    assert tuple(ARMS) == ARMS_OF_TABLES
