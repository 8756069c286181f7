from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from worldmodel.images import EncodedImages
from worldmodel.sources import read
from worldmodel.sources.gymnasium import _log_prob, recognise
from worldmodel.spaces import column_list, space_to_json

OBSERVATIONS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (8, 16, 3), np.uint8),
        "position": spaces.Box(-5.0, 5.0, (2,), np.float64),
        "said": spaces.Text(12),
        "seen": spaces.Tuple([spaces.Discrete(4, start=1), spaces.MultiBinary(3)]),
    }
)
ACTIONS = spaces.Dict(
    {
        "arm": spaces.Box(np.array([-1.0, 2.0, 5.0]), np.array([1.0, 2.5, 5.0]), dtype=np.float32),
        "keys": spaces.MultiDiscrete([3, 5]),
        "level": spaces.Box(-2, 2, (2,), np.int8),
        "say": spaces.Text(3, charset="abcd"),
        "switch": spaces.Tuple([spaces.MultiBinary(2), spaces.Discrete(7)]),
    }
)


class Everything(gymnasium.Env):
    """An environment of every space, which hands out one buffer again and again."""

    def __init__(self, fault: str | None = None, observation_space: Any = OBSERVATIONS, action_space: Any = ACTIONS):
        self.observation_space, self.action_space, self.fault = observation_space, action_space, fault
        self._position = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def _obs(self) -> Any:
        self._position[:] = self.np_random.uniform(-5, 5, 2)
        obs: dict[str, Any] = {
            "camera": self.np_random.integers(0, 256, (8, 16, 3), np.uint8),
            "position": self._position,
            "said": "x" * self.steps,
            "seen": (np.int64(1 + self.steps % 4), self.np_random.integers(0, 2, 3, np.int8)),
        }
        if self.fault and self.steps == 2:
            if self.fault == "missing":
                del obs["said"]
            obs |= {"shape": {"position": np.zeros(3)}, "text": {"said": 4}, "tuple": {"seen": 4}}.get(self.fault, {})
        return obs

    def step(self, action: Any):
        self.steps += 1
        return self._obs(), float(action["arm"][0]), self.steps == 4, self.steps == 4, {}


@pytest.fixture(autouse=True)
def _registered():
    gymnasium.register("tests/Everything-v0", Everything, disable_env_checker=True)
    yield
    del gymnasium.registry["tests/Everything-v0"]


def assert_equal(left: Any, right: Any) -> None:
    for ours, theirs in zip(column_list(left), column_list(right), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs), strict=True)


def test_every_space_is_recorded():
    source = read("gymnasium:tests/Everything-v0", episodes=3, seed=1)
    assert source.spec.observation_space == space_to_json(OBSERVATIONS, "observation")
    assert source.spec.action_space == space_to_json(ACTIONS, "action")
    found = list(source)
    assert len(found) == 3
    for trajectory in found:
        trajectory.validate(source.spec)
        assert len(trajectory) == 4 and trajectory.terminated and not trajectory.truncated
        np.testing.assert_array_equal(trajectory.rewards, trajectory.actions["arm"][:, 0])
        assert list(trajectory.observations["said"]) == ["", "x", "xx", "xxx", "xxxx"]
        positions = trajectory.observations["position"]
        assert len(np.unique(positions, axis=0)) == 5  # copies, not one buffer five times
    camera = found[0].observations["camera"]
    assert isinstance(camera, EncodedImages)
    env = Everything()
    env.reset(seed=found[0].info["seed"])
    np.testing.assert_array_equal(camera[1], env._obs()["camera"])


def test_the_same_seed_gives_the_same_episodes_however_it_is_read():
    source = read("gymnasium:tests/Everything-v0", episodes=3, seed=1)
    first, second = iter(source), iter(source)
    begun = next(first)
    for ours, theirs in zip([begun, *first], second, strict=True):
        assert ours.info == theirs.info
        for name in ("observations", "actions", "rewards", "action_log_prob"):
            assert_equal(getattr(ours, name), getattr(theirs, name))
    other = next(iter(read("gymnasium:tests/Everything-v0", episodes=1, seed=2)))
    assert not np.array_equal(other.observations["position"], begun.observations["position"])


def test_the_uniform_policys_log_probability_is_the_true_one():
    arm = math.log(2.0) + math.log(0.5)  # the third number can have but one value
    others = math.log(3 * 5) + 2 * math.log(5) + 2 * math.log(2) + math.log(7)
    for trajectory in read("gymnasium:tests/Everything-v0", episodes=5):
        for t, said in enumerate(trajectory.actions["say"]):
            text = math.log(3) + len(said) * math.log(4)
            np.testing.assert_allclose(trajectory.action_log_prob[t], -(arm + others + text), rtol=1e-6)
    (cartpole,) = read("gymnasium:CartPole-v1", episodes=1)
    np.testing.assert_allclose(cartpole.action_log_prob, np.log(0.5), rtol=1e-6)
    assert cartpole.info["policy"] == "uniform"


