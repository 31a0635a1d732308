"""Checksums: what they cover, so that both lanes and both sides have the same."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.frames.message import stored_checksums
from flight_server.protocol import ipc_framing, wire
from flight_server.protocol.checksums import crc32c, message_crc32c, running_crc32c


def test_the_checksum_is_castagnoli_s() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=200), st.data())
def test_it_is_the_same_of_bytes_views_and_pieces(data: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    whole = crc32c(data)
    assert crc32c(memoryview(data)) == whole
    assert crc32c(memoryview(bytearray(b"?" + data + b"?"))[1:-1]) == whole
    assert crc32c(memoryview(data)[cut:], crc32c(data[:cut])) == whole


@given(st.binary(min_size=1, max_size=100), st.binary(max_size=100))
def test_a_message_has_the_checksum_of_its_bytes_in_an_ipc_stream(header: bytes, body: bytes) -> None:
    in_a_stream = ipc_framing.encapsulate(header) + body
    assert message_crc32c(memoryview(header), memoryview(body)) == crc32c(in_a_stream[8:])


def test_the_running_checksum_depends_on_every_message_and_their_order() -> None:
    one, other = crc32c(b"one"), crc32c(b"other")
    checksums = {
        running_crc32c(running_crc32c(0, first), second)
        for first, second in ((one, other), (other, one), (one, one))
    }
    assert len(checksums) == 3
    by_hand = crc32c(one.to_bytes(4, "big") + other.to_bytes(4, "big"))
    assert running_crc32c(running_crc32c(0, one), other) == by_hand


@pytest.mark.parametrize("metadata", [b"", b"17"])
def test_any_flipped_bit_that_a_reader_would_see_changes_what_is_stored(metadata: bytes) -> None:
    batch = pa.record_batch({"n": pa.array(range(10), pa.int16())})
    encapsulated = batch.serialize().to_pybytes()
    header_bytes = int.from_bytes(encapsulated[4:8], "little")
    header, body = encapsulated[8 : 8 + header_bytes], encapsulated[8 + header_bytes :]
    message = wire.flight_data(header, metadata, body)
    right = stored_checksums(message)
    parts = (header, metadata, body)
    for bit in range(8 * len(message)):
        flipped = bytearray(message)
        flipped[bit // 8] ^= 1 << bit % 8
        if stored_checksums(bytes(flipped)) == right:
            # In the envelope, and a reader takes the same from it.
            located = wire.locate(bytes(flipped))
            assert tuple(map(bytes, (located.header, located.metadata, located.body))) == parts
