"""Which frames a stream says that it has received."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa

from flight_server.protocol import ACKNOWLEDGE_HEADER, AcknowledgeRequest
from spark_client.lanes import BatchBurst
from spark_client.lanes.read_stream import EVERY_BYTES, Acknowledging


class Server:
    """Keeps the acknowledgements that it gets."""

    def __init__(self) -> None:
        self.frames: list[int] = []

    def action(self, _: str, body: bytes, **__: Any) -> None:
        self.frames.append(AcknowledgeRequest.parse(body).frames)


def test_frames_are_acknowledged_after_so_many_bytes_and_at_the_end() -> None:
    server = Server()
    acknowledging = Acknowledging(cast(Any, server), "d", 0, "r", at_end_only=False)
    acknowledging.opened({ACKNOWLEDGE_HEADER: "frames"}, "g")
    half = pa.record_batch({"n": np.arange(EVERY_BYTES // 16)})
    for frames in range(1, 6):
        acknowledging.received(BatchBurst([half]), frames)
    acknowledging.all_received(5)
    assert server.frames == [2, 4, 5]


def test_a_union_without_rows_is_received_too() -> None:
    union = pa.UnionArray.from_sparse(pa.array([], pa.int8()), [pa.array([], pa.int64())])
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, pa.schema([("union", union.type)])) as writer:
        writer.write_batch(pa.record_batch({"union": union}))
    acknowledging = Acknowledging(cast(Any, Server()), "d", 0, "r", at_end_only=False)
    acknowledging.opened({ACKNOWLEDGE_HEADER: "frames"}, "g")
    acknowledging.received(BatchBurst(list(pa.ipc.open_stream(stream.getvalue()))), 1)
