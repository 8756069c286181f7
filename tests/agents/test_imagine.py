"""Imagined episodes: marked, of the asked family, the same bits again."""

from __future__ import annotations

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import SMALL, tiny_columns, untrained_model
from worldmodel.agents.batch_env import Interface
from worldmodel.agents.imagine import ROWS, Family, imagine
from worldmodel.agents.named import named_policies
from worldmodel.agents.ppo import LearnedPolicy, load_policy, make_actor, save_policy
from worldmodel.corpus import Columns, open_corpus, write_corpus
from worldmodel.model.dynamics import StepDynamics
from worldmodel.model.step import init_params
from worldmodel.training.checkpoint import WorldModel
from worldmodel.training.claim import codec_of


def imagined(world=None, **options):
    options = {"policies": ["random"], "episodes": 5, "seed": 1, "horizon": 8} | options
    return list(imagine(world or untrained_model(), **options))


def bits(episodes) -> bytes:
    return b"|".join(
        np.asarray(part).tobytes() for e in episodes for part in (e.observations, e.actions, e.rewards, repr(e.info))
    )


def test_every_episode_says_that_it_is_synthetic():
    world = untrained_model()
    done = imagined(policies=["random", "sticky:0.8", "linear:0.1"], episodes=7)
    assert [e.info["policy"] for e in done] == ["random"] * 3 + ["sticky:0.8"] * 2 + ["linear:0.1"] * 2
    assert len({e.info["id"] for e in done}) == 7 and len({e.info["seed"] for e in done}) == 7
    for number, episode in enumerate(done):
        assert episode.synthetic and episode.info["source"] == "imagined"
        assert (episode.info["step"], episode.info["world"]) == (world.step, number)
        episode.validate(world.spec)
        assert np.isfinite(episode.action_log_prob).all()
        # What the horizon cuts did not end, as where the environment's own limit truncates.
        assert len(episode) < 8 or not episode.truncated


def test_the_environments_own_limit_truncates():
    world = untrained_model("Pendulum-v1")
    short = WorldModel(dataclasses.replace(world.spec, max_episode_steps=6), world.dynamics, world.params, world.run, 0)
    (episode,) = imagined(short, episodes=1, horizon=None)
    assert episode.truncated and len(episode) == 6
    (episode,) = imagined(world, episodes=1, horizon=6)
    assert not episode.truncated and not episode.terminated and len(episode) == 6


def test_the_same_arguments_give_the_same_bits_and_another_seed_others():
    told = bits(imagined(episodes=ROWS + 2, policies=["search:0.3", "random"]))
    assert told == bits(imagined(episodes=ROWS + 2, policies=["search:0.3", "random"]))
    assert told != bits(imagined(episodes=ROWS + 2, policies=["search:0.3", "random"], seed=2))


def test_an_episode_does_not_depend_on_how_many_come_after():
    some, more = imagined(episodes=3), imagined(episodes=6)
    assert bits(some) == bits(more[:3])


def test_recorded_starts_are_observations_of_the_corpus(tmp_path):
    spec, columns = tiny_columns("CartPole-v1", episodes=12, seed=3)
    write_corpus(tmp_path / "c", spec, [columns.episode(i) for i in range(12)], provenance={})
    recorded = open_corpus(tmp_path / "c").stored()
    episodes = {e.info["id"]: e for e in recorded}
    done = imagined(episodes=20, family=Family(starts=recorded))
    for episode in done:
        source = episodes[episode.info["start_episode"]]
        step = episode.info["start_step"]
        assert step < len(source)  # never at an episode's last observation
        np.testing.assert_array_equal(episode.observations[0], source.observations[step])
    assert len({e.info["start_episode"] for e in done}) > 4
    assert any(e.info["start_step"] > 0 for e in done)


@cache
def world_with_gravity() -> WorldModel:
    """An untrained model of episodes that say their gravity."""
    spec, columns = tiny_columns("Pendulum-v1", episodes=6, seed=0)
    episodes = [dataclasses.replace(columns.episode(i), context={"gravity": 5.0 + i, "arm": 1.0}) for i in range(6)]
    told = Columns.from_trajectories(episodes)
    codec = codec_of(spec, told)
    starts = jnp.asarray(told.observations[told.observation_starts])
    params = {
        "members": init_params(SMALL, codec, 0),
        "starts": starts,
        "contexts": jnp.asarray(codec.context.encode(told.contexts)),
    }
    return WorldModel(spec, StepDynamics(SMALL, codec), params, untrained_model().run, 0)


