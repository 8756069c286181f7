"""Parts and the one who publishes them."""

import dataclasses

import numpy as np
import pytest

from tests.corpus.test_corpus import SPEC, episode, episodes
from worldmodel.corpus import open_corpus, write_corpus
from worldmodel.corpus.write import PartWriter, corpus_writer


def test_a_part_appears_by_rename_and_counts_once_published(tmp_path):
    with corpus_writer(tmp_path, SPEC, provenance={"all": 1}) as corpus:
        for start in (0, 3):
            with corpus.new_part() as part:
                for each in episodes(3, first=start):
                    part.add(each)
                assert (part.episodes, part.transitions) == (3, sum(len(e) for e in episodes(3, first=start)))
                assert part.bytes > 0
                assert not (tmp_path / "parts" / corpus.next_name()).exists()
                committed = part.commit({"start": start})
            assert (tmp_path / "parts" / committed.name).is_dir()
            assert not corpus.holds(f"toy-{start}")
            corpus.publish(committed)
            assert corpus.holds(f"toy-{start}")
    read = open_corpus(tmp_path)
    assert [part.name for part in read.manifest.parts] == ["part-00000", "part-00001"]
    assert [part.provenance for part in read.manifest.parts] == [{"start": 0}, {"start": 3}]
    assert [e.info["id"] for e in read] == [f"toy-{i}" for i in range(6)]


def test_an_episode_that_is_refused_leaves_the_part_as_it_was(tmp_path):
    broken = dataclasses.replace(episode(1, 3), observations=np.full((4, 3), np.nan, np.float32))
    with corpus_writer(tmp_path, SPEC, provenance={}) as corpus, corpus.new_part() as part:
        part.add(episode(0, 2))
        with pytest.raises(ValueError, match=r"^log.npz: episode 7, observations: step 0 holds nan"):
            part.add(broken, where="log.npz: episode 7")
        with pytest.raises(ValueError, match="its id 'toy-0' is in the corpus already"):
            part.add(episode(0, 2))
        part.add(episode(1, 3))
        corpus.publish(part.commit({}))
    assert [e.info["id"] for e in open_corpus(tmp_path)] == ["toy-0", "toy-1"]


def test_workers_write_parts_of_their_own(tmp_path):
    with corpus_writer(tmp_path, SPEC, provenance={}) as corpus:
        parts = []
        for ahead in (1, 0):
            with PartWriter(tmp_path, corpus.next_name(ahead), SPEC) as worker:
                for each in episodes(2, first=10 * ahead):
                    worker.add(each)
                parts.append(worker.commit({}))
        corpus.publish(*sorted(parts, key=lambda part: part.name))
    assert [e.info["id"] for e in open_corpus(tmp_path)] == ["toy-0", "toy-1", "toy-10", "toy-11"]


def test_ids_of_parts_published_together_are_unique(tmp_path):
    with corpus_writer(tmp_path, SPEC, provenance={}) as corpus:
        parts = []
        for ahead in range(2):
            with PartWriter(tmp_path, corpus.next_name(ahead), SPEC) as worker:
                worker.add(episode(5, 2))
                parts.append(worker.commit({}))
        with pytest.raises(ValueError, match="part-00001: id 'toy-5' is in the corpus already; ids are unique"):
            corpus.publish(*parts)
        corpus.publish(parts[0])
        with pytest.raises(ValueError, match="has a part-00000 already"):
            corpus.publish(parts[0])
        with pytest.raises(ValueError, match="has a part-00000 already"):
            PartWriter(tmp_path, "part-00000", SPEC)
    assert open_corpus(tmp_path).episodes == 1


def test_nothing_published_leaves_nothing_behind(tmp_path):
    with corpus_writer(tmp_path / "c", SPEC, provenance={}) as corpus, corpus.new_part() as part:
        part.add(episode(0, 2))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("options", [{"shard_bytes": 1}, {"shard_episodes": 1}])
def test_shards_of_a_size(tmp_path, options):
    with corpus_writer(tmp_path, SPEC, provenance={}) as corpus, corpus.new_part(**options) as part:
        for each in episodes(4):
            part.add(each)
        corpus.publish(part.commit({}))
    files = sorted(file.name for file in (tmp_path / "parts" / "part-00000").glob("*.array_record-*"))
    assert files == [f"episodes-train.array_record-{i:05d}" for i in range(4)]
    corpus = open_corpus(tmp_path)
    assert [e.info["id"] for e in corpus] == [corpus.stored()[i].info["id"] for i in range(4)]
    import tensorflow_datasets as tfds

    source = tfds.builder_from_directory(str(tmp_path / "parts" / "part-00000")).as_data_source(split="train")
    assert [each["episode_metadata"]["id"].decode() for each in source] == [f"toy-{i}" for i in range(4)]


def test_a_damaged_shard_is_one_line_by_number_too(tmp_path):
    corpus = write_corpus(tmp_path, SPEC, [episode(i, 300) for i in range(4)], provenance={})
    file = next((tmp_path / "parts" / "part-00000").glob("*.array_record-*"))
    content = bytearray(file.read_bytes())
    for place in range(200, len(content), 50):
        content[place] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"array_record-00000: is damaged") as error:
        [corpus.stored()[i] for i in range(4)]
    assert "\n" not in str(error.value)
