"""Producer: who a put comes from, and how long the server waits for its next message.

Guarantee: a put waits for its client with a deadline, and ``why`` names the wait's dataset, partition and
producer as soon as the put's first message has named them.

Deadlines
    ``put_idle_seconds`` between messages: a Spark task may compute for minutes between two batches, so the
    default is generous. ``stall_seconds`` inside a message, from the last byte that came: only the bulk lane
    sees parts of messages. gRPC hands over whole messages, so that a stall inside one counts as silence
    there; a peer that has vanished is found by its keepalive.
    The time in which the server itself holds the producer back (``room_for_arrivals``) does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flight_server.protocol import ProducerStalled, PutCommand
from flight_server.tiering import Admission


class Producer:
    """The client of one put. The receiver sets ``command`` when it knows it.

    Args:
        idle_seconds: how long it may be silent between messages; None for ever.
        stall_seconds: how long no byte may come inside a message.
    """

    def __init__(
        self, admission: Admission, peer: str, *, idle_seconds: float | None, stall_seconds: float
    ) -> None:
        self.peer = peer
        self.command: PutCommand | None = None
        self.idle_seconds = idle_seconds
        self.stall_seconds = stall_seconds
        self._admission = admission

    def __str__(self) -> str:
        command = self.command
        if command is None:
            return f"a put from {self.peer}"
        if command.producer is not None:
            part = f"producer {command.producer} attempt {command.attempt}"
        else:
            part = f"partition {command.partition or 0}"
        return f"dataset {command.dataset!r} {part} (from {self.peer})"

    async def room(self) -> None:
        """Return when the server may read the next message."""
        await self._admission.room_for_arrivals(self.peer)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """List the wait for its next message."""
        with self._admission.waits.enter(
            "writer", peer=self.peer, deadline_seconds=self.idle_seconds, **self._facts()
        ):
            yield

    def stalled(self, *, inside: bool) -> ProducerStalled:
        """What a put fails with whose client has sent nothing until the deadline."""
        if inside:
            silence = f"no byte came for {self.stall_seconds:g} s inside a message (--stall-seconds)"
        else:
            silence = f"no message came for {self.idle_seconds or 0:g} s (--put-idle-seconds)"
        return ProducerStalled(f"{self}: {silence}; nothing of it was kept, write it again", **self._facts())

    def _facts(self) -> dict[str, Any]:
        command = self.command
        if command is None:
            return {}
        # A producer with an index may write to many partitions, one without has one.
        partition = command.partition if command.producer is not None else command.partition or 0
        return {"dataset": command.dataset, "partition": partition, "producer": command.producer}
