"""The learner and its environments: a time limit is no end, actions fit their space, real steps are counted."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnasium import spaces

from worldmodel.agents.batch_env import BatchStep, Interface, RealBatch, SimulatedBatch
from worldmodel.agents.counting import StepLedger
from worldmodel.agents.ppo import LearnedPolicy, PPOConfig, make_actor, train_ppo
from worldmodel.codec import BoxCodec, DiscreteCodec, RewardCodec, StepCodec
from worldmodel.simulator import Simulator
from worldmodel.trajectory import Spec

PAIR = {"type": "Box", "shape": [2], "dtype": "float32", "low": [None, None], "high": [None, None]}


def box_action(low, high, dtype="float32"):
    return {"type": "Box", "shape": [len(low)], "dtype": dtype, "low": low, "high": high}


def interface(action, env_id=None):
    """Observations of two numbers, already standardised; actions of the space `action`."""
    plain = BoxCodec((2,), "float32", (None,) * 2, (None,) * 2, *[(0.0, 0.0), (1.0, 1.0)] * 2, (True, True))
    if action["type"] == "Discrete":
        codec = DiscreteCodec(action["n"], action["start"])
    else:
        size = len(action["low"])
        statistics = [(0.0,) * size, (1.0,) * size] * 2
        codec = BoxCodec(
            (size,), action["dtype"], *map(tuple, (action["low"], action["high"])), *statistics, (True,) * size
        )
    return Interface(Spec(PAIR, action, env_id), StepCodec(plain, codec, RewardCodec(0.0, 1.0, False), 0.01))


CATEGORIES = {"type": "Discrete", "n": 3, "start": 2}


# --- Bootstrap at time limits -----------------------------------------------------------------------------------------


@struct.dataclass
class Clock:
    """Steps since the last limit, int32 [N]."""

    time: jax.Array


@dataclasses.dataclass(frozen=True)
class Endless:
    """Pays 1 a step and is cut every ten steps; `params` true: the cut is booked as an end. The state is hidden."""

    interface: Interface
    limit: int = 10

    def reset(self, params, key):
        rows = key.shape[0]
        return Clock(jnp.arange(rows, dtype=jnp.int32) % self.limit), jnp.zeros((rows, 2))

    def step(self, params, state, action):
        time = state.time + 1
        cut = time >= self.limit
        obs = jnp.zeros((len(time), 2))
        step = BatchStep(obs, obs, jnp.ones(len(time)), cut & params, cut & ~params)
        return Clock(jnp.where(cut, 0, time)), step


def test_value_looks_beyond_a_time_limit_and_not_beyond_an_end():
    from worldmodel.agents.ppo import _make_learner

    config = PPOConfig(
        total_steps=70 * 160, num_envs=10, num_steps=16, num_epochs=4, num_minibatches=2, learning_rate=1e-2, gamma=0.9
    )

    @jax.jit
    def learned_value(booked_as_end):
        """Value of the only observation, in units of the reward."""
        learner = _make_learner(Endless(interface(CATEGORIES)), config, booked_as_end)
        state = learner.init_state(jax.random.key(0))
        state, _ = jax.lax.scan(lambda s, _: (learner.train_iteration(s), None), state, None, 70)
        value = learner.critic.apply(state.critic_ts.params, jnp.zeros((1, 2)))
        return value[0] * jnp.sqrt(state.rew_rms_state.var)

    with jax.numpy_dtype_promotion("standard"):
        beyond, ten_steps = (float(learned_value(jnp.array(flag))) for flag in (False, True))
    forever = 1 / (1 - config.gamma)
    assert beyond == pytest.approx(forever, rel=0.1)
    # Mean over a place in the ten steps of what is left of them, and at most what a bootstrapped mean makes of it.
    assert ten_steps < 0.65 * forever
    assert ten_steps == pytest.approx(5.0, abs=1.0)


# --- Learning and acting ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Choose(Endless):
    """Pays for the last category alone."""

    def step(self, params, state, action):
        state, step = super().step(jnp.array(False), state, action)
        asked = self.interface.act(action)
        return state, step._replace(reward=(asked == 4).astype(jnp.float32))


def test_training_learns_and_reports_its_shares():
    config = PPOConfig(total_steps=3000, num_envs=10, num_steps=16, num_epochs=4, num_minibatches=2, evaluations=3)
    config = dataclasses.replace(config, learning_rate=1e-2)
    result = train_ppo(Choose(interface(CATEGORIES)), config, params=None, key=jax.random.key(1))
    assert len(result.policies) == 3
    assert result.steps.tolist() == [960, 2080, 3040]  # whole iterations of 160, at least what was asked
    assert result.steps[-1] >= config.total_steps
    assert result.train_return[0] < result.train_return[-1]
    assert result.train_return[-1] > 8.0
    obs = jnp.zeros((5, 2))
    assert result.policies[-1](obs, None).tolist() == [4] * 5
    again = train_ppo(Choose(interface(CATEGORIES)), config, params=None, key=jax.random.key(1))
    for a, b in zip(*(jax.tree.leaves(r.policies[-1].params) for r in (result, again)), strict=True):
        np.testing.assert_array_equal(a, b)


def random_policy(action, seed=0):
    """A policy with large random weights: its raw actions lie far outside of any bounds."""
    face = interface(action)
    network = make_actor(face)
    with jax.numpy_dtype_promotion("standard"):
        params = network.init(jax.random.key(seed), jnp.zeros((1, 2)), jax.random.key(seed))
    return LearnedPolicy(face, network, jax.tree.map(lambda leaf: 9.0 * leaf, params))


@pytest.mark.parametrize(
    "action",
    [
        CATEGORIES,
        box_action([-2.0, 0.0, 5.0], [2.0, 0.5, 100.0]),
        box_action([-3.0], [7.0], "float64"),
        box_action([0.0, -4.0], [9.0, 4.0], "int64"),
    ],
)
@pytest.mark.filterwarnings("error:Explicitly requested dtype")
def test_a_learned_policy_acts_within_its_space(action):
    policy = random_policy(action)
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(101, 2)) * 50.0, jnp.float32)
    actions = np.asarray(policy(obs, jax.random.split(jax.random.key(0), 101)))
    assert np.isfinite(actions).all()
    policy.interface.spec.check(actions, "action")
    assert len(np.unique(actions, axis=0)) > 1
    assert actions.shape == ((101,) if action["type"] == "Discrete" else (101, len(action["low"])))
    np.testing.assert_array_equal(policy(obs, None), actions)  # the mode: no key matters
    zeros = jax.tree.map(jnp.zeros_like, policy.params)
    assert len(np.unique(np.asarray(policy(obs, None, params=zeros)), axis=0)) == 1


@pytest.mark.filterwarnings("error:Explicitly requested dtype")
def test_actions_of_the_learner_become_those_of_the_space():
    assert interface(CATEGORIES).act(jnp.array([0, 1, 2])).tolist() == [2, 3, 4]
    face = interface(box_action([-2.0, 5.0], [2.0, 100.0]))
    got = np.asarray(face.act(jnp.float32([[-1, -1], [0, 0], [1, 1], [-7, 7], [0.5, -0.5]])))
    np.testing.assert_allclose(got, [[-2, 5], [0, 52.5], [2, 100], [-2, 100], [1, 28.75]], rtol=1e-6)
    whole = interface(box_action([0.0], [9.0], "int64"))
    got = whole.act(jnp.linspace(-1, 1, 1001)[:, None])
    assert got.dtype == jnp.int32
    assert np.bincount(np.asarray(got).ravel()).min() > 50  # the highest is no rarer than half of any other
    with pytest.raises(ValueError, match="Box without bounds; a policy learner needs finite low and high"):
        interface(box_action([None], [1.0])).act(jnp.zeros((3, 1)))


def test_features_are_clipped():
    face = interface(CATEGORIES)
    got = face.observe(jnp.float32([[0.5, -3.0], [1e6, -1e6]]))
    np.testing.assert_array_equal(got, [[0.5, -3.0], [10.0, -10.0]])


# --- Real environments ------------------------------------------------------------------------------------------------


class Episodes(gymnasium.Env):
    """Observation: steps in this episode, and which episode it is. Action 4 ends at the fourth step, others never."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(3, start=2)
    episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.episode = 0, self.episode + 1
        return self._obs(), {}

    def step(self, action):
        self.time += 1
        return self._obs(), float(action), bool(action == 4 and self.time >= 4), False, {}

    def _obs(self):
        return np.array([self.time, self.episode], np.float32)


