"""One stream with several partitions of a dataset, on both lanes: each ends with its totals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import CreateRequest, Kind, Ticket
from tests.support.bulk import get
from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, field
from tests.support.server_process import ServerProcess

PARTITIONS = 8
ENDED = b'{"partition":'


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One server with a shuffle ``d``, whose partition p has p frames; partition 5 none."""
    with ServerProcess.start() as running:
        with flight.connect(running.location) as client:
            create(client, "d", pa.int64())
            create(client, "words", pa.dictionary(pa.int32(), pa.string()))
        yield running


def create(client: flight.FlightClient, name: str, kind: pa.DataType, **more: Any) -> None:
    request = {"dataset": name, "kind": "shuffle", "partitions": PARTITIONS, "producers": 1, **more}
    list(client.do_action(flight.Action("create", json.dumps(request).encode())))
    command = json.dumps({"dataset": name, "producer": 0, "attempt": "1"})
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(command), pa.schema([("n", kind)]))
    with writer:
        count = 0
        for partition in range(PARTITIONS):
            for frame in range(0 if partition == 5 else partition):
                writer.write_with_metadata(batch(partition, frame, kind), b"%d" % partition)
                count += 1
        writer.write_metadata(json.dumps({"commit": {"rows": 2 * count, "frames": count}}).encode())


def batch(partition: int, frame: int, kind: pa.DataType) -> pa.RecordBatch:
    values = [100 * partition + frame, 100 * partition + frame]
    if pa.types.is_union(kind):
        children = [
            pa.array(values, pa.int32()),
            pa.array([], pa.string()).dictionary_encode().cast(kind.field(1).type),
        ]
        union = pa.UnionArray.from_dense(
            pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32()), children, ["a", "b"]
        )
        return pa.record_batch({"n": union})
    plain = pa.array(values) if kind == pa.int64() else pa.array([f"{value}" for value in values])
    return pa.record_batch({"n": plain.cast(kind) if kind == pa.int64() else plain.dictionary_encode()})


def ticket(**asked: Any) -> flight.Ticket:
    return flight.Ticket(json.dumps({"dataset": "d", **asked}).encode())


def by_partition(client: flight.FlightClient, **asked: Any) -> list[tuple[int, list[int], int]]:
    """Of each partition, in the order of the stream, the values of its frames and the rows that its end says."""
    found: list[tuple[int, list[int], int]] = []
    values: list[int] = []
    for chunk in client.do_get(ticket(**asked)):
        text = bytes(chunk.app_metadata or b"")
        if text.startswith(ENDED):
            assert chunk.data.num_rows == 0
            end = json.loads(text)
            found.append((end["partition"], values, end["rows"]))
            values = []
        else:
            values += chunk.data.to_pydict()["n"][::2]
    assert not values
    return found


@pytest.mark.parametrize("dataset", ["d", "words"])
def test_listed_partitions_come_one_after_the_other_each_with_its_totals(
    client: flight.FlightClient, dataset: str
) -> None:
    as_read = int if dataset == "d" else str
    assert by_partition(client, dataset=dataset, partitions=[3, 5, 2]) == [
        (3, [as_read(n) for n in (300, 301, 302)], 6),
        (5, [], 0),
        (2, [as_read(n) for n in (200, 201)], 4),
    ]


@pytest.mark.parametrize("dataset", ["d", "words"])
@pytest.mark.parametrize("first", [2, 3])
def test_a_reader_goes_on_inside_or_behind_the_first_listed_partition(
    client: flight.FlightClient, dataset: str, first: int
) -> None:
    (third, left, rows), (second, _, _) = by_partition(
        client, dataset=dataset, partitions=[3, 2], **{"from": first}
    )
    assert (third, [int(n) for n in left], rows, second) == (3, [302][first - 2 :], 6, 2)


def test_partitions_with_a_union_are_read_as_others(client: flight.FlightClient) -> None:
    kind = pa.dense_union([pa.field("a", pa.int32()), pa.field("b", pa.dictionary(pa.int8(), pa.string()))])
    create(client, "union", kind)
    assert by_partition(client, dataset="union", partitions=[3, 5]) == [(3, [300, 301, 302], 6), (5, [], 0)]


def test_all_partitions_are_one_table_for_any_client(client: flight.FlightClient) -> None:
    found = client.do_get(ticket(partitions="all")).read_all()
    expected = [100 * p + frame for p in range(PARTITIONS) if p != 5 for frame in range(p) for _ in range(2)]
    assert found.to_pydict()["n"] == expected
    assert not any(len(chunk) == 0 for chunk in found.column(0).chunks)


