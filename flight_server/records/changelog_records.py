"""The records of changelogs: what a changelog has on disk beside its run files.

Guarantee: once one of the methods that wait has returned, or has called ``then``, the change is on the medium; once it
has raised, nothing has changed. After a crash the changelog has all of a change or nothing of it.

Tables
    ``dataset``         its name, and what it was declared with
    ``changelog``       ``since``; the newest version, and when it was committed
    ``version``         the rows of small puts that are in no file yet: one block for the versions that were committed
                        together
    ``run``             its files and their blocks; the version of all rows of a large put's file
    ``range``           the ranges of its keys' hashes that are not as they began; a small base lies in it
    ``fold``            the fold that began before versions which may depend on it
    ``hold``            its holds; and those that ended by themselves, of which the version alone is remembered
    ``transaction_id``  its transactions

    The rows go with the dataset's row. Times are seconds since the epoch.

    Each change also brings the sum of all rows' checksums in the row of ``changelog`` up to date: a row that damage of
    a page has taken away, or brought back, is found by it.

Files
    A run is named by a row while it has ``keep``: without it, its file is deleted with its last reference. Its bytes
    and its name are on the medium before it comes here.

Order
    The caller makes one change of the runs or versions of a changelog at a time.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from flight_server.memory import MemoryPool, Reservation
from flight_server.protocol import Kind

from .database import Change, Database
from .dataset_records import delete, insert_row
from .quarantine import Quarantined
from .tables import (
    CHANGELOG,
    DATASET,
    FOLD,
    HOLD,
    OF_CHANGELOGS,
    RANGE,
    RUN,
    VERSION,
    DamagedRow,
    RecordTable,
    Value,
)
from .transaction_records import Entry, forget_transactions, put_transactions, transactions_of
from .trouble import DiskTrouble


class RecordGone(Exception):
    """The changelog was dropped: it has no rows any more."""


class RecordedRun(Protocol):
    """A run file. ``version``: of all its rows, if it is of a large put. ``keep``: see "Files". ``blocks``: the numbers
    that say where each one is, and what it has.
    """

    keep: bool
    version: int | None

    @property
    def name(self) -> str: ...

    @property
    def blocks(self) -> Sequence[Sequence[int]]: ...


@dataclass(frozen=True)
class DeclaredChangelog:
    """A changelog as ``create`` has declared it. ``schema``: an IPC header; ``keep``: the rule, in JSON."""

    dataset: str
    generation: str
    schema: bytes
    keep: dict[str, Any] | None
    delay_seconds: float
    lease_seconds: float | None


class StoredVersions(NamedTuple):
    """Versions that were committed together, and the block with their rows."""

    first: int
    last: int
    time: float
    block: bytes


class StoredRange(NamedTuple):
    """A range of hashes, up to the next one. ``base``: the name of a run, or None and ``block`` its rows."""

    low: int
    since: int
    base: str | None
    block: bytes | None = None


class BegunFold(NamedTuple):
    """A fold that has begun: of hashes from ``low`` to ``high`` it folds updates up to ``since``, and knows those up to
    ``upto``.
    """

    upto: int
    since: int
    low: int
    high: int


class StoredHold(NamedTuple):
    """A hold. Of one that has ended by itself ``until`` is None, and ``taken`` is when it ended."""

    name: str
    version: int
    until: float | None
    taken: float
    owner: str | None = None
    principal: str | None = None


@dataclass(frozen=True)
class StoredChangelog:
    """All rows of a changelog. ``row``: the id of its dataset's."""

    row: int
    declared: DeclaredChangelog
    since: int
    upper: int
    time: float
    runs: list[tuple[str, int | None, list[list[int]]]]
    ranges: list[StoredRange]
    versions: list[StoredVersions]
    fold: BegunFold | None
    holds: list[StoredHold]
    transactions: dict[str, Entry]
    forgotten: list[int]


@dataclass
class _Rows:
    """The row of ``changelog`` within a change, and what is done to the rows in other tables, whose checksums
    ``crc32c`` sums up.
    """

    connection: sqlite3.Connection
    dataset: int
    since: int
    upper: int
    time: float
    crc32c: int

    def put(self, table: RecordTable, rows: Iterable[Sequence[Value]]) -> None:
        """Insert rows with keys that no row has."""
        self.crc32c += table.put(self.connection, [(self.dataset, *row) for row in rows])

    def delete(self, table: RecordTable, where: str, *values: Value) -> None:
        self.crc32c -= table.delete(self.connection, f"dataset = ? AND {where}", (self.dataset, *values))


