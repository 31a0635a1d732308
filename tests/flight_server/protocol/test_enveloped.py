"""Envelopes: what was sent is opened in its order, and nothing else is."""

from __future__ import annotations

import pytest

from flight_server.protocol import wire
from flight_server.protocol.checksums import crc32c, message_crc32c
from flight_server.protocol.enveloped import Envelopes
from flight_server.protocol.errors import BadFrame

TICKET = b'{"dataset":"d"}'
PARTS = [(b"header %d" % number, b"metadata", b"body") for number in range(3)]


SEALED = [(wire.flight_data(*parts), message_crc32c(parts[0], parts[2]), crc32c(parts[1])) for parts in PARTS]


def sent(ticket: bytes = TICKET, *, together: bool = False) -> list[memoryview]:
    """The app_metadata of three messages, or of one with three envelopes."""
    sealing = Envelopes(ticket)
    messages = [sealing.seal(*SEALED)] if together else [sealing.seal(each) for each in SEALED]
    return [wire.locate(message).metadata for message in messages]


@pytest.mark.parametrize("together", [False, True])
def test_what_was_sealed_is_opened(together: bool) -> None:
    opening = Envelopes(TICKET)
    found = [each for data in sent(together=together) for each in opening.open(data)]
    for (parts, checksum), wanted in zip(found, PARTS, strict=True):
        assert tuple(map(bytes, (parts.header, parts.metadata, parts.body))) == wanted
        assert checksum == message_crc32c(wanted[0], wanted[2])


@pytest.mark.parametrize("order", [(1,), (0, 2), (0, 0), (0, 1, 1), (2,)])
def test_a_message_that_is_lost_repeated_or_moved_is_noticed(order: tuple[int, ...]) -> None:
    envelopes, opening = sent(), Envelopes(TICKET)
    *before, last = [envelopes[number] for number in order]
    for data in before:
        assert len(list(opening.open(data))) == 1
    with pytest.raises(BadFrame, match="running checksum"):
        list(opening.open(last))
    with pytest.raises(BadFrame, match="running checksum"):
        list(Envelopes(TICKET).open(memoryview(b"".join(envelopes[number] for number in order))))


def test_an_answer_to_another_ticket_is_noticed() -> None:
    with pytest.raises(BadFrame, match="running checksum"):
        list(Envelopes(TICKET).open(sent(b'{"dataset":"e"}')[0]))


@pytest.mark.parametrize("together", [False, True])
def test_no_flipped_bit_goes_unnoticed(together: bool) -> None:
    data = bytes(sent(together=together)[0])
    whole = {0}
    for size in range(1, len(data) + 1):
        if size not in whole:
            try:
                list(Envelopes(TICKET).open(memoryview(data[:size])))
            except BadFrame:
                continue
            whole.add(size)
    assert len(whole) - 1 == (3 if together else 1)  # a later message's running checksum says what lacks
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(BadFrame):
            list(Envelopes(TICKET).open(memoryview(flipped)))
