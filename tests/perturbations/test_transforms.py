"""Every perturbation against an example worked out by hand, step by step for one episode."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.perturbations.worlds import CHOICES, NUMBERS, box_codec
from worldmodel.codec import DiscreteCodec, RewardCodec, StepCodec
from worldmodel.perturbations import (
    DelayedActions,
    DroppedActions,
    ObservationNoise,
    Perturbations,
    Progressive,
    RewardNoise,
    StickyActions,
    StuckActuator,
    StuckSensor,
)

ALL = [
    ObservationNoise(0.5),
    RewardNoise(0.5),
    DroppedActions(0.9),
    StickyActions(0.9),
    DelayedActions(2),
    StuckActuator(0.9),
    StuckSensor(0.9),
]
FIRST = jnp.asarray([0.5, 5.0])


def executed(one, actions, codec=NUMBERS, strength=1.0):
    """What reaches the world of these actions."""
    state = one.begin(codec, jax.random.key(9), FIRST)
    out = []
    for t, action in enumerate(actions):
        key = jax.random.key(t)
        state, done = one.act(codec, state, key, jnp.float32(strength), jnp.asarray(action))
        out.append(np.asarray(done))
    return np.stack(out)


def sensed(one, outcomes, codec=NUMBERS, strength=1.0):
    """What is seen of these observations and rewards."""
    state = one.begin(codec, jax.random.key(9), FIRST)
    out = []
    for t, (obs, reward) in enumerate(outcomes):
        key = jax.random.key(t)
        state, *seen = one.sense(codec, state, key, jnp.float32(strength), jnp.asarray(obs), jnp.float32(reward))
        out.append([np.asarray(x) for x in seen])
    return np.stack([o for o, _ in out]), np.stack([r for _, r in out])


STEPS = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]], np.float32)
TURNS = np.array([4, 5, 6, 5], np.int32)
SEEN = [(np.array([t, 10.0 * t], np.float32), t) for t in range(1, 5)]


def test_delay_shifts_by_its_steps():
    np.testing.assert_array_equal(executed(DelayedActions(1), STEPS), [[0, 0], *STEPS[:3]])
    np.testing.assert_array_equal(executed(DelayedActions(3), STEPS), [[0, 0], [0, 0], [0, 0], STEPS[0]])
    np.testing.assert_array_equal(executed(DelayedActions(2), TURNS, CHOICES), [3, 3, 4, 5])
    np.testing.assert_array_equal(executed(DelayedActions(2, category=2), TURNS, CHOICES), [5, 5, 4, 5])
    # Half of three steps is rounded to two, the even one.
    np.testing.assert_array_equal(executed(DelayedActions(3), STEPS, strength=0.5), [[0, 0], [0, 0], *STEPS[:2]])


def test_a_dropped_action_is_one_at_rest():
    np.testing.assert_array_equal(executed(DroppedActions(1.0), STEPS), np.zeros((4, 2)))
    np.testing.assert_array_equal(executed(DroppedActions(1.0), TURNS, CHOICES), [3, 3, 3, 3])
    np.testing.assert_array_equal(executed(DroppedActions(1.0, category=1), TURNS, CHOICES), [4, 4, 4, 4])
    beside = StepCodec(NUMBERS.observation, box_codec((1.0, 1.0), 0.25, 1.0), NUMBERS.reward, 0.1)
    np.testing.assert_array_equal(executed(DroppedActions(1.0), STEPS[1:], beside), np.full((3, 2), 0.25))


def test_a_sticky_action_is_the_last_one_executed():
    np.testing.assert_array_equal(executed(StickyActions(1.0), STEPS), STEPS[[0, 0, 0, 0]])
    np.testing.assert_array_equal(executed(StickyActions(1.0), TURNS, CHOICES), [4, 4, 4, 4])
    # By the draws: a step repeats what was executed before it wherever its uniform number is below the probability.
    draws = [float(jax.random.uniform(jax.random.key(t))) for t in range(4)]
    want = [STEPS[0]]
    for t in range(1, 4):
        want.append(want[-1] if draws[t] < 0.5 else STEPS[t])
    assert any(d < 0.5 for d in draws[1:]) and any(d >= 0.5 for d in draws[1:])
    np.testing.assert_array_equal(executed(StickyActions(0.5), STEPS), want)


def test_a_stuck_actuator_holds_one_number():
    got = executed(StuckActuator(1.0), STEPS)
    held = [i for i in range(2) if (got[:, i] == 0).all()]  # stuck from the first step on, where it was at rest
    assert len(held) == 1
    np.testing.assert_array_equal(got[:, 1 - held[0]], STEPS[:, 1 - held[0]])
    np.testing.assert_array_equal(executed(StuckActuator(1.0), TURNS, CHOICES), [3, 3, 3, 3])


def test_a_stuck_sensor_shows_its_last_value():
    seen, reward = sensed(StuckSensor(1.0), SEEN)
    held = [i for i in range(2) if (seen[:, i] == float(FIRST[i])).all()]
    assert len(held) == 1
    np.testing.assert_array_equal(seen[:, 1 - held[0]], [o[1 - held[0]] for o, _ in SEEN])
    np.testing.assert_array_equal(reward, [1, 2, 3, 4])


def test_a_failure_lasts():
    one = StuckSensor(0.5)
    draws = [float(jax.random.uniform(jax.random.key(t))) < 0.5 for t in range(4)]
    first = draws.index(True)
    assert 0 < first < 3, "it works for a while, and then no more"
    seen, _ = sensed(one, SEEN)
    which = int(one.begin(NUMBERS, jax.random.key(9), FIRST)[0])
    last = float(SEEN[first - 1][0][which])
    want = [o[which] for o, _ in SEEN[:first]] + [last] * (4 - first)
    np.testing.assert_array_equal(seen[:, which], want)


def test_noise_has_the_size_of_the_logs_deviations():
    normal = np.stack([np.asarray(jax.random.normal(jax.random.key(t), (2,))) for t in range(4)])
    seen, reward = sensed(ObservationNoise(0.5), SEEN)
    np.testing.assert_allclose(seen, np.stack([o for o, _ in SEEN]) + 0.5 * np.array([1, 10]) * normal, rtol=1e-6)
    np.testing.assert_array_equal(reward, [1, 2, 3, 4])
    alone = np.array([float(jax.random.normal(jax.random.key(t))) for t in range(4)])
    _, paid = sensed(RewardNoise(0.5), SEEN)
    np.testing.assert_allclose(paid, np.arange(1, 5) + 0.5 * 2.0 * alone, rtol=1e-6)
    _, paid = sensed(RewardNoise(0.5), SEEN, CHOICES)
    np.testing.assert_allclose(paid, np.arange(1, 5) + 0.5 * 1.0 * alone, rtol=1e-6)


def test_noise_stays_in_bounds_and_off_what_never_changes():
    tight = StepCodec(box_codec((100.0, 100.0), -1.0, 1.0, (True, False)), NUMBERS.action, NUMBERS.reward, 0.1)
    seen, _ = sensed(ObservationNoise(1.0), [(np.array([0.5, 0.25], np.float32), 0.0)] * 4, tight)
    assert set(np.abs(seen[:, 0])) == {1.0}
    np.testing.assert_array_equal(seen[:, 1], [0.25] * 4)


@pytest.mark.parametrize("one", ALL, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("codec", [NUMBERS, CHOICES], ids=["numbers", "choices"])
def test_strength_zero_is_the_identity(one, codec):
    actions = STEPS if codec is NUMBERS else TURNS
    np.testing.assert_array_equal(executed(one, actions, codec, 0.0), actions)
    seen, reward = sensed(one, SEEN, codec, 0.0)
    np.testing.assert_array_equal(seen, np.stack([o for o, _ in SEEN]))
    np.testing.assert_array_equal(reward, [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StickyActions(1.5), "probability of StickyActions is 1.5; 0 to 1 is allowed"),
        (lambda: DroppedActions(float("nan")), "probability of DroppedActions is nan"),
        (lambda: ObservationNoise(-1.0), "scale of ObservationNoise is -1.0; a finite number, 0 or more, is needed"),
        (lambda: RewardNoise(float("inf")), "scale of RewardNoise is inf"),
        (lambda: DelayedActions(0), "steps of DelayedActions is 0; 1 to 1,000 are allowed"),
        (lambda: DroppedActions(0.1, category=-1).check(NUMBERS), "category of DroppedActions is -1; 0 or more is"),
        (lambda: DelayedActions(1, category=4).check(CHOICES), "category of DelayedActions is 4; 0 to 3 are allowed"),
        (lambda: Progressive(float("nan")), "target of Progressive is nan; a finite return is needed"),
        (lambda: Perturbations.of([]), "there is no perturbation; at least one is needed"),
        (
            lambda: Perturbations.of("StickyActions"),
            "perturb holds 'StickyActions'; known perturbations are Observation",
        ),
    ],
)
def test_what_is_not_allowed_is_named(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("one", [ObservationNoise(), StuckSensor()])
def test_a_world_of_categories_has_no_number_to_disturb(one):
    codec = StepCodec(DiscreteCodec(4), CHOICES.action, RewardCodec(0.0, 1.0, True), 0.1)
    with pytest.raises(ValueError, match=f"{type(one).__name__} needs numbers in the observation"):
        one.check(codec)
