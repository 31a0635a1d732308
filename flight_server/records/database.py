"""Database: the server's records in one SQLite file, and the thread that writes them.

Guarantee: once :meth:`Database.commit` has returned, the change is on the medium, as far as fsync tells the truth; once
it has raised, nothing of it is there, but see :attr:`Database.in_doubt`. Changes take effect in the order of the calls.

Files
    ``records.db`` and SQLite's own ``records.db-wal`` and ``records.db-shm``, in a folder of their own, with
    ``witness``, by which the next start sees that no transaction is missing (``whole_database``). SQLite itself copies
    its log into the database (``LOG_BYTES``). Pages that deleted rows leave are used again; when they are a quarter of
    the file, it is cut, a few pages at a time while no change waits.

Commits
    The changes that wait are one transaction, each within a savepoint if they are several: with each statement the
    thread gives back the interpreter's lock, which a busy event loop then keeps for some time. A change that raises is
    taken back alone. If the transaction finds no room, its changes are tried once more one by one, so that a large one
    does not refuse small ones; another error of the disk refuses all.

    A COMMIT that failed may lie in the log, where a crash would make it count, unless it was not even written. So the
    thread writes again, before it answers and then every ``RETRY_SECONDS``, until SQLite takes a transaction, which
    lies over the failed one. Until then both outcomes are possible, and the files of both are needed
    (``storage.disposal``); on a full disk, whose room they take, the COMMIT is not written.

    Changes given to :meth:`Database.eventually` go before all others of each transaction, until they are committed:
    what is committed later comes after them.

Threads
    All methods block but ``commit``, ``submit``, ``eventually`` and ``end``, and may be called from any thread. A
    process that was forked from the one that opened the database is refused. :meth:`Database.read` has a connection of
    its own, one call at a time.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import structlog

from flight_server.concurrency import Changes, to_its_end

from .sqlite_connections import (
    DamagedDatabase,
    connected,
    copy_log,
    error_code,
    is_damage,
    make_tables,
    opening,
    refuse_special,
    refuses,
    roll_back,
    trouble_of,
)
from .trouble import DiskTrouble
from .whole_database import DATABASE_NAME, WITNESS_NAME, check_whole, witness_transactions

RETRY_SECONDS = 0.25
MOST_AT_ONCE = 1000
"""Changes of one transaction."""
_UNUSED_PAGES = 1024
_CUT_PAGES = 256
"""So many at once: a few milliseconds."""
_NOT_WRITTEN = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
"""Of a COMMIT: its last frame, without which the others do not count, is not in the log."""

T = TypeVar("T")
Change = Callable[[sqlite3.Connection], T]

_log = structlog.get_logger("flight_server.records.database")


class Database:
    """One open database, made if the directory has none. ``lasting``: unlike a
    :class:`~flight_server.records.changelog_records.NoDatabase`.

    Args:
        directory: has nothing else.
        may_be_new: whether one is made if there is none; else that is damage.
        before_commit: called in the writer's thread before each transaction; an OSError refuses it.
        after_commit: called after each; an OSError says that the directory is not the server's any more, so that the
            transaction is on a medium that no start will read: it counts as refused.

    Raises:
        DamagedDatabase: see there.
        OtherFormat: another version wrote it.
        OSError: it cannot be opened.
    """

    lasting = True

    def __init__(
        self,
        directory: Path,
        before_commit: Callable[[], None] = lambda: None,
        after_commit: Callable[[], None] = lambda: None,
        *,
        may_be_new: bool = True,
    ) -> None:
        self.path = directory / DATABASE_NAME
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._process = os.getpid()
        self._closed = False
        self._closing = threading.RLock()  # a finalizer may come in between
        self._waiting: SimpleQueue[_Waiting | None] = SimpleQueue()  # None ends the thread
        self._committing = 0  # calls of ``commit``
        self._returned = Changes()
        self._due: list[_Waiting] = []  # see ``eventually``
        self.in_doubt = False
        self._reading = threading.Lock()
        refuse_special(self.path)
        refuse_special(directory / WITNESS_NAME)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._witness = os.open(directory / WITNESS_NAME, flags, 0o600)
        connections: list[sqlite3.Connection] = []
        try:
            check_whole(self.path, self._witness, may_be_new=may_be_new)
            with opening(self.path):
                connections.append(connected(self.path))
                make_tables(connections[0])
                ((self._commits,),) = connections[0].execute("SELECT commits FROM server").fetchall()
            connections.append(connected(self.path))
        except BaseException:
            for connection in connections:
                connection.close()
            os.close(self._witness)
            raise
        self._writer, self._reader = connections
        self._upkeep = _Upkeep(self._writer)
        self._thread = threading.Thread(target=self._run, name="flight-server-records", daemon=True)
        self._thread.start()

    async def commit(self, change: Change[T], then: Callable[[], None] | None = None) -> T:
        """Make the change; its result. A cancellation is raised once it is made or refused.

        Args:
            change: called in the writer's thread, within a transaction; again if the transaction is refused.
            then: called once it is on the medium, before a cancellation is raised.

        Raises:
            DiskTrouble: the database does not take it now.
            Exception: what ``change`` or ``then`` raises.
        """
        self._committing += 1
        try:
            return await to_its_end(asyncio.wrap_future(self.submit(change)), then)
        finally:
            self._committing -= 1
            self._returned.tell()

    def submit(self, change: Change[T]) -> Future[T]:
        """As :meth:`commit`, for a caller that does not wait, or waits in a thread."""
        return self._put(change, eventual=False)

    def eventually(self, change: Change[object]) -> Future[Any]:
        """A change that is tried, before all later ones, until SQLite takes it; refused when the database is closed."""
        return self._put(change, eventual=True)

    def _put(self, change: Change[T], *, eventual: bool) -> Future[T]:
        done: Future[T] = Future()
        with self._closing:
            if not self._closed and os.getpid() == self._process:
                self._waiting.put(_Waiting(change, done, eventual=eventual))
                return done
        done.set_exception(self._closed_trouble())
        return done

    def read(self, query: Change[T]) -> T:
        """A query's result, of one state. Raises DamagedDatabase; DiskTrouble: the disk does not give it now."""
        with self._reading:
            if self._closed or os.getpid() != self._process:
                raise self._closed_trouble()
            try:
                self._reader.execute("BEGIN")
                try:
                    return query(self._reader)
                finally:
                    self._reader.execute("ROLLBACK")
            except sqlite3.Error as error:
                if is_damage(error):
                    raise DamagedDatabase(f"{self.path}: {error}") from error
                if refuses(error):
                    raise trouble_of(self.path, error) from error
                raise

    async def end(self) -> None:
        """Close it; return when each call of :meth:`commit` has returned, so when its ``then`` was called."""
        await asyncio.to_thread(self.close)
        while self._committing:
            await self._returned.next()

    def close(self) -> None:
        """Make what waits, copy the log into the database, end the thread. Twice is fine."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._waiting.put(None)
        self._thread.join()
        for waiting in self._due:
            waiting.answer(self._closed_trouble())
        self._due = []
        with self._reading:
            for connection in (self._reader, self._writer):
                with suppress(sqlite3.Error):
                    connection.close()
        os.close(self._witness)

    def _closed_trouble(self) -> DiskTrouble:
        return DiskTrouble(f"{self.path} is closed: the server is going down", full=False)

    # In the writer's thread

    def _run(self) -> None:
        while self._work():
            pass

    def _work(self) -> bool:
        """Wait for changes and make them; False once the database is closed. While the thread waits, it refers to no
        change, so that what a change refers to is released.
        """
        group, ends = self._next_group()
        try:
            self._make([waiting for waiting in group if waiting.begin()])
            if not ends and self._waiting.empty():
                self._upkeep.cut_off()
        except BaseException as bug:  # noqa: BLE001  # the thread must go on
            _log.error("records_writer_failed", exc_info=bug)
            roll_back(self._writer)
            for waiting in group:
                if waiting not in self._due:
                    waiting.answer(bug)
        return not ends

    def _next_group(self) -> tuple[list[_Waiting], bool]:
        """The changes that wait, at least one unless there is other work; whether they are the last."""
        if self._upkeep.cuts:
            timeout_seconds: float | None = 0.0
        else:
            pending = self.in_doubt or self._due or self._upkeep.is_due
            timeout_seconds = RETRY_SECONDS if pending else None
        group: list[_Waiting] = []
        with suppress(Empty):
            waiting = self._waiting.get(timeout=timeout_seconds)
            while waiting is not None:
                group.append(waiting)
                if len(group) == MOST_AT_ONCE:
                    return group, False
                waiting = self._waiting.get_nowait()
            return group, True
        return group, False

    def _make(self, group: list[_Waiting]) -> None:
        """Make what is due and these changes, and answer them."""
        self._due += [waiting for waiting in group if waiting.eventual]
        group = [waiting for waiting in group if not waiting.eventual]
        if not (group or self._due or self.in_doubt):
            return
        trouble = self._transaction(group)
        if trouble is None:
            return
        if trouble.full:
            with suppress(sqlite3.Error):
                copy_log(self._writer)  # so that the log is begun anew, without what it was given in vain
        refused = [(waiting, trouble) for waiting in group]
        if trouble.full and len(group) > 1 and self._transaction([]) is None:
            refused = [
                (waiting, trouble)
                for waiting in group
                if (trouble := self._transaction([waiting])) is not None
            ]
        if self.in_doubt:
            self._transaction([])
        for waiting, trouble in refused:
            waiting.answer(DiskTrouble(str(trouble), full=trouble.full))

    def _transaction(self, group: list[_Waiting]) -> DiskTrouble | None:
        """Make what is due and these changes in one transaction, and answer them. After trouble none is answered."""
        writer = self._writer
        try:
            self._before_commit()
            writer.execute("BEGIN IMMEDIATE")
            group = [*self._due, *group]
            for waiting in group:
                waiting.make(writer, alone=len(group) == 1)
            commits = self._commits + 1
            writer.execute("UPDATE server SET commits = ?", (commits,))
            try:
                writer.execute("COMMIT")
            except sqlite3.Error as error:
                self.in_doubt |= error_code(error) not in _NOT_WRITTEN
                raise
        except (sqlite3.Error, OSError, MemoryError) as error:
            roll_back(self._writer)
            return trouble_of(self.path, error)
        self.in_doubt = False
        self._commits = commits
        self._due = []
        self._upkeep.changed(len(group))
        with suppress(OSError):
            witness_transactions(self._witness, commits)
        lost: DiskTrouble | None = None
        try:
            self._after_commit()
        except OSError as error:
            lost = trouble_of(self.path, error)
        for waiting in group:
            waiting.answer(lost and DiskTrouble(str(lost), full=False))
        return None


class _Upkeep:
    """Keeps a database small, by the thread that writes it: see "Files"."""

    def __init__(self, writer: sqlite3.Connection) -> None:
        self._writer = writer
        self._changes = 0  # since the last look for unused pages
        self._unused_pages = 0  # to be cut off

    @property
    def cuts(self) -> bool:
        """Whether unused pages are to be cut off now."""
        return bool(self._unused_pages)

    @property
    def is_due(self) -> bool:
        """Whether :meth:`cut_off` is to be called soon, also without a change."""
        return self._changes > _UNUSED_PAGES

    def changed(self, changes: int) -> None:
        """So many changes were committed."""
        self._changes += changes

    def cut_off(self) -> None:
        """Cut off some unused pages; look first, after many changes, whether there are."""
        try:
            if self.is_due:
                self._changes = 0
                self._unused_pages = _unused_pages(self._writer)
            if self._unused_pages:
                self._unused_pages = max(0, self._unused_pages - _CUT_PAGES)
                # Not ``execute``, which takes the first step only: one page.
                self._writer.executescript(f"PRAGMA incremental_vacuum({_CUT_PAGES})")
                if not self._unused_pages:
                    copy_log(self._writer)  # which shortens the file
        except sqlite3.Error:
            roll_back(self._writer)
            self._unused_pages = 0


def _unused_pages(connection: sqlite3.Connection) -> int:
    """How many are to be cut off, if so many are unused that it is worth it."""
    ((unused,),) = connection.execute("PRAGMA freelist_count").fetchall()
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    return int(unused) if unused > max(_UNUSED_PAGES, pages // 4) else 0


class _Waiting:
    """A change, and where its result goes.

    The traceback of its error has the writer's frames, and these have this object: so it refers to nothing any more
    once it has answered. Else each error would be in a cycle, and keep what the change refers to.
    """

    def __init__(self, change: Change[Any], done: Future[Any], *, eventual: bool) -> None:
        self.eventual = eventual
        self._change: Change[Any] | None = change
        self._done: Future[Any] | None = done
        self._result: Any = None
        self._error: BaseException | None = None

    def begin(self) -> bool:
        """Whether it is to be made: its caller has not cancelled it."""
        return self._done is not None and self._done.set_running_or_notify_cancel()

    def make(self, connection: sqlite3.Connection, *, alone: bool) -> None:
        """Make the change; nothing of it is there if it raises. ``alone``: it is the transaction's only one. Raises
        what refuses the whole transaction.
        """
        assert self._change is not None
        self._result = self._error = None
        if not alone:
            connection.execute("SAVEPOINT change")
        try:
            self._result = self._change(connection)
        except BaseException as error:  # it goes to the caller
            if not connection.in_transaction:  # SQLite has rolled back all of it
                if isinstance(error, (sqlite3.Error, MemoryError)):
                    raise
                raise sqlite3.OperationalError("the transaction was rolled back") from error
            if isinstance(error, MemoryError) or (isinstance(error, sqlite3.Error) and refuses(error)):
                raise
            if alone:
                connection.execute("ROLLBACK")
                connection.execute("BEGIN IMMEDIATE")
            else:
                connection.execute("ROLLBACK TO change")
            self._error = error
        if not alone:
            connection.execute("RELEASE change")

    def answer(self, refusal: BaseException | None = None) -> None:
        """Give the caller the refusal, or what :meth:`make` had. A second call does nothing."""
        done, result, error = self._done, self._result, self._error or refusal
        self._done = self._change = self._result = self._error = None
        if done is not None and error is not None:
            done.set_exception(error)
        elif done is not None:
            done.set_result(result)
