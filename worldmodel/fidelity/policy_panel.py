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
from worldmodel.fidelity.estimates import mean_interval
from worldmodel.fidelity.ranking import rank_panel
from worldmodel.fidelity.replay import single_members
from worldmodel.simulator import DEFAULT_TIME_LIMIT, Policy, Simulator
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trajectory import Spec, Trajectory


def simulated_returns(world: WorldModel, policy: Policy, *, episodes: int, seed: int) -> np.ndarray:
    """Undiscounted returns float64 `[n]` of simulated episodes under a policy.

    Every member of the ensemble rules the same number of them: `n` is `episodes` rounded up to a multiple of the
    members. Episodes end where the model ends them, at the environment's time limit, or after `DEFAULT_TIME_LIMIT`
    steps.
    """
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}; at least 1 is needed")
    dynamics, members = single_members(world)
    simulator = Simulator(dynamics, world.spec.max_episode_steps or DEFAULT_TIME_LIMIT)
    function, params = as_function(policy)
    keys = jax.random.split(jax.random.key(seed), (len(members), -(-episodes // len(members))))
    returns = [_returns(simulator, function, own, params, key) for own, key in zip(members, keys, strict=True)]
    return np.concatenate([np.asarray(part, np.float64) for part in returns])


@partial(jax.jit, static_argnums=(0, 1))
def _returns(simulator: Simulator, function: PureFunction, params: PyTree, policy: PyTree, key: Array) -> Array:
    keys = jax.vmap(jax.random.split)(key)
    state, obs = simulator.reset(params, keys[:, 0])
    everyone = jnp.ones(key.shape[0], bool)

    def running(carry):
        return jnp.any(carry[2])

    def body(carry):
        state, obs, alive, total, count = carry
        act_keys = jax.vmap(lambda k: jax.random.fold_in(k, count))(keys[:, 1])
        state, step = simulator.step(params, state, function.run(policy, obs, act_keys))
        total = total + jnp.where(alive, step.reward, 0.0)
        return state, step.obs, alive & ~(step.terminated | step.truncated), total, count + 1

    zero = jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(running, body, (state, obs, everyone, jnp.zeros(key.shape[0]), zero))[3]


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

    Returns:
      Plain JSON: `policies[{name, sim_return, real_return, episodes}]` in the given order (`episodes` counts the real
      ones), `ranking` as `rank_panel` gives it, or None beside `why` for a single policy.
    """
    if not policies:
        raise ValueError("a panel needs at least one policy; got none")
    sim, real = {}, {}
    for name, policy in policies.items():
        sim[name] = simulated_returns(world, policy, episodes=sim_episodes, seed=seed)
        trajectories = (already_run or {}).get(name)
        if trajectories is None:
            trajectories = run_real_episodes(
                spec or world.spec, policy, episodes=real_episodes, seed=seed, ledger=ledger
            )
        real[name] = np.array([trajectory.total_reward for trajectory in trajectories])
    out: dict[str, Any] = {
        "policies": [
            {
                "name": name,
                "sim_return": mean_interval(sim[name]).to_json(),
                "real_return": mean_interval(real[name]).to_json(),
                "episodes": len(real[name]),
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
        return {**out, "ranking": ranking}
    return {**out, "ranking": None, "why": why}
