"""A tool that knows nothing of Arrow Flight learns from the server how to ask it, and reads its answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2

from flight_server.protocol import ipc_framing
from tests.support.raw_flight import RawFlight, field, path, put_messages
from tests.support.server_process import ServerProcess

FLIGHT = "arrow.flight.protocol"
TOKEN = "reflection needs none"


def learnt(channel: Any, version: str) -> tuple[set[str], Any]:
    """The services that there are, and a pool with all that the server says about Flight."""
    # ``v1`` has the same messages as ``v1alpha``, of which there is a package.
    ask = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"{FLIGHT}.FlightService"),
    ]
    listed, described = ask(iter(asked), timeout=30)
    pool = descriptor_pool.DescriptorPool()
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(each)
        for each in described.file_descriptor_response.file_descriptor_proto
    ]
    for file in sorted(files, key=lambda file: len(file.dependency)):
        pool.Add(file)
    return {service.name for service in listed.list_services_response.service}, pool


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_every_call_is_described_so_that_its_answers_can_be_read(
    flight_server_process: Callable[..., ServerProcess], version: str
) -> None:
    server = flight_server_process(memory_limit="64MiB", token=TOKEN)
    with grpc.insecure_channel(server.location.removeprefix("grpc://")) as channel:
        services, pool = learnt(channel, version)
    assert services == {
        f"{FLIGHT}.FlightService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    service = pool.FindServiceByName(f"{FLIGHT}.FlightService")
    assert len(service.methods) == 10

    def read(method: str, answer: bytes) -> Any:
        found = message_factory.GetMessageClass(service.methods_by_name[method].output_type)
        message = found.FromString(answer)
        assert message.SerializeToString(deterministic=True)
        assert not re.search(r"^\s*\d+:", str(message), re.MULTILINE), f"{method} has a field without a name"
        return message

    batch = pa.record_batch({"n": [1, 2, 3]})
    with RawFlight(server.location, token=TOKEN) as raw:
        raw.put(put_messages(path("d"), [batch]))
        infos = [read("ListFlights", answer) for answer in raw.ask("ListFlights", b"")]
        infos += [read("GetFlightInfo", answer) for answer in raw.ask("GetFlightInfo", path("d"))]
        (polled,) = (read("PollFlightInfo", answer) for answer in raw.ask("PollFlightInfo", path("d")))
        for info in (*infos, polled.info):
            assert info.flight_descriptor.path == ["d"]
            assert (info.total_records, len(info.endpoint)) == (3, 1)
            assert info.endpoint[0].expiration_time.seconds > 0
            assert len(info.endpoint[0].location) == 3
        assert polled.progress == 1.0
        (schema,) = (read("GetSchema", answer) for answer in raw.ask("GetSchema", path("d")))
        assert pa.ipc.read_schema(pa.py_buffer(schema.schema)) == batch.schema
        first, second = (read("DoGet", answer) for answer in raw.get(infos[0].endpoint[0].ticket.ticket))
        assert ipc_framing.IpcHeader(first.data_header).kind is ipc_framing.MessageKind.SCHEMA
        assert len(second.data_body) >= 24
        (result,) = (read("DoAction", answer) for answer in raw.ask("DoAction", field(1, b"locations")))
        assert b"put_locations" in result.body
        types = {read("ListActions", answer).type for answer in raw.ask("ListActions", b"")}
        assert {"create", "drop"} < types
