"""Staged writes over the wire: a name changes at the seal, at once, and its readers keep what they read."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest

from flight_server.protocol import (
    AlreadyExists,
    Conflict,
    CreateRequest,
    DatasetRequest,
    InvalidRequest,
    Kind,
    NotFound,
    PutCommand,
    SealRequest,
    WriteMode,
)
from spark_client import ShuffleClient
from spark_client.connection import RemoteServer
from spark_client.lanes import PutStream
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("n", pa.int64())])
ROWS_AT_ONCE = 65536
_test: list[str] = []
"""What makes the names of a test's writes its own."""


@pytest.fixture(scope="module", params=[False, True], ids=["in memory", "spilled"])
def process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    # With 8 MiB most of what the tests put is on disk when it is sealed.
    options: dict[str, Any] = {"memory_limit": "8MiB"} if request.param else {}
    with ServerProcess.start(
        "--data-dir", str(tmp_path_factory.mktemp("data")), http_port=0, **options
    ) as process:
        yield process


@pytest.fixture
def client(process: ServerProcess) -> Iterator[ShuffleClient]:
    with ShuffleClient(process.location) as client:
        yield client
        for info in client.datasets():
            client.drop(info.name)
        eventually(lambda: client.statistics()["memory"]["used_bytes"], 0)


@pytest.fixture
def server(process: ServerProcess) -> Iterator[RemoteServer]:
    server = RemoteServer(process.location)
    _test[:] = [uuid.uuid4().hex]
    yield server
    server.close()


def numbers(start: int, count: int = 1) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(start, start + count), pa.int64())], schema=SCHEMA)


def table(start: int, count: int = 1) -> pa.Table:
    return pa.Table.from_batches(pa.Table.from_batches([numbers(start, count)]).to_batches(ROWS_AT_ONCE))


def stage(
    server: RemoteServer, mode: WriteMode, write: str, *, schema: pa.Schema = SCHEMA, durable: bool = False
) -> str:
    encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
    request = CreateRequest(
        "d",
        Kind.SHUFFLE,
        schema=encoded,
        partitions=1000,
        mode=mode,
        write=f"{write}-{_test[0]}",
        durable=durable,
    )
    return str(server.action("create", request.encode())["generation"])


def put(  # noqa: PLR0917 - in the order of the words "producer 0, attempt a puts a batch into partition 3"
    server: RemoteServer, generation: str, producer: int, attempt: str, batch: Any, partition: int
) -> None:
    command = PutCommand("d", producer=producer, attempt=attempt, generation=generation)
    with PutStream(server, command, batch.schema) as stream:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            stream.write(batch.slice(start, ROWS_AT_ONCE), partition)
        stream.commit()


def seal(server: RemoteServer, generation: str, attempts: dict[int, str], **more: Any) -> dict[str, Any]:
    return server.action("seal", SealRequest("d", generation, attempts, **more).encode())


def write(server: RemoteServer, mode: WriteMode, write: str, *batches: Any, **more: Any) -> dict[str, Any]:
    """A whole write, with a partition for each batch."""
    generation = stage(server, mode, write)
    for producer, batch in enumerate(batches):
        put(server, generation, producer, "a", batch, producer)
    accepted = dict.fromkeys(range(len(batches)), "a")
    return seal(server, generation, accepted, partitions=max(1, len(batches)), **more)


def read(client: ShuffleClient) -> list[int]:
    found: list[int] = client.get("d", ordered=True).read_all()["n"].to_pylist()
    return found


def test_an_overwrite_is_seen_at_its_seal_and_not_before(client: ShuffleClient, server: RemoteServer) -> None:
    client.put("d", table(0, 500_000))
    reader = client.get("d")
    generation = stage(server, WriteMode.OVERWRITE, "w")
    put(server, generation, 0, "lost", numbers(100), 0)
    put(server, generation, 0, "won", numbers(200, 500_000), 0)
    put(server, generation, 1, "won", numbers(300), 1)
    assert read(client) == list(range(500_000))
    sealed = seal(server, generation, {0: "won", 1: "won"}, partitions=2)
    assert (sealed["generation"], sealed["rows"]) == (generation, 500_001)
    assert read(client) == [*range(200, 500_200), 300]
    assert len(reader.read_all()) == 500_000, "a reader of the old generation finishes"
    assert seal(server, generation, {0: "won", 1: "won"}, partitions=2)["rows"] == 500_001, "again is fine"
    (info,) = client.datasets("d")
    assert info.partitions == 2


