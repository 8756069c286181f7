"""What a conversion will take: against what it took."""

import pytest

from tests.corpus.logs import ToyLog, toy_input
from worldmodel.corpus.convert import convert
from worldmodel.corpus.estimate import estimate
from worldmodel.corpus.filters import Filters
from worldmodel.corpus.job import Input, Recipe


def ordered(value) -> bool:
    return value["lo"] <= value["mean"] <= value["hi"]


def test_a_log_that_ends_within_the_sample_is_counted_exactly(tmp_path):
    log = toy_input(tmp_path, "a.toy", count=60)
    recipe = Recipe(filters=Filters(min_return=10.0), part_episodes=20)
    corpus = convert([log], tmp_path / "c", recipe).corpus
    said = estimate([log], recipe, seconds=30.0, out=tmp_path)
    assert said["episodes"] == {"mean": 50.0, "lo": 50.0, "hi": 50.0, "n": 10}
    assert said["transitions"]["mean"] == corpus.transitions
    assert said["bytes"]["lo"] <= sum(part.bytes for part in corpus.manifest.parts) <= said["bytes"]["hi"]
    assert ordered(said["bytes"])
    assert said["shards"]["mean"] == len(corpus.manifest.parts) == 3
    assert 0 < said["hours"]["mean"] < 1 / 60
    assert ordered(said["hours"])
    assert said["sample"]["read"] == 60
    assert 10 <= said["sample"]["written"] <= 50, "of the first 20, 10 are left out"
    assert said["free_bytes"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.toy", "c"], "the sample is gone"


def test_a_sample_stands_for_a_larger_job(tmp_path):
    log = toy_input(tmp_path, "a.toy", count=397)  # not a multiple of four, so that blocks differ
    whole = estimate([log], seconds=30.0, out=tmp_path)
    ten = estimate([log], seconds=30.0, of=3_970, out=tmp_path)
    assert ten["episodes"]["mean"] == 3_970
    assert ten["transitions"]["mean"] == pytest.approx(10 * whole["transitions"]["mean"])
    # One part either way: what it costs beside its episodes is not ten times as much.
    assert whole["bytes"]["mean"] < ten["bytes"]["mean"] < 10 * whole["bytes"]["mean"]
    assert ten["transitions"]["lo"] < ten["transitions"]["mean"] < ten["transitions"]["hi"]
    assert whole["sample"]["read"] == 397
    # 20 and a binomial quarter of 377, within four standard deviations.
    assert abs(whole["sample"]["written"] - 20 - 377 / 4) < 4 * (377 * 3 / 16) ** 0.5


def test_the_clock_ends_the_sample(tmp_path):
    log = Input("toy:a", ToyLog(100_000))
    said = estimate([log], seconds=0.3, out=tmp_path)
    assert said["sample"]["read"] < 50_000
    assert said["episodes"]["mean"] == 100_000, "the log says how many it holds"
    # Episodes have 1, 2, 3, 4 steps in turn.
    assert said["transitions"]["lo"] <= 250_000 <= said["transitions"]["hi"]
    unknown = estimate([Input("toy:a", ToyLog(100_000, known=False))], seconds=0.1, out=tmp_path)
    for name in ("episodes", "bytes", "hours", "shards"):
        assert unknown[name]["mean"] is None
        assert unknown[name]["why"] == "the log does not say how many episodes it holds; --of N says it"
    told = estimate([Input("toy:a", ToyLog(100_000, known=False))], seconds=0.1, of=70, out=tmp_path)
    assert told["episodes"]["mean"] == 70


def test_several_logs_add_up(tmp_path):
    logs = [toy_input(tmp_path, "a.toy", count=30), toy_input(tmp_path, "b.toy", count=50)]
    both = estimate(logs, seconds=20.0, out=tmp_path)
    one = [estimate([log], seconds=20.0, out=tmp_path) for log in logs]
    assert both["episodes"]["mean"] == 80
    assert both["bytes"]["mean"] == pytest.approx(sum(each["bytes"]["mean"] for each in one), rel=1e-3)
    half = [each["bytes"]["hi"] - each["bytes"]["mean"] for each in one]
    assert both["bytes"]["hi"] - both["bytes"]["mean"] == pytest.approx((half[0] ** 2 + half[1] ** 2) ** 0.5, rel=0.05)


def test_one_episode_has_no_interval(tmp_path):
    said = estimate([toy_input(tmp_path, "a.toy", count=1)], of=10, out=tmp_path)
    assert said["bytes"]["lo"] is None
    assert said["bytes"]["why"] == "an interval needs two episodes of every log"


def test_faults_of_the_sample_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"toy:a.toy: episode 1 \(e1\): 2 observations for 2 actions"):
        estimate([toy_input(tmp_path, "a.toy", count=3, bad=[1])], out=tmp_path)
    with pytest.raises(ValueError, match=r"toy:b.toy: holds no episode; there is nothing to estimate"):
        estimate([toy_input(tmp_path, "b.toy", count=0)], out=tmp_path)
