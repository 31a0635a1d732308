"""What the bulk lane puts on the wire, apart from any connection."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from flight_server.frames.message import Payload
from flight_server.lanes.http.chunks import SMALL_BODY_BYTES, FramedMessage, joined
from flight_server.memory.pool import MemoryPool
from flight_server.protocol import ipc_framing, wire
from tests.support.raw_flight import IpcMessage, flight_data, ipc_messages


def payloads(messages: list[IpcMessage], metadata: bytes = b"") -> list[Payload]:
    pool = MemoryPool(None)
    return [
        Payload(data, pool.reserve(len(data)))
        for data in (flight_data(each.header, each.body, metadata=metadata) for each in messages)
    ]


def batches(*row_counts: int) -> list[pa.RecordBatch]:
    return [
        pa.record_batch(
            {
                "n": pa.array(np.arange(rows)),
                "w": pa.array([f"{i}-{n % 3}" for n in range(rows)], pa.string()).dictionary_encode(),
            }
        )
        for i, rows in enumerate(row_counts)
    ]


def located(stored: list[Payload]) -> list[FramedMessage]:
    return [FramedMessage(wire.locate(payload.data), 0) for payload in stored]


@pytest.mark.parametrize("rows", [(), (0,), (3, 0, 5), (1, 20_000, 1, 1, 9_000, 2)])
@pytest.mark.parametrize("metadata", [b"", b"17"])
def test_stored_messages_become_an_arrow_stream(rows: tuple[int, ...], metadata: bytes) -> None:
    written = batches(*rows)
    schema = batches(1)[0].schema
    first, *rest = ipc_messages(schema, written)
    stream = b"".join(
        [
            ipc_framing.encapsulate(first.header),
            *joined(located(payloads(rest, metadata))),
            ipc_framing.END_OF_STREAM,
        ]
    )
    assert [batch.to_pydict() for batch in pa.ipc.open_stream(stream)] == [
        each.to_pydict() for each in written
    ]


def test_large_bodies_are_views_and_small_messages_are_joined() -> None:
    _, *rest = ipc_messages(
        pa.schema([("n", pa.int64())]), [each.select(["n"]) for each in batches(10, 20, 30_000, 5, 6)]
    )
    stored = payloads(rest)
    parts = joined(located(stored))
    views = [part for part in parts if isinstance(part, memoryview)]
    assert [view.obj is stored[2].data for view in views] == [True]
    assert len(views[0]) >= SMALL_BODY_BYTES
    # Two small messages and the large one's header before the view; two small messages behind it.
    assert len(parts) == 3


def test_a_body_is_as_long_as_its_header_says_also_when_that_is_no_multiple_of_eight() -> None:
    # Some writers do not pad the last buffer: what follows must stand right behind it.
    schema = pa.schema([("n", pa.int8())])
    batch = pa.record_batch({"n": pa.array([1, 2, 3], pa.int8())})
    first, message = ipc_messages(schema, [batch])
    assert len(message.body) == 8
    length = message.header.index((8).to_bytes(8, "little"))
    unpadded = IpcMessage(message.kind, _with_length(message.header, length, 3), message.body[:3])
    stream = [
        ipc_framing.encapsulate(first.header),
        *joined(located(payloads([unpadded, message]))),
        ipc_framing.END_OF_STREAM,
    ]
    read = pa.ipc.open_stream(b"".join(stream)).read_all()
    assert read["n"].to_pylist() == [1, 2, 3, 1, 2, 3]


def _with_length(header: bytes, at: int, length: int) -> bytes:
    return header[:at] + length.to_bytes(8, "little") + header[at + 8 :]