class NoDatabase:
    """In the place of a database, of a server that keeps nothing when it ends: changes are not written, and count at
    once.
    """

    lasting = False
    path = Path()

    async def commit(self, _change: Change[object], then: Callable[[], None]) -> None:
        then()

    def submit(self, _change: Change[object]) -> None:
        pass

    eventually = submit


class ChangelogRecords:
    """The records of one changelog.

    Args:
        disk: counts the blocks.
    """

    def __init__(self, database: Database | NoDatabase, disk: MemoryPool) -> None:
        self.size_bytes = 0  # of the blocks that no file has yet
        self._database = database
        self._disk = disk
        self._row = 0  # its dataset's id
        self._runs: list[RecordedRun] = []
        self._ranges: list[StoredRange] = []
        self._blocks: list[tuple[int, Reservation]] = []  # each with its last version
        self._bases: Reservation | None = None  # counts those in the records
        self._fold: BegunFold | None = None  # which the next versions bring along
        self._keep = True

    @property
    def row(self) -> int | None:
        """The id of its dataset's row; None if there is none."""
        return self._row or None

    def restore(self, stored: StoredChangelog, runs: Sequence[RecordedRun]) -> None:
        """The database has it, with these files."""
        self._row = stored.row
        for versions in stored.versions:
            self._count(versions.last, self._disk.reserve(len(versions.block)))
        self._name(runs)
        self._ranges = stored.ranges
        self._bases = self._disk.reserve(_base_bytes(stored.ranges))

    async def create(self, declared: DeclaredChangelog, time: float, then: Callable[[], None]) -> None:
        """Let the name lead to the changelog, and no dataset that it led to before. Should ``then`` raise, it is taken
        back. Raises DiskTrouble.
        """

        def insert(connection: sqlite3.Connection) -> None:
            facts = {
                "keep": declared.keep,
                "delay_seconds": declared.delay_seconds,
                "lease_seconds": declared.lease_seconds,
            }
            self._row = insert_row(
                connection,
                declared.dataset,
                declared.generation,
                Kind.CHANGELOG.value,
                facts,
                schema=declared.schema,
            )
            CHANGELOG.put(connection, [(self._row, 0, 0, time, 0)])

        def created() -> None:
            try:
                then()
            except BaseException:
                self._database.eventually(partial(delete, row=self._row))
                raise

        await self._database.commit(insert, created)

    def begin(self, fold: BegunFold) -> None:
        """A fold begins. It is written with the next versions, because these may ask what it leaves."""
        self._fold = fold

    def block(self, encode: Callable[[], bytes]) -> bytes:
        """The rows of a commit, for :meth:`add`."""
        return encode() if self._database.lasting else b""

    async def add(
        self,
        versions: StoredVersions,
        transactions: Mapping[str, Entry],
        files: Sequence[RecordedRun],
        *,
        of_kept: float,
        then: Callable[[], None],
    ) -> None:
        """Versions are committed.

        Args:
            transactions: the new entries of those that made them.
            files: new ones, with rows of the one version.
            of_kept: the share that the block may take of the disk pool's kept bytes (``memory.pool``).

        Raises:
            DiskTrouble: the disk, or its limit, has no room, or the disk refuses.
            RecordGone.
        """
        first, last, time, block = versions
        room = self._disk.empty()
        if not room.try_grow(len(block), of_kept=of_kept):
            raise DiskTrouble(
                f"the disk limit leaves no room for {len(block)} bytes of {self._database.path}", full=True
            )
        runs, folds = [*self._runs, *files], [] if self._fold is None else [self._fold]

        def insert(rows: _Rows) -> None:
            rows.upper, rows.time = last, time
            if block:
                rows.put(VERSION, [(first, last, time, block)])
            if files:
                self._put_runs(rows, runs)
            rows.put(FOLD, map(_signed_fold, folds))
            rows.crc32c += put_transactions(rows.connection, self._row, transactions)

        def added() -> None:
            if block:
                self._count(last, room)
            if files:
                self._name(runs)
            self._fold = None
            then()

        await self._change(insert, added)

    async def publish(
        self,
        runs: Sequence[RecordedRun],
        ranges: Sequence[StoredRange],
        since: int,
        covered: int,
        *,
        folded: bool,
        then: Callable[[], None],
    ) -> None:
        """These files and ranges take the place of all others; they have all updates up to version ``covered``.
        ``folded``: the begun fold ends.

        Raises DiskTrouble, RecordGone.
        """
        blocks, room = sum(last > covered for last, _ in self._blocks), self._disk.empty()
        if self._database.lasting and not room.try_grow(_base_bytes(ranges), of_kept=1.0):
            raise DiskTrouble(f"the disk limit leaves no room for a base in {self._database.path}", full=True)

        def replace(rows: _Rows) -> None:
            rows.since = since
            # By ``first``, too, which is in the table's key: else all rows would be read, twice.
            rows.delete(VERSION, "first <= ? AND last <= ?", covered, covered)
            if folded:
                rows.delete(FOLD, "upto >= 0")
            self._put_runs(rows, runs)
            known, kept = set(self._ranges), set(ranges)
            for each in known - kept:
                rows.delete(RANGE, "low = ?", _signed(each.low))
            rows.put(RANGE, [(_signed(each.low), *each[1:]) for each in ranges if each not in known])

        def published() -> None:
            del self._blocks[: len(self._blocks) - blocks]
            self.size_bytes = sum(room.size_bytes for _, room in self._blocks)
            self._name(runs)
            self._ranges = list(ranges)
            self._bases = room
            if folded:
                self._fold = None
            then()

        await self._change(replace, published)

    async def hold(self, hold: StoredHold | None, released: Iterable[str], then: Callable[[], None]) -> None:
        """Insert or replace a hold, and delete others. Raises DiskTrouble, RecordGone."""
        holds = [] if hold is None else [hold]

        def put(rows: _Rows) -> None:
            for name in (*released, *(each.name for each in holds)):
                rows.delete(HOLD, "name = ?", name)
            rows.put(HOLD, holds)

        await self._change(put, then)

    def lapse(self, versions: Mapping[str, int], now: float, at_most: int) -> None:
        """Holds have ended by themselves now, at these versions; the last ``at_most`` are remembered. Does not wait: a
        hold whose end is not on disk ends once more after a crash.
        """

        def put(rows: _Rows) -> None:
            for name in versions:
                rows.delete(HOLD, "name = ?", name)
            rows.put(HOLD, [StoredHold(name, version, None, now) for name, version in versions.items()])
            rows.delete(
                HOLD,
                "until IS NULL AND name NOT IN (SELECT name FROM hold "
                "WHERE dataset = ? AND until IS NULL ORDER BY taken DESC LIMIT ?)",
                self._row,
                at_most,
            )

        self._database.submit(partial(self._make, put))

    def forget(self, hashes: Mapping[str, int]) -> None:
        """Ids of transactions were forgotten. Does not wait: those that are known after a crash are forgotten again."""

        def put(rows: _Rows) -> None:
            rows.crc32c += forget_transactions(rows.connection, self._row, hashes)

        self._database.submit(partial(self._make, put))

    @property
    def keep(self) -> bool:
        """Whether the dataset's row is there, or will be. Without it the files go, too. Set by any thread."""
        return self._keep

    @keep.setter
    def keep(self, keep: bool) -> None:
        self._keep = keep
        if not keep:
            self._name([])
            self._blocks.clear()
            self.size_bytes = 0
            self._bases = None

    async def _change(self, change: Callable[[_Rows], None], then: Callable[[], None]) -> None:
        is_there = True

        # It does not raise: the error's traceback would be a cycle with the database's futures, and hold the files.
        def checked(connection: sqlite3.Connection) -> None:
            nonlocal is_there
            is_there = self._make(change, connection)

        await self._database.commit(checked, lambda: then() if is_there else None)
        if not is_there:
            self.keep = False
            raise RecordGone

    def _make(self, change: Callable[[_Rows], None], connection: sqlite3.Connection) -> bool:
        """Make a change; False if the dataset's row is gone. Raises DiskTrouble."""
        try:
            row = next(CHANGELOG.rows(connection, "dataset = ?", (self._row,)), None)
        except DamagedRow as damage:
            raise DiskTrouble(f"{self._database.path}: {damage}", full=False) from None
        if row is None:
            return False
        rows = _Rows(connection, *row)
        change(rows)
        CHANGELOG.put(connection, [(self._row, rows.since, rows.upper, rows.time, rows.crc32c)])
        return True

    def _put_runs(self, rows: _Rows, runs: Sequence[RecordedRun]) -> None:
        """Write the rows of new runs, and delete those of others."""
        known, kept = ({run.name for run in each} for each in (self._runs, runs))
        for name in known - kept:
            rows.delete(RUN, "name = ?", name)
        new = (run for run in runs if run.name not in known)
        rows.put(RUN, [(run.name, run.version, json.dumps(run.blocks)) for run in new])

    def _name(self, runs: Sequence[RecordedRun]) -> None:
        for run in self._runs:
            run.keep = False
        self._runs = list(runs) if self._keep and self._database.lasting else []
        for run in self._runs:
            run.keep = True

    def _count(self, last: int, room: Reservation) -> None:
        self._blocks.append((last, room))
        self.size_bytes += room.size_bytes


