"""A summary is the same from the episodes and from the index."""

import json
import math

import pytest

from tests.corpus.test_corpus import SPEC, episode, episodes
from worldmodel.corpus import open_corpus, write_corpus
from worldmodel.corpus.store import Records
from worldmodel.corpus.summary import estimate, summarise


def test_the_index_says_what_the_episodes_say(tmp_path, monkeypatch):
    log = [*episodes(9), episode(20, 3, rewards=False, policy="good"), episode(21, 4, policy="")]
    write_corpus(tmp_path, SPEC, log[:5], provenance={})
    corpus = write_corpus(tmp_path, SPEC, log[5:], provenance={}, append=True)
    want = summarise(iter(log))
    assert want == summarise(log) == summarise(iter(corpus))
    monkeypatch.setattr(Records, "read", lambda *_: pytest.fail("an episode was read"))
    assert summarise(open_corpus(tmp_path)) == want
    assert json.loads(json.dumps(want, allow_nan=False)) == want
    assert [policy["name"] for policy in want["policies"]] == ["random", "good", "unknown"]
    assert [policy["episodes"] for policy in want["policies"]] == [9, 1, 1]
    assert want["policies"][1]["returns"]["why"] == "the log has no rewards"
    assert want["lengths"] == {"min": 1, "median": 3.0, "max": 4}
    assert want["ends"] == {"terminated": 4, "truncated": 3, "cut": 4}
    assert want["transitions"] == sum(len(e) for e in log)


def test_no_episode():
    with pytest.raises(ValueError, match="the log holds no episode; at least one is needed"):
        summarise([])


def test_estimate_by_hand():
    got = estimate([1.0, 2.0, 3.0, math.nan])
    # Student's t with two degrees of freedom: 4.3027 * 1 / sqrt(3).
    assert got["n"] == 3
    assert got["mean"] == 2.0
    assert got["hi"] - 2.0 == pytest.approx(2.4841, abs=1e-4)
