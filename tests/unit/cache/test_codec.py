import math
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.cache.codec import (
    LARGEST_LOG_PROB,
    CodecError,
    decode_log_probs,
    decode_token_ids,
    encode_log_probs,
    encode_token_ids,
)


def frame(content: bytes) -> bytes:
    """``content`` as encoded by version 1, which the first release wrote."""
    stream = zlib.compress(content, wbits=-15)
    return b"\x01" + zlib.crc32(stream).to_bytes(4, "little") + stream


def second(rest: bytes) -> bytes:
    """``rest`` as encoded by version 2."""
    return b"\x02" + zlib.crc32(rest).to_bytes(4, "little") + rest


TOKEN_IDS = st.lists(st.integers(0, 2**25), max_size=60)


@given(TOKEN_IDS)
def test_ids_come_back_exactly(ids: list[int]) -> None:
    assert decode_token_ids(encode_token_ids(ids)).tolist() == ids


@pytest.mark.parametrize("ids", [(), (0,), (65535,), (65536,), (2**24 - 1, 1), (2**24,), (2**32 - 1, 0)])
def test_ids_at_the_borders_of_the_item_types_come_back(ids: tuple[int, ...]) -> None:
    assert tuple(decode_token_ids(encode_token_ids(ids))) == ids


@given(st.lists(st.floats(-60000, 0), max_size=60))
def test_log_probs_come_back_to_half_precision(log_probs: list[float]) -> None:
    back = decode_log_probs(encode_log_probs(log_probs))
    assert len(back) == len(log_probs)
    for stored, given_ in zip(back, log_probs, strict=True):
        assert abs(stored - given_) <= max(abs(given_) * 2**-11, 2**-25)


@given(st.lists(st.floats(-60000, 0, width=32), max_size=60))
def test_exact_log_probs_come_back_as_they_were(log_probs: list[float]) -> None:
    values = [*log_probs, -math.inf]
    assert decode_log_probs(encode_log_probs(values, exact=True)).tolist() == values
    with pytest.raises(CodecError, match="at token 1"):
        encode_log_probs((-1.0, math.nan), exact=True)


def test_log_probs_of_minus_infinity_are_kept_and_too_small_ones_become_it() -> None:
    assert tuple(decode_log_probs(encode_log_probs((-math.inf, 0.0, -0.5, -1e9)))) == (-math.inf, 0.0, -0.5, -math.inf)
    assert len(decode_log_probs(encode_log_probs(()))) == 0


def test_a_log_prob_that_rounding_takes_to_the_bound_stays_below_it() -> None:
    (stored,) = decode_log_probs(encode_log_probs((0.0078122,)))
    assert 0.0078 < stored < LARGEST_LOG_PROB


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_log_prob_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(CodecError, match="at token 1"):
        encode_log_probs((-1.0, value))


@pytest.mark.parametrize("value", [-1, 2**32, 1.5])
def test_what_is_no_token_id_is_refused(value: int) -> None:
    with pytest.raises(CodecError, match="token id"):
        encode_token_ids((7, value))


@given(TOKEN_IDS, st.data())
def test_a_flipped_bit_is_refused(ids: list[int], data: st.DataObject) -> None:
    damaged = bytearray(encode_token_ids(ids))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CodecError):
        decode_token_ids(bytes(damaged))


def test_every_flipped_bit_of_short_paths_is_refused() -> None:
    # Adler-32 would let some of these through as other ids of the same length.
    draw = random.Random(1)
    for _ in range(60):
        whole = encode_token_ids([draw.randrange(5) for _ in range(60)])
        for bit in range(8 * len(whole)):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(CodecError):
                decode_token_ids(bytes(damaged))


@given(TOKEN_IDS, st.data())
def test_bytes_cut_short_are_refused(ids: list[int], data: st.DataObject) -> None:
    whole = encode_token_ids(ids)
    with pytest.raises(CodecError):
        decode_token_ids(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"\x04" + frame(b"H")[1:], "version byte 04"),
        (b"\x00" + frame(b"H")[1:], "version byte 00"),
        (b"", "version byte missing"),
        (b"\x01", "checksum of 1 bytes differs"),
        (encode_token_ids((1, 2)) + b"\x00", "checksum of .* differs"),
        (frame(b"H\x01\x02\x03"), "not a whole number"),
        (frame(b""), "item type ''"),
        (second(b"H\x02\x00\x00\x00\x01\x02" + zlib.compress(b"\x00", wbits=-15)), "not a whole number"),
        (second(b"H\x02"), "damaged bytes"),
        (encode_log_probs((-1.0,)), "item type 'e'"),
    ],
)
def test_the_error_names_what_is_wrong_with_the_bytes(data: bytes, cause: str) -> None:
    with pytest.raises(CodecError, match=cause):
        decode_token_ids(data)


def test_small_vocabularies_take_two_bytes_a_token_before_compression() -> None:
    data = encode_token_ids((1, 258))
    assert data[5:12] == b"H" + b"\x02\x00\x00\x00" + b"\x01\x02"  # their number, and the low bytes of both
    assert zlib.decompress(data[12:], wbits=-15) == b"\x00\x01"  # the high bytes


def test_the_two_low_bytes_of_a_large_vocabulary_are_stored_as_they_are() -> None:
    data = encode_token_ids((1, 65536 + 515))
    assert data[5:14] == b"T" + b"\x02\x00\x00\x00" + b"\x01\x03" + b"\x00\x02"
    assert zlib.decompress(data[14:], wbits=-15) == b"\x00\x01"


def test_what_an_earlier_version_stored_is_read() -> None:
    high = zlib.compress(b"\x00\x02" + b"\x00\x01", wbits=-15)
    assert tuple(decode_token_ids(second(b"T\x02\x00\x00\x00" + b"\x01\x03" + high))) == (1, 65536 + 515)
    assert decode_token_ids(frame(b"H" + b"\x01\x02" + b"\x00\x01")).tolist() == [1, 258]
    assert decode_token_ids(frame(b"I" + b"\x01" + b"\x00" + b"\x00" + b"\x01")).tolist() == [2**24 + 1]
    assert decode_token_ids(frame(b"H")).tolist() == []
    assert decode_log_probs(frame(b"e" + b"\x00" + b"\xbc")).tolist() == [-1.0]


def test_a_long_path_of_a_vocabulary_of_150_000_takes_at_most_two_and_a_half_bytes_a_token() -> None:
    draw = random.Random(0)
    ranks = draw.choices(range(150_000), weights=[1 / (rank + 1) for rank in range(150_000)], k=4000)
    bytes_a_token = len(encode_token_ids(ranks)) / 4000
    print(f"Zipf-distributed ids: {bytes_a_token:.2f} bytes a token")
    assert max(ranks) > 65_536
    assert bytes_a_token <= 2.5


def test_log_probs_take_at_most_two_bytes_a_token() -> None:
    draw = random.Random(0)
    log_probs = [-draw.expovariate(2.0) for _ in range(4000)]
    # Incompressible bytes grow by zlib's frame only.
    assert len(encode_log_probs(log_probs)) <= 2 * 4000 + 32
    assert struct.calcsize("e") == 2
