"""Lifetime: the state, the lease and the retention in seconds of a dataset.

States and verbs, all of them:

    state      write      accept     seal       drop
    OPEN       OPEN       SEALING    SEALED     DROPPED
    SEALING    error      SEALING    SEALED     DROPPED
    SEALED     error      SEALED     SEALED     DROPPED
    DROPPED    error      error      error      DROPPED

An error is a :class:`~flight_server.protocol.Conflict`. *write* is what a shuffle's attempt does when it
begins and when it commits; *accept* chooses the attempts of a shuffle; *seal* says that every partition is
whole, and on disk if the dataset is durable. A stream is sealed by its partitions, so it is never SEALING.

Between *accept* and *seal* a durable dataset is on its way to disk. An attempt that begins or commits then
comes too late, because no later step would look at it.

Lease
    ``touch`` renews it; reads and writes call it frame by frame. ``expired`` is asked by the catalogue.
    Streams in progress do not keep a dataset by themselves: a stalled one must not keep it for ever.

Retention
    In seconds it counts from the first seal.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from flight_server.protocol import Conflict, Retention


class DatasetState(StrEnum):
    """See the table above."""

    OPEN = "open"
    SEALING = "being sealed"
    SEALED = "sealed"
    DROPPED = "dropped"


_OPEN, _SEALING, _SEALED, _DROPPED = DatasetState

_AFTER: dict[tuple[DatasetState, str], DatasetState] = {
    (_OPEN, "write"): _OPEN,
    (_OPEN, "accept"): _SEALING,
    (_SEALING, "accept"): _SEALING,
    (_SEALED, "accept"): _SEALED,
    (_OPEN, "seal"): _SEALED,
    (_SEALING, "seal"): _SEALED,
    (_SEALED, "seal"): _SEALED,
    (_OPEN, "drop"): _DROPPED,
    (_SEALING, "drop"): _DROPPED,
    (_SEALED, "drop"): _DROPPED,
    (_DROPPED, "drop"): _DROPPED,
}


class Lifetime:
    """See the module's text.

    Args:
        name: the dataset's, for errors.
        clock: monotonic seconds.
    """

    def __init__(
        self, name: str, retention: Retention, lease_seconds: float | None, clock: Callable[[], float]
    ) -> None:
        self.name = name
        self.state = DatasetState.OPEN
        self.retention = retention
        self.lease_seconds = lease_seconds
        self._clock = clock
        self._touched = clock()
        self._sealed_at: float | None = None

    @property
    def sealed(self) -> bool:
        """Every partition is complete, and always will be."""
        return self.state is DatasetState.SEALED

    @property
    def dropped(self) -> bool:
        return self.state is DatasetState.DROPPED

    def check_step(self, verb: str) -> DatasetState:
        """The state that the verb leads to.

        Raises:
            Conflict: it does not fit the present one.
        """
        after = _AFTER.get((self.state, verb))
        if after is None:
            raise Conflict(f"dataset {self.name!r} is {self.state}", dataset=self.name)
        return after

    def step(self, verb: str) -> None:
        """Go on to the state that the verb leads to.

        Raises:
            Conflict: it does not fit the present one; nothing changes.
        """
        self.state = self.check_step(verb)
        if verb == "seal" and self._sealed_at is None:
            self._sealed_at = self._clock()

    def restore_seal(self, sealed_for_seconds: float) -> None:
        """The dataset was sealed so long ago."""
        self.step("seal")
        self._sealed_at = self._clock() - sealed_for_seconds

    def touch(self) -> None:
        """Renew the lease."""
        self._touched = self._clock()

    @property
    def used_at(self) -> float:
        """When it was last read or written, by the clock."""
        return self._touched

    @property
    def lease_left_seconds(self) -> float | None:
        if self.lease_seconds is None:
            return None
        return self._touched + self.lease_seconds - self._clock()

    @property
    def expired(self) -> bool:
        """The lease has ended."""
        left = self.lease_left_seconds
        return left is not None and left <= 0

    @property
    def outlived(self) -> bool:
        """The retention in seconds has ended."""
        seconds, sealed_at = self.retention.seconds, self._sealed_at
        return seconds is not None and sealed_at is not None and self._clock() >= sealed_at + seconds