@pytest.fixture(scope="module", autouse=True)
def toys():
    gymnasium.register("PPOEpisodes-v0", Episodes, max_episode_steps=6)
    gymnasium.register("PPOBothEnds-v0", Episodes, max_episode_steps=4)
    yield
    del gymnasium.registry["PPOEpisodes-v0"]
    del gymnasium.registry["PPOBothEnds-v0"]


def real_run(env_id, steps):
    """Every step of three environments, time first; row 2 takes action 4 (index 2) and ends itself."""
    ledger = StepLedger()
    env = RealBatch(interface(CATEGORIES, env_id), 3, ledger=ledger, phase="policy", seed=0)

    @jax.jit
    def run(key):
        state, obs = env.reset(None, key)

        def body(carry, _):
            state, obs = carry
            state, step = env.step(None, state, jnp.array([0, 1, 2]))
            return (state, step.obs), (obs, step)

        _, seen = jax.lax.scan(body, (state, obs), None, steps)
        return seen

    before, step = jax.tree.map(np.asarray, run(jax.random.split(jax.random.key(0), 3)))
    env.close()
    return before, step, ledger


def test_real_environments_show_the_last_observation_and_count_every_step():
    before, step, ledger = real_run("PPOEpisodes-v0", 13)
    assert ledger.to_json() == {"policy": 39}
    assert ledger.count("evaluation") == 0
    # The action led from each observation to `final_obs`: one step on, in the same episode, also where it ended.
    np.testing.assert_array_equal(step.final_obs[..., 0], before[..., 0] + 1)
    np.testing.assert_array_equal(step.final_obs[..., 1], before[..., 1])
    ended = step.terminated | step.truncated
    np.testing.assert_array_equal(np.flatnonzero(step.truncated[:, 0]), [5, 11])
    np.testing.assert_array_equal(np.flatnonzero(step.terminated[:, 2]), [3, 7, 11])
    assert not step.terminated[:, :2].any()
    assert not step.truncated[:, 2].any()
    # `obs` begins a new episode exactly there.
    np.testing.assert_array_equal(step.obs[..., 0] == 0, ended)
    np.testing.assert_array_equal(step.obs[..., 1], before[..., 1] + ended)
    np.testing.assert_array_equal(step.obs[~ended], step.final_obs[~ended])
    np.testing.assert_array_equal(step.reward, np.broadcast_to(np.float32([2, 3, 4]), (13, 3)))


