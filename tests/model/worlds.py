"""Two small environments' codecs, and a small ensemble of models with random weights on each."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.codec import StepCodec, fit_codec
from worldmodel.model.step import StepConfig, init_params
from worldmodel.model.transformer import TrunkConfig
from worldmodel.trajectory import Spec

WINDOW = 5
CONFIG = StepConfig(
    trunk=TrunkConfig(width=12, layers=2, heads=2, kv_heads=1, mlp=17, window=WINDOW),
    chain_hidden=7,
    components=2,
    head_hidden=11,
    members=2,
)
THREE = {
    "type": "Box",
    "shape": [3],
    "dtype": "float32",
    "low": [None, -90.0, None],
    "high": [None, 90.0, None],
}
PAIR = {"type": "Box", "shape": [2], "dtype": "float32", "low": [-1.0, -2.0], "high": [1.0, 2.0]}


class World(NamedTuple):
    """A codec and a model; a log of `B` rows: obs `[B, T+1, ...]`, action, reward and terminated `[B, T]`."""

    codec: StepCodec
    config: StepConfig
    params: Any
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array


def random_params(codec: StepCodec, seed: int) -> Any:
    """Initial parameters of all members, moved so far that every one of them matters."""
    rng = np.random.default_rng(seed)

    def move(leaf):
        spread = 0.3 if leaf.ndim == 2 else leaf.shape[-2] ** -0.5  # two axes: members and a bias or a norm's scale
        return leaf + jnp.asarray(rng.normal(0.0, spread, size=leaf.shape), jnp.float32)

    return jax.tree.map(move, init_params(CONFIG, codec, seed))


@cache
def make_world(kind: str, *, batch: int = 8, steps: int = 3 * WINDOW + 13) -> World:
    """`box`: three numbers (the last never changes) under three categories; `discrete`: the other way round."""
    rng = np.random.default_rng(0)
    shape = (batch, steps + 1)
    if kind == "box":
        obs = np.cumsum(rng.normal(size=(*shape, 3)) * [0.3, 10.0, 0.0], axis=1) + np.array([-5.0, 1.0, 7.0])
        obs[..., 1] = np.clip(obs[..., 1], -90, 90)
        obs, action = obs.astype(np.float32), rng.integers(2, 5, size=(batch, steps))
        spec = Spec(THREE, {"type": "Discrete", "n": 3, "start": 2})
    else:
        obs = rng.integers(-3, 4, size=shape)
        action = rng.uniform(-1, 1, size=(batch, steps, 2)).astype(np.float32)
        spec = Spec({"type": "Discrete", "n": 7, "start": -3}, PAIR)
    reward = rng.normal(2.0, 3.0, size=(batch, steps)).astype(np.float32)
    terminated = rng.random(size=(batch, steps)) < 0.2
    columns = (obs[:, :-1], obs[:, 1:], action, reward, terminated)
    codec = fit_codec(spec, *(x.reshape(-1, *x.shape[2:]) for x in columns))
    params = {"members": random_params(codec, 1), "starts": obs[:, 0]}
    return World(codec, CONFIG, params, *map(jnp.asarray, (obs, action, reward, terminated)))


@pytest.fixture(scope="session", params=["box", "discrete"])
def world(request: pytest.FixtureRequest) -> World:
    return make_world(request.param)
