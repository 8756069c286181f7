"""Ends of episodes: lost observations, time limits stored as terminals, late ends."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.corpora import real_log
from tests.corpus.lint.toys import CART, CART_LIMIT, cart_log, codes_of, grid_log, sample_of
from worldmodel.corpus.lint import ends, planted
from worldmodel.corpus.lint.sample import draw_sample
from worldmodel.spaces import box
from worldmodel.trajectory import Spec, Trajectory


@pytest.mark.parametrize("make", [cart_log, grid_log])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_clean_log_is_not_accused(make, seed):
    assert codes_of(ends.check(sample_of(make(seed)))) == []


@pytest.mark.parametrize("make", [cart_log, grid_log])
def test_a_repeated_last_observation_is_found(make):
    log = planted.repeat_last_observation(make(4))
    (finding,) = [f for f in ends.check(sample_of(log)) if f.code == "last-repeated"]
    assert len(finding.episodes) == len(log)
    assert finding.evidence["share"] == 1.0


@pytest.mark.parametrize("make", [cart_log, grid_log])
def test_time_limits_stored_as_terminals_are_found_one_by_one(make):
    log = make(4)
    (finding,) = ends.check(sample_of(planted.limits_as_terminals(log)))
    assert finding.code == "time-limit-terminal"
    assert set(finding.episodes) == {t.info["id"] for t in log if t.truncated}


def test_real_terminals_of_one_length_are_none():
    """Experts that always need as many steps: the last observation, or the reward there, is seen nowhere else."""
    log = [t for t in grid_log(4, 400) if t.terminated and len(t) == 10][:8]
    assert len(log) == 8
    assert codes_of(ends.check(sample_of(log))) == []


def test_a_limit_that_the_spec_names_needs_one_episode():
    log = planted.limits_as_terminals(cart_log(4))
    limited = next(t for t in log if len(t) == CART_LIMIT)
    log = [t for t in log if len(t) < CART_LIMIT] + [limited]
    sample = sample_of(log)
    assert codes_of(ends.check(sample)) == []
    known = dataclasses.replace(sample, spec=dataclasses.replace(sample.spec, max_episode_steps=CART_LIMIT))
    (finding,) = ends.check(known)
    assert list(finding.episodes) == [limited.info["id"]]


@pytest.mark.parametrize("make", [cart_log, grid_log])
@pytest.mark.parametrize(("plant", "left"), [(planted.keep_reset, 0), (planted.shift_ends, 1)])
def test_late_ends_are_found(make, plant, left):
    (finding,) = [f for f in ends.check(sample_of(plant(make(4)))) if f.code == "end-late"]
    assert finding.evidence["left"] == left
    assert finding.evidence["jumped"] > 0.5 * finding.evidence["seen"]


@pytest.mark.parametrize("episodes", [0, 1, 2])
def test_a_tiny_log_is_not_judged(episodes):
    assert codes_of(ends.check(draw_sample(cart_log(1)[:episodes], CART))) == []


@pytest.mark.parametrize(("name", "count", "of"), [("cartpole", 15, 57), ("pendulum", 56, 56)])
def test_the_time_limits_of_real_logs(name, count, of):
    path = real_log(f"imitation/{name}_final.npz")
    with np.load(path, allow_pickle=False) as file:
        columns = {key: file[key] for key in ("obs", "acts", "rews", "terminal", "indices")}
    starts = [0, *columns["indices"], len(columns["acts"])]
    log = []
    for i, (start, stop) in enumerate(itertools.pairwise(starts)):
        observations = columns["obs"][start + i : stop + i + 1]
        rewards = columns["rews"][start:stop].astype(np.float32)
        terminated = bool(columns["terminal"][i])
        log.append(
            Trajectory(observations, columns["acts"][start:stop], rewards, terminated, False, info={"id": str(i)})
        )
    action = {"type": "Discrete", "n": 2, "start": 0} if name == "cartpole" else box((1,), "float32")
    spec = Spec(box(columns["obs"].shape[1:], "float32"), action)
    (finding,) = ends.check(draw_sample(log, spec))
    assert finding.code == "time-limit-terminal"
    assert (len(finding.episodes), len(log)) == (count, of)
    assert [len(log[int(i)]) for i in finding.episodes] == [finding.evidence["length"]] * count
