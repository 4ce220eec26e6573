"""Token ids and log-probs as compact, checked bytes.

Layout::

    byte 0       version (1)
    bytes 1..4   CRC-32 of the rest, little endian
    rest         raw deflate stream of: one byte that names the item type, then the items' byte planes

Item types: ``H`` uint16 (every id < 65,536), ``I`` uint32, ``e`` IEEE half precision, all little endian. The planes
(all lowest bytes, then all second bytes, ...) put the nearly constant high bytes of token ids side by side, where they
cost next to nothing.

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

VERSION = 1
_ITEM_BYTES = {"H": 2, "I": 4, "e": 2}
_HALF_MAX = 65504.0
_RAW_DEFLATE = -15
_ID_LEVEL = 6
# The low byte of a half is noise: more effort does not make it smaller.
_LOG_PROB_LEVEL = 1


class CodecError(ValueError):
    """Values that cannot be stored, or bytes that are damaged or of an unknown version."""


def encode_token_ids(token_ids: Sequence[int]) -> bytes:
    """Ids in [0, 2**32) as bytes; about 2 bytes a token for a vocabulary of 150,000. Raises ``CodecError``."""
    try:
        return _pack("H" if max(token_ids, default=0) < 65536 else "I", token_ids, _ID_LEVEL)
    except (struct.error, TypeError) as error:
        raise CodecError(f"a token id is no integer between 0 and 2**32 - 1 ({error})") from error


def decode_token_ids(data: bytes) -> tuple[int, ...]:
    """Inverse of ``encode_token_ids``. Raises ``CodecError``."""
    return _unpack(data, "HI")


def encode_log_probs(log_probs: Sequence[float]) -> bytes:
    """Natural log-probs in half precision. NaN and +inf raise ``CodecError``."""
    for position, value in enumerate(log_probs):
        if not value <= _HALF_MAX:
            raise CodecError(f"log-prob {value} at token {position} is no number below {_HALF_MAX:.0f}")
    return _pack("e", [value if value >= -_HALF_MAX else -math.inf for value in log_probs], _LOG_PROB_LEVEL)


def decode_log_probs(data: bytes) -> tuple[float, ...]:
    """Inverse of ``encode_log_probs``, up to half precision. Raises ``CodecError``."""
    return _unpack(data, "e")


def _pack(item: str, values: Sequence[int] | Sequence[float], level: int) -> bytes:
    raw = struct.pack(f"<{len(values)}{item}", *values)
    width = _ITEM_BYTES[item]
    planes = b"".join(raw[byte::width] for byte in range(width))
    stream = zlib.compress(item.encode() + planes, level, wbits=_RAW_DEFLATE)
    return bytes([VERSION]) + zlib.crc32(stream).to_bytes(4, "little") + stream


def _unpack(data: bytes, items: str) -> tuple[Any, ...]:
    if data[:1] != bytes([VERSION]):
        raise CodecError(f"version byte {data[:1].hex() or 'missing'}, this version reads {VERSION:02x}")
    crc, stream = data[1:5], data[5:]
    if crc != zlib.crc32(stream).to_bytes(4, "little"):
        raise CodecError(f"damaged bytes (the checksum of {len(data)} bytes differs)")
    try:
        content = zlib.decompress(stream, wbits=_RAW_DEFLATE)
    except zlib.error as error:
        raise CodecError(f"damaged bytes ({error})") from error
    item, planes = content[:1].decode("latin-1"), content[1:]
    if not item or item not in items:
        raise CodecError(f"item type {item!r}, expected one of {', '.join(items)}")
    width = _ITEM_BYTES[item]
    if len(planes) % width:
        raise CodecError(f"{len(planes)} bytes are no whole number of items of {width} bytes")
    count = len(planes) // width
    raw = bytearray(len(planes))
    for byte in range(width):
        raw[byte::width] = planes[byte * count : (byte + 1) * count]
    return struct.unpack(f"<{count}{item}", raw)
