"""Messages that are not frames of their dataset: each fails its put, says why, and is never read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.integration.bad_input.data import (
    BATCH,
    FRAME,
    MAX_MESSAGE_BYTES,
    SCHEMA,
    WORDS,
    refused,
    used_bytes,
)
from tests.support.polling import eventually
from tests.support.raw_flight import (
    BODY,
    HEADER,
    RawFlight,
    field,
    flight_data,
    ipc_messages,
    path,
    put_messages,
    varint,
)
from tests.support.server_process import ServerProcess

WORDS_SCHEMA, WORDS_DICTIONARY, WORDS_FRAME = ipc_messages(WORDS.schema, [WORDS])
TWO_WORDS = pa.record_batch({"v": WORDS["w"], "w": WORDS["w"]})
OTHER_DICTIONARY = ipc_messages(TWO_WORDS.schema, [TWO_WORDS])[2]


def stream(*messages: bytes) -> list[bytes]:
    """A put into dataset ``d``: its schema, one good batch, then these."""
    return [*put_messages(path("d"), [BATCH]), *messages]


def words(*messages: bytes) -> list[bytes]:
    """A put of dictionary-encoded data into ``d``: its schema, then these."""
    return [flight_data(WORDS_SCHEMA.header, descriptor=path("d")), *messages]


def body_with(old: bytes, new: bytes) -> bytes:
    """The good frame with some of its body's bytes replaced."""
    assert old in FRAME.body
    return flight_data(FRAME.header, FRAME.body.replace(old, new))


def zstd(size_bytes: int, said_bytes: int | None = None, *, body: bytes | None = None) -> list[bytes]:
    """A put of one compressed batch of zeros, which may say another size than it has, or have another body."""
    batch = pa.record_batch({"n": np.zeros(size_bytes, dtype=np.int8)})
    schema, frame = ipc_messages(batch.schema, [batch], pa.ipc.IpcWriteOptions(compression="zstd"))
    assert frame.body[:8] == size_bytes.to_bytes(8, "little")
    if body is None:
        body = (said_bytes or size_bytes).to_bytes(8, "little") + frame.body[8:]
    return [flight_data(schema.header, descriptor=path("d")), flight_data(frame.header, body)]


BAD_STREAMS: dict[str, tuple[list[bytes], str]] = {
    "a message cut off": (stream(flight_data(FRAME.header, FRAME.body)[:-1]), "not FlightData"),
    "garbage": (stream(b"\xff\x00garbage"), "not FlightData"),
    "an empty message": (stream(b""), "empty"),
    "only an unknown field": (stream(field(7, b"x")), "empty"),
    "a field number beyond 29 bits": (
        stream(field(HEADER, FRAME.header) + field(HEADER + (1 << 29), b"x") + field(BODY, FRAME.body)),
        "field number",
    ),
    "a number where bytes belong": (stream(varint(HEADER << 3) + varint(5)), "field 2 is a number"),
    "a group": (stream(varint(HEADER << 3 | 3)), "wire type 3"),
    "a body without a header": (stream(field(BODY, FRAME.body)), "no header"),
    "a header without its body": (stream(flight_data(FRAME.header)), "record batch 1"),
    "a body shorter than the header says": (
        stream(flight_data(FRAME.header, FRAME.body[:-8])),
        "record batch 1",
    ),
    "a body longer than the header says": (
        stream(flight_data(FRAME.header, FRAME.body + bytes(8))),
        "longer",
    ),
    "a header cut off": (stream(flight_data(FRAME.header[:-30], FRAME.body)), "record batch 1 is not valid"),
    "a header of zeros": (stream(flight_data(bytes(64), FRAME.body)), "neither a schema, a dictionary nor"),
    "a header of three bytes": (stream(flight_data(b"abc", FRAME.body)), "not an Arrow IPC message"),
    "a second schema": (stream(flight_data(SCHEMA.header)), "a second schema"),
    "a schema with a body": (
        [flight_data(SCHEMA.header, b"x", descriptor=path("d"))],
        "schema message has a body",
    ),
    "a schema cut off": (
        [flight_data(SCHEMA.header[:-40], descriptor=path("d"))],
        "schema message is not valid",
    ),
    "a batch before the schema": (
        [flight_data(FRAME.header, FRAME.body, descriptor=path("d"))],
        "must be the schema",
    ),
    "text that is not UTF-8": (stream(body_with(b"row 7", b"row \xff")), "UTF8"),
    "offsets that go back": (
        stream(body_with((5).to_bytes(4, "little"), (1 << 30).to_bytes(4, "little"))),
        "record batch 1 is not valid",
    ),
    "another descriptor in a later message": (
        stream(flight_data(FRAME.header, FRAME.body, descriptor=path("bystander"))),
        "another descriptor",
    ),
    "a later descriptor that is none": (
        stream(flight_data(FRAME.header, FRAME.body, descriptor=b"\xff\xff")),
        "another descriptor",
    ),
    "a batch without its dictionary": (
        words(flight_data(WORDS_FRAME.header, WORDS_FRAME.body)),
        "record batch 0 is not valid",
    ),
    "a dictionary for a column that is not there": (
        words(
            *(
                flight_data(each.header, each.body)
                for each in (WORDS_DICTIONARY, OTHER_DICTIONARY, WORDS_FRAME)
            ),
        ),
        "record batch 0 is not valid",
    ),
    "indices beyond the dictionary": (
        words(
            flight_data(WORDS_DICTIONARY.header, WORDS_DICTIONARY.body),
            flight_data(WORDS_FRAME.header, WORDS_FRAME.body.replace(b"\x01\0\0\0", b"\x63\0\0\0")),
        ),
        "record batch 0 is not valid",
    ),
    "a message over the limit": (
        stream(flight_data(FRAME.header, bytes(MAX_MESSAGE_BYTES))),
        f"more than this server's limit of {MAX_MESSAGE_BYTES}: write smaller batches",
    ),
    "a batch that decompresses beyond the limit": (zstd(MAX_MESSAGE_BYTES + 1), "decompresses to"),
    "a batch that says it decompresses to a tebibyte": (zstd(1000, 1 << 40), "decompresses to"),
    "a batch that decompresses to more than it says": (zstd(100_000, 1000), "record batch 0 is not valid"),
    "a batch that decompresses to less than it says": (zstd(1000, 100_000), "record batch 0 is not valid"),
    "a buffer outside of the compressed body": (zstd(1000, body=b"1234"), "outside of its body"),
}


