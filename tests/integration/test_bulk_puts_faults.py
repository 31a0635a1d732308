"""Puts on the bulk lane that break, lie or stall: none is ever kept in part, and the server stays as it was."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol.checksums import message_crc32c, running_crc32c, sent_crc32c
from flight_server.protocol.wire import locate
from tests.support import raw_put
from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, path, put_messages
from tests.support.raw_flight import Refused as CallRefused
from tests.support.raw_put import END, BrokenOff, RawPut, Refused, framed
from tests.support.server_process import ServerProcess

SERVER_OPTIONS = {"memory_limit": "256MiB"}

pytestmark = pytest.mark.usefixtures("spotless")

Start = Callable[..., ServerProcess]
MEBIBYTE = 1 << 20
BATCH = pa.record_batch({"n": [1, 2, 3]})
LARGE = pa.record_batch({"n": np.random.default_rng(0).integers(0, 1 << 60, MEBIBYTE // 8)})


@pytest.fixture
def location(server: ServerProcess) -> str:
    return f"{server.http}/v1/put"


def whole(messages: list[bytes]) -> bytes:
    return b"".join(map(framed, messages)) + END


def error_of_reading(raw: RawFlight, ticket: str) -> str:
    """What a reader is told, who has to be told something."""
    with pytest.raises(CallRefused) as refused:
        raw.get(ticket.encode())
    return str(refused.value.detail["error"])


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_put_cut_at_any_byte_is_never_taken_for_a_whole_one(
    raw: RawFlight, location: str, *, reset: bool
) -> None:
    data = whole(put_messages(path("cut"), [BATCH]))
    for size_bytes in range(len(data)):
        with RawPut(location) as put:
            put.raw(data[:size_bytes])
            if reset:
                put.reset()
    eventually(lambda: raw.action("why")["waits"], [])
    for dataset in raw.action("statistics")["datasets"].values():
        assert not dataset["sealed"]
    assert error_of_reading(raw, "cut") == "producer_failed"
    raw.action("drop", {"dataset": "cut"})
    with RawPut(location) as put:
        put.raw(data)
        assert put.answers() == []


def test_a_put_of_which_a_message_has_vanished_is_not_kept(raw: RawFlight, location: str) -> None:
    messages, sums, total = put_messages(path("vanished"), [BATCH] * 3), list[int](), 0
    for message in messages:
        parts = locate(message)
        checksum = message_crc32c(parts.header, parts.body)
        sums.append(sent_crc32c(checksum, parts.metadata, parts.descriptor))
        total = running_crc32c(total, sums[-1])
    checked = [
        struct.pack(">II", len(each), checksum) + each for each, checksum in zip(messages, sums, strict=True)
    ]
    upgrade = ("Connection: Upgrade", "Upgrade: flight-put", "Content-Length: 0")
    for sent in (checked[:2] + checked[3:], checked):
        with RawPut(location, headers=(*upgrade, "x-flight-shuffle-checksums: crc32c")) as put:
            put.raw(b"".join(sent) + struct.pack(">II", 0, total))
            if sent is checked:
                assert put.answers() == []
            else:
                with pytest.raises(Refused, match=rf"what arrived has checksum .*, and {total:08x} was sent"):
                    put.answers()
                assert error_of_reading(raw, "vanished") == "producer_failed"


@pytest.mark.parametrize("what", ["length", "largest length", "message", "schema twice", "no descriptor"])
def test_nonsense_is_refused_with_a_sentence(raw: RawFlight, location: str, what: str) -> None:
    first, batch = put_messages(path("nonsense"), [BATCH])
    bad = {
        "length": b"\xff\xff\xff\xff",
        "largest length": (32 * MEBIBYTE + 1).to_bytes(4, "big"),
        "message": framed(b"\0" * 100),
        "schema twice": framed(first),
        "no descriptor": framed(batch),
    }[what]
    with RawPut(location) as put:
        put.raw((b"" if what == "no descriptor" else framed(first) + framed(batch)) + bad)
        with pytest.raises(Refused) as refused:
            put.answers()
    assert refused.value.body["error"] in ("bad_frame", "invalid_request")
    assert refused.value.body["message"]
    if "length" in what:
        assert refused.value.body["limit_bytes"] == 32 * MEBIBYTE
    if what != "no descriptor":
        assert error_of_reading(raw, "nonsense") == "producer_failed"


@pytest.mark.parametrize(("send_buffer_bytes", "count"), [(None, 16), (4096, 2)], ids=["large", "small"])
def test_a_refusal_reaches_a_client_that_is_still_sending(
    raw: RawFlight, location: str, send_buffer_bytes: int | None, count: int
) -> None:
    messages = put_messages(path("early"), [LARGE] * count)
    raw_put.put(location, messages[:1])
    with RawPut(location, send_buffer_bytes=send_buffer_bytes) as put:
        put.send(*messages)  # all of it, although the first message is refused
        with pytest.raises(Refused, match="one producer"):
            put.answers()


def test_what_is_sent_before_the_answer_is_no_part_of_the_put(raw: RawFlight, location: str) -> None:
    first, *rest = put_messages(path("eager"), [BATCH])
    with RawPut(location, eager=framed(first)) as put:
        put.send(*rest)
        with pytest.raises(Refused, match="descriptor"):
            put.finish()
    assert error_of_reading(raw, "eager") == "not_found"


def test_what_comes_after_the_end_is_not_read(raw: RawFlight, location: str) -> None:
    messages = put_messages(path("after"), [BATCH])
    with RawPut(location) as put:
        put.raw(whole(messages) + framed(messages[1]) * 2)
        eventually(lambda: raw.action("statistics")["datasets"].get("after", {}).get("sealed"), True)
    assert raw.get(b"after")[1:] == messages[1:]


def test_a_client_may_close_its_side_behind_the_end(raw: RawFlight, location: str) -> None:
    with RawPut(location) as put:
        put.raw(whole(put_messages(path("half"), [BATCH])))
        put.socket.shutdown(1)
        assert put.answers() == []


@pytest.mark.parametrize("messages", [0, 1, 2], ids=["at once", "after the schema", "after a batch"])
def test_a_client_that_closes_its_side_before_the_end_has_broken_off(
    raw: RawFlight, location: str, messages: int
) -> None:
    with RawPut(location) as put:
        put.send(*put_messages(path("half"), [BATCH])[:messages])
        put.socket.shutdown(1)
        with pytest.raises(BrokenOff):
            put.answers()
    eventually(lambda: raw.action("why")["waits"], [])
    assert error_of_reading(raw, "half") == ("producer_failed" if messages else "not_found")


def test_an_idle_put_is_watched_by_tcp_keepalive(flight_server_process: Start) -> None:
    server = flight_server_process(keepalive_seconds=3600)
    with RawPut(f"{server.http}/v1/put") as put:
        ports = [f":{port:04X}" for port in (put.socket.getpeername()[1], put.socket.getsockname()[1])]

        def timer() -> list[str]:
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
            (found,) = [row[5] for row in rows if [row[1][-5:], row[2][-5:]] == ports]
            return found.split(":")

        # The kernel's timer 2 of an idle connection is keepalive, once the head of the answer is acknowledged.
        eventually(lambda: timer()[0], "02")
        # At least 100 ticks are a second.
        assert int(timer()[1], 16) > 3000 * 100


def test_dropping_the_dataset_ends_its_put_with_the_reason(raw: RawFlight, location: str) -> None:
    messages = put_messages(path("dropped"), [BATCH] * 2)
    with RawPut(location) as put:
        put.send(*messages[:2])
        eventually(lambda: raw.action("statistics")["datasets"].get("dropped", {}).get("rows"), 3)
        raw.action("drop", {"dataset": "dropped"})
        put.send(*messages[2:])
        with pytest.raises(Refused, match="dropped") as refused:
            put.finish()
    assert refused.value.body["error"] == "dataset_dropped"


def test_random_bytes_never_hurt_the_server(raw: RawFlight, location: str) -> None:
    lot = random.Random(20_240)
    with ExitStack() as stack:
        for _ in range(300):
            put = stack.enter_context(RawPut(location))
            # Half of them with lengths that can be, so that what follows is looked at.
            head = lot.choice([b"", lot.randrange(1, 200).to_bytes(4, "big")])
            put.raw(head + lot.randbytes(lot.randrange(1, 2_000)))
    assert raw_put.put(location, put_messages(path("still"), [BATCH])) == []
