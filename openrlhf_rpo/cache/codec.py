"""Compact encoding of token ids and log-probs, with a checksum.

Layout::

    byte 0       version (3)
    bytes 1..4   CRC-32 of the rest, seeded with the version, little endian
    byte 5       the item type
    bytes 6..9   number of items, little endian
    rest         the items' low byte planes, then a raw deflate stream of the high ones

Item types: ``H`` uint16 (every id < 2**16), ``T`` 24 bits (every id < 2**24), ``I`` uint32, ``e`` IEEE half precision, ``f``
single precision, all little endian. A plane holds one byte of every item. Low planes (two for ids above 2**16, three for
single precision, else one) are nearly random and stored uncompressed: compressing them would save a few tenths of a byte per
token and dominate the time of a read. The high planes are nearly constant and compress to almost nothing.

Earlier versions can still be read. In version 2 one low plane of every type is outside the stream; in version 1 one deflate
stream after the CRC holds the item type and all planes.

The CRC covers the stored bytes, so every flipped bit is detected. zlib's own Adler-32 is too weak: on paths of up to 60
tokens about one flipped bit in 50,000 decoded to other ids of the same length.

A half has an 11-bit significand: log-probs have a relative error of 2**-11 and an absolute error of 2**-25. Those that a
resumed run trains on are stored exactly.

Rounding can push a log-prob slightly above 0; it is accepted below ``LARGEST_LOG_PROB``.

Nothing unpacks to more than ``MOST_TOKENS`` items, whatever the bytes claim.

Degenerate cases: an empty sequence takes a few bytes; -inf is kept; a log-prob below -65,504 becomes -inf.
"""

import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from openrlhf_rpo.types import LogProbs, TokenIds, as_ids, as_log_probs

