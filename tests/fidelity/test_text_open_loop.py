"""Open-loop fidelity of texts: one pass says what decoding would, floors are what they say, nothing is dropped."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import worldmodel as wm
from tests.support import counting_episodes
from worldmodel.corpus import open_corpus
from worldmodel.envs.text import TextEnv
from worldmodel.fidelity import text_open_loop as module
from worldmodel.fidelity.text_floors import Answer, NearestLogged, turns_of
from worldmodel.fidelity.text_open_loop import text_open_loop
from worldmodel.trajectory import Trajectory


@pytest.fixture(scope="module")
def dynamics(text_run):
    return wm.load(text_run).dynamics


@pytest.fixture(scope="module")
def corpus(text_run):
    return open_corpus(text_run / "corpus")


@pytest.fixture(scope="module")
def measured(dynamics, corpus):
    return text_open_loop(dynamics, corpus)


def held(corpus):
    return list(corpus.stored("held_out"))


def test_the_report_is_json_and_counts_every_turn(measured, corpus):
    found = json.loads(json.dumps(measured, allow_nan=False))
    turns = sum(len(trajectory) for trajectory in held(corpus))
    assert found["turns"] == turns and found["episodes"] == len(held(corpus)) and found["cut_or_unfit"] == 0
    assert 0 < found["nll"]["token"]["lo"] < found["nll"]["token"]["mean"] < np.log(262)
    assert sum(found["source"][name]["turns"] for name in module.SOURCES) == turns
    assert found["changed"]["changed"]["turns"] + found["changed"]["unchanged"]["turns"] == turns
    assert found["by_step"]["x"] == list(range(1, len(found["by_step"]["model"]["mean"]) + 1))
    for part in module.PARTS:
        for who in ("model", "repeat_last", "nearest_logged"):
            estimate = found["exact_match"][part][who]
            assert estimate["lo"] <= estimate["mean"] <= estimate["hi"] and estimate["n"] == len(held(corpus))


@pytest.fixture(scope="module")
def said(dynamics):
    """A turn of two tasks as the model itself says it, greedily and to its end."""
    found = []
    for task in ("from-1", "from-2"):
        env = TextEnv(dynamics, task=task)
        first, info = env.reset()
        second, reward, terminated, _, told = env.step("add 3")
        if not told["cut"]:
            found.append(
                Trajectory(
                    observations=np.array([first, second], np.object_),
                    actions=np.array(["add 3"], np.object_),
                    rewards=np.array([reward], np.float32),
                    terminated=terminated,
                    truncated=False,
                    context=info["context"],
                )
            )
    assert found, "the tiny run rambles; train it longer"
    return found


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda t: {}, []),
        (lambda t: {"observations": np.array([t.observations[0], f"{t.observations[1]}!"], np.object_)}, [0, 3]),
        (lambda t: {"rewards": t.rewards + 1}, [1, 3]),
        (lambda t: {"terminated": not t.terminated}, [2, 3]),
    ],
)
def test_one_pass_finds_what_greedy_decoding_says(dynamics, said, spoil, wrong):
    """What the model itself says is right in every part; anything else is not."""
    changed = [dataclasses.replace(trajectory, **spoil(trajectory)) for trajectory in said]
    right, unfit, nll = module._model(dynamics, changed)
    assert not unfit.any() and nll["reward"][1].all()
    kept = [place for place in range(4) if place not in wrong]
    assert not right[:, wrong].any()
    # A wrong part may mislead what comes after it, not what came before.
    assert right[:, [place for place in kept if not wrong or place < wrong[0]]].all()


def perfect(dynamics, samples):
    for number, sample in samples:
        count = len(sample.tokens)
        yield number, sample, np.zeros(count, np.float32), np.concatenate([[-1], sample.tokens.ids[1:]])


def test_a_perfect_model_and_the_floors(dynamics, corpus, monkeypatch):
    monkeypatch.setattr(module, "_scored", perfect)
    found = text_open_loop(dynamics, corpus)
    assert all(found["exact_match"][part]["model"]["mean"] == 1.0 for part in module.PARTS)
    assert found["ends"]["model"]["found"]["mean"] == 1.0 and found["ends"]["model"]["false"]["mean"] == 0.0
    assert found["nll"]["token"]["mean"] == 0.0
    turns = [turn for trajectory in held(corpus) for turn in turns_of(trajectory)]
    repeat = [before == answer.observation for before, _, answer in turns]
    assert found["exact_match"]["observation"]["repeat_last"]["mean"] == pytest.approx(np.mean(repeat))
    assert found["ends"]["repeat_last"]["found"]["mean"] == 0.0
    nearest = NearestLogged(corpus.stored("train")).answer([(before, action) for before, action, _ in turns])
    same = [own.observation == answer.observation for own, (_, _, answer) in zip(nearest, turns, strict=True)]
    assert found["exact_match"]["observation"]["nearest_logged"]["mean"] == pytest.approx(np.mean(same))
    assert found["source"]["never_observed"]["model"]["mean"] in (1.0, None)


def test_what_was_cut_is_wrong(dynamics, corpus, monkeypatch):
    monkeypatch.setattr(module, "_scored", perfect)
    rules = dataclasses.replace(dynamics.codec.rules, longest_observation=3)
    short = dataclasses.replace(dynamics, codec=dataclasses.replace(dynamics.codec, rules=rules))
    found = text_open_loop(short, corpus)
    long = [len(answer.observation) > 3 + 6 for t in held(corpus) for _, _, answer in turns_of(t)]
    assert found["cut_or_unfit"] == sum(long) > 0
    assert found["exact_match"]["observation"]["model"]["mean"] == pytest.approx(1 - np.mean(long))
    narrow = text_open_loop(dataclasses.replace(dynamics, length=20), corpus)
    assert narrow["cut_or_unfit"] == narrow["turns"] and narrow["exact_match"]["all"]["model"]["mean"] == 0.0
    assert narrow["nll"]["token"]["mean"] is None and narrow["nll"]["token"]["why"]


def test_nearest():
    logs = NearestLogged(counting_episodes(30))
    (trajectory,) = counting_episodes(1)
    before, action, answer = turns_of(trajectory)[0]
    assert logs.answer([(before, action)]) == [answer]
    assert logs.answer([("the sum is 1", "stop")])[0].over
    assert turns_of(trajectory)[-1][2] == Answer("done", float(trajectory.rewards[-1]), True)


def test_sources():
    training = list(counting_episodes(4))
    (trajectory,) = counting_episodes(1)
    trajectory = dataclasses.replace(
        trajectory,
        observations=np.array(["start at 3", "add 3 start", "done", "unheard"], np.object_),
        actions=np.array(["add 3", "x", "y"], np.object_),
    )
    assert module._sources([trajectory], training).tolist() == [0, 1, 2]


def test_few_episodes_are_chosen_by_seed(dynamics, corpus, monkeypatch):
    monkeypatch.setattr(module, "_scored", perfect)
    some = text_open_loop(dynamics, corpus, episodes=2, seed=1)
    assert some["episodes"] == 2
    assert some == text_open_loop(dynamics, corpus, episodes=2, seed=1)
