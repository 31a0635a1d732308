"""A changelog's snapshot or deltas, read whole or an error; or its versions as they come, each step whole.

Guarantee: a snapshot and deltas end only after the batch that the server marked as the last of the one version that
they are of, and after totals that agree with this connection's batches. A *step* of a followed changelog is all
batches of one version; it is handed out, as one burst whose ``part`` is the version, after its last batch has arrived,
and each version's changes are in exactly one step, in the order of versions. All of it is of one generation.

Marks
    Each batch says its version, and the last of a step that it is the last: in the IPC message's metadata on the bulk
    lane, in ``app_metadata`` (JSON) on the gRPC lane. A batch without a version is an error.

Resuming
    A follower whose connection broke asks again for the versions after its last complete step; batches of a step that
    was cut are dropped, and come again. Its silence is no failure: after ``stall_seconds`` without a change it asks
    again on a new connection, which costs no try, and gives none back: only a whole step does.

    A snapshot or deltas are read again from their start if no batch was returned yet; else the error is
    :class:`CutRead`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flight_server.protocol import PartitionFailed, Ticket, Unavailable, Versions

from .lane import Batch, BatchBurst, BrokenStream, ReadTotals


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
        body = json.loads(metadata.to_pybytes()) if isinstance(metadata, pa.Buffer) else None
        if isinstance(body, dict) and isinstance(body.get("version"), int):
            return cls(body["version"], body.get("last") is True)
        raise ValueError(f"{body!r} has no version")


class VersionCursor:
    """The ``versions`` of a ticket; the newest snapshot if it names none.

    ``version`` is that of the batches read so far, None before the first; of a follower, that of the last whole step.
    Rows and frames are counted over all connections.
    """

    partition: int | None = None
    reader: str | None = None
    may_repeat = False

    def __init__(self, ticket: Ticket) -> None:
        self.name = f"the changelog {ticket.dataset!r}"
        self.dataset = ticket.dataset
        self.generation = ticket.generation
        self.start = ticket.start
        self.next_frame = self.rows = 0
        self._versions = ticket.versions or Versions()
        self.follows = self._versions.follow
        self.version = self._versions.after if self.follows else None
        self._arriving: int | None = None  # the version whose last batch has not come
        self._batches: list[Batch] = []  # those of it that have come, of a follower
        self._before = (0, 0)  # rows and frames of earlier connections

    @property
    def position(self) -> str:
        return "its start" if self.version is None else f"version {self.version}"

    @property
    def begun(self) -> bool:
        return self.next_frame > 0

    def ticket(self) -> Ticket:
        self._arriving, self._batches = None, []
        self._before = (self.rows, self.next_frame)
        versions = Versions(after=self.version, follow=True) if self.follows else self._versions
        return Ticket(self.dataset, generation=self.generation, start=self.start, versions=versions)

    def take(self, burst: BatchBurst) -> list[BatchBurst]:
        steps: list[BatchBurst] = []
        for batch, metadata in zip(burst.batches, burst.metadata, strict=True):
            self.next_frame += 1
            self.rows += batch.num_rows
            try:
                mark = Mark.parse(metadata)
            except ValueError as error:
                raise PartitionFailed(f"{self.name} gave a batch without its version: {error}") from None
            if self._arriving is None and self._may_begin(mark.version):
                self._arriving = mark.version
            if mark.version != self._arriving:
                raise self._misplaced(mark)
            if self.follows:
                self._batches.append(batch)
            if mark.last:
                self._arriving = None
                steps.append(BatchBurst(self._batches, part=mark.version))
                self._batches = []
            if mark.last or not self.follows:
                self.version = mark.version
        return steps if self.follows else [burst]

    def _may_begin(self, version: int) -> bool:
        if self.follows:
            return self.version is None or version > self.version
        return self.version is None and self._versions.as_of in (None, version)

    def end(self, totals: ReadTotals | None, headers: Mapping[str, str]) -> bool:  # noqa: ARG002
        assert totals is not None
        rows, frames = self.rows - self._before[0], self.next_frame - self._before[1]
        if self.follows or frames < totals.frames or self._arriving is not None or self.version is None:
            raise BrokenStream(f"{self.name} ended before its last batch, after {frames} frames")
        if (rows, frames) != (totals.rows, totals.frames):
            raise PartitionFailed(
                f"{self.name} gave {rows} rows in {frames} frames of version {self.version}; the server counts "
                f"{totals.rows} rows in {totals.frames} frames: what was read cannot be trusted",
                dataset=self.dataset,
            )
        return True

    def cut(self, failure: Unavailable) -> CutRead | None:
        if self.follows or not self.begun:
            return None
        return CutRead(
            f"{self.name} broke off after {self.next_frame} frames of version {self.version}, and a snapshot or "
            f"deltas cannot be resumed; read it again: {failure.message}",
            dataset=self.dataset,
            version=self.version,
        )

    def _misplaced(self, mark: Mark) -> PartitionFailed:
        before = self.version if self._arriving is None else self._arriving
        return PartitionFailed(
            f"{self.name} gave a batch of version {mark.version} after version {before}, where it had no place: what "
            "was read cannot be trusted",
            dataset=self.dataset,
            version=mark.version,
        )
