"""TFRecord files: the framing of records and its checksum, without TensorFlow.

A file is a row of records, each `u64 length, u32 masked CRC-32C of the length, data, u32 masked CRC-32C of the data`,
little-endian (TensorFlow's `tensorflow/core/lib/io/record_writer.h` describes it).
"""

from __future__ import annotations

import functools
import os
import pathlib
import struct
from collections.abc import Iterator

import numpy as np

from worldmodel.sources.files import LONGEST_RECORD

_POLYNOMIAL = np.uint32(0x82F63B78)  # Castagnoli, bits reversed
_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


def records(path: pathlib.Path) -> Iterator[bytes]:
    """Every record of a file, streaming, its checksums verified.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a checksum is wrong, the file is cut, or a record is longer than `LONGEST_RECORD`.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        index = position = 0
        while header := file.read(_HEADER.size):
            where = f"{path}: record {index} (at byte {position})"
            if len(header) < _HEADER.size:
                raise ValueError(f"{where} is cut: the file ends within its header")
            length, checksum = _HEADER.unpack(header)
            if masked_crc32c(header[:8]) != checksum:
                raise ValueError(f"{where}: the checksum of its length is wrong; the file is damaged")
            position += _HEADER.size + length + _FOOTER.size
            if position > size:
                raise ValueError(f"{where} is cut: it needs {position} bytes of file, there are {size}")
            if length > LONGEST_RECORD:
                raise ValueError(f"{where} has {length} bytes; at most {LONGEST_RECORD} are read")
            data = file.read(length)
            if _FOOTER.pack(masked_crc32c(data)) != file.read(_FOOTER.size):
                raise ValueError(f"{where}: its checksum is wrong; the file is damaged")
            yield data
            index += 1


def masked_crc32c(data: bytes) -> int:
    """The checksum that TFRecord keeps: CRC-32C rotated by 15 bits, plus a constant."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli, RFC 3720) of `data`.

    The register is linear over GF(2): after two neighbouring blocks it is what the first leaves, moved past as many
    zero bytes as the second has, xor what the second leaves. So all neighbours are joined at once, level by level.
    """
    if len(data) < 4:
        return _crc32c_bitwise(data)
    # Zeros in front leave a register of zeros as it is; its real start, all ones, flips the first 32 bits.
    front = -len(data) % 4
    padded = bytearray(front) + data
    for i in range(front, front + 4):
        padded[i] ^= 0xFF
    words = np.frombuffer(padded, "<u4")
    level = 0
    while len(words) > 1:
        if len(words) % 2:
            words = np.concatenate([np.zeros(1, "<u4"), words])
        words = _moved(words[0::2], level) ^ words[1::2]
        level += 1
    return int(_moved(words, 0)[0]) ^ 0xFFFFFFFF


def _crc32c_bitwise(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (int(_POLYNOMIAL) if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def _moved(registers: np.ndarray, level: int) -> np.ndarray:
    """Registers, uint32 `[N]`, after `4 * 2**level` bytes of zeros."""
    low, high = _tables(level)
    # "clip" spares the check of bounds; 16 bits cannot leave a table of 65,536.
    return low.take(registers & np.uint32(0xFFFF), mode="clip") ^ high.take(registers >> np.uint32(16), mode="clip")


@functools.cache
def _tables(level: int) -> tuple[np.ndarray, np.ndarray]:
    """What the lower and the upper half of a register become after `4 * 2**level` bytes of zeros, uint32 `[65536]`."""
    images = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if level == 0:
        for _ in range(32):
            images = (images >> np.uint32(1)) ^ np.where(images & np.uint32(1), _POLYNOMIAL, np.uint32(0))
    else:
        images = _moved(_moved(images, level - 1), level - 1)
    return _span(images[:16]), _span(images[16:])


def _span(images: np.ndarray) -> np.ndarray:
    """Xor of the images of the bits that are set in each number below `2**len(images)`."""
    table = np.zeros(1, np.uint32)
    for image in images:
        table = np.concatenate([table, table ^ image])
    return table
