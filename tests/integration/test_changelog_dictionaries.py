"""Puts into changelogs whose dictionaries change from batch to batch, of more bytes than the server has memory for."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import CreateRequest, Kind, PutCommand, SealRequest, WriteMode
from spark_client.connection import RemoteServer
from spark_client.lanes import PutStream
from tests.support.changelogs import Row, declaration, snapshot
from tests.support.server_process import ServerProcess

VALUES = 5000
BATCHES = 80
STORED = pa.schema([("key", pa.int64()), ("word", pa.string())])
SCHEMA = pa.schema([("key", pa.int64()), ("word", pa.dictionary(pa.int32(), pa.string()))])
LATEST = {"rule": "latest", "key": ["key"], "order_by": ["key"]}


def word(key: int) -> str:
    return f"{key:06} " + 10 * "word "


def batch(key: int) -> pa.RecordBatch:
    """One row, with a dictionary of its own, of some 300 KB."""
    words = pa.array([word(key) if number == 5 else f"{key} {number:050}" for number in range(VALUES)])
    column = pa.DictionaryArray.from_arrays(pa.array([5], pa.int32()), words)
    return pa.record_batch([pa.array([key]), column], schema=SCHEMA)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RemoteServer]:
    with ServerProcess.start(
        data_dir=tmp_path, memory_limit="16MiB", budget_deadline_seconds=5, http_port=0
    ) as process:
        server = RemoteServer(process.location)
        server.action("create", declaration("d", STORED, keep=LATEST))
        yield server
        server.close()


def put(server: RemoteServer, command: PutCommand) -> None:
    with PutStream(server, command, SCHEMA) as stream:
        for key in range(BATCHES):
            stream.write(batch(key), 0)
        stream.commit()


def rows(server: RemoteServer) -> list[Row]:
    with flight.connect(server.location) as client:
        return snapshot(client, "d")


EXPECTED = sorted(((key, word(key)) for key in range(BATCHES)), key=repr)


def test_a_put_whose_dictionaries_change_from_batch_to_batch_is_taken(server: RemoteServer) -> None:
    put(server, PutCommand("d", producer=0, attempt="a"))
    assert rows(server) == EXPECTED


def test_an_append_of_such_a_staged_write_is_sealed(server: RemoteServer) -> None:
    text = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    create = CreateRequest("d", Kind.SHUFFLE, schema=text, mode=WriteMode.APPEND, write="1")
    generation = str(server.action("create", create.encode())["generation"])
    put(server, PutCommand("d", producer=0, attempt="a", generation=generation))
    server.action("seal", SealRequest("d", generation, {0: "a"}).encode())
    assert rows(server) == EXPECTED
