"""Changelogs whose files are torn, damaged or unreadable, and disks that refuse."""

from __future__ import annotations

import base64
import errno
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from flight_server.frames import SchemaMessage
from flight_server.kinds.changelog import views, writes
from flight_server.kinds.changelog.changelog import ChangelogState
from flight_server.kinds.changelog.reads import ChangelogRead
from flight_server.kinds.changelog.runs import run_files
from flight_server.memory import Pace
from flight_server.protocol import (
    CreateRequest,
    DataQuarantined,
    HoldRequest,
    Kind,
    OutOfBudget,
    Transaction,
    Unavailable,
    Versions,
)
from flight_server.records import DiskTrouble
from flight_server.storage.folder import SEGMENTS_NAME
from flight_server.tiering import Reader
from tests.support import sqlite_files
from tests.support.callers import anyone
from tests.support.changelog_store import NAME, Engine
from tests.support.keep_model import SCHEMA, Row
from tests.support.polling import eventually
from tests.support.stored_rows import damage

LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MIN_SLICE_ROWS", 8)
    monkeypatch.setattr(views, "SLICE_ROWS", 8)
    monkeypatch.setattr(run_files, "BLOCK_ROWS", 16)
    monkeypatch.setattr(writes, "CHUNK_ROWS", 20)


@pytest.fixture
def engines(base: Path) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(name: str = "0") -> Engine:
        (base / name).mkdir(exist_ok=True)
        made.append(Engine(base / name, SCHEMA, LATEST))
        return made[-1]

    yield make
    while made:
        made.pop().close()


def rows(first: int, count: int, time: int) -> list[tuple[Row, int]]:
    return [((f"key {number}", time, "bid", number), 1) for number in range(first, first + count)]


def shown(*updates: tuple[Row, int]) -> Counter[Row]:
    return Counter({row[0]: row for row, _ in updates}.values())


def only_run(directory: Path) -> Path:
    """The one file that is left once the disposal has deleted the others."""
    eventually(lambda: len(list((directory / SEGMENTS_NAME).iterdir())), 1)
    return next((directory / SEGMENTS_NAME).iterdir())


def files_left(engine: Engine) -> int:
    """How many are left when no error of the test refers to them."""
    gc.collect()
    return len(list((engine.directory / SEGMENTS_NAME).iterdir()))


def files_left_by_the_duty(engine: Engine) -> int:
    """The same after one more try to delete what was kept: the thread may note a file only after the first try."""
    engine.disk.disposal.try_again()
    return files_left(engine)


def row_of(engine: Engine) -> int:
    row = engine.changelog.records.row
    assert row is not None
    return row


def copied(engine: Engine, base: Path, name: str) -> Path:
    return engine.copy_to(base / name)


def fold(engine: Engine) -> None:
    """All rows are in one file."""
    engine.fold(engine.changelog.upper)


def hold(engine: Engine) -> None:
    request = HoldRequest(NAME, "reader", lease_seconds=60.0)
    engine.run(engine.store.hold(engine.catalogue.find(NAME), request, anyone(engine.catalogue)))


def read(engine: Engine) -> list[Any]:
    """A read as a lane does it."""

    async def all_parts() -> list[Any]:
        reader = Reader(NAME, 0, "test", Pace())
        read = ChangelogRead(engine.store.reads, engine.changelog, Versions())
        return [len(part) async for part in read.bursts(reader)]

    return list(engine.run(all_parts()))


