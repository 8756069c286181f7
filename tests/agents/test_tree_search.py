"""Tree search with mctx: what it needs, and that it looks ahead."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from tests.support import untrained_model
from worldmodel.agents import tree_search
from worldmodel.agents.counting import StepLedger
from worldmodel.agents.evaluate import real_episodes
from worldmodel.agents.planner import Planner
from worldmodel.agents.tree_search import TreeSearch
from worldmodel.envs.true_dynamics import true_dynamics

needs_mctx = pytest.mark.skipif(importlib.util.find_spec("mctx") is None, reason="mctx is not installed")


def test_without_mctx_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(tree_search.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^tree search needs mctx, .*: pip install 'worldmodel\[mctx\]'$"):
        TreeSearch()


def test_bad_numbers_are_one_line():
    for options in ({"simulations": 0}, {"rollout": 0}, {"discount": 0.0}):
        with pytest.raises(ValueError, match="at least 1, at least 1, and above 0 and at most 1 are needed"):
            TreeSearch(**options)


@needs_mctx
def test_it_balances_the_true_pole():
    spec = untrained_model("CartPole-v1").spec
    dynamics, params = true_dynamics(spec)
    planner = Planner(dynamics, TreeSearch(simulations=32, rollout=10), spec, params)
    ran = real_episodes(spec, planner, episodes=3, seed=0, ledger=StepLedger(), max_steps=80)
    assert [len(episode) for episode in ran] == [80] * 3


@needs_mctx
@pytest.mark.slow
def test_in_a_model_how_many_run_at_once_changes_nothing():
    world = untrained_model("CartPole-v1")
    planner = Planner.in_model(world, TreeSearch(simulations=4, rollout=2))
    options = {"episodes": 3, "seed": 0, "ledger": StepLedger(), "max_steps": 6}
    one, many = (real_episodes(world.spec, planner, num_envs=n, **options) for n in (1, 3))
    for a, b in zip(one, many, strict=True):
        np.testing.assert_array_equal(a.actions, b.actions)


@needs_mctx
def test_boxes_are_not_for_trees():
    with pytest.raises(ValueError, match="tree search takes Discrete actions"):
        Planner.in_model(untrained_model("Pendulum-v1"), TreeSearch())
