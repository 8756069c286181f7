"""The worlds that tests of models share."""

from __future__ import annotations

import pytest

from tests.model.worlds import World, make_world


@pytest.fixture(scope="session", params=["box", "discrete", "tree", pytest.param("scene", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest) -> World:
    return make_world(request.param)
