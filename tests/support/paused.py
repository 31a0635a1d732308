"""Readers that open a stream, take its beginning and then nothing, on either lane."""

from __future__ import annotations

import resource
from contextlib import ExitStack
from typing import Any, Literal

from pyarrow import flight

from tests.support.bulk import RawGet
from tests.support.server_process import ServerProcess

STREAMS_OF_A_CONNECTION = 20
RECEIVE_BUFFER_BYTES = 64 << 10

Lane = Literal["grpc", "bulk"]


def pause(opened: ExitStack, server: ServerProcess, lane: Lane, dataset: str, readers: int) -> list[Any]:
    """So many readers that have got their first message; ``opened`` ends them."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    paused: list[Any] = []
    client: flight.FlightClient | None = None
    for number in range(readers):
        if lane == "bulk":
            url = f"{server.http}/v1/datasets/{dataset}"
            raw = opened.enter_context(RawGet(url, receive_buffer_bytes=RECEIVE_BUFFER_BYTES))
            raw.head()
            paused.append(raw)
            continue
        if number % STREAMS_OF_A_CONNECTION == 0:
            # Connections of their own: with the same arguments gRPC would take one for all. And windows that do
            # not grow with the bandwidth: on loopback gRPC takes tens of MiB ahead of its reader, at times all.
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
            client = opened.enter_context(flight.connect(server.location, generic_options=options))
        assert client is not None
        stream = client.do_get(flight.Ticket(dataset.encode()))
        opened.callback(stream.cancel)
        paused.append(stream)
    return paused
