"""Three small environments' codecs, and a small ensemble of models with random weights on each."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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


TREE = {
    "type": "Dict",
    "spaces": {
        "place": {"type": "Box", "shape": [2], "dtype": "float32", "low": [None, -90.0], "high": [None, 90.0]},
        "grid": {"type": "Box", "shape": [2, 2, 2], "dtype": "uint8", "low": [0] * 8, "high": [255] * 8},
        "rest": {
            "type": "Tuple",
            "spaces": [
                {"type": "MultiDiscrete", "nvec": [3, 11], "start": [0, -4]},
                {"type": "MultiBinary", "shape": [2]},
                {"type": "Discrete", "n": 5, "start": 2},
            ],
        },
    },
}
LEVERS = {
    "type": "Tuple",
    "spaces": [{"type": "MultiDiscrete", "nvec": [3, 2], "start": [1, 0]}, {**PAIR, "shape": [2]}],
}


SCENE = {
    "type": "Dict",
    "spaces": {
        "place": {"type": "Box", "shape": [1], "dtype": "float32", "low": [None], "high": [None]},
        "camera": {"type": "Box", "shape": [22, 17, 3], "dtype": "uint8", "low": 0.0, "high": 255.0},
        "depth": {"type": "Box", "shape": [33, 32, 1], "dtype": "uint8", "low": 0.0, "high": 255.0},
    },
}


class World(NamedTuple):
    """A codec and a model; a log of `B` rows: obs columns `[B, T+1, ...]`, action, reward and terminated `[B, T]`."""

    codec: StepCodec
    config: StepConfig
    params: Any
    obs: Any
    action: Any
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
    """`box`: three numbers (the last never changes) under three categories; `discrete`: the other way round.

    `tree`: numbers, cells of pairs, categories (the last bit never changes) under categories and numbers.
    `scene`: a number, a picture of few colours and one of many levels under numbers.
    """
    rng = np.random.default_rng(0)
    shape = (batch, steps + 1)
    if kind == "box":
        obs = np.cumsum(rng.normal(size=(*shape, 3)) * [0.3, 10.0, 0.0], axis=1) + np.array([-5.0, 1.0, 7.0])
        obs[..., 1] = np.clip(obs[..., 1], -90, 90)
        obs, action = obs.astype(np.float32), rng.integers(2, 5, size=(batch, steps))
        spec = Spec(THREE, {"type": "Discrete", "n": 3, "start": 2})
    elif kind == "tree":
        obs, action = _tree_logs(rng, batch, steps)
        spec = Spec(TREE, LEVERS)
    elif kind == "scene":
        obs, action = _scene_logs(rng, batch, steps)
        spec = Spec(SCENE, PAIR)
    else:
        obs = rng.integers(-3, 4, size=shape)
        action = rng.uniform(-1, 1, size=(batch, steps, 2)).astype(np.float32)
        spec = Spec({"type": "Discrete", "n": 7, "start": -3}, PAIR)
    reward = rng.normal(2.0, 3.0, size=(batch, steps)).astype(np.float32)
    terminated = rng.random(size=(batch, steps)) < 0.2
    if kind == "tree":  # rewards of few values
        reward = np.round(reward / 3.0).clip(-1, 1).astype(np.float32)
    columns = (rows(obs, np.s_[:, :-1]), rows(obs, np.s_[:, 1:]), action, reward, terminated)
    codec = fit_codec(spec, *jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), columns))
    params = {"members": random_params(codec, 1), "starts": rows(obs, np.s_[:, 0])}
    return World(codec, CONFIG, params, *jax.tree.map(jnp.asarray, (obs, action, reward, terminated)))


def earlier(world: World, obs: Any) -> Any:
    """A step before each of `obs` `[B, T, ...]`, at the first one itself; None for a model that needs none."""
    if not world.codec.looks_back:
        return None
    return jax.tree.map(lambda column: jnp.concatenate([column[:, :1], column[:, :-1]], axis=1), obs)


def rows(columns, at):
    """`column[at]` of every column."""
    return jax.tree.map(lambda column: column[at], columns)


def _tree_logs(rng, batch, steps):
    shape = (batch, steps + 1)
    place = np.cumsum(rng.normal(size=(*shape, 2)) * [0.3, 10.0], axis=1).astype(np.float32)
    kinds = np.array([[0, 0], [1, 3], [1, 5], [8, 0]], np.uint8)
    bits = rng.integers(0, 2, size=(*shape, 2)).astype(np.int8)
    bits[..., 1] = 1
    rest = (rng.integers([0, -4], [3, 7], size=(*shape, 2)), bits, rng.integers(2, 7, size=shape))
    grid = kinds[rng.integers(0, 4, size=(*shape, 2, 2))]
    obs = {"place": np.clip(place, -90, 90), "grid": grid, "rest": rest}
    levers = rng.integers([1, 0], [4, 2], size=(batch, steps, 2))
    return obs, (levers, rng.uniform(-1, 1, size=(batch, steps, 2)).astype(np.float32))


def _scene_logs(rng, batch, steps):
    shape = (batch, steps + 1)
    colours = rng.integers(0, 256, size=(5, 3)).astype(np.uint8)
    still = rng.random(size=(batch, 1, 22, 17)) < 0.9
    kinds = np.where(still, rng.integers(0, 5, size=(batch, 1, 22, 17)), rng.integers(0, 5, size=(*shape, 22, 17)))
    depth = np.clip(np.cumsum(rng.integers(-9, 10, size=(*shape, 33, 32, 1)), axis=1) + 128, 0, 255).astype(np.uint8)
    place = np.cumsum(rng.normal(size=(*shape, 1)), axis=1).astype(np.float32)
    obs = {"place": place, "camera": colours[kinds], "depth": depth}
    return obs, rng.uniform(-1, 1, size=(batch, steps, 2)).astype(np.float32)
