"""`tf.train.Example` messages as NumPy columns.

An example maps names to lists of bytes, of float32 or of int64. Protocol buffers hand numbers over one by one, which is
most of the time of reading an episode; written out again, a list of floats is its own bytes, and so is one of small
integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def columns_of_example(record: bytes) -> dict[str, np.ndarray | list[bytes] | None]:
    """Every list of a serialised example, flat, under its name.

    Returns:
      float32 `[n]`, int64 `[n]`, or a list of `bytes`; None for a feature without a list, which is how an empty one may
      be stored.

    Raises:
      ValueError: `record` is no example.
    """
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    messages: Any = tf_example_pb2  # its classes are made when it is imported

    try:
        example = messages.Example.FromString(record)
    except DecodeError as error:
        raise ValueError(f"is no tf.train.Example ({error})") from None
    return {name: _column(feature) for name, feature in example.features.feature.items()}


def _column(feature) -> np.ndarray | list[bytes] | None:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = getattr(feature, kind)
    if kind == "bytes_list":
        return list(values.value)
    values.DiscardUnknownFields()
    data = values.SerializeToString()
    if not data:
        return np.zeros(0, np.float32 if kind == "float_list" else np.int64)
    # A packed field: its tag in one byte, its length as a varint, then all numbers on end.
    start = 1
    while data[start] & 0x80:
        start += 1
    if kind == "float_list":
        return np.frombuffer(data, "<f4", offset=start + 1)
    return _varints(np.frombuffer(data, np.uint8, offset=start + 1))


def _varints(data: np.ndarray) -> np.ndarray:
    """Integers of 7 bits a byte, the lowest first, the top bit set in all but the last: int64 `[n]`."""
    ends = np.flatnonzero(data < 0x80)
    if len(ends) == len(data):
        return data.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    place = np.arange(len(data)) - np.repeat(starts, ends - starts + 1)
    bits = (data & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def put_floats(feature: Any, values: np.ndarray) -> None:
    """Sets a feature to float32 numbers, flattened."""
    feature.float_list.MergeFromString(_packed(np.ascontiguousarray(values, "<f4").tobytes()))


def put_integers(feature: Any, values: np.ndarray) -> None:
    """Sets a feature to integers of int64's range or booleans, flattened."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.size and flat.min() >= 0 and flat.max() < 0x80:
        feature.int64_list.MergeFromString(_packed(flat.astype(np.uint8).tobytes()))
    else:
        feature.int64_list.value.extend(flat.tolist())


def _packed(content: bytes) -> bytes:
    """The packed field of a list: tag, length as a varint, content."""
    length, rest = bytearray(), len(content)
    while rest >= 0x80:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    return b"\x0a" + bytes(length) + content
