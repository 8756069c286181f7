import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.case import FIXTURES
from worldmodel.sources import tfrecord
from worldmodel.sources.tfrecord import crc32c, masked_crc32c, records

WRITTEN_BY_TENSORFLOW = FIXTURES / "rlds" / "arm" / "1.0.0" / "arm-train.tfrecord-00000-of-00001"


def _framed(*payloads: bytes) -> bytes:
    rows = []
    for data in payloads:
        length = struct.pack("<Q", len(data))
        checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
        rows.append(length + checksums[0] + data + checksums[1])
    return b"".join(rows)


def _bit_by_bit(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 * (register & 1))
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # this one and those below: RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc32c_gives_the_published_values(data, expected):
    assert crc32c(data) == expected


@given(st.binary(max_size=300))
def test_crc32c_is_that_of_the_definition(data):
    assert crc32c(data) == _bit_by_bit(data)


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_records_come_back(tmp_path_factory, payloads):
    path = tmp_path_factory.mktemp("tfrecord") / "a.tfrecord"
    path.write_bytes(_framed(*payloads))
    assert list(records(path)) == payloads


def test_what_tensorflow_wrote_is_what_we_would_write():
    found = list(records(WRITTEN_BY_TENSORFLOW))
    assert len(found) == 2
    assert _framed(*found) == WRITTEN_BY_TENSORFLOW.read_bytes()


@pytest.mark.parametrize("bit", [0, 70, 95, 96, 200, 700])
def test_a_flipped_bit_is_found(tmp_path, bit):
    path = tmp_path / "a.tfrecord"
    data = bytearray(_framed(bytes(range(60)), b"another"))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.tfrecord: record [01] \(at byte \d+\): .*checksum.* damaged"):
        list(records(path))


def test_a_cut_file_is_found_wherever_it_is_cut(tmp_path):
    path = tmp_path / "a.tfrecord"
    whole = _framed(b"first", b"second record")
    boundary = len(_framed(b"first"))
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        if size == boundary:
            assert list(records(path)) == [b"first"]
            continue
        with pytest.raises(ValueError, match=rf"record {int(size > boundary)} \(at byte \d+\) is cut"):
            list(records(path))


def test_a_length_beyond_the_file_allocates_nothing(tmp_path):
    path = tmp_path / "a.tfrecord"
    length = struct.pack("<Q", 2**62)
    path.write_bytes(length + struct.pack("<I", masked_crc32c(length)) + b"data")
    with pytest.raises(ValueError, match=r"record 0 \(at byte 0\) is cut: it needs"):
        list(records(path))


def test_a_record_that_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "LONGEST_RECORD", 10)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(_framed(bytes(11)))
    with pytest.raises(ValueError, match="has 11 bytes; at most 10 are read"):
        list(records(path))


def test_reading_streams(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(_framed(b"good") + b"\x00" * 20)
    stream = records(path)
    assert next(stream) == b"good"
    with pytest.raises(ValueError, match="record 1"):
        next(stream)


def test_long_records_use_every_level(tmp_path):
    data = np.random.default_rng(0).bytes(100_003)
    assert crc32c(data) == _bit_by_bit(data)
