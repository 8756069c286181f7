"""PPO (`rejax`), compiled into one program with the environment it learns in.

The learner is rejax's; what is ours is the natively batched environment, and that a time limit is not an end:
the value of the last observation is added to the reward of a truncated step (Pardo et al. 2018,
arXiv 1712.00378).
"""

from __future__ import annotations

import dataclasses
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel._types import Array, ArrayLike, Key, PyTree
from worldmodel.agents.batch_env import BatchEnv, Interface


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """Hyperparameters; `total_steps` counts environment steps of all environments together.

    The learning rate falls linearly to zero.
    """

    total_steps: int = 150_000
    num_envs: int = 24
    num_steps: int = 32
    num_epochs: int = 8
    num_minibatches: int = 4
    learning_rate: float = 1e-3
    gamma: float = 0.98
    gae_lambda: float = 0.95
    clip_eps: float = 0.2
    ent_coef: float = 0.0
    evaluations: int = 8

    def __post_init__(self):
        if self.iteration_steps % self.num_minibatches:
            raise ValueError(
                f"{self.num_envs} environments x {self.num_steps} steps cannot be split into "
                f"{self.num_minibatches} equal minibatches"
            )

    @property
    def iteration_steps(self) -> int:
        """Environment steps between two updates."""
        return self.num_envs * self.num_steps

    @property
    def iterations(self) -> int:
        """Updates in all: enough for `total_steps`, which are rounded up to whole iterations."""
        return max(1, -(-self.total_steps // self.iteration_steps))


@dataclasses.dataclass(frozen=True)
class LearnedPolicy:
    """A trained policy as a pure function of environment observations: always the mode of its distribution."""

    interface: Interface
    network: Any
    params: PyTree

    def __call__(self, obs: ArrayLike, key: Key[Array, " B"] | None, *, params: PyTree = None) -> Array:
        """Environment observations `[B, ...]` -> environment actions `[B, ...]`; `params` None: its own."""
        del key
        features = self.interface.observe(obs)
        with jax.numpy_dtype_promotion("standard"):
            distribution = self.network.apply(
                self.params if params is None else params, features, method="_action_dist"
            )
        return self.interface.act(distribution.mode())


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The policy after each of `config.evaluations` shares of training, the last one last.

    steps: int `[E]`, environment steps taken; train_return: float `[E]`, mean return of the episodes that ended within
    each share, NaN where none did.
    """

    policies: tuple[LearnedPolicy, ...]
    steps: np.ndarray
    train_return: np.ndarray


def train_ppo(env: BatchEnv, config: PPOConfig, *, params: PyTree, key: Key[Array, ""]) -> TrainingResult:
    """Trains in `env` (simulated: `params` of its dynamics; real: None)."""
    marks = np.unique(np.linspace(0, config.iterations, config.evaluations + 1).round().astype(int))

    def share(state, iterations):
        none = jnp.zeros((), jnp.float32)
        state = state.replace(episode=state.episode.replace(total=none, ended=none))
        return jax.lax.fori_loop(0, iterations, lambda _, state: learner.train_iteration(state), state)

    with jax.numpy_dtype_promotion("standard"):  # rejax mixes types
        learner = _make_learner(env, config, params)
        run = jax.jit(share, donate_argnums=0)
        state = jax.jit(learner.init_state)(key)
        policies, returns = [], []
        for iterations in np.diff(marks):
            state = run(state, int(iterations))
            actor = jax.tree.map(np.asarray, state.actor_ts.params)
            policies.append(LearnedPolicy(env.interface, learner.actor, actor))
            ended = float(state.episode.ended)
            returns.append(float(state.episode.total) / ended if ended else float("nan"))
    return TrainingResult(tuple(policies), marks[1:] * config.iteration_steps, np.array(returns))


def make_actor(interface: Interface) -> Any:
    """The actor's network, without parameters."""
    from worldmodel.agents.rejax_ppo import actor_and_critic

    return actor_and_critic(interface)["actor"]


def _make_learner(env: BatchEnv, config: PPOConfig, params: PyTree) -> Any:
    import optax

    from worldmodel.agents.rejax_ppo import BatchPPO, RejaxEnv

    updates = config.iterations * config.num_epochs * config.num_minibatches
    return BatchPPO.create(
        env=RejaxEnv(env),
        env_params=params,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_epochs=config.num_epochs,
        num_minibatches=config.num_minibatches,
        total_timesteps=config.total_steps,
        learning_rate=optax.linear_schedule(config.learning_rate, 0.0, updates),
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_eps=config.clip_eps,
        ent_coef=config.ent_coef,
        max_grad_norm=0.5,
        normalize_rewards=True,
        reward_normalization_discount=config.gamma,
    )


def save_policy(path: Path, policy: LearnedPolicy) -> None:
    """Writes the parameters as a plain `.npz`, whole or not at all."""
    leaves = {"/".join(_keys(where)): leaf for where, leaf in jax.tree_util.tree_leaves_with_path(policy.params)}
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    np.savez(temporary, **leaves)
    os.replace(temporary, path)


def load_policy(path: Path, interface: Interface) -> LearnedPolicy:
    """The inverse of `save_policy`; never unpickles. `ValueError` where the file holds no policy of this interface."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; a quickstart or train_ppo with save_policy makes it")
    params: dict[str, Any] = {}
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                *folders, last = name.split("/")
                node = params
                for folder in folders:
                    node = node.setdefault(folder, {})
                node[last] = file[name]
    except (ValueError, AttributeError, EOFError, zipfile.BadZipFile):
        raise ValueError(f"{path}: holds no policy") from None
    actor, key = make_actor(interface), jax.random.key(0)
    wanted = jax.eval_shape(actor.init, key, jnp.zeros((1, interface.obs_size)), key)
    if jax.tree.map(jnp.shape, params) != jax.tree.map(jnp.shape, wanted):
        raise ValueError(f"{path}: holds no policy of {interface.spec.env_id or 'these spaces'}")
    return LearnedPolicy(interface, actor, params)


def _keys(where: Any) -> list[str]:
    return [str(entry.key) for entry in where]