def test_a_family_has_as_many_worlds_as_it_is_asked_for():
    family = Family(context={"gravity": {"uniform": [4, 12]}}, worlds=3)
    done = imagined(world_with_gravity(), episodes=8, family=family, horizon=3)
    gravity = [e.context["gravity"] for e in done]
    assert [e.info["world"] for e in done] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert len(set(gravity)) == 3 and gravity[:2] * 2 == gravity[:2] + gravity[3:5]
    assert min(gravity) >= 4 and max(gravity) <= 12
    each = imagined(world_with_gravity(), episodes=4, family=dataclasses.replace(family, worlds=None), horizon=3)
    assert len({e.context["gravity"] for e in each}) == 4
    # A model that reads gravity moves otherwise under another one, chances and all else equal.
    weak, strong = (Family(context={"gravity": g}) for g in (4.0, 12.0))
    (a,), (b,) = (imagined(world_with_gravity(), episodes=1, family=f, horizon=3) for f in (weak, strong))
    assert np.array_equal(a.actions, b.actions)
    assert not np.array_equal(a.observations, b.observations)


def test_a_context_that_nobody_says_is_refused():
    with pytest.raises(ValueError, match=r"^the model reads gravity at every step: say which \(context\), or take"):
        imagined(world_with_gravity())
    with pytest.raises(ValueError, match="context 'wind' is unknown; known are 'gravity'"):
        imagined(world_with_gravity(), family=Family(context={"wind": 1.0}))
    with pytest.raises(ValueError, match="uniform is 3"):
        imagined(world_with_gravity(), family=Family(context={"gravity": {"uniform": 3}}))
    with pytest.raises(ValueError, match="this model was trained without any"):
        imagined(family=Family(context={"gravity": 1.0}))


def actor(env_id: str, seed: int) -> LearnedPolicy:
    world = untrained_model(env_id)
    interface = Interface(world.spec, world.dynamics.codec)
    network, key = make_actor(interface), jax.random.key(seed)
    return LearnedPolicy(interface, network, network.init(key, jnp.zeros((1, interface.obs_size)), key))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_trained_policy_acts_as_itself(env_id: str, tmp_path):
    world, policy = untrained_model(env_id), actor(env_id, 3)
    save_policy(tmp_path / "mine.npz", policy)
    done = imagined(world, policies=[str(tmp_path / "mine.npz")], episodes=3)
    for episode in done:
        assert episode.info["policy"] == "mine" and episode.action_log_prob is None
        wanted = policy(episode.observations[:-1], None)
        np.testing.assert_allclose(episode.actions, wanted, atol=1e-5)


def test_a_file_that_is_no_policy_of_this_environment_is_one_line(tmp_path):
    world = untrained_model("CartPole-v1")
    save_policy(tmp_path / "other.npz", actor("Pendulum-v1", 0))
    with pytest.raises(ValueError, match="holds no policy of CartPole-v1"):
        load_policy(tmp_path / "other.npz", Interface(world.spec, world.dynamics.codec))
    for content in (b"", b"PK\3\4 torn", b"words"):
        (tmp_path / "torn.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"torn\.npz: holds no policy"):
            named_policies([str(tmp_path / "torn.npz")], world)
    with pytest.raises(FileNotFoundError, match=r"gone\.npz does not exist"):
        named_policies([str(tmp_path / "gone.npz")], world)
    with pytest.raises(ValueError, match="no policy was named"):
        named_policies([], world)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episodes": 0}, "episodes is 0; at least 1 is needed"),
        ({"horizon": 0}, "horizon is 0; at least 1 is needed"),
        ({"family": Family(worlds=0)}, "worlds is 0; at least 1 is needed"),
        ({"policies": ["rendom"]}, r"behaviour 'rendom' is unknown \(did you mean 'random'\?\)"),
        ({"family": Family(env={"perturbed": 1})}, "argument 'perturbed' of the simulated environments is not known"),
        ({"family": Family(env={"max_episode_steps": 0})}, "max_episode_steps is 0; at least 1 is needed"),
    ],
)
def test_bad_arguments_are_one_line_before_anything_is_imagined(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        imagine(untrained_model(), **{"policies": ["random"], "episodes": 5, "seed": 1} | options)


def test_further_arguments_reach_the_environments():
    (episode,) = imagined(episodes=1, family=Family(env={"max_episode_steps": 2}), seed=3)
    assert len(episode) <= 2 and (episode.truncated or episode.terminated)
