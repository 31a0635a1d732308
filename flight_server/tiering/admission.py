"""Admission: room for what has arrived, before any of it is kept.

Guarantee: a message that was admitted is counted among the frames, and until then among the arrivals; a stream
that waits for room tells the spiller how much it wants, and is refused at its deadline with an error that says
what stands in the way.
"""

from __future__ import annotations

from flight_server.concurrency import Waits
from flight_server.memory import Budget, Reservation, reserve
from flight_server.protocol import OutOfBudget

from .spiller import Spiller


class Admission:
    """See the module's text.

    Args:
        deadline_seconds: how long a stream is held back before it is refused.
    """

    def __init__(self, budget: Budget, waits: Waits, spiller: Spiller, *, deadline_seconds: float) -> None:
        self.waits = waits
        self._budget = budget
        self._spiller = spiller
        self._deadline_seconds = deadline_seconds

    async def admit(self, size_bytes: int, *, dataset: str, partition: int | None, peer: str) -> Reservation:
        """Room among the frames for a message that has arrived. Cancelling gives it back.

        Raises:
            OutOfBudget: RAM and disk stayed full until the deadline.
        """
        at_once = self._budget.frames.try_reserve(size_bytes)
        if at_once is not None:
            self._spiller.poke()
            return at_once
        arrived = self._budget.arrivals.reserve(size_bytes)
        try:
            return await reserve(
                self._budget.frames,
                size_bytes,
                self.waits,
                dataset=dataset,
                partition=partition,
                peer=peer,
                deadline_seconds=self._deadline_seconds,
                queued=self._spiller.poke,
            )
        except OutOfBudget as refusal:
            if self._spiller.trouble is None:
                raise
            trouble = f"frames could not be moved to disk: {self._spiller.trouble}"
            raise OutOfBudget(f"{refusal.message}; {trouble}", **refusal.detail) from None
        finally:
            arrived.free()

    async def arrival(
        self, size_bytes: int, *, peer: str, dataset: str | None = None, partition: int | None = None
    ) -> Reservation:
        """Room for what is made of something that has arrived, for as long as that takes. Cancelling gives it back.

        Raises:
            OutOfBudget: there was none until the deadline.
        """
        return await reserve(
            self._budget.arrivals,
            size_bytes,
            self.waits,
            dataset=dataset,
            partition=partition,
            peer=peer,
            deadline_seconds=self._deadline_seconds,
        )

    @property
    def max_arrival_bytes(self) -> int:
        """What the account of arrivals has in all."""
        return self._budget.arrivals.limit_bytes or 0

    async def room_for_arrivals(self, peer: str) -> None:
        """Return when the next message may be read: what has arrived before has found its place."""
        if self._budget.arrivals.used_bytes:
            (await self.arrival(1, peer=peer)).free()
