"""One database: what is there after a commit, after an error, and after damage."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import sqlite3
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.records import (
    DATABASE_NAME,
    DamagedDatabase,
    DamagedRow,
    Database,
    DiskTrouble,
    OtherFormat,
    sqlite_connections,
)
from flight_server.records import database as databases
from flight_server.records.sqlite_connections import connected
from flight_server.records.tables import DATASET
from flight_server.records.whole_database import WITNESS_NAME
from tests.support import sqlite_files
from tests.support.polling import eventually
from tests.support.ram_directory import ram_directory

DEADLINE_SECONDS = 20.0


def add(row: int, size_bytes: int = 10) -> databases.Change[int]:
    def change(connection: sqlite3.Connection) -> int:
        DATASET.put(connection, [(row, f"d{row}", "g", "stream", "{}", b"x" * size_bytes)])
        return row

    return change


def remove(*rows: int) -> databases.Change[object]:
    def change(connection: sqlite3.Connection) -> None:
        connection.executemany("DELETE FROM dataset WHERE id = ?", [(row,) for row in rows])

    return change


def rows(database: Database) -> list[int]:
    return database.read(lambda connection: [row for row, *_ in DATASET.rows(connection, "1 ORDER BY id")])


def commits(database: Database) -> int:
    return int(
        database.read(lambda connection: connection.execute("SELECT commits FROM server").fetchone()[0])
    )


def copied(base: Path) -> Path:
    """What a crash of the process would leave."""
    (copy := base / "copy").mkdir()
    for name in (DATABASE_NAME, f"{DATABASE_NAME}-wal"):
        (copy / name).write_bytes((base / name).read_bytes())
    return copy


def held(database: Database) -> threading.Event:
    """Hold the writer until the event is set: what is given to it meanwhile waits together."""
    begun, goes_on = threading.Event(), threading.Event()

    def change(_: sqlite3.Connection) -> None:
        begun.set()
        goes_on.wait(DEADLINE_SECONDS)

    database.submit(change)
    assert begun.wait(DEADLINE_SECONDS)
    return goes_on


class Disk:
    """Refuses SQLite's writes of the log while told to."""

    def __init__(self) -> None:
        self.error: int | None = None
        self.what = "write"
        self.times = -1
        self.most_bytes: int | None = None  # of a log that has no room

    def around(self, what: str, path: Path, work: sqlite_files.Work) -> None:
        concerned = self.error is not None and (what, path.name[-4:]) == (self.what, "-wal")
        if not concerned or self.times == 0:
            work()
            return
        assert self.error is not None
        if self.most_bytes is not None:
            size_bytes = path.stat().st_size
            work()
            if path.stat().st_size <= max(size_bytes, self.most_bytes):
                return
            os.truncate(path, size_bytes)
        self.times -= 1
        raise OSError(self.error, os.strerror(self.error))


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    with sqlite_files.watching(disk.around):
        yield disk


