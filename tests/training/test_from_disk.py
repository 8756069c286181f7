"""Training on a corpus that stays on disk: the same bits as from memory, and scales from a sample where it is large."""

import json

import jax
import numpy as np
import pytest

from tests.support import SMALL, tiny_columns
from worldmodel.corpus import Columns, StoredEpisodes, open_corpus, read, write_corpus
from worldmodel.training import TrainingConfig, claim, train

CONFIG = TrainingConfig(model=SMALL, steps=6, batch_size=6, length=7, warmup=3, checkpoint_every=4, log_every=2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    spec, columns = tiny_columns("CartPole-v1", episodes=12, seed=3)
    path = tmp_path_factory.mktemp("logs") / "corpus"
    write_corpus(path, spec, [columns.episode(i) for i in range(columns.episodes)], provenance={})
    return open_corpus(path)


def test_disk_and_memory_train_the_same_model(corpus, tmp_path, monkeypatch):
    assert isinstance(corpus.held("train"), Columns)
    monkeypatch.setattr(read, "IN_MEMORY_BYTES", 0)
    on_disk = corpus.held("train")
    assert isinstance(on_disk, StoredEpisodes)
    monkeypatch.setattr(claim, "FITTED", 100)
    held_out = corpus.held("held_out")
    one = train(corpus.columns("train"), corpus.spec, tmp_path / "memory", CONFIG, held_out=corpus.columns("held_out"))
    other = train(on_disk, corpus.spec, tmp_path / "disk", CONFIG, held_out=held_out)
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    assert one.dynamics.codec == other.dynamics.codec
    described = [json.loads((tmp_path / run / "config.json").read_text()) for run in ("memory", "disk")]
    assert described[0]["training"]["logs"]["sha256"] != described[1]["training"]["logs"]["sha256"]


def test_a_corpus_that_grew_is_another_log(tmp_path):
    spec, columns = tiny_columns("CartPole-v1", episodes=12, seed=3)
    path, episodes = tmp_path / "corpus", [columns.episode(i) for i in range(columns.episodes)]
    write_corpus(path, spec, episodes[:9], provenance={})
    before = open_corpus(path)
    (tmp_path / "run").mkdir()
    for corpus in (before, open_corpus(path)):
        claim.claim(tmp_path / "run", corpus.stored("train"), spec, CONFIG)
    write_corpus(path, spec, episodes[9:], append=True, provenance={})
    with pytest.raises(ValueError, match=r"another configuration: .*training.logs"):
        claim.claim(tmp_path / "run", open_corpus(path).stored("train"), spec, CONFIG)


def test_a_sample_is_chosen_by_ids_and_is_the_same_on_disk_and_in_memory(corpus):
    memory, disk = corpus.columns("train"), corpus.stored("train")
    assert memory.sample(len(memory)) is memory
    for most in (1, 60, 150):
        one, other = memory.sample(most), disk.sample(most)
        assert one.ids == other.ids and one.digest == other.digest
        assert len(one) <= most or one.episodes == 1
    assert set(memory.sample(60).ids) < set(memory.sample(150).ids) < set(memory.ids)
