"""The studies that come with the package, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from worldmodel.study.dials import Complexity, Diversity, Fidelity
from worldmodel.study.grid import Grid, Study
from worldmodel.study.tabular import SafeRisky


def planted_threshold(quick: bool = False) -> Study:
    """x."""
    family = SafeRisky()
    grid = Grid(
        family,
        Complexity.of(family, "decisions", (1, 2, 4)),
        (Fidelity.of("dynamics_bias", (0.5, 0.6, 0.7, 0.8, 0.9)),),
        Diversity((1.0, 4.0, 16.0)),
        seeds=4 if quick else 20,
    )
    return Study("planted_threshold", (grid,))


RECIPES: Mapping[str, Callable[[bool], Study]] = {"planted_threshold": planted_threshold}
"""Name -> the study, full or quick."""
