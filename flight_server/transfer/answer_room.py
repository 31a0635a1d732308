"""AnswerRoom: room for large answers that are no frames: those of actions and reports on both lanes, FlightInfos, and
echoes of app_metadata.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from flight_server.concurrency import Waits
from flight_server.memory import MemoryPool, Reservation, reserve
from flight_server.protocol import dump_json
from flight_server.tiering import Reader

from .delivery import Delivery

SMALL_BYTES = 64 << 10
COPIES = 2
"""An answer made of parts is there twice for a moment, and then beside gRPC's copy of it."""


@dataclass(frozen=True)
class MadeAnswer:
    """An answer of at most ``size_bytes``, as far as that is known before it is made. ``make``: called once; a mapping
    is sent as JSON.
    """

    size_bytes: int
    make: Callable[[], Awaitable[bytes | dict[str, Any]]]

    @classmethod
    def of(cls, answer: bytes | dict[str, Any]) -> Self:
        """One that is made already."""
        made = [dump_json(answer) if isinstance(answer, dict) else answer]

        async def make() -> bytes:
            return made.pop()

        return cls(len(made[0]), make)


@dataclass(frozen=True)
class AnswerRoom:
    """Reserves an answer in the account ``answers`` before it is made, and until the client's transport has taken it.

    Up to ``SMALL_BYTES`` an answer needs no room. One that is larger than the account's limit waits until the account
    is empty, and is then counted whole, so at most one answer at a time exceeds the limit. A client that does not take
    its answer is ended by ``eviction`` when others wait. ``deadline_seconds``: for the wait for room.
    """

    pool: MemoryPool
    waits: Waits
    delivery: Delivery
    deadline_seconds: float | None

    async def room(self, size_bytes: int, reader: Reader) -> Reservation | None:
        """Room for an answer; None for a small one. Cancelling releases it. Raises OutOfBudget at the deadline."""
        if size_bytes <= SMALL_BYTES:
            return None
        needed_bytes, limit_bytes = COPIES * size_bytes, self.pool.limit_bytes
        assert limit_bytes is not None
        room = await reserve(
            self.pool,
            min(needed_bytes, limit_bytes),
            self.waits,
            dataset=reader.dataset,
            peer=reader.peer,
            deadline_seconds=self.deadline_seconds,
        )
        room.grow(max(0, needed_bytes - limit_bytes))
        return room

    async def made(self, answer: MadeAnswer, reader: Reader) -> tuple[bytes, Reservation | None]:
        """Make an answer when there is room for it. Raises OutOfBudget: see :meth:`room`."""
        room = await self.room(answer.size_bytes, reader)
        content = await answer.make()
        data = dump_json(content) if isinstance(content, dict) else content
        del content
        if room is None:
            return data, await self.room(len(data), reader)
        room.grow(max(0, COPIES * len(data) - room.size_bytes))
        room.shrink(max(0, room.size_bytes - COPIES * len(data)))
        return data, room

    async def send(
        self, answer: MadeAnswer, write: Callable[[bytes], Awaitable[None]], reader: Reader
    ) -> None:
        """Make an answer when there is room for it, and write it. Raises OutOfBudget: see :meth:`room`; ReaderTooSlow:
        see :meth:`Delivery.deliver`.
        """
        data, room = await self.made(answer, reader)
        await self.delivery.deliver(write, data, reader, room=room)
