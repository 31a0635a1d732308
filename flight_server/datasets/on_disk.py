"""OnDisk: what a durable dataset has on disk, from its first synced segment to the deletion of its row.

    not committed   ``row`` is None; each segment is deleted with its last slice or record, as of any spilled dataset
    committed       a row of the records names the files, and they stay
    deleted         as before the commit, so that readers finish

A row that has only lost its name (``records.dataset_records``, "Left") counts as deleted; it goes with this object,
which readers hold by their dataset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from flight_server.frames import DictionaryState
from flight_server.records import Change, Database, delete, leave_name
from flight_server.storage import Segment, SegmentSlice

Leaving = Literal["expired", "retired"]
"""How a dataset leaves the catalogue by itself: its lease or its retention has ended."""


class NamedFile(Protocol):
    """Something with a file, which stays on disk while ``keep`` is true."""

    keep: bool


@dataclass(eq=False)
class Deletion:
    """Of a row that ``on_disk`` has now. ``left``: it loses only the name. ``dropped``: also the files of a damaged
    dataset go, which stay for people otherwise.
    """

    on_disk: OnDisk
    row: int
    left: bool
    dropped: bool
    # Of a dataset whose lease or retention has ended.
    why: Leaving | None = None
    done: Future[None] | None = None

    @property
    def change(self) -> Change[None]:
        return partial(leave_name if self.left else delete, row=self.row)

    def committed(self) -> None:
        """The change is on the medium. Any thread; twice is fine."""
        on_disk = self.on_disk
        if on_disk.row == self.row:
            on_disk.row, on_disk.left = None, self.row if self.left else None
            for each in on_disk.kept:
                # Looked at now: a reader may have met the damage while the deletion was committed.
                each.keep = on_disk.damaged and not self.dropped
            on_disk.kept = ()
            if not on_disk.not_loaded:
                on_disk.files = ()


@dataclass(slots=True, weakref_slot=True, eq=False)
class OnDisk:
    """Of one generation."""

    _records: Database
    row: int | None = None
    kept: Sequence[NamedFile] = ()
    left: int | None = None  # a row without a name, see above
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # one task at a time seals it, or loads an index
    sealing: bool = False  # a call seals it, and undoes that if the disk refuses
    # The partitions whose frames are all in synced segments; the places of its dictionary messages.
    synced: set[int] | None = None
    dictionaries: dict[Any, SegmentSlice] = field(default_factory=dict)
    damaged: bool = False  # it has an entry in the quarantine
    recovered: bool = False  # an earlier process has accepted the frames, perhaps without --full-validation
    # What the indices of the partitions refer to: the files, each with how many of its bytes are the dataset's.
    files: Sequence[tuple[Segment, int]] = ()
    states: Sequence[DictionaryState] = ()
    not_loaded: int = 0  # partitions
    leaving: Deletion | None = None  # it leaves the catalogue once that is committed

    def commit(self, row: int, kept: Sequence[NamedFile]) -> None:
        """The row is committed, and names these."""
        self.row, self.kept = row, kept
        for each in kept:
            each.keep = True

    def begin_again(self) -> None:
        """Its frames are to be written again, for a seal to come."""
        self.synced, self.dictionaries = None, {}

    def deletion(self, *, finishing: bool, dropped: bool = False) -> Deletion:
        """How its row is to be deleted. ``finishing``: readers finish it. ``dropped``: what is in the quarantine goes,
        too.
        """
        assert self.row is not None
        return Deletion(self, self.row, left=finishing and self.not_loaded > 0, dropped=dropped)

    def release(self) -> None:
        """No reader needs a frame any more."""
        self.files = self.states = ()
        self.dictionaries, self.not_loaded = {}, 0

    def __del__(self) -> None:
        if self.left is not None:
            self._records.eventually(partial(delete, row=self.left))
