"""Producer: the client of one put, and how long the server waits for its next message.

Guarantee: a put's wait for its client is listed, with dataset, partition and producer once the first message has named
them, and ends at a deadline, unless ``put_idle_seconds`` is 0.

Deadlines
    ``put_idle_seconds`` between messages: generous, because a Spark task may compute for minutes between two batches.
    ``stall_seconds`` inside a message, since the last byte; the gRPC lane shows no parts of messages, so there a stall
    inside one counts as between two. The time in which the server holds the producer back (``room_for_arrivals``) does
    not count.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from flight_server.datasets import Caller
from flight_server.protocol import ProducerStalled, PutCommand
from flight_server.tiering import Admission


class Producer:
    """The client of one put. The receiver sets ``command`` when the first message has come. ``idle_seconds``: the
    deadline between messages; None for no limit.
    """

    def __init__(
        self, admission: Admission, caller: Caller, *, idle_seconds: float | None, stall_seconds: float
    ) -> None:
        self.caller = caller
        self.peer = caller.peer
        self.command: PutCommand | None = None
        self.rows = self.size_bytes = 0  # that were stored
        self.idle_seconds = idle_seconds
        self.stall_seconds = stall_seconds
        self._admission = admission
        self.arrivals = admission.arrivals
        self._known: dict[str, Any] | None = None  # the facts, once the command is known

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
        """Wait while ``arrivals`` is full; if it holds nothing there is no need to call this."""
        await self._admission.room_for_arrivals(self.peer)

    def awaited(self) -> AbstractContextManager[None]:
        return self._admission.waits.enter(
            "writer", peer=self.peer, deadline_seconds=self.idle_seconds, **(self._known or self._facts())
        )

    def stalled(self, *, inside: bool) -> ProducerStalled:
        if inside:
            silence = f"no byte came for {self.stall_seconds:g} s inside a message (--stall-seconds)"
        else:
            silence = f"no message came for {self.idle_seconds or 0:g} s (--put-idle-seconds)"
        return ProducerStalled(f"{self}: {silence}; nothing of it was kept, write it again", **self._facts())

    def _facts(self) -> dict[str, Any]:
        command = self.command
        if command is None or self._known is not None:
            return self._known or {}
        # A producer with an index may write to many partitions; one without writes to one.
        partition = command.partition if command.producer is not None else command.partition or 0
        self._known = {"dataset": command.dataset, "partition": partition, "producer": command.producer}
        return self._known