def test_an_end_wins_over_a_time_limit():
    _, step, _ = real_run("PPOBothEnds-v0", 4)
    assert step.terminated[3].tolist() == [False, False, True]
    assert step.truncated[3].tolist() == [True, True, False]


def test_logs_of_unknown_origin_have_no_real_environment():
    with pytest.raises(ValueError, match="these logs name no environment"):
        RealBatch(interface(CATEGORIES), 2, ledger=StepLedger(), phase="policy", seed=0)


# --- The simulator as an environment ----------------------------------------------------------------------------------


class Counting:
    """Dynamics: the first number counts steps, the second is the row's luck; ends at seven."""

    def initial(self, params, key, context=None):
        obs = jnp.stack([jnp.zeros(key.shape[0]), jax.vmap(jax.random.uniform)(key)], axis=-1)
        return obs, obs

    def advance(self, params, state, action, key, *, uncertainty=False):
        after = state.at[:, 0].add(1.0)
        return after, after, action.astype(jnp.float32), after[:, 0] >= 7.0, {}

    def score(self, params, state, action, obs, reward, terminated):
        return jnp.zeros((1, len(obs), 3))

    def observe(self, params, state, action, obs, reward, terminated):
        return obs


@pytest.mark.parametrize(("limit", "last"), [(None, 7), (5, 5)])
def test_simulated_environments_reset_themselves_and_keep_the_last_observation(limit, last):
    env = SimulatedBatch(interface(CATEGORIES), Simulator(Counting(), limit))
    state, obs = env.reset(None, jax.random.split(jax.random.key(2), 3))
    step = jax.jit(env.step)
    lucks = [np.asarray(obs[:, 1])]
    for t in range(1, 2 * last + 1):
        before = obs
        state, now = step(None, state, jnp.array([0, 1, 2]))
        obs = now.obs
        ends = t % last == 0
        np.testing.assert_array_equal(now.final_obs[:, 0], before[:, 0] + 1)
        np.testing.assert_array_equal(now.final_obs[:, 1], before[:, 1])
        assert now.reward.tolist() == [2.0, 3.0, 4.0]
        assert now.terminated.tolist() == [ends and limit is None] * 3
        assert now.truncated.tolist() == [ends and limit is not None] * 3
        if ends:
            assert obs[:, 0].tolist() == [0.0] * 3
            lucks.append(np.asarray(obs[:, 1]))
        else:
            np.testing.assert_array_equal(obs, now.final_obs)
    assert len(np.unique(lucks)) == 9  # new luck for every row and episode