@pytest.mark.parametrize("case", BAD_STREAMS)
def test_a_bad_message_fails_its_stream_and_says_why(raw: RawFlight, case: str) -> None:
    messages, words = BAD_STREAMS[case]
    before = used_bytes(raw)
    error = refused(lambda: raw.put(messages))
    assert error.status == "INVALID_ARGUMENT"
    assert words in error.message
    assert "dataset 'd'" in error.message
    assert error.detail["error"] == "bad_frame"
    assert error.detail["dataset"] == "d"
    eventually(lambda: used_bytes(raw), before)
    # A reader learns the same, or that there never was a dataset; and the name is free again.
    reading = refused(lambda: raw.get(b"d"))
    assert reading.status in {"INTERNAL", "NOT_FOUND"}
    if reading.status == "INTERNAL":
        assert words in reading.message
    assert raw.put(put_messages(path("d"), [BATCH])) == []
    assert len(raw.get(b"d")) == 2


@pytest.mark.copied_by_grpc
@pytest.mark.parametrize("size_bytes", [MAX_MESSAGE_BYTES + (3 << 20), MAX_MESSAGE_BYTES + (70 << 20)])
def test_a_message_far_over_the_limit_fails_the_put_and_seals_nothing(
    raw: RawFlight, size_bytes: int
) -> None:
    error = refused(lambda: raw.put(stream(flight_data(FRAME.header, bytes(size_bytes)))))
    # Beyond a slack that bounds what can be buffered gRPC refuses it before it is here, with a status of its own,
    # which pyarrow raises as the same class.
    assert error.status in {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
    assert str(size_bytes)[:3] in error.message
    eventually(
        lambda: raw.action("statistics", {"dataset": "d"})["datasets"]["d"]["partitions"]["0"]["state"],
        "failed",
    )


def test_pyarrow_raises_the_class_that_fits_with_the_server_s_message(
    raw: RawFlight, server: ServerProcess
) -> None:
    with flight.connect(server.location) as client:
        with pytest.raises(pa.ArrowKeyError, match="there is no dataset 'nobody'"):
            client.do_get(flight.Ticket(b"nobody")).read_all()
        with pytest.raises(pa.ArrowInvalid, match="unknown key 'part'"):
            client.do_get(flight.Ticket(b'{"dataset":"bystander","part":0}')).read_all()
        with pytest.raises(pa.ArrowInvalid, match="is sealed: a partition of kind"):
            client.do_put(flight.FlightDescriptor.for_path("bystander"), BATCH.schema)[0].close()
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("d"), BATCH.schema)
        with pytest.raises(pa.ArrowInvalid, match="write smaller batches"), writer:
            writer.write_batch(pa.concat_batches([BATCH] * 200))
        with pytest.raises(flight.FlightInternalError, match="write smaller batches"):
            client.do_get(flight.Ticket(b"d")).read_all()
