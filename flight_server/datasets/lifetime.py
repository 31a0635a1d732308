"""Lifetime: the state, the lease and the retention in seconds of a dataset.

The states, and the verbs that change them, stand in ``_AFTER``. An error is a ``Conflict``. *begin*, *commit*: a
shuffle's attempt does. *accept*: a shuffle's attempts are chosen. *seal*: every partition is whole, and on disk if the
dataset is durable. A stream is never SEALING, because its partitions seal it. A durable shuffle is written to disk
while it is SEALING. *reopen*: the disk has refused it. An attempt may begin while the dataset is SEALING, because that
may follow; it cannot commit then, because no later step would accept it. *extend*: the dataset gets further whole
partitions; the present ones stay as they are.

Lease and retention
    Reads and writes renew the lease for each frame. An open stream alone does not, because a stalled one would keep
    the dataset for ever. No lease ends while the server itself holds a producer back (:meth:`Lifetime.held_back`). The
    retention in seconds counts from the first seal.

Renewed
    A client that renews the lease needs the dataset, and waits for what is written to it. So a producer of a shuffle
    may be silent for as long as the last renewal lasts; a read or a write says nothing of other producers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from flight_server.concurrency import transitions
from flight_server.protocol import Conflict, Retention

from .generations import lease_ended, retention_ended


class DatasetState(StrEnum):
    """See ``_AFTER``."""

    OPEN = "open"
    SEALING = "being sealed"
    SEALED = "sealed"
    DROPPED = "dropped"


_AFTER = transitions(
    DatasetState,
    """
    state      begin      commit     accept     reopen     seal       extend     drop
    OPEN       OPEN       OPEN       SEALING    error      SEALED     error      DROPPED
    SEALING    SEALING    error      SEALING    OPEN       SEALED     error      DROPPED
    SEALED     error      error      SEALED     error      SEALED     SEALED     DROPPED
    DROPPED    error      error      error      error      error      error      DROPPED
    """,
)


class Lifetime:
    """The state and the times of one dataset. ``clock`` gives monotonic seconds."""

    def __init__(
        self, name: str, retention: Retention, lease_seconds: float | None, clock: Callable[[], float]
    ) -> None:
        self.name = name
        self.state = DatasetState.OPEN
        self.why_gone = "was dropped"  # once it is, see generations
        self.ended = False  # its name leads elsewhere; only streams that read or write it hold it
        self.retention = retention
        self.lease_seconds = lease_seconds
        self._clock = clock
        self.used_at = clock()  # the last read, write or renewal
        self._renewed_at: float | None = None
        self._sealed_at: float | None = None
        self._held_back = 0

    @property
    def sealed(self) -> bool:
        return self.state is DatasetState.SEALED

    @property
    def dropped(self) -> bool:
        return self.state is DatasetState.DROPPED

    @property
    def gone(self) -> bool:
        """Whether no name leads to it, and no staged write is it, any more."""
        return self.ended or self.dropped

    def check_step(self, verb: str) -> DatasetState:
        """The state that the verb leads to. Changes nothing."""
        after = _AFTER.get((self.state, verb))
        if after is None:
            state = self.why_gone if self.dropped else f"is {self.state}"
            raise Conflict.about(self.name, state)
        return after

    def step(self, verb: str) -> None:
        """Change to the state that the verb leads to, or raise and change nothing."""
        self.state = self.check_step(verb)
        if verb == "seal" and self._sealed_at is None:
            self._sealed_at = self._clock()

    def touch(self) -> None:
        self.used_at = self._clock()

    def renew(self) -> None:
        """Let the lease begin anew, by a client that says so; see "Renewed"."""
        self.touch()
        self._renewed_at = self.used_at

    @property
    def renewed_seconds(self) -> float:
        """For how long the last renewal lasts from now on; not above 0 if there is none."""
        if self.lease_seconds is None or self._renewed_at is None:
            return 0.0
        return self._renewed_at + self.lease_seconds - self._clock()

    @property
    def lease_left_seconds(self) -> float | None:
        if self.lease_seconds is None:
            return None
        return self.used_at + self.lease_seconds - self._clock()

    @property
    def expired(self) -> bool:
        """The lease has ended."""
        left = self.lease_left_seconds
        return left is not None and left <= 0 and not self._held_back

    @property
    def failure(self) -> BaseException | None:
        """Why it cannot be read any more, though it was not dropped; None in other cases."""
        raise NotImplementedError

    def note_end(self) -> None:
        """Note in ``why_gone`` that its lease or its retention has ended, if one has."""
        if self.expired:
            self.why_gone = lease_ended(self.lease_seconds, self.failure)
        elif self.outlived:
            self.why_gone = retention_ended(self.retention.seconds)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Inside, a producer waits for the server, which bounds that; afterwards the lease begins anew."""
        self._held_back += 1
        try:
            yield
        finally:
            self._held_back -= 1
            self.touch()

    @property
    def outlived(self) -> bool:
        """The retention in seconds has ended."""
        seconds, sealed_at = self.retention.seconds, self._sealed_at
        return seconds is not None and sealed_at is not None and self._clock() >= sealed_at + seconds