def test_a_write_that_is_dropped_leaves_nothing_and_changes_nothing(
    client: ShuffleClient, server: RemoteServer
) -> None:
    client.put("d", table(1))
    generation = stage(server, WriteMode.OVERWRITE, "w")
    assert stage(server, WriteMode.OVERWRITE, "w") == generation, "each task of the job asks"
    put(server, generation, 0, "a", numbers(100), 0)
    assert client.statistics()["staged"]["count"] == 1
    (listed,) = client.staged("d")
    assert (listed["dataset"], listed["generation"], listed["mode"]) == ("d", generation, "overwrite")
    assert (listed["rows"], listed["attempt_states"]) == (1, {"committed": 1})
    assert 0 < listed["lease_left_seconds"] <= 3600
    assert (len(client.staged()), client.staged("e")) == (1, [])
    client.drop("d", listed["generation"])
    assert client.statistics()["staged"]["count"] == 0
    with pytest.raises(NotFound):
        put(server, generation, 1, "a", numbers(100), 0)
    with pytest.raises(NotFound):
        seal(server, generation, {0: "a"})
    assert read(client) == [1]


def test_an_append_adds_partitions_and_keeps_generation_and_readers(
    client: ShuffleClient, server: RemoteServer
) -> None:
    first = write(server, WriteMode.APPEND, "w1", numbers(0, 400_000), numbers(400_000))
    before = client.get("d")
    second = write(server, WriteMode.APPEND, "w2", numbers(500_000), numbers(0, 0), numbers(600_000, 400_000))
    assert second["generation"] == first["generation"]
    assert (second["rows"], list(second["partition_bytes"])) == (400_001, ["2", "3"]), "what was appended"
    assert read(client) == [*range(400_001), 500_000, *range(600_000, 1_000_000)]
    assert len(before.read_all()) == 400_001
    (info,) = client.datasets("d")
    assert (info.partitions, info.rows) == (4, 800_002), "an empty partition is not appended"


def test_a_read_of_the_whole_over_http_ends_with_what_was_there_when_it_began(
    process: ServerProcess, client: ShuffleClient, server: RemoteServer
) -> None:
    write(server, WriteMode.APPEND, "w1", numbers(0, 400_000), numbers(400_000))
    with urlopen(f"{process.http}/v1/datasets/d") as answer:
        reader = pa.ipc.open_stream(answer)
        write(server, WriteMode.APPEND, "w2", numbers(500_000))
        assert reader.read_all().num_rows == 400_001
    with urlopen(f"{process.http}/v1/datasets/d") as answer:
        assert pa.ipc.open_stream(answer).read_all().num_rows == 400_002


def test_a_seal_whose_answer_was_lost_can_be_repeated(client: ShuffleClient, server: RemoteServer) -> None:
    client.put("d", table(1))
    generation = stage(server, WriteMode.APPEND, "w")
    put(server, generation, 0, "a", numbers(2), 0)
    first, again = (seal(server, generation, {0: "a"}) for _ in range(2))
    assert {**first, "partition_bytes": {}} == again
    client.put("d", table(3), mode="overwrite")
    assert seal(server, generation, {0: "a"}) == again, "it was appended, to what is there no more"
    with pytest.raises(NotFound):
        server.action("drop", DatasetRequest("d", generation, staged=True).encode())
    assert read(client) == [3]


def test_what_the_mode_forbids_is_refused_and_says_why(client: ShuffleClient, server: RemoteServer) -> None:
    client.put("d", table(1))
    with pytest.raises(InvalidRequest, match="schema"):
        stage(server, WriteMode.APPEND, "w", schema=pa.schema([("other", pa.int64())]))
    with pytest.raises(AlreadyExists):
        stage(server, WriteMode.NEW, "w")
    client.drop("d")
    server.action("create", CreateRequest("d", Kind.SHUFFLE).encode())
    with pytest.raises(Conflict, match="is not sealed"):
        stage(server, WriteMode.APPEND, "w")
    assert client.statistics()["staged"]["count"] == 0
    generation = stage(server, WriteMode.OVERWRITE, "v")
    put(server, generation, 0, "a", numbers(1), 5)
    with pytest.raises(InvalidRequest, match="there are frames for partition 5"):
        seal(server, generation, {0: "a"}, partitions=5)
    server.action("drop", DatasetRequest("d", generation).encode())


def test_a_durable_overwrite_survives_the_server(tmp_path: Path) -> None:
    with ServerProcess.start("--data-dir", str(tmp_path), http_port=0) as process:
        server = RemoteServer(process.location)
        _test[:] = ["durable"]
        generation = stage(server, WriteMode.NEW, "w0", durable=True)
        put(server, generation, 0, "a", numbers(1), 0)
        seal(server, generation, {0: "a"}, partitions=1)
        with pytest.raises(Conflict, match="is durable"):
            stage(server, WriteMode.APPEND, "w1")
        write(server, WriteMode.OVERWRITE, "w2", numbers(2), numbers(3))
        stage(server, WriteMode.OVERWRITE, "left")
        server.close()
        process.kill()
    with (
        ServerProcess.start("--data-dir", str(tmp_path), http_port=0) as process,
        ShuffleClient(process.location) as client,
    ):
        assert read(client) == [2, 3], "an overwrite is as durable as what it replaces"
        assert client.statistics("d")["datasets"]["d"]["durable"]
