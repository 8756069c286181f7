"""The seam to `rejax` (heavy to import: only `agents.ppo` imports this, late)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from rejax.algos.algorithm import register_init
from rejax.algos.ppo import PPO, Trajectory

from worldmodel._types import Array
from worldmodel.agents.batch_env import BatchEnv, Interface


class RejaxEnv:
    """What rejax asks of an environment object, around a `BatchEnv` (or its interface alone)."""

    def __init__(self, env: BatchEnv | Interface):
        self.batch: Any = env
        self.interface = env if isinstance(env, Interface) else env.interface
        self.default_params = None

    def __deepcopy__(self, memo: dict) -> RejaxEnv:
        """Itself: rejax copies its configuration, and host environments cannot be."""
        del memo
        return self

    def reset(self, key: Array, params: Any) -> Any:
        """All environments at once; `key` has one key per environment."""
        return self.batch.reset(params, key)

    def step(self, key: Array, state: Any, action: Array, params: Any) -> Any:
        """All environments at once; the state carries the keys."""
        del key
        return self.batch.step(params, state, action)

    def observation_space(self, params: Any) -> spaces.Box:
        """Flat features."""
        del params
        return spaces.Box(-10.0, 10.0, (self.interface.obs_size,), jnp.float32)

    def action_space(self, params: Any) -> spaces.Discrete | spaces.Box:
        """Categories, or numbers in [-1, 1]."""
        del params
        if self.interface.discrete:
            return spaces.Discrete(self.interface.action_size)
        return spaces.Box(-1.0, 1.0, (self.interface.action_size,), jnp.float32)


def actor_and_critic(interface: Interface) -> dict[str, Any]:
    """Rejax's default networks for this interface."""
    return PPO.create_agent({}, RejaxEnv(interface), None)


@struct.dataclass
class EpisodeSums:
    """Returns of running episodes float32 `[N]`; sum and number of the finished ones."""

    running: Array
    total: Array
    ended: Array


class BatchPPO(PPO):
    """rejax's PPO over a natively batched environment, with a bootstrap at time limits.

    `learning_rate` may be an optax schedule.
    """

    env: Any = struct.field(pytree_node=False)
    learning_rate: Any = struct.field(pytree_node=False, default=3e-4)

    @register_init
    def initialize_env_state(self, rng: Array) -> dict[str, Any]:
        """First observations of all environments, and the sums of returns."""
        state, obs = self.env.batch.reset(self.env_params, jax.random.split(rng, self.num_envs))
        zero = jnp.zeros((), jnp.float32)
        return {
            "env_state": state,
            "last_obs": obs,
            "global_step": jnp.zeros((), jnp.int32),
            "last_done": jnp.zeros(self.num_envs, bool),
            "episode": EpisodeSums(jnp.zeros(self.num_envs, jnp.float32), zero, zero),
        }

    def collect_trajectories(self, ts: Any) -> tuple[Any, Trajectory]:
        """`num_steps` steps of every environment under the present policy."""
        actor: Any = self.actor
        critic: Any = self.critic

        def env_step(ts, _):
            rng, action_rng = jax.random.split(ts.rng)
            action, log_prob = actor.apply(ts.actor_ts.params, ts.last_obs, action_rng, method="action_log_prob")
            value = critic.apply(ts.critic_ts.params, ts.last_obs)
            env_state, step = self.env.batch.step(self.env_params, ts.env_state, action)
            done = step.terminated | step.truncated
            scale_state, reward = self.update_and_normalize_rew(ts.rew_rms_state, step.reward, done)
            final_value = critic.apply(ts.critic_ts.params, step.final_obs)
            reward = reward + self.gamma * final_value * step.truncated
            transition = Trajectory(ts.last_obs, action, log_prob, reward, value, done)
            ts = ts.replace(
                rng=rng,
                env_state=env_state,
                last_obs=step.obs,
                last_done=done,
                rew_rms_state=scale_state,
                episode=_count(ts.episode, step.reward, done),
                global_step=ts.global_step + self.num_envs,
            )
            return ts, transition

        return jax.lax.scan(env_step, ts, None, self.num_steps)


def _count(sums: EpisodeSums, reward: Array, done: Array) -> EpisodeSums:
    running = sums.running + reward
    return EpisodeSums(
        jnp.where(done, 0.0, running),
        sums.total + jnp.sum(running * done),
        sums.ended + jnp.sum(done).astype(jnp.float32),
    )
