"""Classic control: faults that are nothing at full fidelity, and seeds that do not depend on their neighbours."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.study.control import KINDS, Control, Learner
from worldmodel.study.control import TASKS as NAMES
from worldmodel.study.control_task import TASKS
from worldmodel.study.control_world import Worlds
from worldmodel.study.dials import Complexity, Diversity, Fidelity
from worldmodel.study.grid import Grid

ENVS, STEPS = 5, 12


def cell_of(family: Control, arm: str = "simulated", kind: str = "dynamics_bias", fidelity: float = 1.0, **changes):
    dials = tuple(Fidelity.of(each, (fidelity,)) for each in KINDS)
    grid = Grid(family, Complexity.of(family, "horizon", (20,)), dials, Diversity((3,)), seeds=2)
    wanted = {"simulated": kind}.get(arm)
    cell = next(c for c in grid.cells() if (c.arm, c.corruption) == (arm, wanted))
    return dataclasses.replace(cell, **changes)


def rollout(family: Control, cell) -> list[np.ndarray]:
    """Observations, rewards and ends of `ENVS` worlds under actions that change."""
    world = jax.tree.map(jnp.asarray, family._worlds(cell, 7, ENVS))
    return [np.asarray(each) for each in _run(family.task, world)]


@functools.partial(jax.jit, static_argnums=0)  # compiled once for all that is planted: it is all numbers
def _run(task, world):
    env = Worlds(TASKS[task](), world)
    actions = jnp.arange(STEPS * ENVS).reshape(STEPS, ENVS) // 3 % 2

    def step(state, action):
        state, step = env.step(None, state, action)
        return state, (step.final_obs, step.reward, step.terminated, step.truncated)

    with jax.numpy_dtype_promotion("standard"):
        state, obs = env.reset(None, jax.random.split(jax.random.key(0), ENVS))
        return (obs, *jax.lax.scan(step, state, actions)[1])


@pytest.mark.parametrize("task", ["cartpole", "pendulum"])
def test_full_fidelity_is_reality_and_less_is_not(task):
    family = Control(task, disturbance=1.0)
    real = rollout(family, cell_of(family, "oracle"))
    assert real[0].shape == (ENVS, TASKS[task]().width)
    assert np.ptp(real[0], axis=0).max() > 0  # rows differ
    for kind in KINDS:
        exact = rollout(family, cell_of(family, kind=kind, fidelity=1.0))
        assert all(np.array_equal(a, b) for a, b in zip(exact, real, strict=True)), kind
        faulty = rollout(family, cell_of(family, kind=kind, fidelity=0.0))
        place = {"reward": 2, "false_ends": 3}.get(kind, 1)
        assert not np.array_equal(faulty[place], real[place]), kind


def test_knobs_and_the_null_simulator():
    family = Control(disturbance=0.0)
    obs, after, reward, terminated, _ = rollout(family, cell_of(family, "null"))
    assert np.allclose(after, obs, atol=1e-6)
    assert not terminated.any() and reward == pytest.approx(0.5 / 20)
    hidden = rollout(family, cell_of(family, "oracle", knob="hidden", complexity=1.0))
    assert (hidden[1][..., 1] == 0).all() and (hidden[1][..., 3] != 0).any()
    short = rollout(family, cell_of(family, "oracle", complexity=10.0))
    assert short[4][9].all() and not short[4][:9].any()  # the tenth step is the last
    assert short[2].sum(axis=0)[0] == pytest.approx(STEPS / 10)


def test_an_unknown_task_is_refused():
    assert tuple(TASKS) == NAMES
    with pytest.raises(ValueError, match=r"task 'cartpol' is unknown \(did you mean 'cartpole'\?\); known: cartpole"):
        Control("cartpol")


@pytest.mark.slow  # compiles a learner
def test_seeds_are_trained_together_and_do_not_mix():
    small = Learner(num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2)
    family = Control(steps=128, real_steps=64, episodes=4, learner=small)
    cell = cell_of(family, fidelity=0.5)
    rows = family.run(cell)
    assert [(r["world_model_seed"], r["deployment"]) for r in rows] == [
        (seed, name) for seed in (0, 1) for name in ("training", "held_out", "shifted")
    ]
    assert all(r["simulated_steps"] == 128 and 0.0 < r["real_return"] <= 1.0 for r in rows)
    swapped = family.run(dataclasses.replace(cell, seeds=(1, 0)))
    for row, other in zip(rows, swapped[3:] + swapped[:3], strict=True):
        assert row["real_return"] == pytest.approx(other["real_return"], abs=0.05)
    # One program serves all arms: the anchors and the simulators.
    untrained = family.run(cell_of(family, "no_training", seeds=(0, 1)))
    assert {r["simulated_steps"] for r in untrained} == {0}
    assert {r["real_steps"] for r in family.run(cell_of(family, "real_equal_budget"))} == {64}
