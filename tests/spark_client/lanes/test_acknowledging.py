"""Which frames a stream says that it has received."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol import ACKNOWLEDGE_HEADER, AcknowledgeRequest, Ticket
from spark_client.connection import RemoteServer
from spark_client.lanes import read_stream
from tests.support.http_source import HttpSource, well
from tests.support.merging import batches_from, partition_stream

pytestmark = pytest.mark.usefixtures("hasty")

ROWS = 1000
BATCHES = [pa.record_batch({"n": np.arange(ROWS)})] * 5


@pytest.fixture
def acknowledged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of frames that the server gets to know, which it wants after each two batches."""
    frames: list[int] = []

    def keep(_: RemoteServer, name: str, body: bytes, **__: Any) -> None:
        assert name == "acknowledge"
        frames.append(AcknowledgeRequest.parse(body).frames)

    monkeypatch.setattr(RemoteServer, "action", keep)
    monkeypatch.setattr(read_stream, "EVERY_BYTES", 2 * 8 * ROWS)
    return frames


def read(
    server: RemoteServer, batches: Sequence[pa.RecordBatch], reader: str | None = None, *, counts: bool = True
) -> None:
    good = well(batches, batches[0].schema)

    def answer(target: str, headers: dict[str, str]) -> list[bytes]:
        head, *rest = good(target, headers)
        wish = f"{ACKNOWLEDGE_HEADER}: frames\r\n".encode() if counts else b""
        return [head[:-2] + wish + b"\r\n", *rest]

    with HttpSource(answer) as source:
        stream = partition_stream(server, Ticket("d", 0, reader=reader), locations=[source.url], lane="bulk")
        assert list(batches_from(stream)) == batches
        stream.close()


def test_frames_are_acknowledged_after_so_many_bytes_and_at_the_end(
    server: RemoteServer, acknowledged: list[int]
) -> None:
    read(server, BATCHES)
    assert acknowledged == [2, 4, 5]


def test_a_reader_that_may_begin_again_acknowledges_at_its_end_only(
    server: RemoteServer, acknowledged: list[int]
) -> None:
    read(server, BATCHES, "task-1")
    assert acknowledged == [5]


def test_frames_that_no_one_counts_are_not_acknowledged(
    server: RemoteServer, acknowledged: list[int]
) -> None:
    read(server, BATCHES, counts=False)
    assert acknowledged == []


def test_a_union_without_rows_is_received_too(server: RemoteServer, acknowledged: list[int]) -> None:
    union = pa.UnionArray.from_sparse(pa.array([], pa.int8()), [pa.array([], pa.int64())])
    read(server, [pa.record_batch({"union": union})])
    assert acknowledged == [1]
