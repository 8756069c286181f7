"""PPO for several simulators and seeds in one program, and their deployment in reality, compiled with it."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from worldmodel._types import Array
from worldmodel.study.control import Learner
from worldmodel.study.control_task import TASKS
from worldmodel.study.control_world import World, Worlds


@partial(jax.jit, static_argnums=(0, 1))
def train_and_deploy(
    task: str, learner: Learner, iterations: Array, key: Array, training: World, deployed: World, eval_key: Array
) -> Array:
    """Returns `[U, M]` of the policies of `U` units in the worlds that they are deployed in.

    Args:
      task: its name.
      learner: hyperparameters.
      iterations: int32 `[]` updates of every unit; the learning rate falls to zero over them.
      key: `[U]`, of training.
      training: leaves `[U, num_envs, ...]`.
      deployed: leaves `[U, M, ...]`, one episode each.
      eval_key: `[U, M]`, of those episodes.
    """

    def one(key, training, deployed, eval_key):
        ppo = _ppo(Worlds(TASKS[task](), training), learner, iterations)
        state = ppo.init_state(key)
        state = jax.lax.fori_loop(0, iterations, lambda _, state: ppo.train_iteration(state), state)
        return _deploy(Worlds(TASKS[task](), deployed), ppo.actor, state.actor_ts.params, eval_key)

    with jax.numpy_dtype_promotion("standard"):  # rejax and gymnax mix types
        return jax.vmap(one)(key, training, deployed, eval_key)


def _ppo(env: Worlds, learner: Learner, iterations: Array) -> Any:
    from worldmodel.agents.rejax_ppo import BatchPPO, RejaxEnv

    updates = jnp.maximum(iterations * learner.num_epochs * learner.num_minibatches, 1)
    fields = {field.name: getattr(learner, field.name) for field in dataclasses.fields(learner)}
    rate = fields.pop("learning_rate")
    schedule: optax.Schedule = lambda count: rate * jnp.maximum(1.0 - count / updates, 0.0)  # noqa: E731
    return BatchPPO.create(
        env=RejaxEnv(env),
        env_params=None,
        total_timesteps=learner.iteration_steps,
        learning_rate=schedule,
        max_grad_norm=0.5,
        normalize_rewards=True,
        reward_normalization_discount=learner.gamma,
        **fields,
    )


def _deploy(env: Worlds, actor: Any, params: Any, key: Array) -> Array:
    """Return `[M]` of one episode in every world under the mode of the policy."""
    state, obs = env.reset(None, key)
    zero = jnp.zeros(key.shape[0])

    def going_on(carry):
        return ~carry[-1].all()

    def step(carry):
        state, obs, total, over = carry
        action = actor.apply(params, obs, method="_action_dist").mode()
        state, step = env.step(None, state, action)
        total = total + jnp.where(over, 0.0, step.reward)
        return state, step.obs, total, over | step.terminated | step.truncated

    return jax.lax.while_loop(going_on, step, (state, obs, zero, jnp.zeros(key.shape[0], bool)))[2]
