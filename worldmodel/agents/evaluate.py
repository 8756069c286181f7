"""Real evaluation: a policy's full episodes in the real environment, every step counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.agents.counting import CountSteps, StepLedger
from worldmodel.agents.policies import PureFunction, as_function
from worldmodel.agents.record import rebuild_env
from worldmodel.simulator import DEFAULT_TIME_LIMIT, Policy
from worldmodel.trajectory import Spec, Trajectory


def real_episodes(
    spec: Spec,
    policy: Policy,
    *,
    episodes: int,
    seed: int,
    ledger: StepLedger,
    phase: str = "evaluation",
    num_envs: int = 50,
    max_steps: int | None = None,
    wrap: Callable[[gym.Env], gym.Env] | None = None,
) -> list[Trajectory]:
    """Runs `episodes` real episodes to their end under a JAX policy; episode `i` is seeded `seed + i`.

    Which episodes are returned does not depend on how long they are. The policy is called for all running episodes at
    once; its key for a step depends on `seed`, `i` and the step alone, so `num_envs` changes speed only (and the last
    bits of a batched product).

    Args:
      spec: names the environment, and the spaces that actions are checked against.
      policy: `(obs [B, ...], keys [B]) -> action [B, ...]`; its `params`, where it has them, are passed as arguments.
      episodes: how many.
      seed: of episodes and of the policy's keys.
      ledger: where every step is counted.
      phase: on which phase of the ledger.
      num_envs: how many run at once.
      max_steps: steps after which an episode is cut (neither terminated nor truncated); None: the environment's own
        limit, or `DEFAULT_TIME_LIMIT` where it has none.
      wrap: puts a wrapper around every environment, such as `worldmodel.envs.perturbed.PerturbedEnv`.

    Raises:
      ValueError: logs of no known environment, an unknown id, fewer than one episode, an action outside its space.
    """
    limit = max_steps or spec.max_episode_steps or DEFAULT_TIME_LIMIT
    if min(episodes, num_envs, limit) < 1:
        raise ValueError(f"episodes, num_envs and max_steps must be at least 1, not {episodes}, {num_envs}, {limit}")
    function, params = as_function(policy)
    params, root = jax.device_put(params), jax.random.key(seed)
    discrete = spec.action_space["type"] == "Discrete"
    dtype = np.dtype(np.int64 if discrete else spec.action_space["dtype"])
    finished: dict[int, Trajectory] = {}
    slots: list[_Slot] = []
    try:
        for index in range(min(num_envs, episodes)):
            # The checker costs more than many an environment.
            env = rebuild_env(spec, disable_env_checker=True)
            env = env if wrap is None else wrap(env)
            slots.append(_Slot(CountSteps(env, ledger, phase), index, seed))
        waiting = iter(range(len(slots), episodes))
        batch = np.stack([slot.obs for slot in slots])
        while len(finished) < episodes:
            index, step = (np.array([getattr(s, name) for s in slots], np.int32) for name in ("index", "step"))
            actions = np.asarray(_act(function, params, root, index, step, batch)).astype(dtype)
            spec.check(actions, "action", where="policy")
            for row, slot in enumerate(slots):
                if slot.done:
                    continue
                slot.advance(actions[row], limit)
                if slot.done:
                    finished[slot.index] = slot.trajectory(spec, seed, phase)
                    following = next(waiting, None)
                    if following is not None:
                        slot.begin(following, seed)
                batch[row] = slot.obs
    finally:
        for slot in slots:
            slot.env.close()
    return [finished[i] for i in range(episodes)]


@partial(jax.jit, static_argnums=0)
def _act(function: PureFunction, params: PyTree, root: Array, index: Array, step: Array, obs: Array) -> Array:
    keys = jax.vmap(lambda i, t: jax.random.fold_in(jax.random.fold_in(root, i), t))(index, step)
    return function.run(params, obs, keys)


class _Slot:
    """One environment and the episode running in it."""

    def __init__(self, env: CountSteps, index: int, seed: int):
        self.env = env
        self.begin(index, seed)

    def begin(self, index: int, seed: int) -> None:
        self.index, self.step, self.done = index, 0, False
        self.terminated = self.truncated = False
        self.obs, _ = self.env.reset(seed=seed + index)
        self._observations, self._actions, self._rewards = [np.array(self.obs)], [], []

    def advance(self, action: Any, max_steps: int) -> None:
        self._actions.append(np.array(action))
        self.obs, reward, terminated, truncated, _ = self.env.step(action)
        self.step += 1
        self._observations.append(np.array(self.obs))
        self._rewards.append(reward)
        # A step can be both; what the task said outweighs the clock.
        self.terminated, self.truncated = bool(terminated), bool(truncated and not terminated)
        self.done = self.terminated or self.truncated or self.step >= max_steps

    def trajectory(self, spec: Spec, seed: int, phase: str) -> Trajectory:
        return Trajectory(
            observations=np.array(self._observations),
            actions=np.array(self._actions),
            rewards=np.array(self._rewards, np.float32),
            terminated=self.terminated,
            truncated=self.truncated,
            info={"id": f"{spec.env_id}/{phase}/{seed + self.index}", "source": phase, "seed": seed + self.index},
        )