VERSION = 3
MOST_TOKENS = 2**22
LARGEST_LOG_PROB = 2.0**-7
_HEAD = struct.Struct("<cI")
_PLANES = {"H": 2, "T": 3, "I": 4, "e": 2, "f": 4}
_LOW_PLANES = {"H": 1, "T": 2, "I": 2, "e": 1, "f": 3}
_HALF_MAX = 65504.0
_LARGEST_HALF = np.nextafter(np.float16(LARGEST_LOG_PROB), np.float16(0))
_RAW_DEFLATE = -15
# Compression time adds to every step. A plane rarely repeats strings: run-length matching alone is a third faster than
# zlib's fastest string search, and compresses better.
_DEFLATE = (1, zlib.DEFLATED, _RAW_DEFLATE, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
# High bytes of finite halves below LARGEST_LOG_PROB, whose high byte is 0x20.
_LOG_PROBS = bytes([*range(0x20), *range(0x80, 0xFC)])


class CodecError(ValueError):
    """Values that cannot be stored, or bytes that are damaged or have an unknown version."""


def encode_token_ids(token_ids: Sequence[int]) -> bytes:
    """Ids in [0, 2**32) as bytes, about 2 per token for a vocabulary of 150,000. Raises ``CodecError``."""
    try:
        ids = np.asarray(as_ids(token_ids))
    except (OverflowError, TypeError) as error:
        raise CodecError(f"a token id is not an integer between 0 and 2**32 - 1 ({error})") from error
    largest = int(ids.max(initial=0))
    return _compressed("H" if largest < 2**16 else "T" if largest < 2**24 else "I", ids)


def decode_token_ids(data: bytes) -> TokenIds:
    """Inverse of ``encode_token_ids``. Raises ``CodecError``."""
    found = as_ids()
    found.frombytes(_unpack(data, "HTI").data.cast("B"))
    return found


def encode_log_probs(log_probs: Sequence[float], exact: bool = False) -> bytes:
    """Natural log-probs as bytes, in half precision unless ``exact``. Raises ``CodecError`` for invalid ones."""
    values = np.asarray(log_probs, np.float32)
    if exact:
        check_log_probs(values)
        return _compressed("f", values.view(np.uint32))
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not _ordinary(halves):
        check_log_probs(values)
        halves[values < -_HALF_MAX] = -math.inf
        halves[halves >= LARGEST_LOG_PROB] = _LARGEST_HALF
    return _compressed("e", halves.view(np.uint16))


def decode_log_probs(data: bytes) -> LogProbs:
    """Inverse of ``encode_log_probs``, exact or to half precision. Raises ``CodecError``."""
    items = _unpack(data, "ef")
    values = items.view(np.float16 if items.dtype == np.uint16 else np.float32)
    if values.dtype == np.float32 or not _ordinary(values):
        check_log_probs(values)
    found = as_log_probs()
    found.frombytes(values.astype(np.float32, copy=False).data.cast("B"))
    return found


def check_log_probs(log_probs: Sequence[float] | np.ndarray) -> None:
    """Raise ``CodecError`` for NaN and numbers of ``LARGEST_LOG_PROB`` or more."""
    values = np.asarray(log_probs)
    wrong = np.flatnonzero(~(values < LARGEST_LOG_PROB))
    if len(wrong):
        raise CodecError(f"log-prob {values[wrong[0]]} at token {wrong[0]} is no logarithm of a probability")


def _ordinary(halves: np.ndarray) -> bool:
    """Whether all are finite and below ``LARGEST_LOG_PROB``."""
    return not _plane(halves.view(np.uint16), 1).translate(None, _LOG_PROBS)


def _plane(values: np.ndarray, byte: int) -> bytes:
    """One byte of every item; 0 is the lowest."""
    return (values >> 8 * byte).astype(np.uint8).tobytes()


def _compressed(item: str, values: np.ndarray) -> bytes:
    if len(values) > MOST_TOKENS:
        raise CodecError(f"{len(values):,} tokens, and a path has at most {MOST_TOKENS:,}")
    packer = zlib.compressobj(*_DEFLATE)
    low = _LOW_PLANES[item]
    parts = [_HEAD.pack(item.encode(), len(values)), *(_plane(values, byte) for byte in range(low))]
    for byte in range(low, _PLANES[item]):
        # One deflate block per plane, because their bytes have different distributions.
        parts += [packer.compress(_plane(values, byte)), packer.flush(zlib.Z_BLOCK)]
    rest = b"".join([*parts, packer.flush()])
    return bytes([VERSION]) + _checksum(VERSION, rest) + rest


def check_bytes(data: bytes) -> None:
    """Raise ``CodecError`` unless the checksum matches; much faster than decoding."""
    if not 1 <= int.from_bytes(data[:1]) <= VERSION:
        raise CodecError(f"version byte {data[:1].hex() or 'missing'}, this version reads 01 to {VERSION:02}")
    if data[1:5] != _checksum(data[0], memoryview(data)[5:]):
        raise CodecError(f"damaged bytes (the checksum of {len(data)} bytes differs)")


def _checksum(version: int, rest: bytes | memoryview) -> bytes:
    """CRC-32 of the bytes and, since version 3, the version: a flipped bit could make it another valid one."""
    return zlib.crc32(rest, version if version >= 3 else 0).to_bytes(4, "little")


def _inflated(data: bytes | memoryview, most: int) -> bytes:
    """The content of a whole raw deflate stream of at most ``most`` bytes. Raises ``CodecError`` and ``zlib.error``."""
    stream = zlib.decompressobj(wbits=_RAW_DEFLATE)
    content = stream.decompress(data, most + 1)
    if len(content) > most or not stream.eof or stream.unused_data:
        raise CodecError(f"damaged bytes (a stream that is cut short, or longer than {most:,} bytes)")
    return content


def _unpack(data: bytes, items: str) -> np.ndarray:
    """The items as unsigned integers; their type must be one of ``items``."""
    check_bytes(data)
    try:
        if data[0] == 1:
            content = memoryview(_inflated(data[5:], 1 + 4 * MOST_TOKENS))
            item = bytes(content[:1]).decode("latin-1")
            count = n_low = (len(content) - 1) // _PLANES.get(item, 1)
            low, high = content[1 : 1 + n_low], content[1 + n_low :]
        else:
            kind, count = _HEAD.unpack_from(data, 5)
            item = kind.decode("latin-1")
            n_low = count * (1 if data[0] == 2 else _LOW_PLANES.get(item, 1))
            stored = memoryview(data)[5 + _HEAD.size :]
            low, high = stored[:n_low], memoryview(_inflated(stored[n_low:], 3 * len(stored[:n_low])))
    except (zlib.error, struct.error) as error:
        raise CodecError(f"damaged bytes ({error})") from error
    if not item or item not in items:
        raise CodecError(f"item type {item!r}, expected one of {', '.join(items)}")
    if count > MOST_TOKENS:
        raise CodecError(f"{count:,} items, and a path has at most {MOST_TOKENS:,}")
    if (len(low), len(high)) != (n_low, _PLANES[item] * count - n_low):
        raise CodecError(f"{len(low) + len(high)} bytes are not a whole number of items of {_PLANES[item]} bytes")
    found: np.ndarray = np.zeros(count, np.uint16 if item == "e" else np.uint32)
    planes = (part[start : start + count] for part in (low, high) for start in range(0, len(part), count or 1))
    for byte, plane in enumerate(planes):
        found |= np.frombuffer(plane, np.uint8).astype(found.dtype) << 8 * byte
    return found
