"""Models that tests stand on, made in seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from worldmodel.agents.ppo import PPOConfig
from worldmodel.agents.record import record
from worldmodel.corpus import Corpus, open_corpus, write_corpus
from worldmodel.corpus.columns import Columns
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import StepConfig, init_params
from worldmodel.model.transformer import TrunkConfig
from worldmodel.quickstart import QuickstartConfig, quickstart
from worldmodel.sources.chat_episode import TEXT
from worldmodel.sources.chat_messages import Call, action_text
from worldmodel.training import TrainingConfig
from worldmodel.training.checkpoint import Checkpoints, WorldModel, describe, write_json, write_starts
from worldmodel.training.claim import codec_of
from worldmodel.training.step import TrainState, make_optimizer
from worldmodel.training.text import TEXT_PRESETS, train_texts
from worldmodel.trajectory import Spec, Trajectory

SMALL = StepConfig(
    trunk=TrunkConfig(width=16, layers=2, heads=2, kv_heads=1, mlp=16, window=4),
    chain_hidden=8,
    components=2,
    head_hidden=8,
    members=2,
)
"""A model that compiles in seconds; a window of 4 rolls over within any episode."""


@cache
def untrained_model(env_id: str = "CartPole-v1", seed: int = 0) -> WorldModel:
    """A model of random weights whose codec and starts come from 20 random episodes of the real environment."""
    spec, episodes = record(env_id, behaviours=["random"], episodes=20, seed=seed, max_steps=100)
    columns = Columns.from_trajectories(episodes)
    codec = codec_of(spec, columns)
    starts = jnp.asarray(columns.observations[columns.observation_starts])
    params = {"members": init_params(SMALL, codec, seed), "starts": starts}
    return WorldModel(spec, StepDynamics(SMALL, codec), params, Path("untrained"), 0)


@cache
def tiny_columns(env_id: str, *, episodes: int, seed: int) -> tuple[Spec, Columns]:
    """A few random episodes of a real environment."""
    spec, trajectories = record(env_id, behaviours=["random"], episodes=episodes, seed=seed, max_steps=100)
    return spec, Columns.from_trajectories(trajectories)


def untrained_run(path: Path, env_id: str = "CartPole-v1", seed: int = 0) -> Path:
    """The same model saved as the run folder `path`, as training would leave it before its first step."""
    model = untrained_model(env_id, seed)
    path.mkdir(parents=True)
    write_json(path / "config.json", describe(model.spec, model.dynamics.codec, SMALL, {}))
    write_starts(path, np.asarray(model.params["starts"]))
    members = model.params["members"]
    optimizer = make_optimizer(learning_rate=1e-3, warmup=1, steps=2, weight_decay=0.0, clip=1.0)
    checkpoints = Checkpoints(path)
    checkpoints.save(0, TrainState(members, jax.jit(optimizer.init)(members), jnp.zeros((), jnp.int32)), {})
    checkpoints.close()
    return path


def counting_episodes(count: int) -> Iterator[Trajectory]:
    """A world of texts: an agent adds numbers to a sum that it is told; it ends with the action "stop"."""
    for number in range(count):
        rng = np.random.default_rng(number)
        total, actions, observations = number % 7, [], [f"start at {number % 7}"]
        for _ in range(int(rng.integers(2, 6))):
            added = int(rng.integers(1, 9))
            total += added
            called = action_text("", [Call("add", {"n": added})])
            actions.append(called if rng.random() < 0.2 else f"add {added}")
            observations.append(f"the sum is {total}")
        stops = number % 2 == 0
        yield Trajectory(
            observations=np.array([*observations, *(["done"] if stops else [])], np.object_),
            actions=np.array([*actions, *(["stop"] if stops else [])], np.object_),
            rewards=np.array([0.0] * len(actions) + ([total / 4] if stops else []), np.float32),
            terminated=stops,
            truncated=False,
            context={"system": "You count.", "instruction": f"start at {number % 7}"},
            info={"id": f"count-{number}", "task": f"from-{number % 7}", "policy": "random"},
        )


def text_corpus(path: Path, count: int = 60) -> Corpus:
    """Such episodes on disk."""
    write_corpus(path, TEXT, counting_episodes(count), provenance={"made_by": "tests"})
    return open_corpus(path)


def make_tiny_text_run(path: Path) -> None:
    """A language world model of them, whose tokens are bytes; the corpus lies in its folder."""
    config = dataclasses.replace(TEXT_PRESETS["debug"], steps=120, checkpoint_every=60, learning_rate=1e-2)
    train_texts(text_corpus(path / "corpus"), path, config)


def make_tiny_run(path: Path) -> None:
    """A quickstart on CartPole, smaller than `--quick`: every file of a real run, numbers that mean little."""
    config = QuickstartConfig(
        episodes=30,
        training=TrainingConfig(model=SMALL, steps=60, batch_size=16, length=8, warmup=10, checkpoint_every=30),
        policy=PPOConfig(total_steps=2_048, num_envs=8, num_steps=32, evaluations=6),
        deployment_episodes=5,
        panel_episodes=4,
        simulated_episodes=6,
    )
    quickstart(config, path)
