"""A call that the server ends in the middle of its headers: its client gets the reason, not nothing until its deadline.

gRPC itself is on both sides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
import pytest_asyncio

from flight_server.node import Node
from flight_server.protocol import CreateRequest
from flight_server.protocol.errors import Unauthenticated
from tests.support.nodes import running_node
from tests.support.raw_flight import RawFlight, Refused, field, flight_data, ipc_messages, path

DEADLINE_SECONDS = 20.0
SCHEMA = pa.schema([("n", pa.int64())])


class Ending:
    """A call's context; the server ends the call as it begins to send the first thing of its answer."""

    def __init__(self, context: Any, node: Node) -> None:
        self._context = context
        self._node = node
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._node.running.end_of(lambda _: True, Unauthenticated("its principal is gone"))

    async def send_initial_metadata(self, headers: Any) -> None:
        self._end()
        await self._context.send_initial_metadata(headers)

    async def write(self, message: bytes) -> None:
        self._end()
        await self._context.write(message)


class Handlers(grpc.GenericRpcHandler):
    def __init__(self, node: Node) -> None:
        self._handlers = node.flight_service().handlers()
        self._node = node

    def service(self, details: Any) -> Any:
        method = self._handlers.service(details)
        serve = method.stream_stream

        async def ended(requests: Any, context: Any) -> None:
            await serve(requests, Ending(context, self._node))

        return grpc.stream_stream_rpc_method_handler(ended)


@pytest_asyncio.fixture
async def raw(tmp_path: Path) -> AsyncIterator[RawFlight]:
    """A connection to a server with dataset ``d``, all of whose calls end so."""
    async with running_node(tmp_path) as node:
        node.catalogue.create(CreateRequest("d", partitions=2), None)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Handlers(node),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with RawFlight(f"grpc://127.0.0.1:{port}") as raw:
            yield raw
        await server.stop(None)


def begun_put() -> bytes:
    (schema,) = ipc_messages(SCHEMA, [])
    return flight_data(schema.header, descriptor=path("other"), metadata=b"to be echoed")


REQUESTS = {
    "ListFlights": b"",
    "GetFlightInfo": path("d"),
    "PollFlightInfo": path("d"),
    "DoGet": field(1, b"d/0"),
    "DoPut": begun_put(),
    "DoAction": field(1, b"renew") + field(2, b'{"dataset": "d"}'),
    "DoAction with a long answer": field(1, b"statistics"),
    "ListActions": b"",
}


@pytest.mark.parametrize("rpc", REQUESTS)
async def test_the_client_is_told_why(raw: RawFlight, rpc: str) -> None:
    one = REQUESTS[rpc]
    rpc = rpc.split(maxsplit=1)[0]
    request = iter([one]) if rpc == "DoPut" else one
    with pytest.raises(Refused, match="its principal is gone") as caught:
        await asyncio.to_thread(raw.ask, rpc, request, deadline_seconds=DEADLINE_SECONDS)
    assert caught.value.status == "UNAUTHENTICATED"
