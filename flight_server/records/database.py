"""Database: the server's records in one SQLite file, and the thread that writes them.

Guarantee: once :meth:`Database.commit` has returned, the change is on the medium, as far as fsync tells the truth; once
it has raised, nothing of it is there. Changes take effect in the order of the calls.

Files
    ``records.db`` and SQLite's own ``records.db-wal`` and ``records.db-shm``, in the data directory. ``witness`` has
    the number of committed transactions, which the database has, too: it is written after each commit, without a sync,
    so it is never ahead of a whole database. If it is, transactions are missing that were acknowledged
    (:class:`Damaged`): the log was cut or flipped, or an older copy was put back.

Commits
    The changes that wait are one transaction, each within a savepoint. A change that raises is taken back alone. If
    SQLite refuses the transaction, its changes are tried once more one by one, so that a large one that finds no room
    does not refuse small ones.

    A COMMIT that failed may lie in the log, where a crash would make it count. So the thread writes again until SQLite
    takes a transaction, which lies over the failed one. Changes given to :meth:`Database.eventually` go before all
    others of each transaction, until they are committed: what is committed later comes after them.

Checkpoints
    Above ``CHECKPOINT_BYTES`` a thread of its own copies the log into the database while the writer goes on; then the
    writer copies the little that came meanwhile, and begins the log anew.

Threads
    All methods block but ``commit``, and may be called from any thread. :meth:`Database.read` has a connection of its
    own, one call at a time.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import structlog

from flight_server.concurrency import to_its_end

from .tables import FORMAT, TABLES
from .trouble import DiskTrouble, OtherFormat, trouble_with

DATABASE_NAME: Final = "records.db"
WITNESS_NAME: Final = "witness"
CHECKPOINT_BYTES = 4 << 20
RETRY_SECONDS = 0.25
BUSY_SECONDS = 2.0
"""So long a transaction waits for another process that has locked the database."""
MOST_AT_ONCE = 1000
"""Changes of one transaction."""

_COUNT = struct.Struct("<QQ")

T = TypeVar("T")
Change = Callable[[sqlite3.Connection], T]

_log = structlog.get_logger("flight_server.records.database")


class Damaged(Exception):
    """The database is not one, is malformed, or lacks transactions that it had. ``behind``: only the last."""

    def __init__(self, message: str, *, behind: bool = False) -> None:
        super().__init__(message)
        self.behind = behind


class Database:
    """One open database.

    Args:
        directory: the data directory.
        before_commit: called in the writer's thread before and after each transaction; an OSError refuses it.
    """

    def __init__(self, directory: Path, before_commit: Callable[[], None] = lambda: None) -> None:
        self.path = directory / DATABASE_NAME
        self._before_commit = before_commit
        self._waiting: SimpleQueue[_Waiting | None] = SimpleQueue()  # None ends the thread
        self._due: list[_Waiting] = []  # see ``eventually``
        self._doubtful = False  # the log may have a transaction whose COMMIT failed
        self._witness = os.open(
            directory / WITNESS_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            self._writer = _connected(self.path)
            self._commits = self._prepared()
            self._reader = _connected(self.path)
        except BaseException:
            os.close(self._witness)
            raise
        self._reading = threading.Lock()
        self._checkpoints = ThreadPoolExecutor(max_workers=1, thread_name_prefix="flight-server-checkpoint")
        self._checkpoint: Future[None] | None = None
        self._thread = threading.Thread(target=self._run, name="flight-server-records", daemon=True)
        self._thread.start()
        self._closed = False

    def _prepared(self) -> int:
        """Make the tables of a new database; how many transactions it has had. Raises Damaged, OtherFormat,
        OSError.
        """
        try:
            (version,) = self._writer.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._writer.executescript(
                    f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {FORMAT}; COMMIT;"
                )
            elif version != FORMAT:
                raise OtherFormat(
                    f"{self.path} has format {version}, and this version reads {FORMAT}: start the version that wrote "
                    "it, or name another directory; nothing in it was changed"
                )
            (commits,) = self._writer.execute("SELECT commits FROM server").fetchone()
        except sqlite3.Error as error:
            self._writer.close()
            if _is_damage(error):
                raise Damaged(f"{self.path}: {error}") from None
            raise OSError(f"{self.path}: {error}") from None
        witnessed, again = _COUNT.unpack(os.pread(self._witness, _COUNT.size, 0).ljust(_COUNT.size, b"\0"))
        if witnessed == again and witnessed > commits:
            self._writer.close()
            raise Damaged(
                f"{self.path} has {commits} transactions, and {witnessed} were acknowledged: its log was cut or "
                "changed, or an older copy was put back",
                behind=True,
            )
        return int(commits)

    async def commit(self, change: Change[T], then: Callable[[], None] | None = None) -> T:
        """Make the change; its result. A cancellation is raised once it is made or refused.

        Args:
            change: called in the writer's thread, within a transaction; again if the transaction is refused.
            then: called once it is on the medium, before a cancellation is raised.

        Raises:
            DiskTrouble: the database does not take it now.
            Exception: what ``change`` or ``then`` raises.
        """
        return await to_its_end(asyncio.wrap_future(self.submit(change)), then)

    def submit(self, change: Change[T]) -> Future[T]:
        """As :meth:`commit`, for a caller that does not wait, or waits in a thread."""
        return self._put(_Waiting(change))

    def eventually(self, change: Change[object]) -> Future[Any]:
        """A change that is tried until SQLite takes it, before all changes that come later; done then."""
        return self._put(_Waiting(change, eventual=True))

    def _put(self, waiting: _Waiting) -> Future[Any]:
        self._waiting.put(waiting)
        if self._closed:  # looked at after the put: else a close in between would leave it
            self._refuse_rest()
        return waiting.done

    def read(self, query: Change[T]) -> T:
        """The result of a query. Raises Damaged; DiskTrouble: the disk does not give it now."""
        with self._reading:
            try:
                return query(self._reader)
            except sqlite3.Error as error:
                if _is_damage(error):
                    raise Damaged(f"{self.path}: {error}") from error
                raise self._trouble(error) from error

    @property
    def size_bytes(self) -> int:
        """The bytes of its files."""
        return sum(_size_bytes(Path(f"{self.path}{suffix}")) for suffix in ("", "-wal"))

    def close(self) -> None:
        """Make what waits, copy the log into the database, end the threads. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._waiting.put(None)
        self._thread.join()
        self._refuse_rest()
        self._checkpoints.shutdown(wait=True)
        for connection in (self._reader, self._writer):
            with suppress(sqlite3.Error):
                connection.close()
        os.close(self._witness)

    # In the writer's thread

    def _run(self) -> None:
        ends = False
        while not ends:
            group: list[_Waiting] = []
            try:
                first = self._waiting.get(timeout=RETRY_SECONDS if self._doubtful or self._due else None)
                ends = first is None
                group = [] if first is None else [first]
                while not ends and len(group) < MOST_AT_ONCE:
                    following = self._waiting.get_nowait()
                    ends = following is None
                    if following is not None:
                        group.append(following)
            except Empty:
                pass
            self._make([waiting for waiting in group if waiting.done.set_running_or_notify_cancel()])
            self._begin_checkpoint()

    def _make(self, group: list[_Waiting]) -> None:
        self._due += [waiting for waiting in group if waiting.eventual]
        group = [waiting for waiting in group if not waiting.eventual]
        if not (group or self._due or self._doubtful):
            return
        trouble = self._transaction(group)
        if trouble is not None and len(group) == 1:
            group[0].done.set_exception(trouble)
        elif trouble is not None:
            for waiting in group:
                if (trouble := self._transaction([waiting])) is not None:
                    waiting.done.set_exception(trouble)

    def _transaction(self, group: list[_Waiting]) -> DiskTrouble | None:
        """Make what is due and these changes in one transaction, and answer them. After trouble none is answered."""
        writer = self._writer
        try:
            self._before_commit()
            writer.execute("BEGIN IMMEDIATE")
            outcomes = [(waiting, *_made(writer, waiting.change)) for waiting in (*self._due, *group)]
            writer.execute("UPDATE server SET commits = commits + 1")
            self._doubtful = True
            writer.execute("COMMIT")
            self._before_commit()
        except (sqlite3.Error, OSError) as error:
            with suppress(sqlite3.Error):
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
            return self._trouble(error)
        self._doubtful = False
        self._due = []
        self._commits += 1
        with suppress(OSError):  # it is a help, not a fact
            os.pwrite(self._witness, _COUNT.pack(self._commits, self._commits), 0)
        for waiting, result, refusal in outcomes:
            if refusal is None:
                waiting.done.set_result(result)
            else:
                waiting.done.set_exception(refusal)
        return None

    def _trouble(self, error: Exception) -> DiskTrouble:
        if isinstance(error, OSError):
            return trouble_with(self.path, error)
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF == sqlite3.SQLITE_BUSY:
            return DiskTrouble(f"{self.path} is locked by another process", full=False)
        return DiskTrouble(
            f"{self.path}: {error}", full=code is not None and code & 0xFF == sqlite3.SQLITE_FULL
        )

    def _begin_checkpoint(self) -> None:
        if self._checkpoint is not None and self._checkpoint.done():
            self._checkpoint = None
            with suppress(sqlite3.Error):
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        elif self._checkpoint is None and _size_bytes(Path(f"{self.path}-wal")) > CHECKPOINT_BYTES:
            self._checkpoint = self._checkpoints.submit(_checkpoint, self.path)

    def _refuse_rest(self) -> None:
        trouble = DiskTrouble(f"{self.path} is closed: the server is going down", full=False)
        while True:
            try:
                waiting = self._waiting.get_nowait()
            except Empty:
                return
            if waiting is not None and waiting.done.set_running_or_notify_cancel():
                waiting.done.set_exception(trouble)