def test_a_text_is_drawn_as_likely_as_it_is_said():
    """20,000 draws of 7 texts: each share is within 5 standard errors (false alarm: 4e-6)."""
    space = spaces.Text(2, min_length=1, charset="ab", seed=3)
    drawn = [space.sample() for _ in range(20_000)]
    for text in ("a", "b", "aa", "ab", "ba", "bb"):
        share, p = drawn.count(text) / len(drawn), math.exp(_log_prob(space, text))
        assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / len(drawn))


def test_a_policy_of_either_form():
    source = read("gymnasium:CartPole-v1", episodes=2, policy=lambda obs: int(obs[2] > 0), max_steps=40)
    for trajectory in source:
        np.testing.assert_array_equal(trajectory.actions, trajectory.observations[:-1, 2] > 0)
        assert trajectory.action_log_prob is None
    assert next(len(t) for t in source) == 40  # the limit of steps cuts: neither flag
    assert not any(t.terminated or t.truncated for t in source if len(t) == 40)

    def skewed(obs: np.ndarray, rng: np.random.Generator) -> tuple[int, float]:
        right = rng.random() < 0.75
        return int(right), math.log(0.75 if right else 0.25)

    source = read("gymnasium:CartPole-v1", episodes=2, policy=skewed)
    for trajectory in source:
        expected = np.where(trajectory.actions == 1, math.log(0.75), math.log(0.25))
        np.testing.assert_allclose(trajectory.action_log_prob, expected, rtol=1e-6)
        assert trajectory.info["policy"] == "skewed"
    assert [t.actions.tolist() for t in source] == [t.actions.tolist() for t in source]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "missing",
            r"observation 2 is \['camera', 'position', 'seen'\]; its space has the keys \['camera', 'position', ",
        ),
        ("shape", r"observation 2, 'position' has shape \(3,\) and dtype float64; its space has \(2,\)"),
        ("text", r"observation 2, 'said' is a int; its space is text"),
        ("tuple", r"observation 2, 'seen' is a int; its space is a tuple of 2"),
    ],
)
def test_a_value_that_is_built_otherwise_is_named(fault: str, message: str):
    source = read("gymnasium:tests/Everything-v0", episodes=1, env_kwargs={"fault": fault})
    with pytest.raises(ValueError, match=rf"^tests/Everything-v0/0/000000: {message}"):
        list(source)


def test_a_bad_argument_is_one_clear_line():
    cases: list[tuple[str, dict[str, Any], str]] = [
        (
            "Cartpole-v0",
            {},
            r"^environment 'Cartpole-v0' is not registered with Gymnasium \(did you mean 'CartPole-v1'\?\)$",
        ),
        ("nomodule:X-v0", {}, r"^environment 'nomodule:X-v0' cannot be made: "),
        ("CartPole-v1", {"env_kwargs": {"gravity": 3}}, r"^environment 'CartPole-v1' cannot be made: .*gravity"),
        ("CartPole-v1", {"episodes": 0}, r"^gymnasium:CartPole-v1: episodes is 0; at least 1 is needed"),
        ("CartPole-v1", {"max_steps": 0}, r"^gymnasium:CartPole-v1: max_steps is 0; at least 1 is needed"),
        ("CartPole-v1", {"policy": lambda a, b, c: 0}, r"policy '<lambda>' takes 3 arguments; \(obs\) or \(obs, rng\)"),
    ]
    for env_id, options, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            read(f"gymnasium:{env_id}", **options)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"policy '<lambda>' made a int; \(action, log_prob\) is needed"):
        list(read("gymnasium:CartPole-v1", policy=lambda obs, rng: 1))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-np.inf, np.inf, (2,)), "its action Box has no finite bounds to be uniform within; give a policy"),
        (spaces.Tuple([spaces.Text(2**31 - 1)]), "its action Text is longer than 10000 characters; give a policy"),
        (spaces.Sequence(spaces.Discrete(2)), "action space Sequence is not supported; supported are Box, Discrete"),
    ],
)
def test_a_space_that_nothing_is_uniform_in(space: Any, message: str):
    gymnasium.register("tests/Odd-v0", lambda: Everything(action_space=space), disable_env_checker=True)
    try:
        with pytest.raises(ValueError, match=rf"^gymnasium:tests/Odd-v0: {message}"):
            read("gymnasium:tests/Odd-v0")
    finally:
        del gymnasium.registry["tests/Odd-v0"]


def test_no_path_is_an_environment(tmp_path: Any):
    assert not recognise(tmp_path)
