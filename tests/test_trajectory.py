"""`Trajectory` and `Spec`: JSON and back, and every fault is one line that names it."""

import json

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.spaces import box_bounds, space_from_json, space_to_json
from worldmodel.trajectory import Spec, Trajectory, suggest

BOX = {"type": "Box", "shape": [2], "dtype": "float32", "low": [-1.0, None], "high": [1.0, None]}
THREE = {"type": "Discrete", "n": 3, "start": 2}
SPEC = Spec(BOX, THREE)


def trajectory(**changes) -> Trajectory:
    fields = {
        "observations": np.zeros((4, 2), np.float32),
        "actions": np.array([2, 3, 4]),
        "rewards": np.ones(3, np.float32),
        "terminated": True,
        "truncated": False,
    }
    return Trajectory(**{**fields, **changes})


BOUND = st.none() | st.floats(-1e6, 1e6, width=32)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def json_spaces(draw):
    if draw(st.booleans()):
        return {"type": "Discrete", "n": draw(st.integers(1, 10**6)), "start": draw(st.integers(-(10**6), 10**6))}
    shape = draw(st.lists(st.integers(1, 3), max_size=3))
    size = int(np.prod(shape))
    pairs = [
        sorted((a, b)) if None not in (a, b) else [a, b]
        for a, b in draw(st.lists(st.tuples(BOUND, BOUND), min_size=size, max_size=size))
    ]
    low, high = [p[0] for p in pairs], [p[1] for p in pairs]
    return {
        "type": "Box",
        "shape": shape,
        "dtype": draw(st.sampled_from(["float32", "float64"])),
        "low": low,
        "high": high,
    }


@given(
    json_spaces(),
    json_spaces(),
    st.none() | st.text(),
    st.dictionaries(st.text(), JSON, max_size=3),
    st.none() | st.integers(1),
)
def test_spec_survives_json(observation, action, env_id, env_kwargs, limit):
    spec = Spec(observation, action, env_id, env_kwargs, limit)
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@given(json_spaces())
def test_space_survives_gymnasium(data):
    assert space_to_json(space_from_json(data), "observation") == data


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_spec_of_an_environment_gives_its_spaces_back(env_id):
    env = gymnasium.make(env_id)
    spec = Spec.from_gymnasium(env)
    observation, action = Spec.from_json(spec.to_json()).to_gymnasium()
    assert observation == env.observation_space
    assert action == env.action_space
    assert (spec.env_id, spec.max_episode_steps) == (env_id, env.spec.max_episode_steps)
    rng_space = env.action_space
    rng_space.seed(0)
    spec.check(np.array([rng_space.sample() for _ in range(20)]), "action")
    env.close()


def test_arguments_of_an_environment_are_kept_but_not_how_it_is_drawn():
    env = gymnasium.make("Pendulum-v1", g=9.8, render_mode="rgb_array")
    assert Spec.from_gymnasium(env).env_kwargs == {"g": 9.8}
    env.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"observation_space": BOX}, "spec lacks 'action_space'"),
        ({"action_space": BOX}, "spec lacks 'observation_space'"),
        ({**SPEC.to_json(), "max_steps": 3}, "spec has an unknown field 'max_steps'"),
        ({**SPEC.to_json(), "env_idd": 3}, r"spec has an unknown field 'env_idd' \(did you mean 'env_id'\?\)"),
        ({**SPEC.to_json(), "action_space": {"type": "Graph"}}, "action space Graph is not supported; supported are"),
        ({**SPEC.to_json(), "action_space": {}}, "action space None is not supported"),
    ],
)
def test_bad_spec_json(data, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Spec.from_json(data)


def test_a_good_trajectory_passes():
    good = trajectory(action_log_prob=np.zeros(3, np.float32))
    assert good.validate(SPEC) is good
    assert len(good) == 3
    assert good.total_reward == 3.0
    assert np.isnan(trajectory(rewards=None).validate(SPEC).total_reward)


NAN = np.array([[0, 0], [0, np.nan], [0, 0], [0, 0]], np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": np.zeros(0, int)}, "holds no transition"),
        ({"observations": np.zeros((3, 2), np.float32)}, r"3 observations for 3 actions; 4 are needed"),
        ({"rewards": np.zeros(4, np.float32)}, r"rewards has shape \(4,\); \(3,\) is needed"),
        ({"action_log_prob": np.zeros((3, 1), np.float32)}, r"action_log_prob has shape \(3, 1\); \(3,\) is needed"),
        ({"truncated": True}, "is both terminated and truncated; the last step ended in one way"),
        ({"observations": NAN}, "observations: step 1 holds nan; every value must be finite"),
        ({"rewards": np.array([0, 0, np.inf], np.float32)}, "rewards: step 2 holds inf; every value must be finite"),
        ({"actions": np.array([2, 3, 5])}, r"action at step 2 is 5, outside 2\.\.4"),
        ({"actions": np.array([1, 3, 4])}, r"action at step 0 is 1, outside 2\.\.4"),
        ({"actions": np.array([2.0, 3.0, 4.0])}, "action has dtype float64; a Discrete space takes integers"),
        ({"actions": np.array([[2], [3], [4]])}, r"action has shape \(1,\); the space has \(\)"),
        ({"observations": np.zeros((4, 3), np.float32)}, r"observation has shape \(3,\); the space has \(2,\)"),
        ({"observations": np.full((4, 2), 1.01, np.float32)}, r"observation at step 0 is 1.0\d*, outside its Box"),
        ({"observations": np.full((4, 2), "x")}, r"observation has dtype <U1; a Box takes numbers"),
    ],
)
def test_faults_of_a_trajectory(changes, message):
    with pytest.raises(ValueError, match=f"^log 7.*{message}"):
        trajectory(**changes).validate(SPEC, where="log 7")


def test_bounds_are_those_of_float32():
    low, high = box_bounds(BOX)
    np.testing.assert_array_equal(low, [-1, -np.inf])
    np.testing.assert_array_equal(high, [1, np.inf])
    SPEC.check(np.array([[np.float32(1) + np.finfo(np.float32).eps, 1e30]], np.float32), "observation")
    with pytest.raises(ValueError, match="outside its Box"):
        SPEC.check(np.array([[np.nan, 0.0]]), "observation")


def test_suggestion():
    assert suggest("CartPol-v1", ["CartPole-v1", "Pendulum-v1"]) == " (did you mean 'CartPole-v1'?)"
    assert suggest("zzz", ["CartPole-v1"]) == ""
