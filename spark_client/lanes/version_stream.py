"""A changelog's snapshot or deltas, read whole or an error; or its versions as they come, each step whole.

Guarantee: a snapshot and deltas end with None only after the batch that the server marked as the last of the one
version that they are of, and after totals that agree with this connection's batches. A *step* of a followed changelog
is all batches of one version; it is returned after its last batch has arrived, and each version's changes are in
exactly one step, in the order of versions. All of it is of one generation.

Marks
    Each batch says its version, and the last of a step that it is the last: in the IPC message's metadata on the bulk
    lane, in ``app_metadata`` (JSON) on the gRPC lane. A batch without a version is an error.

Resuming
    A follower whose connection broke asks again for the versions after its last complete step; batches of a step that
    was cut are dropped, and come again. Its silence is no failure: after ``stall_seconds`` without a change it asks
    again on a new connection, which costs no try.

    A snapshot or deltas are read again from their start if no batch was returned yet; else the error is
    :class:`CutRead`. ``partition_stream`` has the tries, pauses, lanes and the pinning of the generation.

Connections
    A follower's HTTP connection is its own, beside the limits of ``http``: it stays open for as long as it follows.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from flight_server.protocol import PartitionFailed, Ticket, Unavailable, Versions
from spark_client.connection import RemoteServer, TimedOut

from .http import HttpPool
from .lane import Batch, BatchBurst, BrokenStream, LaneChoice, LaneReader
from .partition_stream import Address, PartitionStream


class CutRead(BrokenStream):
    """A snapshot or deltas broke off after the first batch was returned: read again from the start."""

    code = "cut_read"


@dataclass(frozen=True, slots=True)
class Mark:
    """The version of a batch, and whether it is the last batch of its step."""

    version: int
    last: bool

    @classmethod
    def parse(cls, metadata: Any) -> Mark:
        """From a ``BatchBurst``'s metadata. ValueError if it has no version."""
        if isinstance(metadata, pa.KeyValueMetadata):
            return cls(int(metadata.get("version", b"")), metadata.get("last") == b"true")
        said = json.loads(metadata.to_pybytes()) if isinstance(metadata, pa.Buffer) else None
        if isinstance(said, dict) and isinstance(said.get("version"), int):
            return cls(said["version"], said.get("last") is True)
        raise ValueError(f"{said!r} has no version")


@dataclass(slots=True)
class Step:
    """All batches of one version, at least one."""

    version: int
    batches: list[Batch] = field(default_factory=list)


class VersionStream(PartitionStream):
    """One thread reads it; any thread may cancel it.

    ``version`` is that of the batches read so far, None before the first; of a follower, that of the last whole step.

    Args:
        ticket: its ``versions`` are read; with ``follow``, :meth:`read_step` reads it, else ``read_burst``.
    """

    def __init__(
        self,
        server: RemoteServer,
        ticket: Ticket,
        *,
        locations: Sequence[str] = (),
        lane: LaneChoice = "auto",
    ) -> None:
        super().__init__(server, ticket, locations=locations, lane=lane)
        self._wanted = ticket.versions or Versions()
        self.version = self._wanted.after if self._wanted.follow else None
        self._step: Step | None = None  # the one whose last batch has not come
        self._steps: deque[Step] = deque()
        self._before = (0, 0)  # rows and frames of earlier connections

    @property
    def name(self) -> str:
        return f"the changelog {self.dataset!r}"

    def read_burst(self) -> BatchBurst | None:
        burst = super().read_burst()
        if burst is not None:
            self._take(burst)
        return burst

    def read_step(self) -> Step:
        """Wait for the next step of a followed changelog. Raises as :meth:`read_burst`."""
        while not self._steps:
            self.read_burst()
        return self._steps.popleft()

    def next_nowait(self) -> Step | None:
        """The next step, if it has been received already."""
        return self._steps.popleft() if self._steps else None

    def overdue(self, now_seconds: float) -> bool:
        return not (self._wanted.follow and self._schema is not None) and super().overdue(now_seconds)

    # Inside.

    def _take(self, burst: BatchBurst) -> None:
        for batch, metadata in zip(burst.batches, burst.metadata, strict=True):
            try:
                mark = Mark.parse(metadata)
            except ValueError as error:
                raise PartitionFailed(f"{self.name} gave a batch without its version: {error}") from None
            step = self._step
            if step is None:
                if not self._may_begin(mark.version):
                    raise self._misplaced_error(mark)
                step = self._step = Step(mark.version)
            elif mark.version != step.version:
                raise self._misplaced_error(mark)
            if self._wanted.follow:
                step.batches.append(batch)
            if mark.last:
                self._step = None
                if self._wanted.follow:
                    self._steps.append(step)
                    super()._progressed()
            if mark.last or not self._wanted.follow:
                self.version = mark.version

    def _progressed(self) -> None:
        # Of a follower a part of a step is no progress, because it comes again.
        if not self._wanted.follow:
            super()._progressed()

    def _may_begin(self, version: int) -> bool:
        if self._wanted.follow:
            return self.version is None or version > self.version
        return self.version is None and self._wanted.as_of in (None, version)

    def _ticket(self) -> Ticket:
        wanted = Versions(after=self.version, follow=True) if self._wanted.follow else self._wanted
        return Ticket(self.dataset, generation=self.generation, versions=wanted)

    def _begin(self, address: Address) -> None:
        self._step = None
        self._before = (self.rows, self.next_frame)
        super()._begin(address)

    def _check(self, reading: LaneReader) -> None:
        totals = reading.totals
        assert totals is not None
        rows, frames = self.rows - self._before[0], self.next_frame - self._before[1]
        if self._wanted.follow or frames < totals.frames or self._step is not None or self.version is None:
            raise BrokenStream(f"{self.name} ended before its last batch, after {frames} frames")
        if (rows, frames) != (totals.rows, totals.frames):
            raise PartitionFailed(
                f"{self.name} gave {rows} rows in {frames} frames of version {self.version}; the server counts "
                f"{totals.rows} rows in {totals.frames} frames: what was read cannot be trusted",
                dataset=self.dataset,
            )

    def _pause_after(self, failure: Unavailable) -> None:
        if self._wanted.follow:
            # Silence: nothing was committed for as long as a connection may be silent.
            if isinstance(failure, TimedOut):
                super()._progressed()
                return
        elif self.next_frame > 0:
            raise CutRead(
                f"{self.name} broke off after {self.next_frame} frames of version {self.version}, and a snapshot or "
                f"deltas cannot be resumed; read it again: {failure.message}",
                dataset=self.dataset,
                version=self.version,
            ) from failure
        super()._pause_after(failure)

    def _pool(self, address: Address) -> HttpPool:
        if not self._wanted.follow:
            return super()._pool(address)
        parts = urlsplit(address.location)
        key = ("followed", parts.scheme, parts.netloc)
        return self.server.attached(
            key, lambda: HttpPool(address.location, self.server, max_busy=None, max_idle=0)
        )

    @property
    def _position(self) -> str:
        return "its start" if self.version is None else f"version {self.version}"

    def _misplaced_error(self, mark: Mark) -> PartitionFailed:
        return PartitionFailed(
            f"{self.name} gave a batch of version {mark.version} after version "
            f"{self.version if self._step is None else self._step.version}, where it had no place: what was read "
            "cannot be trusted",
            dataset=self.dataset,
            version=mark.version,
        )
