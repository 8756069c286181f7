"""How long imagined episodes stay where the simulator has support: the share that has left it, by step."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.agents.policies import PureFunction, as_function
from worldmodel.envs.control import trust_rule
from worldmodel.fidelity.horizon import median_horizon_interval, rmst_interval, survival
from worldmodel.simulator import DEFAULT_TIME_LIMIT, Policy, Simulator
from worldmodel.training.checkpoint import WorldModel
from worldmodel.trust_region import Trust


def stability(
    world: WorldModel,
    policy: Policy,
    *,
    coverage: float = 0.99,
    episodes: int = 128,
    steps: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Follows imagined episodes of a policy until they first leave the trusted region; plain JSON.

    The region is that of `trust="info"`: where the members agree as on held-out steps, and the certified states where
    there is a certificate. Episodes that end inside are censored: how long they would have stayed is not known. Of
    `coverage` below 1 even reality leaves it now and then: `expected` is the share after each step if every step left
    with a chance of `1 - coverage`, as held-out ones do where the members alone decide.

    Args:
      world: a model with a trust region or a certificate.
      policy: who acts.
      coverage: share of the held-out steps that counts as inside.
      episodes: how many.
      steps: how far they are followed; None: to the time limit.
      seed: of the episodes.

    Returns:
      `steps[]`, those after which some episode left; `left[]`, the share that has left by then, episodes that ended
      aside (Kaplan-Meier); `expected[]`; `stay`: mean steps inside, restricted to the longest episode; `median` steps;
      `episodes`, `left_count`.

    Raises:
      ValueError: the model has neither region nor certificate, or a count is below 1.
    """
    limit = world.spec.max_episode_steps or DEFAULT_TIME_LIMIT
    longest = limit if steps is None else min(steps, limit)
    if min(episodes, longest) < 1:
        raise ValueError(f"episodes and steps must be at least 1, not {episodes} and {longest}")
    rule = trust_rule(Trust.INFO, coverage, None, world)
    function, params = as_function(policy)
    simulator = Simulator(world.dynamics, limit, rule)
    keys = jax.random.split(jax.random.key(seed), episodes)
    outside, alive = map(np.asarray, _follow(simulator, function, longest, world.params, params, keys))
    left = outside & alive
    observed = left.any(axis=0)
    inside = np.where(observed, left.argmax(axis=0), alive.sum(axis=0))
    grid, staying = survival(inside, observed)
    return {
        "steps": [int(t) + 1 for t in grid],
        "left": [float(1.0 - s) for s in staying],
        "expected": [float(1.0 - coverage ** (t + 1)) for t in grid],
        "stay": rmst_interval(inside, observed, seed=seed).to_json(),
        "median": median_horizon_interval(inside, observed, seed=seed).to_json(),
        "episodes": episodes,
        "left_count": int(observed.sum()),
    }


@partial(jax.jit, static_argnums=(0, 1, 2))
def _follow(
    simulator: Simulator, function: PureFunction, steps: int, params: PyTree, policy: PyTree, keys: Array
) -> tuple[Array, Array]:
    """`(outside, alive)` bool `[steps, B]`: whether a step left the region, and whether it was of the first episode."""
    keys = jax.vmap(jax.random.split)(keys)
    state, obs = simulator.reset(params, keys[:, 0])

    def body(carry, t):
        state, obs, alive = carry
        action = function.run(policy, obs, jax.vmap(lambda k: jax.random.fold_in(k, t))(keys[:, 1]))
        state, step = simulator.step(params, state, action)
        return (state, step.obs, alive & ~(step.terminated | step.truncated)), (step.info["outside"], alive)

    everyone = jnp.ones(keys.shape[0], bool)
    return jax.lax.scan(body, (state, obs, everyone), jnp.arange(steps))[1]
