"""Staged writes onto changelogs, over the wire: the accepted rows of all producers become one version, once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol import (
    AlreadyExists,
    Conflict,
    CreateRequest,
    DatasetRequest,
    FlightShuffleError,
    InvalidRequest,
    Kind,
    NotFound,
    PutCommand,
    SealRequest,
    Transaction,
    WriteMode,
)
from spark_client import ShuffleClient
from spark_client.changelogs import encoded_schema
from spark_client.connection import RemoteServer
from spark_client.lanes import PutStream
from tests.support.changelog_of_rates import declare, facts, rows, table
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

MANY_ROWS, OTHER_ROWS = 5_000, 100_000
SOME_ROWS, GIVEN_UP, GIVEN_UP_SECONDS = 500, 40, 0.0004


@pytest.fixture(scope="module", params=[False, True], ids=["in memory", "spilled"])
def process(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    # With 8 MiB most of what a test puts is on disk when it is sealed.
    options: dict[str, Any] = {"memory_limit": "8MiB"} if request.param else {}
    with ServerProcess.start(**options) as found:
        yield found


@pytest.fixture
def client(process: ServerProcess) -> Iterator[ShuffleClient]:
    with ShuffleClient(process.location) as found:
        declare(found, "rates")
        yield found
        for info in found.datasets():
            found.drop(info.name)
        eventually(lambda: found.statistics()["memory"]["used_bytes"], 0)


@pytest.fixture
def server(process: ServerProcess) -> Iterator[RemoteServer]:
    found = RemoteServer(process.location)
    yield found
    found.close()


def stage(server: RemoteServer, write: str, schema: pa.Schema, mode: WriteMode = WriteMode.APPEND) -> str:
    request = CreateRequest(
        "rates", Kind.SHUFFLE, schema=encoded_schema(schema), partitions=100, mode=mode, write=write
    )
    return str(server.action("create", request.encode())["generation"])


def put(
    server: RemoteServer, generation: str, producer: int, attempt: str, data: pa.Table, **more: Any
) -> None:
    command = PutCommand("rates", producer=producer, attempt=attempt, generation=generation)
    with PutStream(server, command, data.schema, **more) as stream:
        for batch in data.to_batches(10_000):
            stream.write(batch, producer)
        stream.commit()


def seal(server: RemoteServer, generation: str, attempts: dict[int, str], **more: Any) -> dict[str, Any]:
    return server.action("seal", SealRequest("rates", generation, attempts, **more).encode())


def many(first: int, count: int = MANY_ROWS) -> pa.Table:
    return table(((f"C{number}", number, number / 2), 1) for number in range(first, first + count))


def test_exactly_the_accepted_rows_are_one_version(client: ShuffleClient, server: RemoteServer) -> None:
    generation = stage(server, "accepted", many(0).schema)
    put(server, generation, 0, "won", many(MANY_ROWS))
    put(server, generation, 1, "won", many(2 * MANY_ROWS), compression="lz4")
    others = many(0, OTHER_ROWS)
    put(server, generation, 0, "lost", others)
    put(server, generation, 2, "unwanted", others)
    counted = client.statistics()
    if counted["memory"]["limit_bytes"] == 8 << 20:
        assert counted["spilled_bytes"] > 1 << 20, "of which the accepted frames were the first"
    sealed = seal(server, generation, {0: "won", 1: "won"}, partition_bytes=1 << 20)
    assert (sealed["version"], sealed["rows"]) == (1, 2 * MANY_ROWS)
    assert sorted(row[1] for row in rows(client, "rates")) == list(range(MANY_ROWS, 3 * MANY_ROWS))
    assert client.statistics()["staged"]["count"] == 0


def test_a_seal_that_is_given_up_at_any_moment_and_repeated_makes_one_version(
    client: ShuffleClient, server: RemoteServer
) -> None:
    """The append goes on without its call, or has not begun: a version without its answer would come twice."""
    for version in range(1, GIVEN_UP + 1):
        generation = stage(server, f"given-up-{version}", many(0).schema)
        put(server, generation, 0, "a", many(version * SOME_ROWS, SOME_ROWS))
        request = SealRequest("rates", generation, {0: "a"}).encode()
        with suppress(FlightShuffleError):
            server.action("seal", request, version * GIVEN_UP_SECONDS, once=True)
        assert seal(server, generation, {0: "a"})["version"] == version
    numbers = sorted(row[1] for row in rows(client, "rates"))
    assert numbers == list(range(SOME_ROWS, (GIVEN_UP + 1) * SOME_ROWS))


def test_a_seal_that_is_repeated_or_made_twice_at_once_makes_one_version(
    client: ShuffleClient, server: RemoteServer
) -> None:
    generation = stage(server, "repeated", many(0).schema)
    put(server, generation, 0, "a", many(0))
    both = threading.Barrier(2)

    def one(_number: int) -> int:
        both.wait()
        return int(seal(server, generation, {0: "a"})["version"])

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(one, range(2))) == [1, 1]
    assert seal(server, generation, {0: "a"})["version"] == 1
    assert facts(client, "rates")["upper"] == 1


def test_a_transaction_happens_once_in_whatever_staged_dataset_it_comes(
    client: ShuffleClient, server: RemoteServer
) -> None:
    def write(name: str, time: int, transaction: Transaction) -> int:
        data = table([(("EUR", time, 1.5), 1)])
        generation = stage(server, f"{name}-{client.location[-5:]}", data.schema)
        put(server, generation, 0, "a", data)
        try:
            return int(seal(server, generation, {0: "a"}, transaction=transaction)["version"])
        except FlightShuffleError:
            server.action("drop", DatasetRequest("rates", generation, staged=True).encode())
            raise

    assert write("first", 1, Transaction("query", 0)) == 1
    assert write("again", 1, Transaction("query", 0)) == 1
    assert write("next", 2, Transaction("query", 1, 0)) == 2
    assert write("other", 3, Transaction("other", 0)) == 3
    with pytest.raises(Conflict, match="the dataset has those up to 1"):
        write("gap", 4, Transaction("query", 3, 2))
    assert facts(client, "rates")["upper"] == 3


def test_dictionaries_are_decoded_and_diffs_may_be_of_any_integer_type(
    client: ShuffleClient, server: RemoteServer
) -> None:
    def data(*diffs: int) -> pa.Table:
        names = [["EUR", "USD"], ["USD", "GBP"]]
        batches = [
            pa.record_batch(
                {
                    "currency": pa.array(each).dictionary_encode(),
                    "time": pa.array([1, 1]),
                    "rate": pa.array([1.0, 2.0]),
                    "_diff": pa.array(diffs, pa.int8()),
                }
            )
            for each in names
        ]
        return pa.Table.from_batches(batches)

    # The rows are EUR 1.0 and USD 2.0, USD 1.0 and GBP 2.0. Of each currency the greater one is kept.
    for number, (diffs, expected) in enumerate(
        (
            ((1, 1), [("EUR", 1, 1.0), ("GBP", 1, 2.0), ("USD", 1, 2.0)]),
            ((0, -2), [("EUR", 1, 1.0), ("USD", 1, 1.0)]),
        )
    ):
        generation = stage(server, f"dictionaries-{number}", data(1, 1).schema)
        put(server, generation, 0, "a", data(*diffs).slice(0, 2))
        put(server, generation, 1, "a", data(*diffs).slice(2))
        seal(server, generation, {0: "a", 1: "a"})
        assert rows(client, "rates") == expected


def test_a_write_that_cannot_be_a_version_is_refused_and_changes_nothing(
    client: ShuffleClient, server: RemoteServer
) -> None:
    good = table([(("EUR", 1, 1.5), 1)])
    with pytest.raises(Conflict, match="is a changelog, which is not overwritten: drop it"):
        stage(server, "overwrite", good.schema, WriteMode.OVERWRITE)
    with pytest.raises(AlreadyExists, match="exists"):
        stage(server, "new", good.schema, WriteMode.NEW)
    with pytest.raises(InvalidRequest, match="the put's columns are"):
        stage(server, "columns", pa.schema([("id", pa.int64())]))
    generation = stage(server, "dropped", good.schema)
    put(server, generation, 0, "a", good)
    with pytest.raises(Conflict, match="attempt b is unknown here"):
        seal(server, generation, {0: "b"})
    server.action("drop", DatasetRequest("rates", generation, staged=True).encode())
    with pytest.raises(NotFound):
        seal(server, generation, {0: "a"})
    wrong = stage(server, "wrong", good.schema)
    nulls = good.set_column(3, "_diff", pa.array([None], pa.int64()))
    put(server, wrong, 0, "a", nulls)
    with pytest.raises(FlightShuffleError, match="column '_diff' has nulls"):
        seal(server, wrong, {0: "a"})
    server.action("drop", DatasetRequest("rates", wrong, staged=True).encode())
    assert facts(client, "rates")["upper"] == 0
