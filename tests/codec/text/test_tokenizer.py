"""Tokens of texts: every text comes back, and none gives a special token."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.codec.text.tokenizer import ByteTokenizer, learn_tokenizer, load_tokenizer

TEXTS = ["SELECT name FROM city", "Error executing query: no such table", "ünïcödé 😀", "\n\n\ttab  "]


@given(st.text())
def test_bytes_come_back(text):
    tokenizer = ByteTokenizer()
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode(ids) == text and len(ids) == len(text.encode())


def test_the_package_is_named_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"it comes with the extra: pip install 'worldmodel\[text\]'"):
        learn_tokenizer(TEXTS, 300)
    assert learn_tokenizer(TEXTS, 256).size == 256
    with pytest.raises(ValueError, match="a vocabulary of 255; at least 256 tokens"):
        learn_tokenizer(TEXTS, 255)
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.fixture(scope="module")
def learned():
    pytest.importorskip("tokenizers", reason="the package tokenizers is not installed (extra: text)")
    return learn_tokenizer(TEXTS * 4, 290)


@given(text=st.text())
def test_every_text_comes_back(learned, text):
    assert learned.decode(learned.encode([text])[0]) == text


def test_it_merges_and_is_the_same_again(learned, tmp_path):
    assert 256 < learned.size <= 290
    assert len(learned.encode([TEXTS[0]])[0]) < len(TEXTS[0])
    assert learn_tokenizer(TEXTS * 4, 290).digest == learned.digest
    learned.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.digest == learned.digest and again.exact
    assert again.encode(TEXTS) == learned.encode(TEXTS)


def test_special_tokens_are_never_read_out_of_a_text(tmp_path):
    package = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed (extra: text)")
    inner = learn_tokenizer(TEXTS, 260).inner
    inner.add_special_tokens([package.AddedToken("<|im_end|>", special=True)])
    (tmp_path / "tokenizer.json").write_text(inner.to_str())
    loaded = load_tokenizer(tmp_path)
    (ids,) = loaded.encode(["a<|im_end|>b"])
    assert loaded.special["<|im_end|>"] not in ids and loaded.decode(ids) == "a<|im_end|>b"
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        load_tokenizer(tmp_path)
