"""A panel of policies, run in simulation and in reality: the ranking half of the probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.agents.counting import StepLedger
from worldmodel.agents.evaluate import real_episodes as run_real_episodes
from worldmodel.agents.policies import PureFunction, as_function
from worldmodel.fidelity.estimates import Estimate, mean_interval
from worldmodel.fidelity.prediction_powered import prediction_powered_mean
from worldmodel.fidelity.ranking import rank_panel
from worldmodel.fidelity.replay import single_members
from worldmodel.fidelity.return_shape import exploitation_gap, run_to_run, spread_ratio, worst_decile_error
from worldmodel.model.dynamics import StepDynamics
from worldmodel.simulator import DEFAULT_TIME_LIMIT, Policy, SimState, Simulator
from worldmodel.spaces import map_columns
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trajectory import Spec, Trajectory


def simulated_returns(world: WorldModel, policy: Policy, *, episodes: int, seed: int) -> np.ndarray:
    """Undiscounted returns float64 `[n]` of simulated episodes under a policy.

    Every member of the ensemble rules the same number of them, one after the other: `n` is `episodes` rounded up to a
    multiple of the members. Episodes end where the model ends them, at the environment's time limit, or after
    `DEFAULT_TIME_LIMIT` steps.
    """
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}; at least 1 is needed")
    dynamics, members = single_members(world)
    simulator = _simulator(world, dynamics)
    function, params = as_function(policy)
    returns = []
    for own, key in zip(members, _keys(len(members), episodes, seed), strict=True):
        keys = jax.vmap(jax.random.split)(key)
        state, obs = _drawn_starts(simulator, own, keys[:, 0])
        returns.append(np.asarray(_returns(simulator, function, own, params, state, obs, keys[:, 1]), np.float64))
    return np.concatenate(returns)


def paired_returns(
    world: WorldModel, policy: Policy, trajectories: Sequence[Trajectory], *, rows: int, seed: int, members: int | None
) -> np.ndarray:
    """Return float64 `[n]` that the simulator promises for each real episode of a policy, from that episode's start.

    The policy draws what it drew in the real episode `i` run under `seed` (see `agents.evaluate.real_episodes`). The
    first `members` of the ensemble (None: all) imagine each episode at least once, and as often as fills batches of
    `rows`; the mean is returned.
    """
    dynamics, everyone = single_members(world)
    simulator = _simulator(world, dynamics)
    function, params = as_function(policy)
    count = len(trajectories)
    starts = map_columns(
        lambda *columns: np.stack([np.asarray(column[0]) for column in columns]),
        *(trajectory.observations for trajectory in trajectories),
    )
    contexts = dynamics.codec.context.encode([trajectory.context for trajectory in trajectories])
    # Whole batches of `rows`, so that one program serves all: every episode as often, but for what fills the last.
    blocks = np.resize(np.arange(count), (-(-count // rows), rows))
    total, times = np.zeros(count), np.zeros(count)
    for number, own in enumerate(everyone[:members]):
        for index, block in enumerate(blocks):
            first = jax.tree.map(lambda column, block=block: column[block], (starts, contexts))
            key = jax.random.fold_in(jax.random.key(seed), number * len(blocks) + index)
            state, obs = _given_starts(simulator, own, jax.random.split(key, rows), *first)
            policy_keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(block.astype(np.int32))
            found = np.asarray(_returns(simulator, function, own, params, state, obs, policy_keys), np.float64)
            np.add.at(total, block, found)
            np.add.at(times, block, 1.0)
    return total / times


def _simulator(world: WorldModel, dynamics: StepDynamics) -> Simulator:
    return Simulator(dynamics, world.spec.max_episode_steps or DEFAULT_TIME_LIMIT)


def _keys(members: int, episodes: int, seed: int) -> Array:
    return jax.random.split(jax.random.key(seed), (members, -(-episodes // members)))


@partial(jax.jit, static_argnums=0)
def _drawn_starts(simulator: Simulator, params: PyTree, keys: Array) -> tuple[SimState, PyTree]:
    return simulator.reset(params, keys)


@partial(jax.jit, static_argnums=0)
def _given_starts(
    simulator: Simulator, params: PyTree, keys: Array, obs: PyTree, context: Array
) -> tuple[SimState, PyTree]:
    return simulator.start_at(params, keys, obs, context)


@partial(jax.jit, static_argnums=(0, 1))
def _returns(
    simulator: Simulator,
    function: PureFunction,
    params: PyTree,
    policy: PyTree,
    state: SimState,
    obs: PyTree,
    policy_keys: Array,
) -> Array:
    everyone = jnp.ones(policy_keys.shape[0], bool)

    def running(carry):
        return jnp.any(carry[2])

    def body(carry):
        state, obs, alive, total, count = carry
        act_keys = jax.vmap(lambda k: jax.random.fold_in(k, count))(policy_keys)
        state, step = simulator.step(params, state, function.run(policy, obs, act_keys))
        total = total + jnp.where(alive, step.reward, 0.0)
        return state, step.obs, alive & ~(step.terminated | step.truncated), total, count + 1

    zero = jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(running, body, (state, obs, everyone, jnp.zeros(everyone.shape), zero))[3]


def panel(
    world: WorldModel,
    policies: Mapping[str, Policy],
    *,
    sim_episodes: int = 300,
    real_episodes: int = 100,
    seed: int = 0,
    ledger: StepLedger,
    spec: Spec | None = None,
    already_run: Mapping[str, Sequence[Trajectory]] | None = None,
    optimised: str | None = None,
    paired_members: int | None = None,
) -> dict[str, Any]:
    """Return of every policy in simulation and in reality, and how well the one ranks the other.

    All policies meet the same episode seeds, in reality (`seed + i`) and in simulation.

    Args:
      world: the simulator.
      policies: by name.
      sim_episodes: simulated episodes of each policy.
      real_episodes: real episodes of each policy.
      seed: of episodes and policies.
      ledger: where real steps are counted, on phase "evaluation".
      spec: of the real environment; None: the simulator's own.
      already_run: real episodes by policy name, for those that need not be run again.
      optimised: name of the policy that was trained in this simulator, if one was.
      paired_members: members of the ensemble that `prediction_powered` asks; None: all.

    Returns:
      Plain JSON: `policies[{name, sim_return, real_return, episodes, ...}]` in the given order (`episodes` counts the
      real ones) with `spread_ratio`, `worst_decile_error`, `run_to_run` (`return_shape`; runs are the members) and
      `prediction_powered`, the real return from real episodes and, paired by start and policy noise, simulated ones;
      `ranking` as `rank_panel` gives it, with `exploitation_gap` where `optimised` is named, or None beside `why` for a
      single policy.

    Raises:
      ValueError: no policy, or `optimised` is none of them.
    """
    if not policies:
        raise ValueError("a panel needs at least one policy; got none")
    if optimised is not None and optimised not in policies:
        raise ValueError(f"optimised policy {optimised!r} is unknown; known: {', '.join(policies)}")
    sim, real, paired = {}, {}, {}
    members = world.dynamics.members
    for name, policy in policies.items():
        sim[name] = simulated_returns(world, policy, episodes=sim_episodes, seed=seed)
        trajectories = (already_run or {}).get(name)
        if trajectories is None:
            trajectories = run_real_episodes(
                spec or world.spec, policy, episodes=real_episodes, seed=seed, ledger=ledger
            )
        real[name] = np.array([trajectory.total_reward for trajectory in trajectories])
        rows = len(sim[name]) // members
        paired[name] = paired_returns(world, policy, trajectories, rows=rows, seed=seed, members=paired_members)
    out: dict[str, Any] = {
        "policies": [
            {
                "name": name,
                "sim_return": mean_interval(sim[name]).to_json(),
                "real_return": mean_interval(real[name]).to_json(),
                "episodes": len(real[name]),
                "spread_ratio": spread_ratio(sim=sim[name], real=real[name], seed=seed),
                "worst_decile_error": worst_decile_error(sim=sim[name], real=real[name], seed=seed),
                "run_to_run": run_to_run(sim[name].reshape(members, -1)),
                "prediction_powered": _prediction_powered(
                    # What was simulated from other starts, by the members that were asked.
                    world,
                    real[name],
                    paired[name],
                    sim[name].reshape(members, -1)[:paired_members].ravel(),
                ),
            }
            for name in policies
        ]
    }
    broken = [name for name in policies if not np.isfinite(sim[name]).all()]
    if broken:
        why = f"simulated returns of {broken[0]!r} are not finite"
    elif len(policies) < 2:
        why = "a ranking needs at least 2 policies; there is 1"
    else:
        names = list(policies)
        ranking = rank_panel(names, [sim[name] for name in names], [real[name] for name in names], seed)
        if optimised is not None:
            ranking["exploitation_gap"] = exploitation_gap(sim=sim, real=real, optimised=optimised, seed=seed)
        return {**out, "ranking": ranking}
    return {**out, "ranking": None, "why": why}


def _prediction_powered(world: WorldModel, real: np.ndarray, paired: np.ndarray, sim: np.ndarray) -> dict[str, Any]:
    if not (np.isfinite(paired).all() and np.isfinite(sim).all()):
        return Estimate(None, None, None, len(real), "a simulated return is not finite").to_json()
    starts = len(jax.tree.leaves(world.params["starts"])[0])
    found = prediction_powered_mean(real=real, paired_sim=paired, sim=sim, starts=starts).to_json()
    return {**found, "assumes": "logged episodes began as the evaluated ones do"}
