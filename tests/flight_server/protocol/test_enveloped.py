"""Envelopes: what was sent is opened in its order, and nothing else is."""

from __future__ import annotations

import pytest

from flight_server.protocol import wire
from flight_server.protocol.checksums import crc32c, message_crc32c
from flight_server.protocol.enveloped import Envelopes
from flight_server.protocol.errors import BadFrame

TICKET = b'{"dataset":"d"}'
PARTS = [(b"header %d" % number, b"metadata", b"body") for number in range(3)]


def sent(ticket: bytes = TICKET) -> list[memoryview]:
    """The app_metadata of three envelopes."""
    sealing = Envelopes(ticket)
    envelopes = [
        sealing.seal(wire.flight_data(*parts), message_crc32c(parts[0], parts[2]), crc32c(parts[1]))
        for parts in PARTS
    ]
    return [wire.locate(envelope).metadata for envelope in envelopes]


def test_what_was_sealed_is_opened() -> None:
    opening = Envelopes(TICKET)
    for data, parts in zip(sent(), PARTS, strict=True):
        found, checksum = opening.open(data)
        assert tuple(map(bytes, (found.header, found.metadata, found.body))) == parts
        assert checksum == message_crc32c(parts[0], parts[2])


@pytest.mark.parametrize("order", [(1,), (0, 2), (0, 0), (0, 1, 1), (2,)])
def test_a_message_that_is_lost_repeated_or_moved_is_noticed(order: tuple[int, ...]) -> None:
    envelopes, opening = sent(), Envelopes(TICKET)
    *before, last = [envelopes[number] for number in order]
    for data in before:
        opening.open(data)
    with pytest.raises(BadFrame, match="running checksum"):
        opening.open(last)


def test_an_answer_to_another_ticket_is_noticed() -> None:
    with pytest.raises(BadFrame, match="running checksum"):
        Envelopes(TICKET).open(sent(b'{"dataset":"e"}')[0])


def test_no_flipped_bit_goes_unnoticed() -> None:
    data = bytes(sent()[0])
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(BadFrame):
            Envelopes(TICKET).open(memoryview(flipped))
    for size in range(len(data)):
        with pytest.raises(BadFrame):
            Envelopes(TICKET).open(memoryview(data[:size]))