class _Waiting:
    """A change, and where its result goes."""

    def __init__(self, change: Change[Any], *, eventual: bool = False) -> None:
        self.change = change
        self.eventual = eventual
        self.done: Future[Any] = Future()


def _made(connection: sqlite3.Connection, change: Change[Any]) -> tuple[Any, Exception | None]:
    """The result of a change, or the error after which nothing of it is there. Raises what refuses the transaction."""
    connection.execute("SAVEPOINT change")
    try:
        result = change(connection)
    except (sqlite3.OperationalError, sqlite3.NotSupportedError):
        raise
    except Exception as error:  # it goes to the caller
        if type(error) is sqlite3.DatabaseError:
            raise  # malformed
        connection.execute("ROLLBACK TO change")
        connection.execute("RELEASE change")
        return None, error
    connection.execute("RELEASE change")
    return result, None


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "wal_autocheckpoint = 0",
            "foreign_keys = ON",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except sqlite3.Error as error:
        connection.close()
        if _is_damage(error):
            raise Damaged(f"{path}: {error}") from None
        raise OSError(f"{path}: {error}") from None
    return connection


def _checkpoint(path: Path) -> None:
    """Copy the log into the database, as far as it goes without keeping the writer waiting."""
    with suppress(sqlite3.Error, OSError, Damaged):  # it is tried again when the log has grown
        connection = _connected(path)
        try:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        finally:
            connection.close()


def _is_damage(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
