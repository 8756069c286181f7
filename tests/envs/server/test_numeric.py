"""Episodes as rows: the bits of `SimEnv`, whoever else is stepped in the same call."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support import untrained_model
from worldmodel.envs.gymnasium import SimEnv
from worldmodel.envs.server.numeric import NumericWorld
from worldmodel.perturbations import ObservationNoise
from worldmodel.spaces import map_columns


@pytest.fixture(scope="module")
def world() -> NumericWorld:
    return NumericWorld(untrained_model("CartPole-v1"))


@pytest.fixture(scope="module")
def wide() -> NumericWorld:
    return NumericWorld(untrained_model("CartPole-v1"), rows=11, max_episode_steps=2)


def begin(world, *options, before=None):
    return world.reset([(before, world.check_reset(each)) for each in options])


def step(world, episodes, actions):
    return world.step([(e, world.check_action(a)) for e, a in zip(episodes, actions, strict=True)])


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [("CartPole-v1", {}), ("Pendulum-v1", {"perturb": ObservationNoise(0.1)}), ("FrozenLake-v1", {})],
)
def test_a_served_episode_is_that_of_the_environment_to_the_last_bit(env_id, arguments):
    model = untrained_model(env_id)
    world, env = NumericWorld(model, **arguments), SimEnv(model, **arguments)
    env.action_space.seed(3)
    first, _ = env.reset(seed=5)
    (episode, turn), *rest = begin(world, {"seed": 5}, *({"seed": 50 + i} for i in range(7)))
    others = [other for other, _ in rest]
    assert turn.observation == np.asarray(first).tolist() and turn.reward is None
    ends = 0
    for t in range(40):
        action = env.action_space.sample()
        obs, reward, terminated, truncated, info = env.step(action)
        some = others[: t % 8]  # in company that changes
        sent = [np.asarray(a).tolist() for a in (action, *(env.action_space.sample() for _ in some))]
        (episode, turn), *rest = step(world, [episode, *some], sent)
        others[: len(some)] = [other for other, _ in rest]
        assert turn.observation == np.asarray(obs).tolist()
        assert (turn.reward, turn.terminated, turn.truncated) == (reward, terminated, truncated)
        assert turn.info["log_prob"] == info["log_prob"].tolist()
        assert json.loads(json.dumps(turn._asdict(), allow_nan=False)) == turn._asdict()
        if turn.over:
            ends += 1
            ((episode, turn),) = begin(world, {}, before=episode)
            assert turn.observation == np.asarray(env.reset()[0]).tolist()
    assert ends or env_id == "Pendulum-v1"


def test_resets_of_every_kind_share_a_call_or_not_and_keep_their_order(world):
    prefix = {"observations": [[0, 0, 0, 0], [0, 0.1, 0, 0]], "actions": [1], "rewards": [1]}
    told = [{"seed": 1}, {"start": [0.0, 0, 0, 0.5]}, {"prefix": prefix}, {"seed": 2}, {"start": [0.25, 0, 0, 0]}]
    turns = [turn for _, turn in begin(world, *told)]
    alone = [begin(world, each)[0][1] for each in (told[0], told[3])]
    assert [turns[0], turns[3]] == alone
    assert [turn.observation[0] for turn in (turns[1], turns[4])] == [0.0, 0.25]
    assert turns[2].observation == [0.0, np.float32(0.1), 0.0, 0.0]


def test_a_prefix_counts_towards_the_time_limit(wide):
    prefix = {"observations": [[0, 0, 0, 0], [0, 0.1, 0, 0]], "actions": [1]}
    ((episode, _),) = begin(wide, {"prefix": prefix})
    ((_, turn),) = step(wide, [episode], [0])
    assert turn.truncated or turn.terminated
    with pytest.raises(ValueError, match="ends the episode after 2 steps; none is left"):
        wide.check_reset({"prefix": {"observations": [[0, 0, 0, 0]] * 3, "actions": [1, 0]}})


def test_more_rows_than_eight_in_a_call(world, wide):
    episodes = [episode for episode, _ in begin(wide, *({"seed": i} for i in range(11)))]
    turns = [turn for _, turn in step(wide, episodes, [1] * 11)]
    alone = [turn for _, turn in step(world, [e for e, _ in begin(world, *({"seed": i} for i in range(8)))], [1] * 8)]
    np.testing.assert_allclose([t.observation for t in turns[:8]], [t.observation for t in alone], atol=1e-5)
    assert wide.most == 11
    with pytest.raises(ValueError, match="0 rows a call; at least 1 is needed"):
        NumericWorld(untrained_model("CartPole-v1"), rows=0)


def test_a_kept_episode_goes_on_in_the_same_bits_and_another_models_does_not(world, tmp_path):
    ((episode, _),) = begin(world, {"seed": 3})
    ((episode, _),) = step(world, [episode], [1])
    world.save(episode, {"note": [1, None]}, tmp_path / "kept.session")
    again, note = NumericWorld(untrained_model("CartPole-v1")).load(tmp_path / "kept.session")
    assert note == {"note": [1, None]}
    ((_, one),), ((_, other),) = step(world, [episode], [0]), step(world, [again], [0])
    assert one == other
    ((_, one),), ((_, other),) = begin(world, {}, before=episode), begin(world, {}, before=again)
    assert one == other, "its generator, too"
    stranger = NumericWorld(untrained_model("CartPole-v1", seed=1))
    with pytest.raises(ValueError, match="it is of another world model"):
        stranger.load(tmp_path / "kept.session")
    whole = (tmp_path / "kept.session").read_bytes()
    for broken, message in (
        (whole[:-1], "it is of other arguments of the environment"),
        (whole[:100], "its file is no session"),
        (b"", "its file is no session"),
        (b"[]\n", "its file is no session"),
        (b"\x80\x04N.\n", "its file is no session"),
    ):
        (tmp_path / "kept.session").write_bytes(broken)
        with pytest.raises(ValueError, match=message):
            world.load(tmp_path / "kept.session")


def test_what_is_outside_is_named(world):
    for options, message in (
        ({"sead": 1}, "reset option 'sead' is not known; known are seed, .*session, .*did you mean 'seed'"),
        ({"seed": -1}, "reset option 'seed' is -1; a whole number, 0 or more, is needed"),
        ({"seed": True}, "reset option 'seed' is True"),
        ({"start": [0, 0]}, "reset option 'start': value has shape"),
        ({"context": {"gravity": 3}}, "context 'gravity' is unknown"),
    ):
        with pytest.raises(ValueError, match=message):
            world.check_reset(options)
    for action, message in ((2, "it must lie in 0..1"), ("a", "integers are needed"), (None, "integers are needed")):
        with pytest.raises(ValueError, match=message):
            world.check_action(action)


def test_a_model_that_leaves_the_finite_numbers_says_so(world, monkeypatch):
    ((episode, _),) = begin(world, {"seed": 3})
    real = world._host.step

    def broken(action):
        told = real(action)
        return told._replace(obs=map_columns(lambda column: np.full_like(column, np.nan), told.obs))

    monkeypatch.setattr(world._host, "step", broken)
    ((_, turn),) = step(world, [episode], [0])
    assert turn.observation == [None] * 4 and turn.info["why"] == (
        "the model left the finite numbers: null stands where it did"
    )
