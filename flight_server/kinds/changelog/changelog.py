"""Changelog: a keyed collection of updates, version by version; its state, and its changes.

The states, and the verbs that change them, stand in ``_AFTER``. *write*: versions are committed, or holds put.
*compact*: runs are replaced by what stands for them. *damage*: bytes on disk differ from the written ones; the
undamaged parts can still be read. *close*: it was dropped, or the server stops. An error is ``DatasetDropped``, of a
damaged one ``DataQuarantined``.

Who holds what
    The event loop alone changes a changelog, in synchronous steps; threads get views (``views``), which never change.
    ``commits`` adds recent runs, ``compactor`` replaces them and the bases. Both hold ``turn`` from the moment when
    they change the records until they have published, so the order on disk and in RAM is the same.

Disk
    The ``records`` have what a restart needs, see ``records.changelog_records``; beside them are the run files, in the
    data directory's folder of files.

Versions
    ``upper`` is the newest version. ``since`` is the oldest that can be asked for; a fold moves it up when it begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from flight_server.concurrency import Changes, transitions
from flight_server.datasets import Append, Attachment, Dataset, Sees, Transactions
from flight_server.memory import Metadata, Reservation
from flight_server.protocol import (
    DIFF_COLUMN,
    Conflict,
    CreateRequest,
    DataQuarantined,
    DatasetDropped,
    FlightShuffleError,
    InvalidRequest,
    KeepRule,
)
from flight_server.records import BegunFold, ChangelogRecords, DeclaredChangelog

from .compaction import Work
from .contents import Contents
from .holds import HeldBack, Holds, gone
from .rules import Rule
from .runs import Layout, MemoryRun, Run, RunFolder
from .timeline import Timeline
from .views import View

DEFAULT_DELAY_SECONDS = 1.0
KEPT_DISK_PARTS = 8
"""While there is a changelog, one part in so many of the disk limit is kept for work that makes room: see the next two.
"""
OF_KEPT_FOR_DELETES = 0.5
OF_KEPT_FOR_FOLDS = 1.0
"""The share that each may take of it: deletes leave room for the folds that they need."""


class ChangelogState(StrEnum):
    """See ``_AFTER``."""

    OPEN = "open"
    DAMAGED = "damaged"
    CLOSED = "closed"


_AFTER = transitions(
    ChangelogState,
    """
    state      write      compact    read       damage     close
    OPEN       OPEN       OPEN       OPEN       DAMAGED    CLOSED
    DAMAGED    error      error      DAMAGED    DAMAGED    CLOSED
    CLOSED     error      error      error      CLOSED     CLOSED
    """,
)


class Changelog:
    """The state of one changelog.

    Args:
        room: counts it.
        metadata: counts its transactions and holds.
        wake: called with it when its compaction may be due; ``soon``: it can wait for others of the next milliseconds.
        found_damage: called with it and what is damaged, the first time.
    """

    # Few have these. An instance with more than 30 attributes of its own shares no keys, and is 2 KiB larger.
    damage: str | None = None
    why_closed = ""  # follows its name, once it is
    full_until = 0.0  # the compactor has found the disk full, and makes room alone
    not_emitting: str | None = None  # why the rows that its rule puts together go nowhere
    begun: BegunFold | None = None  # the fold that goes on, or is to be begun again

    def __init__(
        self,
        declared: DeclaredChangelog,
        layout: Layout,
        rule: Rule,
        records: ChangelogRecords,
        folder: RunFolder,
        *,
        room: Reservation,
        metadata: Metadata,
        max_lag_seconds: float,
        wake: Callable[..., None],
        found_damage: Callable[[Changelog, str], None],
    ) -> None:
        self.name = declared.dataset
        self.generation = declared.generation
        self.state = ChangelogState.OPEN
        self.declared = declared
        self.layout = layout
        self.rule = rule
        self.records = records
        self.folder = folder
        self.delay_seconds = declared.delay_seconds
        self.turn = asyncio.Lock()
        self.changes = Changes()  # of ``upper`` and of the state
        self.holds = Holds(self.name, max_lag_seconds, metadata)
        self.contents = Contents.empty(layout)
        self.since = 0
        self.upper = 0
        self.timeline = Timeline(declared.delay_seconds, 0, time.monotonic())
        self.transactions = Transactions(self.name, metadata)
        self.working: list[Work] = []
        self._room = room
        self.readers = 0  # open streams
        self._wake = wake
        self._found_damage = found_damage

    # States

    def check_step(self, verb: str) -> ChangelogState:
        """The state that the verb leads to. Changes nothing. Raises as ``_AFTER`` says."""
        after = _AFTER.get((self.state, verb))
        if after is None:
            if self.state is ChangelogState.DAMAGED:
                raise DataQuarantined(
                    f"data loss: changelog {self.name!r} was found damaged on disk and takes nothing more: "
                    f"{self.damage}. Its files are in {self.folder.path}; read what is whole, drop it and write it "
                    "again",
                    dataset=self.name,
                    path=str(self.folder.path),
                )
            raise self.dropped()
        return after

    def dropped(self, remedy: str = "ask for it again") -> DatasetDropped:
        """The error of one that is closed, or will be in a moment."""
        why = self.why_closed or "is being removed"
        return DatasetDropped(f"changelog {self.name!r} {why}; {remedy}", dataset=self.name)

    def step(self, verb: str) -> None:
        """Change to the state that the verb leads to, or raise and change nothing."""
        before = self.state
        self.state = self.check_step(verb)
        if self.state is not before:
            self.changes.tell()

    def damaged(self, what: str) -> None:
        """Take note of damage; the first one is kept."""
        if self.damage is None:
            self.damage = what
            self._found_damage(self, what)
        self.step("damage")

    def close(self, why: str) -> None:
        """Take nothing more; followers get an error with ``why``. The files stay, if the records name them. Twice is
        fine. Reads of a version that have begun go on to their end, unless memory gets short.
        """
        self.why_closed = why
        self.step("close")
        if not self.readers:
            self.empty()
        self.wake()  # so that its compaction is abandoned

    def empty(self) -> None:
        """Let go of the runs of a closed changelog."""
        self.contents = Contents.empty(self.layout)

    # Reading

    def view(self) -> View:
        """What can be read now; of a closed one by the reads that have begun. Raises DatasetDropped."""
        if self.state is not ChangelogState.CLOSED or not self.contents.runs:
            self.step("read")
        return View(self.layout, self.rule, self.contents, self.upper, self.begun)

    def check_version(self, version: int) -> int:
        """The version, if it can be asked for.

        Raises:
            Compacted: it is below ``since``.
            InvalidRequest: it is above ``upper``.
        """
        if version > self.upper:
            raise InvalidRequest(
                f"dataset {self.name!r} has no version {version} yet: the newest is {self.upper}",
                dataset=self.name,
                since=self.since,
                upper=self.upper,
            )
        if version < self.since:
            raise gone(self.name, version, self.since, self.upper)
        return version

    # Changing

    def published(self, runs: list[Run], version: int, now: float) -> None:
        """Versions up to ``version`` are on disk, and these runs have their updates."""
        self.contents = self.contents.committed(runs)
        self.upper = version
        self.timeline.add(version, now)
        # A pass of the loop later than producers: uvloop sends their answers at the end of a pass, and the step of a
        # follower takes most of a millisecond.
        asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self.changes.tell()
        self.wake(soon=True)

    def compacted(self, contents: Contents) -> None:
        """Compaction has made these of the present contents."""
        self.contents = contents
        self.changes.tell()

    def wake(self, *, soon: bool = False) -> None:
        """Work of compaction may be due."""
        self._wake(self, soon=soon)

    def horizon(self, now: float) -> int:
        """The version up to which compaction would go now without holds."""
        return min(self.timeline.horizon(now), self.upper)

    def advanced_since(self, now: float) -> int:
        """The version up to which compaction may go now."""
        held, horizon = self.holds.oldest(), self.horizon(now)
        return max(self.since, horizon if held is None else min(horizon, held))

    # Numbers

    @property
    def rows(self) -> int:
        return self.contents.rows

    @property
    def memory_bytes(self) -> int:
        return sum(run.size_bytes for run in self.contents.runs if isinstance(run, MemoryRun))

    @property
    def disk_bytes(self) -> int:
        bases = sum(len(each.block or b"") for each in self.contents.bases.ranges)
        return self.records.size_bytes + bases + sum(run.size_bytes for run in self.contents.files)

    def statistics(self) -> dict[str, Any]:
        now = time.monotonic()
        horizon = self.horizon(now)
        held = self.holds.held_back(horizon, now)
        garbage_rows = self.contents.old_rows(max(self.since, horizon))
        return {
            "state": self.state.value,
            "keep": self.declared.keep,
            "delay_seconds": self.delay_seconds,
            "since": self.since,
            "upper": self.upper,
            "rows": self.rows,
            "tombstones": sum(run.tombstones for run in self.contents.recent),
            # The rows of those that a fold left are not there, and may still come.
            "waiting_retractions": self.contents.bases.retractions,
            "ranges": len(self.contents.bases.ranges),
            "runs": len(self.contents.runs),
            "bytes": self.memory_bytes,
            "disk_bytes": self.disk_bytes,
            "debt_rows": self.rows - self.contents.bases.rows,
            "merging": bool(self.working),
            # About so many rows, at most, of those older than the delay are not needed.
            "garbage_rows": garbage_rows,
            "waits_for": self._waits_for(garbage_rows, horizon, held, now),
            "held_back": None if held is None else asdict(held),
            "holds": self.holds.listed(now),
            "hold_count": len(self.holds.named),
            "followers": self.holds.followers,
            "transaction_ids": len(self.transactions),
            **({} if self.damage is None else {"damage": self.damage}),
            **({} if self.not_emitting is None else {"not_emitting": self.not_emitting}),
        }

    def _waits_for(self, garbage_rows: int, horizon: int, held: HeldBack | None, now: float) -> str:
        """What the next fold of garbage waits for: ``nothing`` (there is none), ``fold`` (one goes on), ``delay`` (all
        rows are younger), ``rows`` (it waits for more, some seconds at most), or a hold and its owner.
        """
        if self.working:
            return "fold"
        free_rows = self.contents.old_rows(self.advanced_since(now))
        if held is not None and garbage_rows > free_rows:
            return str(held)
        if free_rows:
            return "rows"
        younger = any(run.last_version > max(self.since, horizon) for run in self.contents.recent)
        return "delay" if younger else "nothing"


class AttachedChangelog(Attachment):
    """The attachment of a dataset that has a changelog. ``append``: see :meth:`VersionAppends.append`; None for a store
    without a server.
    """

    by_name = True

    def __init__(self, changelog: Changelog, append: Append | None) -> None:
        self.changelog = changelog
        self.append = append

    def check_append(self, schema: pa.Schema, *, deletes: bool) -> None:
        layout = self.changelog.layout
        (layout.check_deleter if deletes else layout.check_producer)(schema, self.changelog.name)

    def close(self, why: str) -> None:
        self.changelog.close(why)

    def declared(self, request: CreateRequest) -> CreateRequest:
        """It is always on disk, so a request does not say so."""
        state = self.changelog.declared
        keep = None if state.keep is None else KeepRule.parse(state.keep)
        return replace(request, durable=False, keep=keep, delay_seconds=state.delay_seconds)

    def check_overwrite(self, dataset: Dataset, *, meanwhile: bool = False) -> None:
        state = "became a changelog meanwhile" if meanwhile else "is a changelog"
        raise Conflict.about(
            dataset.name,
            f"{state}, which is not overwritten: drop it, or append its new rows and delete the keys of the old ones, "
            f"or retract these, with -1 in column {DIFF_COLUMN!r}",
        )

    def not_sealed(self, dataset: Dataset) -> FlightShuffleError:
        return InvalidRequest(
            f"dataset {dataset.name!r} is a changelog, which is never sealed and is not cut into pieces: read a "
            "version of it, by the ticket of get_flight_info",
            dataset=dataset.name,
        )

    def transactions(self, dataset: Dataset) -> Transactions:
        return self.changelog.transactions

    def look(self, dataset: Dataset) -> tuple[int, Changes]:
        return self.changelog.upper, self.changelog.changes

    def facts(self) -> dict[str, Any]:
        return {"since": self.changelog.since, "upper": self.changelog.upper}

    def statistics(self, sees: Sees) -> dict[str, Any]:
        numbers = self.changelog.statistics()
        keep = numbers["keep"]
        if keep is not None and keep.get("emit") is not None and not sees(keep["emit"]):
            numbers["keep"] = {name: value for name, value in keep.items() if name != "emit"}
            if "not_emitting" in numbers:
                numbers["not_emitting"] = (
                    "what it emits to takes nothing; this principal does not see that dataset"
                )
        return {"changelog": numbers}

    def stored(self) -> tuple[int, int, int]:
        return self.changelog.rows, self.changelog.memory_bytes, self.changelog.disk_bytes
