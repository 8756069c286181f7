"""An imagined episode beside a real one: from the same start, in the same context, under the same policy."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.agents.policies import PureFunction, as_function
from worldmodel.fidelity.replay import flat_observations, rows, single_members
from worldmodel.simulator import Policy, SimState, Simulator
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trajectory import Trajectory


@dataclasses.dataclass(frozen=True)
class PairedRollout:
    """An imagined episode beside a real one, same start and policy; the fields are those of the report's `Evidence`.

    obs float64 `[T+1, D]` (imagined) and `[T'+1, D]` (real), flattened as by the codec where they have several parts,
    rewards `[T]`, `[T']` or None, ends "terminated", "time
    limit" or None.
    """

    imagined_obs: np.ndarray
    real_obs: np.ndarray
    imagined_rewards: np.ndarray
    real_rewards: np.ndarray | None
    imagined_end: str | None
    real_end: str | None


def paired_rollout(
    world: WorldModel, policy: Policy, trajectory: Trajectory, *, seed: int = 0, steps: int | None = None
) -> PairedRollout:
    """Imagines an episode from the first observation of a real one, under the policy that ran that one.

    Member `seed % M` of the ensemble rules it. `steps`: the longest imagined episode; None: the time limit, or the real
    episode's length where there is none.
    """
    limit = world.spec.max_episode_steps
    length = steps or limit or len(trajectory)
    function, params = as_function(policy)
    dynamics, members = single_members(world)
    simulator = Simulator(dynamics, limit)
    first = rows(trajectory.observations, np.s_[:1])
    beginning = first, None, dynamics.codec.context.encode([trajectory.context])
    member = members[seed % len(members)]
    values = _imagine(simulator, function, length, member, params, jax.random.key(seed), beginning)
    obs, reward, terminated, truncated = jax.tree.map(lambda v: np.asarray(v)[:, 0], values)
    ended = terminated | truncated
    stop = int(ended.argmax()) + 1 if ended.any() else length
    return PairedRollout(
        imagined_obs=np.concatenate([flat_observations(world, part) for part in (first, rows(obs, np.s_[:stop]))]),
        real_obs=flat_observations(world, trajectory.observations),
        imagined_rewards=reward[:stop],
        real_rewards=trajectory.rewards,
        imagined_end=_end(terminated[stop - 1], truncated[stop - 1]),
        real_end=_end(trajectory.terminated, trajectory.truncated),
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _imagine(
    simulator: Simulator,
    function: PureFunction,
    steps: int,
    params: PyTree,
    policy: PyTree,
    key: Array,
    beginning: Any,
) -> tuple[PyTree, Array, Array, Array]:
    model: Any = simulator.dynamics  # a StepDynamics: the protocol itself cannot start at a given observation
    start_key, run_key, policy_key = jax.random.split(key, 3)
    dynamics, obs = model.start_at(params, start_key[None], *jax.tree.map(jax.numpy.asarray, beginning))
    state = SimState(dynamics, run_key[None], jax.numpy.zeros(1, jax.numpy.int32))

    def body(carry, key):
        state, obs = carry
        state, step = simulator.step(params, state, function.run(policy, obs, key[None]))
        return (state, step.obs), (step.obs, step.reward, step.terminated, step.truncated)

    return jax.lax.scan(body, (state, obs), jax.random.split(policy_key, steps))[1]


def _end(terminated: bool | np.bool_, truncated: bool | np.bool_) -> str | None:
    if terminated:
        return "terminated"
    return "time limit" if truncated else None