def test_changes_that_wait_are_one_transaction_and_stay_in_their_order(base: Path) -> None:
    with closing(Database(base)) as database:
        before, goes_on = commits(database), held(database)
        done = [
            database.submit(change) for row in range(1, 21) for change in (add(row), remove(row), add(row))
        ]
        goes_on.set()
        assert [each.result() for each in done[::3]] == list(range(1, 21))
        assert commits(database) == before + 2
    with closing(Database(base)) as database:
        assert rows(database) == list(range(1, 21))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyboardInterrupt(),
        sqlite3.IntegrityError("twice"),
        sqlite3.OperationalError("no such column"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_change_that_raises_is_taken_back_alone(base: Path, error: BaseException) -> None:
    def fails(connection: sqlite3.Connection) -> None:
        add(2)(connection)
        raise error

    with closing(Database(base)) as database:
        goes_on = held(database)
        first, second, third = (database.submit(change) for change in (add(1), fails, add(3)))
        goes_on.set()
        assert (first.result(), third.result()) == (1, 3)
        assert second.exception() is error
        assert rows(database) == [1, 3]


def test_a_statement_that_sqlite_does_not_know_is_an_error_of_its_caller_also_if_it_is_due(
    base: Path,
) -> None:
    with closing(Database(base)) as database:
        due = database.eventually(lambda connection: connection.execute("SELECT nothing FROM dataset"))
        assert database.submit(add(1)).result() == 1
        with pytest.raises(sqlite3.OperationalError, match="nothing"):
            due.result()


def test_a_large_change_that_finds_no_room_does_not_refuse_small_ones(base: Path, disk: Disk) -> None:
    with closing(Database(base)) as database:
        goes_on = held(database)
        disk.error, disk.most_bytes = errno.ENOSPC, 1 << 20
        done = [database.submit(add(row, 4 << 20 if row == 3 else 10)) for row in range(1, 6)]
        due = database.eventually(add(6))
        goes_on.set()
        with pytest.raises(DiskTrouble) as caught:
            done[2].result()
        assert caught.value.full
        assert [each.result() for number, each in enumerate(done) if number != 2] == [1, 2, 4, 5]
        due.result()
        disk.error = None
        assert rows(database) == [1, 2, 4, 5, 6]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("what", ["write", "sync"])
def test_a_disk_that_refuses_all_refuses_each_and_the_next_commit_counts(
    base: Path, disk: Disk, what: str, number: int
) -> None:
    with closing(Database(base)) as database:
        database.submit(add(1)).result()
        goes_on = held(database)
        disk.error, disk.what = number, what
        done = [database.submit(add(row)) for row in (2, 3)]
        goes_on.set()
        troubles = [each.exception() for each in done]
        assert all(isinstance(trouble, DiskTrouble) for trouble in troubles)
        assert troubles[0] is not troubles[1]
        disk.error = None
        database.submit(add(4)).result()
        assert rows(database) == [1, 4]
        copy = copied(base)
    with closing(Database(copy)) as database:
        assert rows(database) == [1, 4], "frames of a refused commit may lie in the log"


def test_a_commit_whose_sync_failed_once_is_written_over_before_its_caller_hears_of_it(
    base: Path, disk: Disk
) -> None:
    with closing(Database(base)) as database:
        database.submit(add(1)).result()
        disk.error, disk.what, disk.times = errno.EIO, "sync", 1
        with pytest.raises(DiskTrouble):
            database.submit(add(2)).result()
        copy = copied(base)
        assert not database.in_doubt
    with closing(Database(copy)) as database:
        assert rows(database) == [1]


class ReadOnlyDisk(Disk):
    """Turns read-only at its first error, as file systems do."""

    def around(self, what: str, path: Path, work: sqlite_files.Work) -> None:
        try:
            super().around(what, path, work)
        except OSError:
            self.what = "write"
            raise


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_commit_that_is_not_even_written_is_not_in_doubt(base: Path, disk: Disk, error: int) -> None:
    with closing(Database(base)) as database:
        disk.error = error  # of a write
        with pytest.raises(DiskTrouble):
            database.submit(add(1)).result()
        assert not database.in_doubt, "files that are deleted now may be what makes room"


def test_a_refused_commit_that_cannot_be_written_over_is_in_doubt_until_it_is(base: Path) -> None:
    disk = ReadOnlyDisk()
    with sqlite_files.watching(disk.around), closing(Database(base)) as database:
        database.submit(add(1)).result()
        assert not database.in_doubt
        disk.error, disk.what = errno.EIO, "sync"
        with pytest.raises(DiskTrouble):
            database.submit(add(2)).result()
        assert database.in_doubt
        assert rows(database) == [1]
        copy = copied(base)
        disk.error = None
        eventually(lambda: database.in_doubt, expected=False)  # no commit wakes the writer
        assert rows(database) == [1]
    with closing(Database(copy)) as database:
        assert rows(database) == [1, 2], "what was refused counts after a crash"


def test_what_is_due_is_made_when_the_disk_recovers_and_before_all_that_comes_later(
    base: Path, disk: Disk
) -> None:
    with closing(Database(base)) as database:
        database.submit(add(1)).result()
        disk.error = errno.EIO
        due = database.eventually(remove(1))
        with pytest.raises(DiskTrouble):
            database.submit(add(2)).result()
        assert rows(database) == [1]
        disk.error = None
        due.result(DEADLINE_SECONDS)  # no other commit wakes the writer
        assert rows(database) == []


def test_the_folder_is_synced_before_each_transaction_and_a_lost_directory_refuses_it(base: Path) -> None:
    refusals: dict[str, OSError] = {}
    calls: list[str] = []

    def call(name: str) -> None:
        calls.append(name)
        if name in refusals:
            raise refusals[name]

    with closing(Database(base, lambda: call("before"), lambda: call("after"))) as database:
        database.submit(add(1)).result()
        assert calls == ["before", "after"]
        refusals["before"] = OSError(errno.ENOSPC, "no room for a name")
        with pytest.raises(DiskTrouble, match="no room for a name") as caught:
            database.submit(add(2)).result()
        assert caught.value.full
        assert rows(database) == [1]
        refusals = {"after": OSError(errno.ESTALE, "it was moved")}
        with pytest.raises(DiskTrouble, match="it was moved"):
            database.submit(add(3)).result()


def test_closing_makes_what_waits_and_refuses_what_comes_later(base: Path, disk: Disk) -> None:
    database = Database(base)
    goes_on = held(database)
    waiting = [database.submit(add(row)) for row in range(1, 1500)]
    closes = threading.Thread(target=database.close)
    closes.start()
    goes_on.set()
    closes.join(DEADLINE_SECONDS)
    database.close()
    assert [each.result(0) for each in waiting] == list(range(1, 1500))
    for done in (database.submit(add(1)), database.eventually(add(1))):
        with pytest.raises(DiskTrouble, match="going down"):
            done.result(0)
    with pytest.raises(DiskTrouble, match="going down"):
        database.read(lambda _: None)
    database = Database(base)
    disk.error = errno.EIO
    due = database.eventually(add(1))
    database.close()
    assert isinstance(due.exception(0), DiskTrouble)


def test_each_change_of_threads_that_race_with_the_close_is_made_or_refused(base: Path) -> None:
    database, done = Database(base), list[tuple[int, "Future[int]"]]()

    def work(first: int) -> None:
        for row in range(first, first + 300):
            done.append((row, database.submit(add(row))))

    threads = [threading.Thread(target=work, args=(1 + 1000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    database.close()
    for thread in threads:
        thread.join()
    made = {row for row, each in done if each.exception(DEADLINE_SECONDS) is None}
    with closing(Database(base)) as database:
        assert set(rows(database)) == made


async def test_a_commit_that_is_cancelled_is_made_and_its_step_taken(base: Path) -> None:
    with closing(Database(base)) as database:
        goes_on, steps = held(database), list[str]()
        commit = asyncio.ensure_future(database.commit(add(1), lambda: steps.append("made")))
        await asyncio.sleep(0)
        commit.cancel()
        await asyncio.sleep(0)
        assert not commit.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await commit
        assert (steps, rows(database)) == (["made"], [1])


def test_a_change_that_its_caller_has_cancelled_is_not_made(base: Path) -> None:
    with closing(Database(base)) as database:
        goes_on = held(database)
        first, second = database.submit(add(1)), database.submit(add(2))
        assert first.cancel()
        goes_on.set()
        second.result()
        assert rows(database) == [2]


def test_the_writer_keeps_nothing_of_a_change_while_it_waits(base: Path) -> None:
    class Frames:
        pass

    with closing(Database(base)) as database:
        frames = Frames()
        gone = weakref.ref(frames)
        database.submit(lambda _, frames=frames: frames).result()  # type: ignore[misc]
        del frames
        gc.collect()
        eventually(gone, None)  # the writer's step ends after its answer


async def test_an_error_keeps_nothing_of_its_caller(base: Path) -> None:
    class Frames:
        pass

    async def call(frames: Frames) -> None:
        def fails(_: sqlite3.Connection) -> None:
            raise ValueError(frames)

        with suppress(ValueError):
            await database.commit(fails)

    with closing(Database(base)) as database:
        frames = Frames()
        gone = weakref.ref(frames)
        gc.disable()
        try:
            await call(frames)
            del frames
            await database.commit(lambda _: None)  # the writer has let go of the error
            assert gone() is None
        finally:
            gc.enable()


def test_a_query_sees_one_state(base: Path) -> None:
    def query(connection: sqlite3.Connection) -> list[int]:
        before = connection.execute("SELECT count(*) FROM dataset").fetchone()[0]
        database.submit(add(2)).result()
        return [before, connection.execute("SELECT count(*) FROM dataset").fetchone()[0]]

    with closing(Database(base)) as database:
        database.submit(add(1)).result()
        assert database.read(query) == [1, 1]
        assert rows(database) == [1, 2]


def test_a_process_that_was_forked_is_refused(base: Path) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from flight_server.records import Database, DiskTrouble\n"
        "database = Database(Path(sys.argv[1]))\n"
        "if (child := os.fork()) == 0:\n"
        "    refused = isinstance(database.submit(print).exception(0), DiskTrouble)\n"
        "    os._exit(0 if refused else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "database.submit(lambda connection: None).result()\n"
        "database.close()\n"
    )
    subprocess.run([sys.executable, "-c", program, base], check=True, timeout=DEADLINE_SECONDS)


def test_the_log_is_begun_anew_also_after_a_reader_that_took_long(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connections, "LOG_BYTES", 100_000)
    monkeypatch.setattr(databases, "RETRY_SECONDS", 0.001)
    numbers = iter(range(1, 100_000))

    def fill() -> int:
        """Commits, until the log has not grown for a while; its size."""
        for _ in range(200):
            database.submit(add(next(numbers), 2000)).result()
        return (base / f"{DATABASE_NAME}-wal").stat().st_size

    with closing(Database(base)) as database:
        assert fill() < 1_000_000
        with closing(connected(base / DATABASE_NAME)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM server").fetchall()
            long_bytes = max(fill() for _ in range(4))
        assert long_bytes > 2_000_000
        assert min(fill() for _ in range(10)) < 1_000_000
    assert not (base / f"{DATABASE_NAME}-wal").exists()


def test_the_file_is_cut_when_most_of_its_rows_were_deleted(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_UNUSED_PAGES", 64)
    monkeypatch.setattr(databases, "RETRY_SECONDS", 0.001)
    with closing(Database(base)) as database:
        for row in range(1, 1001):
            database.submit(add(row, 5000))
        database.submit(remove(*range(1, 1001))).result()
        eventually(lambda: 0 < (base / DATABASE_NAME).stat().st_size < 200_000, expected=True)


def test_links_and_pipes_in_the_place_of_its_files_are_refused(base: Path) -> None:
    for name in (DATABASE_NAME, WITNESS_NAME):
        for place in ("link", "pipe"):
            directory = base / f"{place}-{name}"
            directory.mkdir()
            if place == "link":
                (directory / name).symlink_to(base / "elsewhere")
            else:
                os.mkfifo(directory / name)
            with pytest.raises(OSError, match=f"{name} is not a regular file"):
                Database(directory)
    assert not (base / "elsewhere").exists()


@pytest.fixture(scope="module")
def killed() -> Iterator[dict[str, bytes]]:
    """The files of a process that was killed: two thirds of the rows are in the log only."""
    with ram_directory() as base:
        with closing(Database(base)) as database:
            for row in range(1, 21):
                database.submit(add(row, 300)).result()
        with closing(Database(base)) as database:
            for row in range(21, 61):
                database.submit(add(row, 300)).result()
            yield {path.name: path.read_bytes() for path in base.iterdir() if not path.name.endswith("-shm")}


@given(
    st.sampled_from([DATABASE_NAME, f"{DATABASE_NAME}-wal"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 255),
)
def test_a_flipped_byte_is_found_or_changes_no_row(
    killed: dict[str, bytes], name: str, place: float, flip: int
) -> None:
    with ram_directory() as base:
        for other, data in killed.items():
            changed = bytearray(data)
            if other == name:
                changed[int(place * len(data))] ^= flip
            (base / other).write_bytes(changed)
        with suppress(DamagedDatabase, DamagedRow, OtherFormat), closing(Database(base)) as database:
            assert rows(database) == list(range(1, 61))


@pytest.mark.parametrize("witness", [b"", b"torn", b"\xff" * 8 + bytes(8)])
def test_a_witness_that_is_not_whole_says_nothing(base: Path, witness: bytes) -> None:
    Database(base).close()
    (base / WITNESS_NAME).write_bytes(witness)
    Database(base).close()


def test_what_sqlite_raises_while_it_is_opened_is_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "make_tables", lambda _connection: None)
    with pytest.raises(OSError, match="no such table"):
        Database(tmp_path)