class Refusing:
    """Functions of ``os`` that refuse for paths with ``part`` in them, while ``error`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, part: str, *names: str) -> None:
        self.error: int | None = None
        for name in names:
            monkeypatch.setattr(os, name, self._wrapped(part, getattr(os, name)))

    def _wrapped(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(first: Any, *rest: Any, **options: Any) -> Any:
            path = Path(f"/proc/self/fd/{first}").readlink() if isinstance(first, int) else Path(first)
            if self.error is not None and part in str(path):
                raise OSError(self.error, os.strerror(self.error))
            return function(first, *rest, **options)

        return wrapper


class RefusedLog:
    """While ``error`` is set SQLite gets it at each step of this kind on its log; the connections are opened inside."""

    def __init__(self, step: str) -> None:
        self.error: int | None = None
        self._step = step

    @contextmanager
    def watching(self) -> Iterator[Self]:
        with sqlite_files.watching(self._around):
            yield self

    def _around(self, what: str, path: Path, work: sqlite_files.Work) -> None:
        if self.error is not None and what == self._step and path.name.endswith(sqlite_files.LOGS):
            raise OSError(self.error, os.strerror(self.error))
        work()


# Damaged rows and files


DAMAGES = {
    "a block": ("UPDATE version SET block = x'00' WHERE dataset = ? AND first = 2", "row of table 'version'"),
    "no block": ("DELETE FROM version WHERE dataset = ? AND first = 2", "a row of it is missing"),
    "the versions": ("UPDATE changelog SET upper = 9 WHERE dataset = ?", "row of table 'changelog'"),
    "no versions": ("DELETE FROM changelog WHERE dataset = ?", "row of table 'changelog' is missing"),
    "a run's name": ("UPDATE run SET name = 'x' WHERE dataset = ?", "row of table 'run'"),
    "no run's row": ("DELETE FROM run WHERE dataset = ?", "a row of it is missing"),
    "a range": ("UPDATE range SET since = 0 WHERE dataset = ?", "row of table 'range'"),
    "no range": ("DELETE FROM range WHERE dataset = ?", "a row of it is missing"),
    "a hold": ("UPDATE hold SET version = 7 WHERE dataset = ?", "row of table 'hold'"),
    "a transaction": (
        "UPDATE transaction_id SET entry = '[]' WHERE dataset = ?",
        "row of table 'transaction_id'",
    ),
    "no hold": ("DELETE FROM hold WHERE dataset = ?", "a row of it is missing"),
    "no transaction": ("DELETE FROM transaction_id WHERE dataset = ?", "a row of it is missing"),
    "what was declared": ("UPDATE dataset SET facts = '{}' WHERE id = ?", "row of table 'dataset'"),
    "run is empty": ("", ".run has 0 bytes"),
    "no run": ("", ".run' is missing"),
}


@pytest.mark.parametrize("where", DAMAGES)
def test_a_damaged_changelog_is_quarantined_and_says_what_is_damaged(
    where: str, engines: Callable[..., Engine], base: Path
) -> None:
    engine = engines()
    engine.commit(rows(0, 4, 1))
    fold(engine)
    hold(engine)
    engine.commit(rows(0, 2, 2), Transaction("writer", 1))
    engine.commit(rows(0, 2, 3))
    again = copied(engine, base, "damaged")
    run = only_run(again)
    statement, reason = DAMAGES[where]
    if statement:
        damage(again, row_of(engine), statement)
    elif where == "no run":
        run.unlink()
    else:
        run.write_bytes(b"")
    recovered = engines("damaged")
    (entry,) = recovered.disk.quarantine.entries
    assert (entry.dataset, entry.generation) == (NAME, engine.changelog.generation)
    assert reason in entry.reason
    assert run.name in entry.files
    assert run.exists() == (where != "no run"), "its files are kept"
    assert recovered.changelog.upper == 0, "the name is free for a new one"
    assert recovered.commit(rows(0, 1, 1)) == 1


def test_a_damaged_block_is_said_by_the_read_that_finds_it_and_ends_writes(
    engines: Callable[..., Engine], base: Path
) -> None:
    engine = engines()
    engine.commit(rows(0, 4, 1))
    fold(engine)
    again = copied(engine, base, "damaged")
    run = only_run(again)
    data = bytearray(run.read_bytes())
    data[300] ^= 1
    run.write_bytes(data)
    with closing(Engine(again, SCHEMA, LATEST)) as recovered:
        for _ in range(2):
            with pytest.raises(DataQuarantined, match=run.name) as caught:
                read(recovered)
            assert str(run.parent) in str(caught.value)
        with pytest.raises(DataQuarantined, match="drop it and write it again"):
            recovered.commit(rows(0, 1, 9))
        del caught
    for _ in range(2):  # also after a restart
        with closing(Engine(again, SCHEMA, LATEST)) as recovered:
            assert run.name in recovered.changelog.statistics()["damage"]
            assert recovered.changelog.state is ChangelogState.DAMAGED
            (entry,) = recovered.disk.quarantine.entries
            assert (entry.dataset, entry.files, entry.served) == (NAME, (run.name,), True)
            assert run.exists()
    with closing(Engine(again, SCHEMA, LATEST)) as recovered:
        recovered.run(recovered.catalogue.remove(NAME))
        assert recovered.disk.quarantine.entries == []
        eventually(run.exists, False)


def test_a_truncated_block_is_damage_and_does_not_kill_the_process(engines: Callable[..., Engine]) -> None:
    engine = engines()
    engine.commit(rows(0, 4, 1))
    fold(engine)
    os.truncate(only_run(engine.directory), 200)
    with pytest.raises(DataQuarantined, match="ends before byte"):
        read(engine)


# I/O errors prove no damage


def test_an_io_error_ends_the_start_and_deletes_nothing(
    engines: Callable[..., Engine], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    engine.commit(rows(0, 4, 1))
    fold(engine)
    engine.commit(rows(0, 2, 2))
    again = copied(engine, base, "again")
    run = only_run(again)
    before = run.read_bytes()
    disk = Refusing(monkeypatch, ".run", "open")
    disk.error = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        engines("again")
    disk.error = None
    assert run.read_bytes() == before
    recovered = engines("again")
    assert recovered.changelog.upper == 2


def test_a_read_that_meets_an_io_error_can_be_repeated(
    engines: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    engine.commit(rows(0, 4, 1))
    fold(engine)
    disk = Refusing(monkeypatch, ".run", "pread")
    disk.error = errno.EIO
    with pytest.raises(Unavailable, match="read again later"):
        read(engine)
    disk.error = None
    assert read(engine) == [1]
    assert engine.disk.quarantine.entries == []


# Disks that refuse


@pytest.mark.parametrize("rows_of_a_put", [2, 30])
@pytest.mark.parametrize("step", ["write", "sync"])
def test_a_commit_that_the_disk_refuses_is_not_there_and_works_later(
    step: str, rows_of_a_put: int, base: Path
) -> None:
    (base / "0").mkdir()
    with RefusedLog(step).watching() as disk, closing(Engine(base / "0", SCHEMA, LATEST)) as engine:
        engine.commit(rows(0, 2, 1))
        errors = (
            ((errno.ENOSPC, OutOfBudget), (errno.EIO, Unavailable))
            if step == "write"
            else ((errno.EIO, Unavailable),)
        )
        for error, raised in errors:
            disk.error = error
            with pytest.raises(raised, match="write it again"):
                engine.commit(rows(0, rows_of_a_put, 2), Transaction("writer", 1))
            disk.error = None
            assert engine.changelog.upper == 1
            engine.catalogue.records.submit(
                lambda connection: None
            ).result()  # which lies over the refused one
            eventually(lambda: files_left_by_the_duty(engine), 0)  # of the put
            again = Engine(copied(engine, base, f"after-{error}"), SCHEMA, LATEST)
            assert (again.changelog.upper, again.snapshot(1)) == (1, shown(*rows(0, 2, 1)))
            again.close()
        assert engine.commit(rows(0, rows_of_a_put, 2), Transaction("writer", 1)) == 2
        assert engine.snapshot(2) == shown(*rows(0, 2, 1), *rows(0, rows_of_a_put, 2))
        again = Engine(copied(engine, base, "again"), SCHEMA, LATEST)
        assert again.snapshot(2) == engine.snapshot(2)
        again.close()


def test_a_fold_that_the_disk_refuses_changes_nothing_and_leaves_nothing(base: Path) -> None:
    (base / "0").mkdir()
    with RefusedLog("sync").watching() as disk, closing(Engine(base / "0", SCHEMA, LATEST)) as engine:
        engine.commit(rows(0, 4, 1))
        size_bytes, disk_bytes = engine.changelog.records.size_bytes, engine.disk.pool.used_bytes
        going = engine.begin_fold(1, to_file=True)
        disk.error = errno.EIO
        with pytest.raises(DiskTrouble):
            engine.publish(going)
        disk.error = None
        engine.store.compactor.abandon(engine.changelog)
        del going
        engine.catalogue.records.submit(lambda connection: None).result()  # which lies over the refused one
        engine.disk.disposal.try_again()  # as a duty does
        eventually(lambda: files_left(engine), 0)
        assert size_bytes == engine.changelog.records.size_bytes > 0
        assert engine.disk.pool.used_bytes == disk_bytes
        engine.commit(rows(2, 1, 2))
        recovered = Engine(copied(engine, base, "again"), SCHEMA, LATEST)
        assert recovered.disk.quarantine.entries == []
        assert recovered.snapshot(2) == shown(*rows(0, 4, 1), *rows(2, 1, 2))
        fold(engine)
        assert only_run(engine.directory).exists()
        assert engine.changelog.records.size_bytes == 0
        assert engine.snapshot(2) == recovered.snapshot(2)
        recovered.close()


def test_damage_of_a_dropped_changelog_is_not_noted_of_another_one_that_has_its_name(
    engines: Callable[..., Engine],
) -> None:
    engine = engines()
    dropped = engine.changelog
    engine.run(engine.catalogue.remove(NAME))
    request = CreateRequest(
        NAME, Kind.CHANGELOG, schema=base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    )
    engine.run(engine.store.create(request, SchemaMessage.of(SCHEMA)))
    dropped.damaged("a run has another checksum")
    assert engine.disk.quarantine.entries == []
