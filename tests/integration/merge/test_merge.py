"""The client's streams against a real server over real sockets."""

from __future__ import annotations

import gc
import os
import signal
import threading
from dataclasses import replace

import pytest
from pyarrow import flight

from flight_server.protocol import Ticket
from flight_server.protocol.errors import NotFound
from spark_client.connection import ForkedProcess, LaneChoice, RemoteServer, transport
from spark_client.lanes.read_stream import StreamStalled
from spark_client.merge.merged import merge
from tests.support.merging import (
    QUICK,
    ROWS,
    batch_of,
    create,
    open_put,
    partition_stream,
    put,
    put_all,
    streams_of,
)
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("hasty")


# Waiting.


@pytest.mark.parametrize("lane", ["grpc", "bulk"])
def test_a_dataset_without_a_schema_is_an_error_in_time_and_closing_does_not_wait_for_it(
    process: ServerProcess, server: RemoteServer, name: str, lane: LaneChoice
) -> None:
    impatient = RemoteServer(process.location, timeouts=replace(QUICK, first_message_seconds=0.5))
    create(server, name)
    locations = [process.location, str(process.http)]
    stream = partition_stream(impatient, Ticket(name, 0), locations=locations, lane=lane)
    with merge([stream], timeouts=QUICK) as merged, pytest.raises(StreamStalled, match="no schema came"):
        next(merged)
    with merge([partition_stream(server, Ticket(name, 0), locations=locations, lane=lane)], timeouts=QUICK):
        eventually(lambda: bool(server.action("why", {"dataset": name})["waits"]), expected=True)
    impatient.close()


def test_closing_ends_streams_that_wait_for_a_producer(server: RemoteServer, name: str) -> None:
    create(server, name, 4)
    writers = [open_put(server, name, i) for i in range(4)]
    for i, writer in enumerate(writers):
        writer.write_batch(batch_of(i, 0))
    merged = merge(streams_of(server, name), timeouts=QUICK)
    for _ in range(4):
        next(merged)
    merged.close()
    assert merged._threads._running == 0
    eventually(lambda: not _readers(server, name), expected=True)


def _readers(server: RemoteServer, name: str) -> list[object]:
    partitions = server.action("statistics", {"dataset": name})["datasets"][name]["partitions"]
    return [reader for partition in partitions.values() for reader in partition["subscriptions"]]


# Windows and connections.


def test_one_unread_stream_starves_no_other_through_a_small_window(
    process: ServerProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CONNECTIONS", 1)
    monkeypatch.setattr(transport, "WINDOW_BYTES", 65_535)
    server = RemoteServer(process.location, timeouts=QUICK)
    put_all(server, name, 6, frames=40)
    with server.calling() as (client, _):
        unread = client.do_get(flight.Ticket(Ticket(name, 5).encode()))
        with merge(streams_of(server, name)[:5], order="stream", timeouts=QUICK) as merged:
            assert sum(batch.num_rows for batch in merged) == 5 * 40 * ROWS
        assert unread.read_all().num_rows == 40 * ROWS
    server.close()


def test_a_hundred_streams_share_a_few_connections(server: RemoteServer, name: str) -> None:
    put_all(server, name, 100, frames=1)
    with Proxy.to(server.location) as between:
        client = RemoteServer(between.location, timeouts=QUICK)
        streams = [partition_stream(client, Ticket(name, i), lane="grpc") for i in range(100)]
        with merge(streams, timeouts=QUICK) as merged:
            assert sum(batch.num_rows for batch in merged) == 100 * ROWS
        assert between.connections <= 4
        client.close()


def test_errors_of_calls_at_the_same_time_are_not_mixed_up(server: RemoteServer) -> None:
    wrong: list[str] = []

    def ask(number: int) -> None:
        for i in range(20):
            wanted = f"nobody/{number}/n{i}"
            try:
                server.flight_info(wanted)
            except NotFound as error:
                if wanted not in error.message:
                    wrong.append(error.message)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_of_a_process_that_used_grpc_gets_an_error_and_does_not_hang(
    server: RemoteServer, name: str
) -> None:
    put(server, name, frames=1)
    gc.collect()  # what others have left is not the child's to destroy
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a child that hangs must not stay
        try:
            server.flight_info(name)
        except ForkedProcess:
            # Destroying what gRPC has made would hang as well.
            del server
            gc.collect()
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
