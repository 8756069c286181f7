"""The index says of every episode what the episodes say, and opening reads nothing else."""

import dataclasses

import numpy as np
import pytest

from tests.corpus.test_corpus import SPEC, episode, episodes
from worldmodel.corpus import held_out_mask, open_corpus, write_corpus
from worldmodel.corpus.index import Index, IndexBuilder, joined, load_index, save_index
from worldmodel.corpus.split import hash_of
from worldmodel.corpus.store import Records


@pytest.fixture
def corpus(tmp_path):
    write_corpus(tmp_path, SPEC, episodes(4), provenance={})
    more = [episode(7, 3, rewards=False, policy="good"), dataclasses.replace(episode(8, 2), info={"id": "ünïcode"})]
    return write_corpus(tmp_path, SPEC, more, provenance={}, append=True)


def test_the_index_is_what_the_episodes_say(corpus):
    index, written = corpus.index, list(corpus)
    assert index.ids() == [index.id_of(i) for i in range(6)] == [e.info["id"] for e in written]
    np.testing.assert_array_equal(index.lengths, [len(e) for e in written])
    np.testing.assert_array_equal(index.returns, [e.total_reward for e in written])
    assert np.isnan(index.returns).tolist() == [False] * 4 + [True, False]
    np.testing.assert_array_equal(index.terminated, [e.terminated for e in written])
    np.testing.assert_array_equal(index.truncated, [e.truncated for e in written])
    assert [index.policy_of(i) for i in range(6)] == ["random"] * 4 + ["good", None]
    assert index.where_policy("good").tolist() == [False] * 4 + [True, False]
    assert not index.where_policy("unknown").any()
    np.testing.assert_array_equal(index.id_hashes, np.array([hash_of(name) for name in index.ids()], np.uint64))
    assert (index.episodes, index.transitions, index.shard_lengths.tolist()) == (6, corpus.transitions, [4, 2])


def test_opening_splitting_and_filtering_read_no_episode(corpus, monkeypatch):
    monkeypatch.setattr(Records, "read", lambda *_: pytest.fail("an episode was read"))
    opened = open_corpus(corpus.path)
    np.testing.assert_array_equal(opened.split("held_out"), held_out_mask(opened.index.ids()))
    stored = opened.stored("train", keep=opened.index.lengths > 1)
    assert stored.lengths.tolist() == [
        length
        for length, train in zip(opened.index.lengths, opened.split("train"), strict=True)
        if train and length > 1
    ]
    with pytest.raises(ValueError, match="is in the corpus already"):
        write_corpus(corpus.path, SPEC, episodes(1), provenance={}, append=True)


def test_split_by_a_key_keeps_its_values_together(tmp_path):
    tasks = [dataclasses.replace(e, info={**e.info, "task": f"t{i % 12}"}) for i, e in enumerate(episodes(60))]
    write_corpus(tmp_path, SPEC, tasks[:40], provenance={}, split_by="task")
    corpus = write_corpus(tmp_path, SPEC, tasks[40:], provenance={}, append=True)
    held_out = {e.info["task"] for e in corpus.stored("held_out")}
    train = {e.info["task"] for e in corpus.stored("train")}
    assert held_out
    assert not held_out & train
    assert len(held_out | train) == 12
    with pytest.raises(ValueError, match=r"episode 0 \(toy-99\): its info lacks 'task', by which the corpus is split"):
        write_corpus(tmp_path, SPEC, episodes(1, 99), provenance={}, append=True)
    with pytest.raises(ValueError, match="is split by 'task', not by 'id'"):
        write_corpus(tmp_path, SPEC, tasks[:1], provenance={}, append=True, split_by="id")


def test_a_damaged_index_is_one_line(corpus):
    folder = corpus.path / "parts" / "part-00000"
    content = (folder / "index.npz").read_bytes()
    for damage in (content[:50], content[:-30], b"PK" + bytes(len(content) - 2), b""):
        (folder / "index.npz").write_bytes(damage)
        with pytest.raises(ValueError, match=r"index\.npz: is damaged") as error:
            load_index(folder)
        assert "\n" not in str(error.value)


def test_save_and_load(tmp_path):
    builder = IndexBuilder()
    for each in episodes(5):
        builder.check(each, where="here")
        builder.add(each)
    index = builder.build([3, 2])
    save_index(tmp_path, index)
    again = load_index(tmp_path)
    for field in dataclasses.fields(Index):
        ours, theirs = getattr(again, field.name), getattr(index, field.name)
        np.testing.assert_array_equal(ours, theirs)
        assert type(ours) is type(theirs)
    both = joined([index, again])
    assert both.ids() == index.ids() * 2
    assert both.id_of(7) == index.id_of(2)


def test_synthetic_episodes_are_known_and_an_older_index_has_none(tmp_path):
    builder = IndexBuilder()
    for number, each in enumerate(episodes(4)):
        builder.add(dataclasses.replace(each, info={**each.info, "synthetic": number % 2 == 1}))
    save_index(tmp_path, builder.build([4]))
    np.testing.assert_array_equal(load_index(tmp_path).synthetic, [False, True, False, True])
    with np.load(tmp_path / "index.npz") as file:
        older = {name: file[name] for name in file.files if name != "synthetic"}
    np.savez(tmp_path / "index.npz", **older)
    np.testing.assert_array_equal(load_index(tmp_path).synthetic, [False] * 4)


def test_equal_hashes_are_told_apart_by_their_ids(tmp_path, monkeypatch):
    for module in ("index", "known_ids"):
        monkeypatch.setattr(f"worldmodel.corpus.{module}.hash_of", lambda text: 5)
    corpus = write_corpus(tmp_path, SPEC, episodes(3), provenance={})
    corpus = write_corpus(tmp_path, SPEC, episodes(2, first=3), provenance={}, append=True)
    assert corpus.episodes == 5
    with pytest.raises(ValueError, match="its id 'toy-3' is in the corpus already"):
        write_corpus(tmp_path, SPEC, episodes(2, first=2)[1:], provenance={}, append=True)


def test_an_id_that_is_no_text(tmp_path):
    bad = dataclasses.replace(episode(0, 2), info={"id": "\ud800"})
    with pytest.raises(ValueError, match=r"its id '\\ud800' is no Unicode text \(surrogates not allowed\)"):
        write_corpus(tmp_path, SPEC, [bad], provenance={})
