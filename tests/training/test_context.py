"""Episodes with a context: what the model learns from it, and worlds that it is asked for."""

import dataclasses

import numpy as np
import pytest

from worldmodel.corpus import Columns, open_corpus, write_corpus
from worldmodel.envs.gymnasium import SimEnv
from worldmodel.envs.vector import SimVectorEnv
from worldmodel.fidelity.single_steps import one_step
from worldmodel.spaces import box
from worldmodel.training import TrainingConfig, load, train
from worldmodel.training.presets import PRESETS
from worldmodel.trajectory import Spec, Trajectory

LENGTH = 16
SPEC = Spec(box((1,), "float32"), box((1,), "float32", -1.0, 1.0))


def episodes(count, seed):
    """The action pushes as hard, and in the direction, that the context says; the task has no influence."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        gain, actions = float(rng.choice([-1.0, 1.0])), rng.uniform(-1, 1, (LENGTH, 1)).astype(np.float32)
        steps = gain * actions + 0.05 * rng.normal(size=actions.shape)
        yield Trajectory(
            observations=np.concatenate([np.zeros((1, 1)), np.cumsum(steps, axis=0)]).astype(np.float32),
            actions=actions,
            rewards=actions[:, 0],
            terminated=False,
            truncated=True,
            context={"gain": gain, "task": "push" if i % 2 else "pull", "units": "m"},
            info={"id": f"{seed}-{i}"},
        )


CONFIG = dataclasses.replace(
    PRESETS["debug"], steps=500, batch_size=16, checkpoint_every=500, evaluation_batches=0, learning_rate=1e-2
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("context") / "corpus"
    write_corpus(path, SPEC, episodes(64, 0), provenance={})
    return open_corpus(path)


@pytest.fixture(scope="module")
def world(corpus, tmp_path_factory):
    return train(corpus.stored("train"), SPEC, tmp_path_factory.mktemp("context") / "run", CONFIG)


@pytest.mark.slow
def test_the_context_is_read_and_a_shuffled_one_misleads(world):
    fresh = Columns.from_trajectories(episodes(30, 1))
    shuffled = dataclasses.replace(fresh, contexts=tuple({**c, "gain": -c["gain"]} for c in fresh.contexts))
    told, misled = (one_step(world, columns, 0, max_episodes=30)["nrmse"]["mean"] for columns in (fresh, shuffled))
    assert told < 0.3
    assert misled > 1.0
    assert [field.name for field in world.dynamics.codec.context.fields] == ["gain", "task"]


def test_worlds_of_a_given_context(world):
    push = np.ones(1, np.float32)
    env = SimEnv(load(world.run))
    batch = SimVectorEnv(2, world)
    for gain in (-1.0, 1.0):
        env.reset(seed=0, options={"context": {"gain": gain, "task": "push"}, "start": np.zeros(1, np.float32)})
        assert env.step(push)[0] * gain > 0.5
    contexts = [{"gain": gain, "task": "pull"} for gain in (-1.0, 1.0)]
    batch.reset(seed=0, options={"context": contexts, "start": np.zeros((2, 1), np.float32)})
    moved = batch.step(np.ones((2, 1), np.float32))[0]
    assert moved[0] < -0.5 < 0.5 < moved[1]


def test_by_default_contexts_are_drawn_as_logged(world):
    batch = SimVectorEnv(64, world)
    batch.reset(seed=0)
    moved = batch.step(np.ones((64, 1), np.float32))[0] > 0
    assert 0.2 < moved.mean() < 0.8


def test_a_prefix_brings_its_context(world):
    for lived in episodes(4, 2):
        cut = dataclasses.replace(lived, truncated=False)
        env = SimEnv(world, max_episode_steps=-1)
        before, _ = env.reset(seed=0, options={"prefix": cut})
        after = env.step(np.ones(1, np.float32))[0]
        assert (after - before) * lived.context["gain"] > 0.5


def test_what_is_no_context_is_refused(world):
    env, batch = SimEnv(world), SimVectorEnv(2, world)
    for options, message in [
        ({"context": {"gian": 1.0}}, "context 'gian' is unknown"),
        ({"context": {"gain": "strong"}}, "context 'gain' is 'strong'; a number is needed"),
        ({"context": {}, "prefix": 1}, "'context' and 'prefix' exclude each other"),
    ]:
        with pytest.raises(ValueError, match=message):
            env.reset(options=options)
    for options, message in [
        ({"context": [{}]}, "has 1 items; one for each of 2 is needed"),
        ({"start": np.zeros((1, 1), np.float32)}, "has 1 rows; one for each of 2 is needed"),
        ({"start": np.zeros((2, 1), np.float32), "reset_mask": np.ones(2, bool)}, "'reset_mask' excludes every other"),
    ]:
        with pytest.raises(ValueError, match=message):
            batch.reset(options=options)
    with pytest.raises(ValueError, match=r"context has shape \(8, 1\); \(8, 65\) is needed"):
        world.dynamics.initial(world.params, _keys(8), np.zeros((8, 1)))


def _keys(count):
    import jax

    return jax.random.split(jax.random.key(0), count)


def test_contexts_bind_a_run_to_its_logs(world, corpus):
    assert load(world.run).params["contexts"].shape == (len(corpus.stored("train").lengths), 65)
    assert isinstance(CONFIG, TrainingConfig)
