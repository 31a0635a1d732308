"""Admission: room for an arrived message before it is stored."""

from __future__ import annotations

from flight_server.concurrency import Waits
from flight_server.memory import Budget, Reservation, reserve
from flight_server.protocol import OutOfBudget

from .spiller import Spiller


class Admission:
    """Moves an arrived message's bytes from ``arrivals`` to the account ``frames``.

    Until it is admitted, a message is counted in ``arrivals``, and in ``wanted_bytes``, by which the spiller sees how
    much to move. A stream that finds no room until its deadline gets an error that says why.
    """

    def __init__(self, budget: Budget, waits: Waits, spiller: Spiller, *, deadline_seconds: float) -> None:
        self.waits = waits
        self.arrivals = budget.arrivals
        self._budget = budget
        self._spiller = spiller
        self._deadline_seconds = deadline_seconds

    def admit_nowait(self, size_bytes: int) -> Reservation | None:
        """The reservation of :meth:`admit` if it is free now."""
        at_once = self._budget.frames.try_reserve(size_bytes)
        if at_once is not None:
            self._spiller.poke()
        return at_once

    async def admit(self, size_bytes: int, *, dataset: str, partition: int | None, peer: str) -> Reservation:
        """A reservation in ``frames``. Cancelling releases it. Raises OutOfBudget: full until the deadline."""
        at_once = self.admit_nowait(size_bytes)
        if at_once is not None:
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
        """The same in the account ``arrivals``, for copies made of an arrived message."""
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
        return self._budget.arrivals.limit_bytes or 0

    async def room_for_arrivals(self, peer: str) -> None:
        """Return when ``arrivals`` is empty or grants this stream a byte, or raise as :meth:`arrival`."""
        if self._budget.arrivals.used_bytes:
            (await self.arrival(1, peer=peer)).free()
