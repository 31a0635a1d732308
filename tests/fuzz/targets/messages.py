"""Targets: what a producer sends: FlightData, a whole put with its framing, and the schema of a ``create``."""

from __future__ import annotations

import base64
import struct
from contextlib import suppress
from functools import cache

import numpy as np
import pyarrow as pa

from flight_server.frames import FrameDecoder
from flight_server.lanes.grpc.actions import decode_schema
from flight_server.lanes.http.bulk_put import Incoming
from flight_server.protocol import (
    END_OF_STREAM,
    LENGTH,
    BadFrame,
    FlightShuffleError,
    encapsulate,
    ipc_framing,
    wire,
)
from tests.support.raw_flight import commit, path, put_messages

from .requests import check_text
from .target import Target, plain

MAX_MESSAGE_BYTES = 1 << 20
MAX_SCHEMA_BYTES = 64 << 10


def read_flight_data(data: bytes) -> None:
    """The fast way and the thorough one find the same parts."""
    usual = wire._usual_parts(data)
    try:
        parts = wire._parts(data)
    except ValueError:
        assert usual is None, data
    else:
        assert usual in (None, parts), data
    for number in (1, 2):
        with suppress(FlightShuffleError):
            wire.bytes_field(data, number, "it")
            wire.first_field(data, number, "it")
            wire.check_few_fields(data, "it")
    wire.locate(data)


def read_put(data: bytes) -> None:
    """The bytes of a put after its 101; the first byte says how they are cut into reads. pyarrow's reader takes all
    that is accepted.
    """
    decoder = FrameDecoder(max_message_bytes=MAX_MESSAGE_BYTES, max_schema_bytes=MAX_SCHEMA_BYTES)
    accepted: list[bytes | memoryview] = []
    batches = rows = waiting = 0
    complete = False
    try:
        for message in _messages(data):
            parts = wire.locate(message)
            found = decoder.feed(message)
            if found.kind is ipc_framing.MessageKind.NONE:
                continue
            accepted += (encapsulate(parts.header), parts.body)
            rows += found.rows
            batch = found.kind is ipc_framing.MessageKind.RECORD_BATCH
            batches += batch
            waiting = 0 if batch else len(accepted)
        complete = True
    except FlightShuffleError as error:
        check_text(error)
    if accepted:
        # A dictionary is decoded with the batch that follows it, so the last ones are not checked.
        sound = accepted[: len(accepted)] if not waiting else _until_last_batch(accepted)
        table = pa.ipc.open_stream(b"".join([*sound, END_OF_STREAM])).read_all()
        assert table.num_rows == rows, (table.num_rows, rows, complete)
        table.validate(full=True)


def _until_last_batch(parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """The messages up to the last batch, and the schema at least."""
    end = 2
    for at in range(0, len(parts), 2):
        header = memoryview(parts[at])[8:]
        if ipc_framing.IpcHeader(header).kind is ipc_framing.MessageKind.RECORD_BATCH:
            end = at + 2
    return parts[:end]


def _messages(data: bytes) -> list[bytes]:
    """As ``Intake`` cuts them out of what arrives. Raises BadFrame."""
    size_bytes = 1 + (data[0] if data else 0) * 16
    checked = bool(data) and data[0] % 2 == 1
    left = memoryview(data)[1:]
    incoming = Incoming(memoryview(bytearray(64 << 10)), MAX_MESSAGE_BYTES, checked=checked)
    found: list[bytes] = []
    while True:
        while not incoming.ready:
            if not left:
                return found
            room = incoming.room()
            assert len(room) > 0
            count = min(len(left), len(room), size_bytes)
            room[:count] = left[:count]
            room.release()
            incoming.received(count)
            left = left[count:]
        message = incoming.take()
        if message is None:
            return found
        found.append(message)


def read_schema(data: bytes) -> None:
    """The schema message of a ``create``, before its base64."""
    schema = decode_schema(base64.b64encode(data).decode())
    assert schema.canonical()


@cache
def batches() -> dict[str, list[pa.RecordBatch]]:
    """Small batches of each layout."""
    return {
        "plain": [
            pa.record_batch(
                {"n": np.arange(5), "s": ["a", None, "b", "c", "dd"], "b": [True, None] * 2 + [False]}
            )
        ],
        "nested": [
            pa.record_batch(
                {
                    "l": pa.array([[1, 2], None, []]),
                    "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
                    "t": pa.array([{"x": 1, "y": ["a"]}, None, {"x": None, "y": None}]),
                    "v": pa.array(["a text longer than twelve bytes", "short", None], pa.string_view()),
                }
            )
        ],
        "others": [
            pa.record_batch(
                {
                    "u": pa.UnionArray.from_dense(
                        pa.array([0, 1, 0], pa.int8()),
                        pa.array([0, 0, 1], pa.int32()),
                        [pa.array([1, 2]), pa.array(["x"])],
                    ),
                    "r": pa.RunEndEncodedArray.from_arrays(
                        pa.array([1, 3], pa.int32()), pa.array(["a", "b"])
                    ),
                    "d": pa.array([1, None, 3], pa.timestamp("us", "Europe/Berlin")),
                    "f": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
                }
            )
        ],
        "words": [
            pa.record_batch({"w": pa.array(words).dictionary_encode()})
            for words in (["a", "b", "a"], ["a", "b", None, "c"], ["x"])
        ],
    }


@cache
def puts() -> list[list[bytes]]:
    """Whole puts, as FlightData messages."""
    found = [[*put_messages(path("fuzz"), each), commit(5, 1)] for each in batches().values()]
    deltas = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    found.append(put_messages(path("fuzz"), batches()["words"], options=deltas))
    for codec in ("zstd", "lz4"):
        options = pa.ipc.IpcWriteOptions(compression=codec)
        found.append(put_messages(path("fuzz"), batches()["nested"], options=options))
        found.append(put_messages(path("fuzz"), batches()["words"], options=options))
    return found


def _framed(messages: list[bytes]) -> bytes:
    return b"".join(LENGTH.pack(len(each)) + each for each in messages) + LENGTH.pack(0)


def _put_samples() -> list[bytes]:
    checked = b"".join(struct.pack(">II", len(each), 7) + each for each in puts()[0])
    return [*(b"\xfe" + _framed(each) for each in puts()), b"\x04" + _framed(puts()[0]), b"\xff" + checked]


def _schemas() -> list[bytes]:
    return [bytes(each[0].schema.with_metadata({"k": "v"}).serialize()) for each in batches().values()]


TARGETS = [
    Target("flight_data", plain(read_flight_data), lambda: [each for put in puts() for each in put[:3]]),
    Target("puts", plain(read_put), _put_samples, (BadFrame,), most_bytes=16 << 10),
    Target("schemas", plain(read_schema), _schemas),
]
