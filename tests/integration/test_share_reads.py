"""A task's partitions of a dataset on one real server, or spread over several, over one stream for each server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import NotFound, ServerLost
from spark_client.arrow import Declared
from spark_client.connection import Reading, RemoteServer, Timeouts, transport
from spark_client.jobs import Shares, Sides
from spark_client.jobs.tasks import ReadTask
from spark_client.lanes import BrokenStream, PortionCursor, ReadStream
from spark_client.merge import DatasetRef, ShareRead
from spark_client.steps.one_pass import OwnStage
from tests.support.durable import action
from tests.support.server_process import ServerProcess
from tests.support.spread import PARTITIONS, put, rows_of, spread, values

MANY = 200_000
"""Rows of each partition at each server, 1.6 MB."""


@pytest.fixture(scope="module")
def servers(servers: list[ServerProcess]) -> list[ServerProcess]:
    spread("d", servers)
    spread("large", servers, rows=lambda server, partition: [*range(server, MANY * 3, 3)])
    return servers


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many streams of portions were opened at each server, by its start; "" for the only one."""
    streams = Counter[str]()
    opens = ReadStream.open

    def count(stream: ReadStream) -> pa.Schema:
        if isinstance(stream.cursor, PortionCursor):
            streams[stream.cursor.start or ""] += stream._schema is None and stream._reading is None
        return opens(stream)

    monkeypatch.setattr(ReadStream, "open", count)
    return streams


def alone(
    server: ServerProcess, name: str, rows: Callable[[int, int], list[int]] = rows_of, **more: Any
) -> DatasetRef:
    """A shuffle that one server holds, which a client finds there."""
    with flight.connect(server.location) as client:
        generation = action(client, "create", dataset=name, kind="shuffle", partitions=PARTITIONS, **more)[
            "generation"
        ]
        put(
            server.location,
            {"dataset": name, "producer": 0, "attempt": "1", "generation": generation},
            [(partition, rows(0, partition)) for partition in range(PARTITIONS)],
        )
        action(client, "seal", dataset=name, generation=generation, attempts={"0": "1"})
    return DatasetRef.find(RemoteServer(server.location), name, generation)


def ref_of(servers: Sequence[ServerProcess], name: str = "d", **options: Any) -> DatasetRef:
    return DatasetRef.find(RemoteServer(servers[0].location, **options), name)


def expected(partition: int) -> list[int]:
    return sorted(row for server in range(3) for row in rows_of(server, partition))


def test_each_task_opens_one_stream_to_each_server(
    servers: Sequence[ServerProcess], opened: Counter[str]
) -> None:
    task = ReadTask(ref_of(servers), Shares((0, 4, PARTITIONS)))
    found: list[int] = []
    for number in range(2):
        found += values(task.run(iter([pa.record_batch({"id": [number]})])))
    assert [row // 10_000 for row in found] == [part for part in range(PARTITIONS) for _ in expected(part)], (
        "one partition after the other"
    )
    assert sorted(found) == [row for part in range(PARTITIONS) for row in expected(part)]
    assert [*opened.values()] == [2, 2, 2]


@pytest.mark.parametrize("lane", ["grpc", "bulk"])
def test_each_task_opens_one_stream_to_the_only_server(
    servers: Sequence[ServerProcess], opened: Counter[str], lane: Any
) -> None:
    ref = alone(servers[0], f"alone by {lane}".replace(" ", "-"))
    ref = replace(ref, server=RemoteServer(servers[0].location, reading=Reading(lane=lane)))
    task = ReadTask(ref, Shares((0, 4, PARTITIONS)))
    found = [values(task.run(iter([pa.record_batch({"id": [number]})]))) for number in range(2)]
    assert found == [
        [row for partition in share for row in rows_of(0, partition)]
        for share in (range(4), range(4, PARTITIONS))
    ]
    assert opened == {"": 2}


