"""Puts, reads and tasks reach a receiver of traces, each as one span under its client's or driver's."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.support.bulk import get
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.polling import eventually
from tests.support.python_program import output_of
from tests.support.raw_flight import RawFlight, Refused, command, commit, put_messages
from tests.support.raw_put import RawPut
from tests.support.server_process import ServerProcess

TOKEN = "S3CR3T"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
BATCH = pa.record_batch({"n": [1, 2, 3]})
PUT = {"dataset": "s", "producer": 7, "attempt": "7-1"}


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def server(receiver: OtlpReceiver) -> Iterator[ServerProcess]:
    environment = {**receiver.environment, "FLIGHT_SERVER_TOKEN": TOKEN}
    with ServerProcess.start(memory_limit="64MiB", environment=environment) as server:
        yield server
        assert server.terminate() == 0
    assert TOKEN.encode() not in receiver.text


def messages(rows: int = 3) -> list[bytes]:
    return [*put_messages(command(PUT), [BATCH], metadata=iter([b"2"])), commit(rows, 1)]


@pytest.mark.long
def test_each_put_and_read_is_one_span_under_its_client_s(
    server: ServerProcess, receiver: OtlpReceiver
) -> None:
    with RawFlight(server.location, token=TOKEN) as raw:
        raw.action("create", {"dataset": "s", "kind": "shuffle", "partitions": 4})
        with pytest.raises(Refused):
            raw.put(messages(rows=4))
        headers = [
            f"traceparent: {PARENT}",
            "Connection: Upgrade",
            "Upgrade: flight-put",
            "Content-Length: 0",
        ]
        with RawPut(f"{server.http}/v1/put", token=TOKEN, headers=headers) as put:
            put.send(*messages())
            put.finish()
        raw.action("seal", {"dataset": "s", "attempts": {"7": "7-1"}})
        url = f"{server.http}/v1/datasets/s/partitions/2"
        assert get(url, Authorization=f"Bearer {TOKEN}", traceparent=PARENT).status == 200
        raw.get(b'{"dataset": "s", "partition": 2}')
    eventually(lambda: (len(receiver.named("put")), len(receiver.named("get"))), (2, 2))
    refused, put_span = receiver.named("put")
    assert (refused.failed, refused.attributes["error.type"]) == (True, "invalid_request")
    assert (put_span.trace, put_span.parent, put_span.failed) == (TRACE, SPAN, False)
    assert put_span.service == "flight-server"
    about = {key: put_span.attributes[key] for key in ("dataset", "producer", "attempt", "rows", "lane")}
    assert about == {"dataset": "s", "producer": 7, "attempt": "7-1", "rows": 3, "lane": "http"}
    assert put_span.attributes["bytes"] > 0
    assert put_span.attributes["peer"].startswith("ipv4:127.0.0.1:")
    bulk, by_grpc = receiver.named("get")
    assert (bulk.trace, bulk.parent) == (TRACE, SPAN)
    assert (by_grpc.parent, by_grpc.trace == TRACE) == ("", False)
    for each in (bulk, by_grpc):
        assert (each.attributes["dataset"], each.attributes["partition"], each.attributes["rows"]) == (
            "s",
            2,
            3,
        )
        assert each.attributes["bytes"] > 0
    assert {each.name for each in receiver.spans} == {"put", "get"}


# A driver's plan and its two tasks, as Spark's Python worker would run them, without Spark.
TASKS = """
import pickle, sys
import numpy as np, pyarrow as pa
from pyspark import TaskContext
from flight_server.protocol import CreateRequest, Kind, SealRequest
from flight_server.tracing import spans
from spark_client.arrow import Declared, array_over
from spark_client.connection import Reading, RemoteServer, Writing
from spark_client.jobs.placements import ByKeys
from spark_client.jobs.shares import Shares
from spark_client.jobs.tasks import Destination, ReadTask, WriteTask
from spark_client.merge import DatasetRef

location, token, lane, parent = sys.argv[1:]
schema = pa.schema([("k", pa.int64())])
rows = pa.RecordBatch.from_arrays([array_over(np.arange(90))], schema=schema)
server = RemoteServer(location, token=token, writing=Writing(lane), reading=Reading(lane))
generation = server.action("create", CreateRequest("d", Kind.SHUFFLE, partitions=3).encode())["generation"]
spans._of_task = parent  # as a driver's program that uses OpenTelemetry has a span
write = WriteTask("d", 3, Declared("rows", schema), ByKeys(("k",), 3))
spans._of_task = None
context = TaskContext()
context._partitionId, context._taskAttemptId, context._attemptNumber = 5, 17, 0
TaskContext._taskContext = context
write = pickle.loads(pickle.dumps(write))
(report,) = write.run(Destination(server, generation, (location,)), iter([rows]))
server.action("seal", SealRequest("d", generation, {5: "17"}).encode())
read = ReadTask(DatasetRef.find(server, "d", generation), Shares((0, 1, 3)), parent=parent)
numbers = pa.RecordBatch.from_arrays([array_over(np.arange(2))], names=["id"])
assert sum(batch.num_rows for batch in read.run(iter([numbers]))) == 90
server.close()
"""


@pytest.mark.parametrize("lane", [pytest.param("grpc", marks=pytest.mark.long), "bulk"])
def test_a_task_is_one_span_under_its_driver_s_and_its_puts_and_reads_are_under_it(
    server: ServerProcess, receiver: OtlpReceiver, lane: str
) -> None:
    environment = receiver.environment | {"OTEL_SERVICE_NAME": "the job"}
    output_of(TASKS, server.location, TOKEN, lane, PARENT, environment=environment)
    eventually(lambda: sum(each.attributes["rows"] for each in receiver.named("get")), 90)
    (wrote,), (read,) = receiver.named("map"), receiver.named("reduce")
    for task in (wrote, read):
        assert (task.service, task.trace, task.parent, task.failed) == ("the job", TRACE, SPAN, False)
        assert (task.attributes["dataset"], task.attributes["rows"]) == ("d", 90)
        assert task.attributes["bytes"] > 0
    assert (wrote.attributes["producer"], wrote.attributes["attempt"]) == (5, "17")
    (put,) = receiver.named("put")
    assert (put.trace, put.parent) == (TRACE, wrote.span)
    assert put.attributes["attempt"] == "17"
    assert {(each.trace, each.parent) for each in receiver.named("get")} == {(TRACE, read.span)}
    assert {each.attributes["lane"] for each in receiver.named("get")} == {
        "grpc" if lane == "grpc" else "http"
    }
