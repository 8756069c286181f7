import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_datasets.proto import tf_example_pb2

from worldmodel.corpus.tf_example import columns_of_example


@given(
    st.lists(st.floats(width=32, allow_nan=False), max_size=200),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300), max_size=200),
    st.lists(st.binary(max_size=9), max_size=20),
)
def test_lists_come_back(floats, integers, strings):
    example = tf_example_pb2.Example()
    feature = example.features.feature
    feature["floats"].float_list.value.extend(floats)
    feature["integers"].int64_list.value.extend(integers)
    feature["strings"].bytes_list.value.extend(strings)
    found = columns_of_example(example.SerializeToString())
    np.testing.assert_array_equal(found["floats"], np.array(floats, np.float32))
    np.testing.assert_array_equal(found["integers"], np.array(integers, np.int64))
    assert found["strings"] == strings


def test_kinds_are_told_apart_though_empty():
    example = tf_example_pb2.Example()
    for name in ("float_list", "int64_list", "bytes_list"):
        getattr(example.features.feature[name], name).SetInParent()
    example.features.feature["none"].SetInParent()
    found = columns_of_example(example.SerializeToString())
    assert {name: getattr(column, "dtype", column) for name, column in found.items()} == {
        "float_list": np.float32,
        "int64_list": np.int64,
        "bytes_list": [],
        "none": None,
    }


def test_numbers_that_are_not_packed_and_unknown_fields_are_read():
    # Features { feature { key "a", value: FloatList { 1.0 and 2.0, one by one; an unknown field 2 } } }
    floats = b"\x0d" + np.float32(1).tobytes() + b"\x10\x05" + b"\x0d" + np.float32(2).tobytes()
    value = b"\x12" + bytes([len(floats)]) + floats
    entry = b"\x0a\x01a\x12" + bytes([len(value)]) + value
    features = b"\x0a" + bytes([len(entry)]) + entry
    record = b"\x0a" + bytes([len(features)]) + features
    np.testing.assert_array_equal(columns_of_example(record)["a"], np.array([1, 2], np.float32))


def test_what_is_no_example_is_refused():
    with pytest.raises(ValueError, match=r"is no tf\.train\.Example"):
        columns_of_example(b"\xff\xff no example")
