"""Recording: real episodes, rightly aligned, reproducible, counted; and the commands around it."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from worldmodel.agents.behaviour import DEFAULT_BEHAVIOURS
from worldmodel.agents.counting import CountSteps, StepLedger
from worldmodel.agents.record import make_env, record
from worldmodel.cli import record as data
from worldmodel.cli.show import ShowOptions, show
from worldmodel.corpus import open_corpus
from worldmodel.corpus.summary import estimate
from worldmodel.sources import Source, read
from worldmodel.trajectory import Spec


class Counter(gymnasium.Env):
    """Observation is the time; reward is 10 times the time before the step plus the action; ends at time `end`."""

    observation_space = spaces.Box(0, 1000, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, end: int = 6):
        self.end = end

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.array([0], np.float32), {}

    def step(self, action):
        reward = 10.0 * self.time + float(action)
        self.time += 1
        return np.array([self.time], np.float32), reward, self.time == self.end, False, {}


class Composite(Counter):
    observation_space = spaces.Dict({"x": spaces.Discrete(2)})


class Boundless(Counter):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


@pytest.fixture(autouse=True, scope="module")
def toys():
    gymnasium.register("RecordCounter-v0", Counter)
    gymnasium.register("RecordLimited-v0", Counter, max_episode_steps=4)
    gymnasium.register("RecordBothEnds-v0", Counter, max_episode_steps=6)
    gymnasium.register("RecordComposite-v0", Composite)
    gymnasium.register("RecordBoundless-v0", Boundless)
    yield
    for name in ("Counter", "Limited", "BothEnds", "Composite", "Boundless"):
        del gymnasium.registry[f"Record{name}-v0"]


def recorded(env_id="RecordCounter-v0", *, behaviours=("random",), episodes=3, seed=0, **rest):
    spec, trajectories = record(env_id, behaviours=behaviours, episodes=episodes, seed=seed, **rest)
    return spec, list(trajectories)


def test_rows_line_up_with_what_happened():
    spec, episodes = recorded()
    for episode in episodes:
        episode.validate(spec)
        np.testing.assert_array_equal(episode.observations[:, 0], np.arange(7))
        np.testing.assert_array_equal(episode.rewards, 10 * np.arange(6) + episode.actions)
        np.testing.assert_allclose(episode.action_log_prob, -np.log(3), rtol=1e-6)
        assert (episode.rewards.dtype, episode.action_log_prob.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize(
    ("env_id", "limit", "steps", "terminated", "truncated"),
    [
        ("RecordCounter-v0", 100, 6, True, False),
        ("RecordLimited-v0", 100, 4, False, True),
        ("RecordBothEnds-v0", 100, 6, True, False),
        ("RecordCounter-v0", 5, 5, False, False),
    ],
)
def test_the_three_ends(env_id, limit, steps, terminated, truncated):
    _, episodes = recorded(env_id, max_steps=limit)
    assert {(len(e), e.terminated, e.truncated) for e in episodes} == {(steps, terminated, truncated)}


def test_same_seed_same_bits_other_seed_other_episodes():
    runs = [recorded("CartPole-v1", behaviours=("random", "search:0.2"), episodes=8, seed=s)[1] for s in (1, 1, 2)]
    for one, two in zip(*runs[:2], strict=True):
        assert one.observations.tobytes() == two.observations.tobytes()
        assert one.actions.tobytes() == two.actions.tobytes()
        assert dict(one.info) == dict(two.info)
    assert runs[0][0].observations[0].tobytes() != runs[2][0].observations[0].tobytes()
    assert len({e.info["id"] for run in runs[1:] for e in run}) == 16
    assert len({e.info["seed"] for run in runs[1:] for e in run}) == 16


def test_episodes_are_shared_evenly_and_blind_behaviours_come_first():
    _, episodes = recorded(behaviours=("linear:0.5", "random", "sticky:0.5"), episodes=8)
    assert [e.info["policy"] for e in episodes] == ["random"] * 3 + ["sticky:0.5"] * 3 + ["linear:0.5"] * 2


def test_recorded_episodes_are_those_of_the_real_environment():
    _, episodes = recorded("Pendulum-v1", behaviours=("sticky:0.7", "linear:0.2"), episodes=2)
    env = gymnasium.make("Pendulum-v1")
    for episode in episodes:
        obs, _ = env.reset(seed=episode.info["seed"])
        np.testing.assert_array_equal(obs, episode.observations[0])
        for t, action in enumerate(episode.actions):
            obs, reward, terminated, truncated, _ = env.step(action)
            np.testing.assert_array_equal(obs, episode.observations[t + 1])
            assert np.float32(reward) == episode.rewards[t]
        assert (terminated, truncated) == (episode.terminated, episode.truncated) == (False, True)
    env.close()


def test_arguments_reach_the_environment_and_the_spec():
    spec, episodes = recorded(env_kwargs={"end": 3})
    assert spec.env_kwargs == {"end": 3}
    assert {len(e) for e in episodes} == {3}
    assert recorded("FrozenLake-v1", episodes=2)[0].observation_space == {"type": "Discrete", "n": 16, "start": 0}


def test_every_step_is_counted_and_none_else():
    ledger, seen = StepLedger(), []
    _, trajectories = record(
        "RecordCounter-v0",
        behaviours=("random",),
        episodes=4,
        seed=0,
        ledger=ledger,
        progress=lambda done, steps: seen.append((done, steps)),
    )
    assert ledger.count("logs") == 0, "steps are taken as the episodes are consumed"
    steps = sum(len(e) for e in trajectories)
    assert steps == ledger.count("logs") == 24
    assert seen == [(1, 6), (2, 12), (3, 18), (4, 24)]
    other = CountSteps(Counter(), ledger, "evaluation")
    other.reset(seed=0)
    other.step(1)
    assert ledger.to_json() == {"logs": 24, "evaluation": 1}
    assert ledger.count("comparison") == 0
    assert Spec.from_gymnasium(other) == Spec.from_gymnasium(Counter()), "counting changes nothing that is seen"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"env_id": "CartPol-v1"},
            r"environment 'CartPol-v1' is not registered with Gymnasium \(did you mean 'CartPole-v1'\?\)",
        ),
        ({"env_id": "CartPole-v9"}, r"environment 'CartPole-v9' .*CartPole-v1"),
        ({"env_id": "qqqq"}, r"environment 'qqqq' is not registered with Gymnasium$"),
        ({"env_id": ""}, "environment '' "),
        ({"env_kwargs": {"nonsense": 1}}, "environment 'RecordCounter-v0' cannot be made: .*nonsense"),
        (
            {"env_id": "RecordComposite-v0"},
            "environment 'RecordComposite-v0': observation space Dict is not supported; supported",
        ),
        ({"env_id": "RecordBoundless-v0"}, "environment 'RecordBoundless-v0': action space is a Box without bounds"),
        ({"behaviours": ("stick:0.5",)}, r"behaviour 'stick:0.5' is unknown \(did you mean 'sticky'\?\)"),
        ({"behaviours": ()}, "no behaviour was named"),
        ({"episodes": 0}, "episodes is 0; at least 1 is needed"),
        ({"max_steps": 0}, "max_steps is 0; at least 1 is needed"),
    ],
)
def test_bad_requests(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        recorded(**arguments)
    assert "\n" not in str(caught.value)


def test_default_mixture_on_cartpole_is_weak_and_ends_in_every_way():
    _, episodes = recorded("CartPole-v1", behaviours=DEFAULT_BEHAVIOURS, episodes=300, seed=0)
    by_policy = {}
    for episode in episodes:
        by_policy.setdefault(episode.info["policy"], []).append(episode.total_reward)
    assert np.mean([e.total_reward for e in episodes]) <= 120
    assert max(np.mean(returns) for returns in by_policy.values()) <= 250
    last = np.array([e.observations[-1, 0] for e in episodes if e.terminated])
    assert (np.abs(last) > 2.4).mean() >= 0.1
    assert min((last > 2.4).sum(), (last < -2.4).sum()) >= 5


def test_make_env_suggests_the_newest_version():
    with pytest.raises(ValueError, match=r"did you mean 'CartPole-v1'\?"):
        make_env("Cartpole-v0")


# --- The commands around it -------------------------------------------------------------------------------------------


def options(tmp_path, **changes) -> data.RecordOptions:
    fields = {"env": "RecordCounter-v0", "out": tmp_path / "c", "policy": ("random", "sticky:0.5"), "episodes": 5}
    return data.RecordOptions(**{**fields, **changes})


def test_record_writes_what_show_tells(tmp_path, capsys):
    told = data.record(options(tmp_path, json=True))
    printed = json.loads(capsys.readouterr().out)
    assert printed == told == show(ShowOptions(str(tmp_path / "c"), json=True))
    corpus = open_corpus(tmp_path / "c")
    columns = corpus.columns()
    assert (told["episodes"], told["transitions"]) == (corpus.episodes, corpus.transitions) == (5, 30)
    assert told["lengths"] == {"min": 6, "median": 6.0, "max": 6}
    assert told["ends"] == {"terminated": 5, "truncated": 0, "cut": 0}
    assert [(p["name"], p["episodes"]) for p in told["policies"]] == [("random", 3), ("sticky:0.5", 2)]
    assert told["returns"]["mean"] == pytest.approx(columns.returns.mean())
    assert told["returns"]["lo"] < told["returns"]["mean"] < told["returns"]["hi"]
    assert told["returns"]["n"] == 5
    assert told["spec"] == corpus.spec.to_json()
    assert corpus.provenance["env_id"] == "RecordCounter-v0"


def test_show_draws_a_table(tmp_path, capsys):
    data.record(options(tmp_path, episodes=3))
    text = capsys.readouterr().out
    for words in ("RecordCounter-v0", "Discrete(3)", "Box(1,) float32", "sticky:0.5", "3 terminated", "min 6"):
        assert words in text


def test_recording_into_a_corpus_needs_append_and_another_seed(tmp_path, capsys):
    data.record(options(tmp_path))
    with pytest.raises(ValueError, match="holds a corpus already; --append adds to it"):
        data.record(options(tmp_path))
    with pytest.raises(ValueError, match="its id 'RecordCounter-v0/0/000000' is in the corpus already"):
        data.record(options(tmp_path, append=True))
    assert data.record(options(tmp_path, append=True, seed=1))["episodes"] == 10
    assert [part.provenance["seed"] for part in open_corpus(tmp_path / "c").manifest.parts] == [0, 1]


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[1]", "is no JSON object")])
def test_bad_env_kwargs(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        data.record(options(tmp_path, env_kwargs=text))
    assert not (tmp_path / "c").exists()


def test_a_refused_environment_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="is not registered"):
        data.record(options(tmp_path, env="Nope-v0"))
    assert not (tmp_path / "c").exists()


def test_estimates_say_why_they_are_missing():
    assert estimate([float("nan")]) == {
        "mean": None,
        "lo": None,
        "hi": None,
        "n": 0,
        "why": "the log has no rewards",
    }
    assert estimate([2.0])["why"] == "an interval needs two episodes"
    # Student's t with 2 degrees of freedom: 4.302653 * 1 / sqrt(3).
    three = estimate([1.0, 2.0, 3.0])
    assert (three["mean"], three["n"]) == (2.0, 3)
    assert three["hi"] - three["mean"] == pytest.approx(2.484138, abs=1e-5)


def test_sources(tmp_path):
    data.record(options(tmp_path, json=True))
    for uri in (str(tmp_path / "c"), f"corpus:{tmp_path / 'c'}"):
        source = read(uri)
        assert isinstance(source, Source)
        assert source.spec.env_id == "RecordCounter-v0"
        assert len(list(source)) == len(list(source)) == 5


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        (
            "corpuz:x",
            ValueError,
            r"format 'corpuz' of 'corpuz:x' is unknown \(did you mean 'corpus'\?\); known are corpus:PLACE",
        ),
        ("corpus:", ValueError, "'corpus:' names no place; write corpus:PLACE"),
        ("", ValueError, "'' names no place"),
        ("corpus:/nowhere/at/all", FileNotFoundError, "corpus /nowhere/at/all: no such folder"),
        ("./nowhere", FileNotFoundError, "./nowhere: no such file or folder"),
    ],
)
def test_bad_sources(uri, error, message):
    with pytest.raises(error, match=f"^{message}"):
        read(uri)
