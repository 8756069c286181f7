"""Contexts of which parts are drawn."""

import numpy as np
import pytest

from worldmodel.agents.context_draws import check_draws, drawn, merged


def test_values_stay_and_draws_are_made_within_what_they_say():
    family = {"gravity": {"uniform": [2, 4.5]}, "arm": {"length": 1.0, "colour": {"choice": ["red", "blue"]}}}
    check_draws(family)
    made = [drawn(family, np.random.default_rng(seed)) for seed in range(200)]
    gravity = [context["gravity"] for context in made]
    assert 2 <= min(gravity) < 2.2 and 4.3 < max(gravity) <= 4.5  # 200 draws: one misses such an end in 1 of 10^6 runs
    assert {context["arm"]["colour"] for context in made} == {"red", "blue"}
    assert {context["arm"]["length"] for context in made} == {1.0}
    assert made[7] == drawn(family, np.random.default_rng(7))
    assert drawn(None, np.random.default_rng(0)) is None and drawn("slippery", np.random.default_rng(0)) == "slippery"


def test_what_is_said_goes_before_what_was_recorded():
    assert merged({"gravity": 9.8, "arm": {"length": 2.0}}, {"arm": {"length": 3.0}}) == {
        "gravity": 9.8,
        "arm": {"length": 3.0},
    }
    assert merged("go left", None) == "go left" and merged(None, {"a": 1}) == {"a": 1} and merged(None, None) is None


@pytest.mark.parametrize(
    "draw", [{"uniform": [3]}, {"uniform": [4, 2]}, {"uniform": [0, float("nan")]}, {"uniform": 3}]
)
def test_what_cannot_be_drawn_is_one_line(draw):
    with pytest.raises(ValueError, match=r"^context 'arm/length': uniform is .*; \[low, high\] is needed$"):
        check_draws({"arm": {"length": draw}})
    with pytest.raises(ValueError, match=r"choice is .*; a list of at least one value is needed"):
        check_draws({"arm": {"choice": []}})