def changelogs(connection: sqlite3.Connection) -> Iterator[StoredChangelog | tuple[int, Quarantined]]:
    """All changelogs; in the place of one that is damaged the id of its dataset's row, and what is wrong."""
    for values in DATASET.scan(connection, "kind = ? ORDER BY id", (Kind.CHANGELOG.value,)):
        damaged = values if isinstance(values, DamagedRow) else None
        columns: Sequence[Any] = values.values if isinstance(values, DamagedRow) else values
        row, name, generation, _, facts, schema = columns
        stored: StoredChangelog | tuple[int, Quarantined]
        try:
            if damaged is not None:
                raise damaged
            stored = _stored(
                connection, row, DeclaredChangelog(name, generation, schema, **json.loads(facts))
            )
        except (DamagedRow, ValueError, TypeError, RecursionError) as damage:
            stored = row, Quarantined.now(str(name), str(generation), str(damage))
        yield stored


def _stored(connection: sqlite3.Connection, row: int, declared: DeclaredChangelog) -> StoredChangelog:
    """Raises DamagedRow; ValueError: rows are missing."""
    of_dataset = (row,)
    known = next(CHANGELOG.rows(connection, "dataset = ?", of_dataset), None)
    if known is None:
        raise ValueError("its row of table 'changelog' is missing")
    _, since, upper, time, crc32c = known
    runs = list(RUN.rows(connection, "dataset = ?", of_dataset))
    ranges = list(RANGE.rows(connection, "dataset = ? ORDER BY low", of_dataset))
    versions = list(VERSION.rows(connection, "dataset = ? ORDER BY first", of_dataset))
    fold = next(FOLD.rows(connection, "dataset = ?", of_dataset), None)
    holds = [
        StoredHold(*rest) for _, *rest in HOLD.rows(connection, "dataset = ? ORDER BY taken", of_dataset)
    ]
    transactions, forgotten = transactions_of(connection, row)
    if sum(table.total(connection, "dataset = ?", of_dataset) for table in OF_CHANGELOGS) != crc32c:
        raise ValueError("a row of it is missing, or is an earlier one")
    return StoredChangelog(
        row,
        declared,
        since,
        upper,
        time,
        [(name, version, json.loads(blocks)) for _, name, version, blocks in runs],
        [StoredRange(low + (1 << 63), *rest) for _, low, *rest in ranges],
        [StoredVersions(*rest) for _, *rest in versions],
        None if fold is None else BegunFold(*fold[1:3], *(end + (1 << 63) for end in fold[3:])),
        holds,
        transactions,
        forgotten,
    )


def _base_bytes(ranges: Iterable[StoredRange]) -> int:
    return sum(len(each.block or b"") for each in ranges)


def _signed_fold(fold: BegunFold) -> BegunFold:
    return fold._replace(low=_signed(fold.low), high=_signed(fold.high))


def _signed(hash_: int) -> int:
    """SQLite's integers are signed."""
    return hash_ - (1 << 63)
