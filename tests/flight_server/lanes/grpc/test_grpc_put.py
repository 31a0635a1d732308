"""The answers of a put over gRPC, to a client that takes them late."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from flight_server.lanes.grpc.grpc_put import FREE_ANSWER_BYTES, GrpcAnswers
from flight_server.memory import MemoryPool


class LateClient:
    """A call's context; its client takes answers when ``takes`` is set."""

    def __init__(self) -> None:
        self.takes = asyncio.Event()
        self.taken: list[bytes] = []

    async def send_initial_metadata(self, _: Any) -> None:
        pass

    async def write(self, answer: bytes) -> None:
        await self.takes.wait()
        self.taken.append(answer)


async def test_the_last_echo_arrives_however_little_room_there_is() -> None:
    client = LateClient()
    full: Any = SimpleNamespace(pool=MemoryPool(1, "answers"))
    producer: Any = None
    async with GrpcAnswers(client, full, producer) as answers:
        for letter in (b"a", b"b"):
            answers.put(letter * FREE_ANSWER_BYTES)
        client.takes.set()
        await answers.confirm_end()
    echo, end = client.taken
    assert echo.endswith(b"b" * FREE_ANSWER_BYTES)
    assert end == b""
