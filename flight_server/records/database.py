"""Database: the server's records in one SQLite file, and the thread that writes them.

Guarantee: once :meth:`Database.commit` has returned, the change is on the medium, as far as fsync tells the truth; once
it has raised, nothing of it is there, but see :attr:`Database.in_doubt`. Changes take effect in the order of the calls.

Files
    ``records.db`` and SQLite's own ``records.db-wal`` and ``records.db-shm``, in a folder of their own. ``witness`` has
    the number of committed transactions, which the database has, too: it is written after each commit, without a sync,
    so it is never ahead of a whole database. If it is, transactions are missing that were acknowledged
    (:class:`DamagedDatabase`): the log was cut or flipped, or an older copy was put back. A database that has as many
    without its log needs no log (:func:`is_whole_alone`): SQLite would read an old log's whole beginning over it.

Commits
    The changes that wait are one transaction, each within a savepoint. A change that raises is taken back alone. If
    the transaction finds no room, its changes are tried once more one by one, so that a large one does not refuse
    small ones; another error of the disk refuses all.

    A COMMIT that failed may lie in the log, where a crash would make it count, unless it was not even written. So the
    thread writes again, before it answers and then every ``RETRY_SECONDS``, until SQLite takes a transaction, which
    lies over the failed one. Until then both outcomes are possible, and the files of both are needed
    (``storage.disposal``); on a full disk, whose room they take, the COMMIT is not written.

    Changes given to :meth:`Database.eventually` go before all others of each transaction, until they are committed:
    what is committed later comes after them.

Size
    Above ``CHECKPOINT_BYTES`` a thread of its own copies the log into the database while the writer goes on; then the
    writer copies the little that came meanwhile, and SQLite begins the log anew. A process that reads the database for
    long keeps the log growing. Pages that deleted rows leave are used again; when they are a quarter of the file, it is
    cut, a few pages at a time while no change waits.

Threads
    All methods block but ``commit``, ``submit``, ``eventually`` and ``end``, and may be called from any thread. A
    process that was forked from the one that opened the database is refused. :meth:`Database.read` has a connection of
    its own, one call at a time.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar
from urllib.parse import quote

import structlog

from flight_server.concurrency import Changes, to_its_end

from .tables import DECLARATIONS, FORMAT, QUARANTINE, TABLES, DamagedRow
from .trouble import DiskTrouble, OtherFormat, trouble_with

DATABASE_NAME: Final = "records.db"
WITNESS_NAME: Final = "witness"
CHECKPOINT_BYTES = 4 << 20
RETRY_SECONDS = 0.25
BUSY_SECONDS = 2.0
"""So long a transaction waits for another process that has locked the database."""
MOST_AT_ONCE = 1000
"""Changes of one transaction."""
_CACHE_KIB = 1024
_UNUSED_PAGES = 1024
_CUT_PAGES = 256
"""So many at once: a few milliseconds."""

as_text = partial(str, encoding="utf-8", errors="replace")
"""How damaged text is read: a row with it has another checksum, and does not end its query."""

_COUNT = struct.Struct("<QQ")
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NOT_WRITTEN = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
"""Of a COMMIT: its last frame, without which the others do not count, is not in the log."""
_REFUSALS = (
    *_DAMAGE,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
)
"""What refuses a whole transaction; other errors are of one change."""

T = TypeVar("T")
Change = Callable[[sqlite3.Connection], T]

_log = structlog.get_logger("flight_server.records.database")


class DamagedDatabase(OSError):
    """The database is not one, is malformed, or lacks transactions that it had. ``behind``: the last ones."""

    def __init__(self, message: str, *, behind: bool = False) -> None:
        super().__init__(message)
        self.behind = behind


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
        self._in_doubt = False
        self._checkpoint: Future[None] | None = None
        self._copied_log_bytes = 0  # the log's size at the last checkpoint
        self._changes = 0  # since the last look for unused pages
        self._unused_pages = 0  # to be cut off
        self._reading = threading.Lock()
        _refuse_special(self.path)
        _refuse_special(directory / WITNESS_NAME)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._witness = os.open(directory / WITNESS_NAME, flags, 0o600)
        connections: list[sqlite3.Connection] = []
        try:
            self._check(may_be_new=may_be_new)
            with opening(self.path):
                connections.append(connected(self.path))
                make_tables(connections[0])
            connections.append(connected(self.path))
        except BaseException:
            for connection in connections:
                connection.close()
            os.close(self._witness)
            raise
        self._writer, self._reader = connections
        self._checkpoints = ThreadPoolExecutor(max_workers=1, thread_name_prefix="flight-server-checkpoint")
        self._thread = threading.Thread(target=self._run, name="flight-server-records", daemon=True)
        self._thread.start()

    def _check(self, *, may_be_new: bool) -> None:
        """Raise what is wrong with the files, before anything is written to them."""
        acknowledged = _witnessed(os.pread(self._witness, _COUNT.size, 0)) or 0
        try:
            with opening(self.path):
                commits = _commits(self.path)
        except DamagedDatabase as damage:
            damage.behind = acknowledged > _readable_commits(self.path)
            raise
        if commits is None and not may_be_new:
            raise DamagedDatabase(f"{self.path} is missing, or empty", behind=acknowledged > 0)
        if acknowledged > (commits or 0):
            raise DamagedDatabase(
                f"{self.path} has {commits or 0} transactions, and {acknowledged} were acknowledged: its log was cut "
                "or changed, or an older copy was put back",
                behind=True,
            )

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
        """A change that is tried until SQLite takes it, before all changes that come later; done then, or refused when
        the database is closed.
        """
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
        """The result of a query, which sees one state of the database. Raises DamagedDatabase; DiskTrouble: the disk
        does not give it now.
        """
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
                    raise self._trouble(error) from error
                raise

    @property
    def size_bytes(self) -> int:
        """The bytes of its files."""
        return _size_bytes(self.path) + self._log_bytes

    @property
    def _log_bytes(self) -> int:
        return _size_bytes(Path(f"{self.path}-wal"))

    @property
    def in_doubt(self) -> bool:
        """Whether the log may have a refused transaction, which counts if the process ends now. From any thread."""
        return self._in_doubt

    async def end(self) -> None:
        """Close it; return when each call of :meth:`commit` has returned, so when its ``then`` was called."""
        await asyncio.to_thread(self.close)
        while self._committing:
            await self._returned.next()

    def close(self) -> None:
        """Make what waits, copy the log into the database, end the threads. Twice is fine."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._waiting.put(None)
        self._thread.join()
        for waiting in self._due:
            waiting.answer(self._closed_trouble())
        self._due = []
        self._checkpoints.shutdown(wait=True)
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
            self._keep_small(busy=ends or not self._waiting.empty())
        except BaseException as bug:  # noqa: BLE001  # the thread must go on
            _log.error("records_writer_failed", exc_info=bug)
            self._roll_back()
            for waiting in group:
                if waiting not in self._due:
                    waiting.answer(bug)
        return not ends

    def _next_group(self) -> tuple[list[_Waiting], bool]:
        """The changes that wait, at least one unless there is other work; whether they are the last."""
        if self._unused_pages:
            timeout_seconds: float | None = 0.0
        else:
            pending = self._in_doubt or self._due or self._checkpoint or self._changes > _UNUSED_PAGES
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
        if not (group or self._due or self._in_doubt):
            return
        trouble = self._transaction(group)
        if trouble is None:
            return
        if trouble.full:
            with suppress(sqlite3.Error):
                _copy_log(self._writer)  # so that the log is begun anew, without what it was given in vain
        refused = [(waiting, trouble) for waiting in group]
        if trouble.full and len(group) > 1 and self._transaction([]) is None:
            refused = [
                (waiting, trouble)
                for waiting in group
                if (trouble := self._transaction([waiting])) is not None
            ]
        if self._in_doubt:
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
                waiting.make(writer)
            ((commits,),) = writer.execute(
                "UPDATE server SET commits = commits + 1 RETURNING commits"
            ).fetchall()
            try:
                writer.execute("COMMIT")
            except sqlite3.Error as error:
                self._in_doubt |= _code(error) not in _NOT_WRITTEN
                raise
        except (sqlite3.Error, OSError, MemoryError) as error:
            self._roll_back()
            return self._trouble(error)
        self._in_doubt = False
        self._due = []
        self._changes += len(group)
        with suppress(OSError):  # it is a help, not a fact
            os.pwrite(self._witness, _COUNT.pack(commits, commits), 0)
        lost = self._lost()
        for waiting in group:
            waiting.answer(lost and DiskTrouble(str(lost), full=False))
        return None

    def _lost(self) -> DiskTrouble | None:
        """Why a committed transaction does not count, if it does not."""
        try:
            self._after_commit()
        except OSError as error:
            return self._trouble(error)
        return None

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")

    def _trouble(self, error: Exception) -> DiskTrouble:
        if isinstance(error, OSError):
            return trouble_with(self.path, error)
        code = _code(error)
        if code & 0xFF == sqlite3.SQLITE_BUSY:
            return DiskTrouble(f"{self.path} is locked by another process", full=False)
        # The second: the shared memory of the log, a file, found no room.
        full = code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        return DiskTrouble(f"{self.path}: {error} ({name})", full=full)

    def _keep_small(self, *, busy: bool) -> None:
        """Have the log copied when it is long, and unused pages cut off; a step of that."""
        if self._checkpoint is not None:
            if self._checkpoint.done():
                self._checkpoint = None
                with suppress(sqlite3.Error):  # tried again when the log has grown
                    _copy_log(self._writer)
                self._copied_log_bytes = self._log_bytes
            return
        log_bytes = self._log_bytes
        if log_bytes < self._copied_log_bytes:  # it was begun anew, which cuts it to the limit
            self._copied_log_bytes = 0
        if log_bytes > max(CHECKPOINT_BYTES, self._copied_log_bytes + CHECKPOINT_BYTES // 4):
            self._checkpoint = self._checkpoints.submit(_checkpoint, self.path)
        elif not busy:
            self._cut_off()

    def _cut_off(self) -> None:
        """Cut off some unused pages; look first, after many changes, whether there are."""
        try:
            if self._changes > _UNUSED_PAGES:
                self._changes = 0
                self._unused_pages = _unused_pages(self._writer)
            if self._unused_pages:
                self._unused_pages = max(0, self._unused_pages - _CUT_PAGES)
                # Not ``execute``, which takes the first step only: one page.
                self._writer.executescript(f"PRAGMA incremental_vacuum({_CUT_PAGES})")
                if not self._unused_pages:
                    _copy_log(self._writer)  # which shortens the file
        except sqlite3.Error:
            self._roll_back()
            self._unused_pages = 0


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

    def make(self, connection: sqlite3.Connection) -> None:
        """Make the change; nothing of it is there if it raises. Raises what refuses the whole transaction."""
        assert self._change is not None
        self._result = self._error = None
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
            connection.execute("ROLLBACK TO change")
            self._error = error
        connection.execute("RELEASE change")

    def answer(self, refusal: BaseException | None = None) -> None:
        """Give the caller the refusal, or what :meth:`make` had. A second call does nothing."""
        done, result, error = self._done, self._result, self._error or refusal
        self._done = self._change = self._result = self._error = None
        if done is not None and error is not None:
            done.set_exception(error)
        elif done is not None:
            done.set_result(result)


def connected(path: Path) -> sqlite3.Connection:
    """A connection to a database, new or not, with the server's settings. Raises DamagedDatabase or OSError."""
    with opening(path):
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = as_text
        try:
            if connection.execute("PRAGMA page_count").fetchall() == [(0,)]:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before its first page is written
            ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
            if mode != "wal":
                raise OSError(f"{path}: its file system allows no write-ahead log of SQLite")
            for pragma in (
                "synchronous = FULL",
                "wal_autocheckpoint = 0",
                f"journal_size_limit = {CHECKPOINT_BYTES}",
                f"cache_size = -{_CACHE_KIB}",
                "temp_store = MEMORY",
                "secure_delete = OFF",
                "foreign_keys = ON",
            ):
                connection.execute(f"PRAGMA {pragma}").fetchall()
        except BaseException:
            connection.close()
            raise
    return connection


def read_only(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """A connection that also reads what only the log has, unless ``immutable``, and leaves both files as they are.
    Raises sqlite3.Error.
    """
    uri = f"file:{quote(str(path))}?{'immutable=1' if immutable else 'mode=ro'}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    connection.text_factory = as_text
    return connection


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables, if the database is new."""
    if _version(connection) == 0:
        connection.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {FORMAT}; COMMIT;")


def is_whole_alone(directory: Path) -> bool:
    """Whether the database needs no log: it is whole, and has all transactions that were acknowledged, also without it.
    Raises OSError.
    """
    path = directory / DATABASE_NAME
    if not path.exists():
        return False
    acknowledged = _witnessed((directory / WITNESS_NAME).read_bytes())
    try:
        with opening(path), closing(read_only(path, immutable=True)) as connection:
            return acknowledged is not None and _checked(connection, path) == acknowledged
    except DamagedDatabase:
        return False


def _witnessed(data: bytes) -> int | None:
    """The number in the witness; None if it is not whole."""
    number, again = _COUNT.unpack(data[: _COUNT.size].ljust(_COUNT.size, b"\0"))
    return int(number) if number == again else None


def _readable_commits(path: Path) -> int:
    """How many transactions a damaged database has had; 0 if that cannot be read."""
    try:
        with closing(read_only(path)) as connection:
            ((commits,),) = connection.execute("SELECT commits FROM server").fetchall()
            return int(commits)
    except (sqlite3.Error, ValueError, TypeError):
        return 0


def _commits(path: Path) -> int | None:
    """How many transactions the database has had; None if there is none, or no table in it. Raises DamagedDatabase,
    OtherFormat, sqlite3.Error.
    """
    if not path.exists():
        return None
    try:
        with closing(read_only(path)) as connection:
            return _checked(connection, path)
    except sqlite3.OperationalError as error:
        if _code(error) & 0xFF != sqlite3.SQLITE_READONLY:
            raise
    with closing(connected(path)) as connection:  # takes back what its maker had begun when it was killed
        return _checked(connection, path)


def _checked(connection: sqlite3.Connection, path: Path) -> int | None:
    """As :func:`_commits`."""
    version = _version(connection)
    declared = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema WHERE type = 'table'")}
    if version == 0 and not declared:
        return None  # its maker was killed
    if version not in (0, FORMAT):
        raise OtherFormat(
            f"{path} has format {version}, and this version reads {FORMAT}: start the version that wrote it, or name "
            "another directory; nothing in it was changed"
        )
    if version == 0 or not declared.issuperset(DECLARATIONS):
        raise DamagedDatabase(f"{path} lacks tables of format {FORMAT}")
    for (trouble,) in connection.execute("PRAGMA integrity_check(1)"):
        if trouble != "ok":
            raise DamagedDatabase(f"{path}: {trouble}")
    if any(isinstance(row, DamagedRow) for row in QUARANTINE.scan(connection)):
        raise DamagedDatabase(f"{path}: an entry of the quarantine has another checksum")
    ((commits,),) = connection.execute("SELECT commits FROM server").fetchall()
    return int(commits)


def _version(connection: sqlite3.Connection) -> int:
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    return int(version)


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as DamagedDatabase or OSError."""
    try:
        yield
    except sqlite3.Error as error:
        if is_damage(error):
            raise DamagedDatabase(f"{path}: {error}") from None
        locked = _code(error) & 0xFF == sqlite3.SQLITE_BUSY
        raise OSError(f"{path}{' is locked by another process' if locked else f': {error}'}") from None


def is_damage(error: sqlite3.Error) -> bool:
    """Whether it proves that the file is not as SQLite wrote it."""
    return _code(error) & 0xFF in _DAMAGE


def refuses(error: sqlite3.Error) -> bool:
    """Whether it is of the disk or of another process, and not of a statement."""
    return _code(error) & 0xFF in _REFUSALS


def _code(error: Exception) -> int:
    """SQLite's extended code; 0 for an error of Python's module."""
    return getattr(error, "sqlite_errorcode", None) or 0


def _checkpoint(path: Path) -> None:
    """Copy the log, while another thread writes."""
    with suppress(sqlite3.Error, OSError, DamagedDatabase):  # it is tried again when the log has grown
        connection = connected(path)
        try:
            _copy_log(connection)
        finally:
            connection.close()


def _copy_log(connection: sqlite3.Connection) -> None:
    """Copy the log into the database, as far as it goes without a wait for readers and writers."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _unused_pages(connection: sqlite3.Connection) -> int:
    """How many are to be cut off, if so many are unused that it is worth it."""
    ((unused,),) = connection.execute("PRAGMA freelist_count").fetchall()
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    return int(unused) if unused > max(_UNUSED_PAGES, pages // 4) else 0


def _refuse_special(path: Path) -> None:
    """Raise OSError if something else than a file is there: SQLite would follow a link, or wait for a FIFO."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(f"{path} is not a regular file")


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
