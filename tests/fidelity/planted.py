"""A world whose truth is known: a model that is right but for what a test plants in it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from tests.support import SMALL
from worldmodel.corpus.columns import Columns
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import StepConfig
from worldmodel.training.checkpoint import WorldModel
from worldmodel.training.claim import codec_of
from worldmodel.trajectory import Spec, Trajectory

PUSH = np.array([0.1, 0.05, 0.0], np.float32)
CONSTANT = np.float32(0.7)
END = np.float32(1.0)
LIMIT = 60
SPEC = Spec(
    observation_space={"type": "Box", "shape": [3], "dtype": "float32", "low": [None] * 3, "high": [None] * 3},
    action_space={"type": "Discrete", "n": 2, "start": 0},
    max_episode_steps=LIMIT,
)


def following(obs, before, action):
    """Second-order: the next observation needs the one before. The third dimension never changes."""
    return obs + np.float32(0.9) * (obs - before) + (2 * action - 1).astype(np.float32)[..., None] * PUSH


def log_episode(seed: int, *, noise: float = 0.0, steps: int = LIMIT) -> Trajectory:
    """Begins at rest, is pushed at random, pays the first dimension, ends when that exceeds `END`."""
    rng = np.random.default_rng(seed)
    first = np.array([*rng.normal(0.0, 0.2, 2), CONSTANT], np.float32)
    obs, before, actions, ended = [first], first, [], False
    while not ended and len(actions) < steps:
        action = rng.integers(2)
        after = following(obs[-1], before, action) + np.float32([*rng.normal(0.0, 1.0, 2), 0.0]) * np.float32(noise)
        before = obs[-1]
        obs.append(after)
        actions.append(action)
        ended = bool(after[0] > END)
    observations = np.array(obs)
    return Trajectory(
        observations=observations,
        actions=np.array(actions),
        rewards=observations[1:, 0],
        terminated=ended,
        truncated=len(actions) == LIMIT and not ended,
        info={"id": str(seed)},
    )


class PlantedEnv(gymnasium.Env):
    """The same as a real environment, `Planted-v0`."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = self.before = np.array([*self.np_random.normal(0.0, 0.2, 2), CONSTANT], np.float32)
        return self.obs, {}

    def step(self, action):
        self.obs, self.before = following(self.obs, self.before, np.asarray(action)), self.obs
        return self.obs, float(self.obs[0]), bool(self.obs[0] > END), False, {}


gymnasium.register("Planted-v0", entry_point=PlantedEnv, max_episode_steps=LIMIT)
REAL = dataclasses.replace(SPEC, env_id="Planted-v0")


def log(episodes: int, *, noise: float = 0.0, first: int = 0) -> Columns:
    return Columns.from_trajectories(log_episode(first + i, noise=noise) for i in range(episodes))


@struct.dataclass
class PlantedState:
    obs: Any
    before: Any


@dataclasses.dataclass(frozen=True)
class Planted(StepDynamics):
    """The true dynamics; member `m` adds `bias[m]` to every step and gives every observation `log_prob[m]`.

    All that is planted is in the parameters, so that the tests compile it once.
    """

    def initial(self, params, key, context=None):
        return self.start_at(params, key, jnp.tile(params["starts"][:1], (key.shape[0], 1)))

    def start_at(self, params, key, obs, last_reward=None, context=None):
        return PlantedState(obs, obs), obs

    def take_rows(self, state, rows):
        return jax.tree.map(lambda leaf: leaf[rows], state)

    def replace_rows(self, where, fresh, state):
        return jax.tree.map(lambda new, old: jnp.where(where[:, None], new, old), fresh, state)

    def predict(self, params, state, action):
        obs = following(state.obs, state.before, action) + params["members"]["bias"][:, None]
        return obs, obs[..., 0], self._end(params, obs).astype(jnp.float32)

    def advance(self, params, state, action, key, *, uncertainty=False):
        disturbance = jax.vmap(lambda k: jax.random.normal(k, (3,)))(key) * np.float32([1, 1, 0])
        obs = self.predict(params, state, action)[0][0] + params["noise"] * disturbance
        end = self._end(params, obs)
        return PlantedState(obs, state.obs), obs, obs[:, 0], end, {"end_probability": end.astype(jnp.float32)}

    def score(self, params, state, action, obs, reward, terminated):
        said = params["members"]["log_prob"]
        return jnp.broadcast_to(said[:, None, None], (*said.shape, obs.shape[0], 3))

    def observe(self, params, state, action, obs, reward, terminated):
        return PlantedState(obs, state.obs)

    def _end(self, params, obs):
        return (obs[..., 0] > END) & params["ends"]


def planted_world(
    columns: Columns,
    *,
    bias: tuple[float, ...] = (0.0, 0.0),
    log_prob: tuple[float, ...] | None = None,
    spec: Spec = SPEC,
    noise: float = 0.0,
    ends: bool = True,
) -> WorldModel:
    """One member for each of `bias`, which is added to the first dimension."""
    codec = codec_of(spec, columns)
    config: StepConfig = dataclasses.replace(SMALL, members=len(bias))
    members = {
        "bias": jnp.array([[b, 0.0, 0.0] for b in bias], jnp.float32),
        "log_prob": jnp.array(log_prob or [0.0] * len(bias), jnp.float32),
    }
    params = {
        "members": members,
        "starts": jnp.array([[0.0, 0.0, CONSTANT]], jnp.float32),
        "noise": jnp.float32(noise),
        "ends": jnp.array(ends),
    }
    return WorldModel(spec, Planted(config, codec), params, Path("planted"), 0)
