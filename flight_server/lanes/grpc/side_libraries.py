"""What ``side_services`` needs of the libraries for health and reflection. Only it imports this, when it is needed."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from .reflection import describe


class SideLibraries:
    """The libraries' services, and their requests. ``services``: the names of all that the server offers."""

    unreadable = DecodeError
    health_request = health_pb2.HealthCheckRequest.FromString
    # The two protocols differ in their package alone; grpcio has code for the older one only.
    reflection_request = reflection_pb2.ServerReflectionRequest.FromString

    def __init__(self, services: Sequence[str]) -> None:
        describe()
        self.health = health.aio.HealthServicer()
        self.reflection = reflection.aio.ReflectionServicer(services)

    async def serve(self, service: str) -> None:
        """Say that the server and its service are healthy."""
        for name in ("", service):
            await self.health.set(name, health_pb2.HealthCheckResponse.SERVING)
