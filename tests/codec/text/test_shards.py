"""Tokens kept beside a corpus, and the rows that training takes from them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from worldmodel.codec.text import ByteTokenizer, Kind, TextCodec, TextRules, own_markers, samples_of, shards
from worldmodel.codec.text.batches import TokenBatches
from worldmodel.codec.text.information import CLASSES, weights_of
from worldmodel.codec.text.shards import samples_among, shards_of
from worldmodel.corpus import open_corpus, write_corpus
from worldmodel.sources.chat_episode import TEXT
from worldmodel.trajectory import Trajectory

CODEC = TextCodec(ByteTokenizer(), own_markers(ByteTokenizer()), TextRules("keep", 0, 0, 0))
LENGTH = 96


def episode(index, turns):
    rng = np.random.default_rng(index)
    texts = ["".join(chr(97 + c) for c in rng.integers(0, 26, rng.integers(3, 20))) for _ in range(2 * turns + 1)]
    return Trajectory(
        observations=np.array(texts[: turns + 1], np.object_),
        actions=np.array(texts[turns + 1 :], np.object_),
        rewards=np.zeros(turns, np.float32),
        terminated=index % 2 == 0,
        truncated=False,
        info={"id": str(index)},
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "corpus"
    write_corpus(path, TEXT, (episode(i, 1 + i % 5) for i in range(40)), provenance={})
    return open_corpus(path)


def all_samples(corpus, weights="off"):
    every = np.ones(corpus.episodes, np.bool_)
    made = shards_of(corpus, CODEC, LENGTH, otherwise=corpus.path / "unused")
    return samples_among(made, every, [part.episodes for part in corpus.manifest.parts], weights_of(weights))


def test_shards_hold_every_sample(corpus):
    samples = all_samples(corpus)
    wanted = [s for t in corpus for s in samples_of(t, CODEC, LENGTH)[0]]
    assert len(samples) == len(wanted)
    for number, want in enumerate(wanted):
        ids, kinds, weights = samples.sample(number)
        np.testing.assert_array_equal(ids, want.tokens.ids)
        np.testing.assert_array_equal(kinds, want.tokens.kinds)
        np.testing.assert_array_equal(weights, (want.tokens.kinds > 0).astype(np.float32))
        assert samples.shards[0].first[number] == want.first
    assert samples.nothing == 0 and samples.cuts.unfit == 0


def test_they_are_made_once_for_each_codec(corpus, monkeypatch):
    all_samples(corpus)
    monkeypatch.setattr(shards, "_make", lambda *_: pytest.fail("made again"))
    all_samples(corpus)
    other = TextCodec(CODEC.tokenizer, CODEC.markers, TextRules("keep", 5, 0, 0))
    with pytest.raises(pytest.fail.Exception, match="made again"):
        shards_of(corpus, other, LENGTH, otherwise=corpus.path)
    with pytest.raises(pytest.fail.Exception, match="made again"):
        shards_of(corpus, CODEC, LENGTH + 1, otherwise=corpus.path)


def test_shards_of_another_part_are_made_again(corpus):
    all_samples(corpus)
    (told,) = (corpus.path / ".tokens").glob("*/part-00000/shard.json")
    data = json.loads(told.read_text())
    told.write_text(json.dumps(data | {"checksum": "of another"}))
    all_samples(corpus)
    assert json.loads(told.read_text()) == data


def test_a_corpus_that_cannot_be_written_has_its_tokens_elsewhere(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(shards.os, "access", lambda *_: False)
    other = TextCodec(CODEC.tokenizer, CODEC.markers, TextRules("keep", 7, 0, 0))
    (made,) = shards_of(corpus, other, LENGTH, otherwise=tmp_path)
    assert len(made) and list(tmp_path.glob(".tokens/*/part-00000/tokens.bin"))


def test_weights_are_of_observations_alone_and_empty_samples_drop(corpus):
    zero = ",".join(f"{name}=0" for name in CLASSES)
    samples = all_samples(corpus, zero)
    _, kinds, weights = samples.sample(0)
    assert not weights[kinds == Kind.OBSERVATION].any() and weights[kinds > Kind.OBSERVATION].all()
    # A sample that is given alone, as a continuation whose one turn fits in no row, has nothing to learn.
    own = samples.shards[0]
    learned = own.learned.copy()
    learned[3] = 0
    changed = shards.dataclasses.replace(own, learned=learned)
    every = np.ones(corpus.episodes, np.bool_)
    found = samples_among([changed], every, [corpus.episodes], weights_of("off"))
    assert found.nothing == 1 and len(found) == len(samples) - 1 and 3 not in found.place
    with pytest.raises(ValueError, match="no sample of 0 episodes holds anything to learn"):
        samples_among([own], ~every, [corpus.episodes], weights_of("off"))


def test_the_split_decides_what_is_learned(corpus):
    held = corpus.split("held_out")
    made = shards_of(corpus, CODEC, LENGTH, otherwise=corpus.path)
    parts = [samples_among(made, mask, [corpus.episodes], weights_of("off")) for mask in (held, ~held)]
    episodes = [set(made[0].episode[part.place].tolist()) for part in parts]
    assert episodes[0] == set(np.flatnonzero(held)) and not episodes[0] & episodes[1]


# --- Batches ----------------------------------------------------------------------------------------------------------


def rows_of(batch):
    """The samples of a batch as (ids, kinds), each as bytes."""
    for row in range(len(batch["tokens"])):
        segments = batch["segments"][row]
        for segment in range(1, segments.max() + 1):
            here = segments == segment
            yield batch["tokens"][row][here].tobytes(), batch["kinds"][row][here].tobytes()


def test_an_epoch_holds_every_sample_once(corpus):
    samples = all_samples(corpus)
    batches = TokenBatches(samples, length=LENGTH, rows=3, seed=5)
    wanted = sorted(samples.sample(i)[0].tobytes() for i in range(len(samples)))
    found: list[bytes] = []
    place = 0
    while len(found) < len(wanted):
        found += [ids for ids, _ in rows_of(batches[place])]
        place += 1
    assert sorted(found[: len(wanted)]) == wanted
    batch = batches[0]
    assert (batch["weights"] > 0).sum() == (batch["kinds"] > 0).sum()
    assert not batch["tokens"][batch["segments"] == 0].any()
    assert (batch["segments"] > 0).mean() > 0.8


def test_a_stream_goes_on_where_it_was(corpus):
    samples = all_samples(corpus)
    make = lambda **k: TokenBatches(samples, length=LENGTH, rows=3, seed=5, **k)  # noqa: E731
    stream = make()
    first = [next(stream) for _ in range(3)]
    state = json.loads(json.dumps(stream.get_state()))
    again = make()
    again.set_state(state)
    followed, wanted = next(again), next(stream)
    for name, value in wanted.items():
        np.testing.assert_array_equal(followed[name], value)
    shared = [make(shard=(index, 2)) for index in (0, 1)]
    for number, batch in enumerate(first):
        np.testing.assert_array_equal(next(shared[number % 2])["tokens"], batch["tokens"])
    assert not np.array_equal(TokenBatches(samples, length=LENGTH, rows=3, seed=6)[0]["tokens"], first[0]["tokens"])
    with pytest.raises(ValueError, match="shard 2 of 2 is none"):
        make(shard=(2, 2))
    with pytest.raises(ValueError, match="a row has 10"):
        TokenBatches(samples, length=10, rows=3, seed=5)
