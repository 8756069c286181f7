"""The studies that come with the package: their size, and what they say of themselves."""

from __future__ import annotations

import pytest

from worldmodel.study.budget import Costs
from worldmodel.study.recipes import RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_fit_their_time_and_say_what_they_cannot(name):
    full, quick = RECIPES[name](False), RECIPES[name](True)
    assert Costs(full).of(full.cells()).core_hours < 5.0  # 2.5 hours on 2 cores
    assert Costs(quick).of(quick.cells()).core_hours < 1 / 3  # 10 minutes
    assert full.name == quick.name == name
    assert full.note == "" and quick.note.startswith("quick: 5 simulators a cell")
    # What was run as a first look is part of the whole: only the rest is run later.
    missing = {cell.key for cell in quick.cells()} - {cell.key for cell in full.cells()}
    assert missing == set()


def test_three_dials_has_three_levels_by_three_by_five():
    for grid in RECIPES["three_dials"](False).grids:
        assert len(grid.complexity.levels) == len(grid.diversity.levels) == 3
        assert [len(dial.levels) for dial in grid.fidelity] == [5]
        cells = {(c.complexity, c.diversity, c.fidelity) for c in grid.cells() if c.arm == "simulated"}
        assert len(cells) == 45
        assert set(grid.arms) >= {"reference", "no_training", "real_equal_budget", "null", "oracle"}
