"""Real evaluation: a policy's full episodes in the real environment, every step counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import jax
import numpy as np

from worldmodel._types import Array, PyTree
from worldmodel.agents.counting import CountSteps, StepLedger
from worldmodel.agents.policies import PureFunction, as_function
from worldmodel.agents.record import rebuild_env
from worldmodel.simulator import DEFAULT_TIME_LIMIT, Policy
from worldmodel.trajectory import Spec, Trajectory


@runtime_checkable
class PolicyWithMemory(Protocol):
    """A policy that remembers each episode, a planner for one: pure functions of `params`, batched, hashable."""

    @property
    def params(self) -> PyTree:
        """What its functions take first."""
        ...

    def begin(self, params: PyTree, obs: PyTree, key: Array) -> PyTree:
        """The memory of episodes that begin at observations, columns `[B, ...]`; a key for each row."""
        ...

    def act(self, params: PyTree, memory: PyTree, obs: PyTree, key: Array) -> tuple[PyTree, PyTree]:
        """Actions `[B, ...]`, and the memory after they were chosen."""
        ...

    def observe(
        self, params: PyTree, memory: PyTree, action: PyTree, obs: PyTree, reward: Array, terminated: Array
    ) -> PyTree:
        """The memory after the step that really happened."""
        ...

    def replace_rows(self, where: Array, fresh: PyTree, memory: PyTree) -> PyTree:
        """Rows of `fresh` where true, of `memory` elsewhere."""
        ...


def real_episodes(
    spec: Spec,
    policy: Policy | PolicyWithMemory,
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
        Or one with a memory, which sees every step that happens.
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
    actor = _Remembering(policy, seed) if isinstance(policy, PolicyWithMemory) else _Plain(policy, seed)
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
        rewards, begun = np.zeros(len(slots), np.float32), np.ones(len(slots), np.bool_)
        while len(finished) < episodes:
            index, step = (np.array([getattr(s, name) for s in slots], np.int32) for name in ("index", "step"))
            actions = np.asarray(actor.act(index, step, batch, rewards, begun)).astype(dtype)
            spec.check(actions, "action", where="policy")
            begun = np.zeros(len(slots), np.bool_)
            for row, slot in enumerate(slots):
                if slot.done:
                    continue
                rewards[row] = slot.advance(actions[row], limit)
                if slot.done:
                    finished[slot.index] = slot.trajectory(spec, seed, phase)
                    following = next(waiting, None)
                    if following is not None:
                        slot.begin(following, seed)
                        begun[row] = True
                batch[row] = slot.obs
    finally:
        for slot in slots:
            slot.env.close()
    return [finished[i] for i in range(episodes)]


class _Plain:
    """A policy that is a function of the present observation."""

    def __init__(self, policy: Policy, seed: int):
        self._function, params = as_function(policy)
        self._params, self._root = jax.device_put(params), jax.random.key(seed)

    def act(self, index: np.ndarray, step: np.ndarray, obs: np.ndarray, rewards: Any, begun: Any) -> Array:
        del rewards, begun
        return _act(self._function, self._params, self._root, index, step, obs)


class _Remembering:
    """A policy with a memory, and the memory of the episodes that run."""

    def __init__(self, policy: PolicyWithMemory, seed: int):
        self._policy, self._params = policy, jax.device_put(policy.params)
        self._root = jax.random.key(seed)
        self._memory: PyTree = None
        self._action: PyTree = None

    def act(
        self, index: np.ndarray, step: np.ndarray, obs: np.ndarray, rewards: np.ndarray, begun: np.ndarray
    ) -> Array:
        """Actions, after the last step (`rewards`) is absorbed, and new memories are made where episodes begin."""
        if self._memory is not None:
            self._memory = _absorb(self._policy, self._params, self._memory, self._action, obs, rewards)
        if begun.any():
            fresh = _begin(self._policy, self._params, self._root, index, obs)
            old = fresh if self._memory is None else self._memory
            self._memory = _replace(self._policy, begun, fresh, old)
        self._action, self._memory = _plan(self._policy, self._params, self._memory, self._root, index, step, obs)
        return self._action


def _keys(root: Array, index: Array, step: Array) -> Array:
    return jax.vmap(lambda i, t: jax.random.fold_in(jax.random.fold_in(root, i), t))(index, step)


@partial(jax.jit, static_argnums=0)
def _act(function: PureFunction, params: PyTree, root: Array, index: Array, step: Array, obs: Array) -> Array:
    return function.run(params, obs, _keys(root, index, step))


@partial(jax.jit, static_argnums=0)
def _begin(policy: PolicyWithMemory, params: PyTree, root: Array, index: Array, obs: Array) -> PyTree:
    return policy.begin(params, obs, _keys(root, index, jax.numpy.full_like(index, -1)))


@partial(jax.jit, static_argnums=0)
def _replace(policy: PolicyWithMemory, where: Array, fresh: PyTree, memory: PyTree) -> PyTree:
    return policy.replace_rows(where, fresh, memory)


@partial(jax.jit, static_argnums=0)
def _absorb(
    policy: PolicyWithMemory, params: PyTree, memory: PyTree, action: PyTree, obs: Array, reward: Array
) -> PyTree:
    # A row that ended begins anew before it acts again.
    return policy.observe(params, memory, action, obs, reward, jax.numpy.zeros(reward.shape, bool))


@partial(jax.jit, static_argnums=0)
def _plan(
    policy: PolicyWithMemory,
    params: PyTree,
    memory: PyTree,
    root: Array,
    index: Array,
    step: Array,
    obs: Array,
) -> tuple[PyTree, PyTree]:
    return policy.act(params, memory, obs, _keys(root, index, step))


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

    def advance(self, action: Any, max_steps: int) -> float:
        """One step; its reward."""
        self._actions.append(np.array(action))
        self.obs, reward, terminated, truncated, _ = self.env.step(action)
        self.step += 1
        self._observations.append(np.array(self.obs))
        self._rewards.append(reward)
        # A step can be both; what the task said outweighs the clock.
        self.terminated, self.truncated = bool(terminated), bool(truncated and not terminated)
        self.done = self.terminated or self.truncated or self.step >= max_steps
        return float(reward)

    def trajectory(self, spec: Spec, seed: int, phase: str) -> Trajectory:
        return Trajectory(
            observations=np.array(self._observations),
            actions=np.array(self._actions),
            rewards=np.array(self._rewards, np.float32),
            terminated=self.terminated,
            truncated=self.truncated,
            info={"id": f"{spec.env_id}/{phase}/{seed + self.index}", "source": phase, "seed": seed + self.index},
        )
