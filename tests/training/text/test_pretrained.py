"""Training that begins from public weights, all of them or a low-rank change, and goes back to such a folder."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest

import worldmodel as wm
from tests.support import text_corpus
from worldmodel.codec.text.markers import chat_markers
from worldmodel.codec.text.tokenizer import learn_tokenizer, load_tokenizer
from worldmodel.model.language import LanguageConfig, init_params
from worldmodel.model.pretrained import load_pretrained, save_pretrained
from worldmodel.model.transformer import TrunkConfig
from worldmodel.training.text import TEXT_PRESETS, load_texts, train_texts

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model as `transformers` would save it, whose table has a few rows more than its tokenizer has tokens."""
    package = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed (extra: text)")
    path = tmp_path_factory.mktemp("pretrained") / "tiny"
    inner = learn_tokenizer(["the sum is", "add", "user assistant system"], 264).inner
    inner.add_special_tokens([package.AddedToken(name, special=True) for name in SPECIAL])
    config = LanguageConfig(272, TrunkConfig(8, 1, 2, 1, 8, window=None))
    save_pretrained(path, config, init_params(config, 3))
    (path / "tokenizer.json").write_text(inner.to_str())
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return text_corpus(tmp_path_factory.mktemp("counting") / "corpus", 20)


def config_of(folder, **fields):
    small = {"steps": 4, "checkpoint_every": 2, "log_every": 2, "batch_size": 2, "evaluation_batches": 1}
    return dataclasses.replace(TEXT_PRESETS["debug"], **small, init=str(folder), learning_rate=1e-2, **fields)


def leaves(params):
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(params)}


def test_all_weights(folder, corpus, tmp_path):
    world = train_texts(corpus, tmp_path / "run", config_of(folder))
    described = json.loads((tmp_path / "run" / "config.json").read_text())
    assert described["model"]["vocabulary"] == 272 and (tmp_path / "run" / "tokenizer.json").is_file()
    before, after = leaves(load_pretrained(folder)[1]), leaves(world.dynamics.params)
    assert before.keys() == after.keys()
    assert all((before[name] != after[name]).any() for name in before)
    assert all(np.abs(before[name] - after[name]).max() < 0.1 for name in before)
    env = wm.make(tmp_path / "run", task="from-1", temperature=1.0)
    assert env.reset()[0] == "start at 1"
    assert isinstance(env.step("add 1<|im_end|>")[0], str)
    world.save_pretrained(tmp_path / "saved")
    saved = leaves(load_pretrained(tmp_path / "saved")[1])
    assert all(np.array_equal(saved[name], after[name]) for name in after)
    # It can be begun from again.
    assert chat_markers(load_tokenizer(tmp_path / "saved")) == world.dynamics.codec.markers


def test_a_low_rank_change(folder, corpus, tmp_path):
    config = config_of(folder, lora=2)
    world = train_texts(corpus, tmp_path / "run", config)
    before, after = leaves(load_pretrained(folder)[1]), leaves(world.dynamics.params)
    moved = {name for name in before if (before[name] != after[name]).any()}
    assert moved == {name for name in before if "kernel" in name}
    # Resumed at its end nothing moves; saved, the change is merged.
    again = leaves(train_texts(corpus, tmp_path / "run", config).dynamics.params)
    assert all(np.array_equal(again[name], after[name]) for name in after)
    world.save_pretrained(tmp_path / "saved")
    saved = leaves(load_pretrained(tmp_path / "saved")[1])
    assert all(np.array_equal(saved[name], after[name]) for name in after)
    assert load_texts(tmp_path / "run", which="best").step in (2, 4)


def test_a_tokenizer_of_more_tokens_than_the_model_knows_is_refused(folder, corpus, tmp_path):
    small = LanguageConfig(200, TrunkConfig(8, 1, 2, 1, 8, window=None))
    save_pretrained(tmp_path / "small", small, init_params(small, 0))
    (tmp_path / "small" / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    with pytest.raises(ValueError, match="the model knows 200 tokens, its tokenizer has"):
        train_texts(corpus, tmp_path / "run", config_of(tmp_path / "small"))
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer\.json"):
        train_texts(corpus, tmp_path / "other", config_of(tmp_path / "nowhere"))
