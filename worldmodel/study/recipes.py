"""The studies that come with the package, by name: planted faults, whose fidelity is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from worldmodel.study.control import Control
from worldmodel.study.dials import Complexity, Diversity, Fidelity
from worldmodel.study.estimands import BreakEven, Tolerance
from worldmodel.study.grid import Grid, Study
from worldmodel.study.preregistration import Exclusion, Preregistration
from worldmodel.study.tabular import RandomProcess, SafeRisky

QUESTIONS = Preregistration(
    estimands=(Tolerance(0.1, relative=True), BreakEven()),
    exclusions=(Exclusion("no_headroom"),),
)
"""What both studies ask."""

INSTANCES = (1.0, 4.0, 16.0)


def three_dials(quick: bool = False) -> Study:
    """Complexity x diversity x fidelity, 3 x 3 x 5, in finite processes and in CartPole, one kind of fault.

    In the finite one policies are planned exactly, so that the answer is known, see `SafeRisky`. In CartPole the
    simulator helps to balance the pole, and complexity is how long it is to be kept up.
    """
    finite, cart = SafeRisky(steps=None), Control(steps=40_000, real_steps=10_000)
    grids = (
        Grid(
            finite,
            Complexity.of(finite, "decisions", (1, 2, 4)),
            (Fidelity.of("dynamics_bias", (0.5, 0.6, 0.7, 0.8, 0.9)),),
            Diversity(INSTANCES),
            seeds=5 if quick else 40,
        ),
        Grid(
            cart,
            Complexity.of(cart, "horizon", (100, 200, 400)),
            (Fidelity.of("dynamics_bias", (0.2, 0.4, 0.6, 0.8, 1.0)),),
            Diversity((1.0, 16.0) if quick else INSTANCES),
            seeds=5 if quick else 20,
        ),
    )
    note = (
        "quick: 5 simulators a cell, CartPole without its middle diversity. Brackets are wide or open, and an "
        "interaction that is not found may be there: at this size one of .02 is missed more often than not"
    )
    return Study("three_dials", grids, QUESTIONS, note=note if quick else "")


def planted_threshold(quick: bool = False) -> Study:
    """The fidelity that is needed, by kind of fault: the same fidelity is not as good in every kind.

    Finite processes under seven kinds (one of them learned from logs), CartPole under four.
    """
    finite, random, cart = SafeRisky(), RandomProcess(), Control(steps=40_000, real_steps=10_000)
    shares = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    finite_kinds = (
        Fidelity.of("dynamics_bias", (0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0)),
        Fidelity.of("logs", (10, 30, 100, 300, 1_000, 3_000)),
    )
    random_kinds = ("dynamics_bias", "dynamics_noise", "reward", "false_ends", "localised", "determinism")
    cart_kinds = ("dynamics_bias", "localised", "delay", "reward")
    grids = (
        Grid(
            finite,
            Complexity.of(finite, "decisions", (1, 2, 4)),
            finite_kinds,
            seeds=5 if quick else 40,
        ),
        Grid(
            random,
            Complexity.of(random, "horizon", (5, 10)),
            tuple(Fidelity.of(kind, shares) for kind in random_kinds),
            Diversity((4.0,)),
            seeds=5 if quick else 20,
        ),
        Grid(
            cart,
            Complexity.of(cart, "horizon", (200,)),
            tuple(Fidelity.of(kind, shares) for kind in cart_kinds),
            Diversity((4.0,)),
            seeds=5 if quick else 20,
        ),
    )
    note = "quick: 5 simulators a cell. Brackets are wide or open; kinds of fault are compared by eye only"
    return Study("planted_threshold", grids, QUESTIONS, note=note if quick else "")


RECIPES: Mapping[str, Callable[[bool], Study]] = {"planted_threshold": planted_threshold, "three_dials": three_dials}
"""Name -> the study, full or quick."""
