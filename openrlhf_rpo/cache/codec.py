"""Token ids and log-probs as compact, checked bytes.

Layout::

    byte 0       version (3)
    bytes 1..4   CRC-32 of the rest, begun with the version, little endian
    byte 5       the item type
    bytes 6..9   number of items, little endian
    rest         the items' low byte planes, then a raw deflate stream of the others

Item types: ``H`` uint16 (every id < 2**16), ``T`` 24 bits (every id < 2**24), ``I`` uint32, ``e`` IEEE half precision,
all little endian. A plane holds one byte of every item. Low ones (two of ids above 2**16, else one) are close to noise and
stored as they are: deflating them would take most of the time of a reading for a few tenths of a byte. The nearly constant
high ones cost next to nothing.

Earlier versions are still read. Version 2 has one low plane of every type outside the stream; version 1 has one deflate
stream of the item type and all planes after the CRC.

The CRC is of the stored bytes, so that every flipped bit is refused. zlib's own Adler-32 is too weak for it: on paths
of up to 60 tokens about one flipped bit in 50,000 decoded to other ids of the same length.

A half has an 11 bit significand: a log-prob is stored to a relative error of 2**-11 and an absolute one of 2**-25.

Degenerate cases: the empty sequence is a few bytes long; -inf is kept; a log-prob below -65,504 becomes -inf.
"""

import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

VERSION = 3
_HEAD = struct.Struct("<cI")
_PLANES = {"H": 2, "T": 3, "I": 4, "e": 2}
_LOW_PLANES = {"H": 1, "T": 2, "I": 2, "e": 1}
_IN_MEMORY = {"H": "H", "T": "I", "I": "I", "e": "e"}
_HALF_MAX = 65504.0
_RAW_DEFLATE = -15
# A step stores about a hundred paths before it goes on. Bytes of a plane seldom repeat as strings: looking for runs alone
# is a third faster than zlib's fastest search for strings, and the symbols come out shorter.
_DEFLATE = (1, zlib.DEFLATED, _RAW_DEFLATE, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
# The high bytes of halves that are numbers: not all of the five bits of the exponent are set.
_NUMBERS = bytes(byte for byte in range(256) if byte & 0x7C != 0x7C)


class CodecError(ValueError):
    """Values that cannot be stored, or bytes that are damaged or of an unknown version."""


def encode_token_ids(token_ids: Sequence[int]) -> bytes:
    """Ids in [0, 2**32) as bytes; about 2 bytes a token for a vocabulary of 150,000. Raises ``CodecError``."""
    try:
        return _compressed("H", struct.pack(f"<{len(token_ids)}H", *token_ids))
    except struct.error:
        pass  # of a larger vocabulary, or no ids at all
    try:
        raw = struct.pack(f"<{len(token_ids)}I", *token_ids)
        return _compressed("I" if raw[3::4].strip(b"\0") else "T", raw)
    except (struct.error, TypeError) as error:
        raise CodecError(f"a token id is no integer between 0 and 2**32 - 1 ({error})") from error


def decode_token_ids(data: bytes) -> tuple[int, ...]:
    """Inverse of ``encode_token_ids``. Raises ``CodecError``."""
    return _unpack(data, "HTI")


def encode_log_probs(log_probs: Sequence[float]) -> bytes:
    """Natural log-probs in half precision. NaN and +inf raise ``CodecError``."""
    try:
        raw = struct.pack(f"<{len(log_probs)}e", *log_probs)
        ordinary = not raw[1::2].translate(None, _NUMBERS)
    except OverflowError:
        ordinary = False
    return _compressed("e", raw if ordinary else _pack_extremes(log_probs))


def decode_log_probs(data: bytes) -> tuple[float, ...]:
    """Inverse of ``encode_log_probs``, up to half precision. Raises ``CodecError``."""
    return _unpack(data, "e")


def _pack_extremes(log_probs: Sequence[float]) -> bytes:
    for position, value in enumerate(log_probs):
        if not value <= _HALF_MAX:
            raise CodecError(f"log-prob {value} at token {position} is no number below {_HALF_MAX:.0f}")
    return struct.pack(f"<{len(log_probs)}e", *(value if value >= -_HALF_MAX else -math.inf for value in log_probs))


def _compressed(item: str, raw: bytes) -> bytes:
    width, low = struct.calcsize(_IN_MEMORY[item]), _LOW_PLANES[item]
    packer = zlib.compressobj(*_DEFLATE)
    parts = [_HEAD.pack(item.encode(), len(raw) // width), *(raw[byte::width] for byte in range(low))]
    for byte in range(low, _PLANES[item]):
        # A block of its own for each plane, because the bytes of one are distributed like no other's.
        parts += [packer.compress(raw[byte::width]), packer.flush(zlib.Z_BLOCK)]
    rest = b"".join([*parts, packer.flush()])
    return bytes([VERSION]) + _checksum(VERSION, rest) + rest


def check_bytes(data: bytes) -> None:
    """Raises ``CodecError`` unless the bytes are those that were encoded; much faster than decoding them."""
    if not 1 <= int.from_bytes(data[:1]) <= VERSION:
        raise CodecError(f"version byte {data[:1].hex() or 'missing'}, this version reads 01 to {VERSION:02}")
    if data[1:5] != _checksum(data[0], memoryview(data)[5:]):
        raise CodecError(f"damaged bytes (the checksum of {len(data)} bytes differs)")


def _checksum(version: int, rest: bytes | memoryview) -> bytes:
    """Of the bytes, and since version 3 of the version: a flipped bit in it would name a version that is read, too."""
    return zlib.crc32(rest, version if version >= 3 else 0).to_bytes(4, "little")


def _unpack(data: bytes, items: str) -> tuple[Any, ...]:
    """The numbers, of one of the types ``items``."""
    check_bytes(data)
    try:
        if data[0] == 1:
            content = memoryview(zlib.decompress(data[5:], wbits=_RAW_DEFLATE))
            item = bytes(content[:1]).decode("latin-1")
            count = n_low = (len(content) - 1) // _PLANES.get(item, 1)
            low, high = content[1 : 1 + n_low], content[1 + n_low :]
        else:
            kind, count = _HEAD.unpack_from(data, 5)
            item = kind.decode("latin-1")
            n_low = count * (1 if data[0] == 2 else _LOW_PLANES.get(item, 1))
            stored = memoryview(data)[5 + _HEAD.size :]
            low, high = stored[:n_low], memoryview(zlib.decompress(stored[n_low:], wbits=_RAW_DEFLATE))
    except (zlib.error, struct.error) as error:
        raise CodecError(f"damaged bytes ({error})") from error
    if not item or item not in items:
        raise CodecError(f"item type {item!r}, expected one of {', '.join(items)}")
    if (len(low), len(high)) != (n_low, _PLANES[item] * count - n_low):
        raise CodecError(f"{len(low) + len(high)} bytes are no whole number of items of {_PLANES[item]} bytes")
    width = struct.calcsize(_IN_MEMORY[item])
    raw = bytearray(count * width)
    planes = (part[start : start + count] for part in (low, high) for start in range(0, len(part), count or 1))
    for byte, plane in enumerate(planes):
        raw[byte::width] = plane
    return struct.unpack(f"<{count}{_IN_MEMORY[item]}", raw)