def test_the_bulk_lane_ends_each_listed_partition_the_same_way(server: ServerProcess) -> None:
    answer = get(f"{server.http}/v1/datasets/d?partitions=3,5,2")
    found: list[tuple[int, list[int], int]] = []
    values: list[int] = []
    with pa.ipc.open_stream(answer.body) as reader:
        while True:
            try:
                read, said = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                break
            if said is None:
                values += read.to_pydict()["n"][::2]
            else:
                end = json.loads(said[b"ended"])
                found.append((end["partition"], values, end["rows"]))
                values = []
    assert found == [(3, [300, 301, 302], 6), (5, [], 0), (2, [200, 201], 4)]
    totals = {"x-flight-shuffle-rows": "10", "x-flight-shuffle-frames": "5"}
    assert totals.items() <= answer.trailers.items()
    assert get(f"{server.http}/v1/datasets/d?partitions=3,2&from=3").table().num_rows == 4


@pytest.mark.parametrize("lane", ["grpc", "http"])
def test_frames_that_a_list_leaves_out_are_not_released_to_its_reader(
    server: ServerProcess, client: flight.FlightClient, lane: str
) -> None:
    create(client, lane, pa.int64(), retention={"readers": 1})
    if lane == "grpc":
        assert client.do_get(ticket(dataset=lane, partitions=[3, 2], **{"from": 2})).read_all().num_rows == 6
    else:
        assert get(f"{server.http}/v1/datasets/{lane}?partitions=3,2&from=2").table().num_rows == 6
    assert client.do_get(ticket(dataset=lane, partition=3, until=2)).read_all().num_rows == 4


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"partitions": []}, 'is "all" or a list'),
        ({"partitions": [1, 1]}, "each once"),
        ({"partitions": [True]}, "each once"),
        ({"partitions": "some"}, 'is "all" or a list'),
        ({"partitions": [1], "partition": 1}, "goes with none"),
        ({"partitions": [1], "until": 1}, "goes with none"),
        ({"partitions": [1], "reader": "r"}, "goes with none"),
        ({"partitions": "all", "from": 1}, "needs a list"),
        ({"partitions": [1, 8]}, "partitions 0 to 7, not 8"),
        ({"partitions": [2, 1], "from": 3}, "nothing to"),
    ],
)
def test_a_list_of_partitions_that_makes_no_sense_is_refused(
    client: flight.FlightClient, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises((pa.ArrowInvalid, KeyError), match=said):
        client.do_get(ticket(**asked)).read_all()


@pytest.mark.parametrize("query", ["partitions=1,1", "partitions=", "partitions=8", "partitions=1&until=1"])
def test_the_bulk_lane_refuses_the_same(server: ServerProcess, query: str) -> None:
    assert get(f"{server.http}/v1/datasets/d?{query}").status in (400, 404)
    assert get(f"{server.http}/v1/datasets/d/partitions/1?partitions=1").status == 400


def test_a_request_for_another_start_names_dataset_and_both_starts(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    with pytest.raises(KeyError, match=r"'d'.*start 'feed'.*this one's is '[0-9a-f]{16}'"):
        client.do_get(ticket(partitions=[1], start="feed")).read_all()
    refused = get(f"{server.http}/v1/datasets/d?partitions=1&start=feed")
    assert (refused.status, json.loads(refused.body)["error"]) == (404, "server_lost")


def test_many_partitions_in_tickets_are_counted_while_they_are_read(
    flight_server_process: Callable[..., ServerProcess],
) -> None:
    server = flight_server_process(memory_limit="64MiB")
    partitions = 100_000
    with RawFlight(server.location) as raw:
        raw.action("create", CreateRequest("wide", Kind.SHUFFLE, partitions=partitions).encode())
        before = raw.action("statistics")["memory"]["accounts"]
        ticket = Ticket("wide", partitions=tuple(range(partitions))).encode()
        calls = [raw.call("DoGet", field(1, ticket)) for _ in range(10)]

        def accounts() -> dict[str, Any]:
            counted: dict[str, Any] = raw.action("statistics")["memory"]["accounts"]
            return counted

        def of_tickets() -> int:
            metadata = [each["frames"]["accounts"]["metadata"]["used_bytes"] for each in (accounts(), before)]
            return int(metadata[0] - metadata[1])

        eventually(lambda: of_tickets() // (4 * partitions), 10)
        assert accounts()["arrivals"]["peak_bytes"] > len(ticket)
        for call in calls:
            call.cancel()
        eventually(lambda: of_tickets() // (4 * partitions), 0)