def test_a_task_of_a_reader_that_is_counted_opens_a_stream_for_each_partition(
    servers: Sequence[ServerProcess], opened: Counter[str]
) -> None:
    """The server counts the readers of each partition."""
    ref = alone(servers[0], "counted", retention={"readers": 1})
    task = ReadTask(replace(ref, reader="task-1"), Shares((0, PARTITIONS)))
    found = values(task.run(iter([pa.record_batch({"id": [0]})])))
    assert found == [row for partition in range(PARTITIONS) for row in rows_of(0, partition)]
    assert not opened


def test_a_dataset_that_the_only_server_has_no_longer_is_not_a_lost_server(
    servers: Sequence[ServerProcess], opened: Counter[str]
) -> None:
    ref = alone(servers[0], "dropped")
    task = ReadTask(ref, Shares((0, PARTITIONS)))
    with flight.connect(servers[0].location) as client:
        action(client, "drop", dataset="dropped")
    with pytest.raises(NotFound) as caught:
        values(task.run(iter([pa.record_batch({"id": [0]})])))
    assert not isinstance(caught.value, ServerLost)
    assert opened == {"": 1}


def test_the_only_server_that_is_gone_is_named_as_unreachable(opened: Counter[str]) -> None:
    with ServerProcess.start() as server:
        ref = alone(server, "gone")
    server_options = Timeouts(tries=1, connect_seconds=1)
    ref = replace(ref, server=RemoteServer(server.location, timeouts=server_options))
    with pytest.raises(BrokenStream, match="could not be read beyond partition 0 frame 0"):
        values(ReadTask(ref, Shares((0, PARTITIONS))).run(iter([pa.record_batch({"id": [0]})])))
    assert opened == {"": 1}


@pytest.mark.parametrize("lane", ["bulk", pytest.param("grpc", marks=pytest.mark.long)])
def test_two_sides_of_a_task_on_one_connection_do_not_wait_for_each_other(
    servers: Sequence[ServerProcess], opened: Counter[str], lane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CONNECTIONS", 1)
    ref = ref_of(servers, "large", reading=Reading(lane=lane))
    ref = replace(ref, most_bytes=1 << 20)
    with ShareRead(ref, range(PARTITIONS)) as left, ShareRead(ref, range(PARTITIONS)) as right:
        for partition in range(PARTITIONS):
            begun = left.read(partition)
            first = next(begun)
            assert sorted(values(right.read(partition))) == [*range(MANY * 3)]
            assert sorted(values([first, *begun])) == [*range(MANY * 3)]
    assert [*opened.values()] == [2, 2, 2]


def test_partitions_that_are_passed_over_left_or_read_again(
    servers: Sequence[ServerProcess], opened: Counter[str]
) -> None:
    with ShareRead(ref_of(servers), [5, 1, 4, 0]) as share:
        assert sorted(values(share.read(5))) == expected(5)
        left = share.read(1)
        next(left)
        assert sorted(values(share.read(0))) == expected(0)
        assert sorted(values(share.read(0))) == expected(0), "again, over streams of its own"
        assert sorted(values(share.read(2))) == expected(2), "one of another share"
        assert sorted(values(share.read(4))) == expected(4), "one that was passed over"


def test_both_sides_of_a_join_are_shared(servers: Sequence[ServerProcess], opened: Counter[str]) -> None:
    class Joined(OwnStage):
        """A stage of two inputs: the rows of the left, then those of the right."""

        divisible = False
        declared = Declared("joined", pa.schema([("n", pa.int64())]))

        def run(self, both: Any, _: Any) -> Iterator[Any]:
            yield from both.left
            yield from both.right

    stage: Any = Joined()
    task = ReadTask(Sides(ref_of(servers), ref_of(servers)), Shares((0, PARTITIONS)), (stage,))
    found = values(task.run(iter([pa.record_batch({"id": [0]})])))
    assert sorted(found) == sorted(row for part in range(PARTITIONS) for row in expected(part) * 2)
    assert [*opened.values()] == [2, 2, 2]
