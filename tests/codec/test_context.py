"""Contexts as numbers: what differs is read, what does not is left out, what is unknown is refused."""

import json

import numpy as np
import pytest

from worldmodel.codec import ContextCodec
from worldmodel.codec.context import WORDS, ContextField

PHYSICS = [
    {"gravity": gravity, "arm": {"lengths": [1.0, length]}, "units": "m"}
    for gravity, length in ((9.0, 1.0), (10.0, 3.0), (11.0, 2.0))
]


def test_numbers_are_standardised_and_what_never_differs_is_left_out():
    codec = ContextCodec.fit(PHYSICS)
    assert [field.name for field in codec.fields] == ["arm/lengths/1", "gravity"]
    assert codec.ignored == ("arm/lengths/0", "units")
    vectors = codec.encode(PHYSICS)
    assert vectors.shape == (3, 2)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(vectors.std(axis=0), 1, atol=1e-6)
    np.testing.assert_array_equal(codec.encode([{"gravity": 10.0}, None])[0], [0.0, 0.0])
    np.testing.assert_array_equal(codec.encode([None]), [[0.0, 0.0]])


def test_texts_differ_by_their_words():
    open_door, same, shut = "Open the red door", "open the RED door!", "close the red door"
    codec = ContextCodec.fit([open_door, shut])
    assert codec.fields == (ContextField("", "text"),)
    one, two, three = codec.encode([open_door, same, shut])
    assert one.shape == (WORDS,)
    np.testing.assert_array_equal(one, two)
    assert 0 < np.linalg.norm(one - three) < 2 * np.linalg.norm(one)
    assert np.isfinite(codec.encode(["", "never heard of"])).all()


def test_nothing_to_tell_apart_is_no_context():
    for contexts in ([], [None, None], [{"task": 1}, {"task": 1}]):
        codec = ContextCodec.fit(contexts)
        assert codec.size == 0
        assert codec.encode([None, {"task": 1}]).shape == (2, 0)


def test_one_that_only_some_episodes_have_is_read():
    codec = ContextCodec.fit([{"wind": 1.0}, None])
    assert [field.name for field in codec.fields] == ["wind"]


def test_what_is_not_understood_is_refused():
    codec = ContextCodec.fit(PHYSICS)
    codec.check({"gravity": 5, "units": "m"})
    for context, message in [
        ({"gravitiy": 5.0}, "context 'gravitiy' is unknown; known are 'arm/lengths/1', 'gravity'"),
        ({"gravity": "much"}, "context 'gravity' is 'much'; a number is needed"),
        ({"gravity": {1, 2}}, "context 'gravity' is a set; numbers, texts, lists and dicts are read"),
    ]:
        with pytest.raises(ValueError, match=message):
            codec.check(context)
    with pytest.raises(ValueError, match="trained without any"):
        ContextCodec().check({"gravity": 1.0})
    with pytest.raises(ValueError, match="context 'a' is a text in some episodes and a number in others"):
        ContextCodec.fit([{"a": 1}, {"a": "x"}])


def test_the_codec_is_json():
    codec = ContextCodec.fit([{"text": "a b", "x": 1}, {"text": "c", "x": 2}])
    assert json.loads(json.dumps([f.__dict__ for f in codec.fields]))[0]["kind"] == "text"
