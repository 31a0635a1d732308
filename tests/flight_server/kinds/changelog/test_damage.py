"""Changelogs whose files are torn, damaged or unreadable, and disks that refuse."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flight_server.kinds.changelog import merges, saving, views, writes
from flight_server.kinds.changelog.journal import numbered
from flight_server.kinds.changelog.runs import MemoryRun, run_files, state_file
from flight_server.memory import Pace
from flight_server.protocol import (
    DataQuarantined,
    HoldRequest,
    OutOfBudget,
    Transaction,
    Unavailable,
    Versions,
)
from flight_server.records import DiskTrouble
from flight_server.storage import disk_files
from flight_server.tiering import Reader
from tests.support.callers import anyone
from tests.support.changelog_store import NAME, Engine
from tests.support.keep_model import SCHEMA, Row
from tests.support.polling import eventually
from tests.support.ram_directory import ram_directory

LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}


@pytest.fixture
def base() -> Iterator[Path]:
    with ram_directory() as path:
        yield path


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


def only(directory: Path, pattern: str) -> Path:
    (found,) = directory.glob(f"changelogs/*/{pattern}")
    return found


def copied(engine: Engine, base: Path, name: str) -> Path:
    return Path(shutil.copytree(engine.directory, base / name))


def merge_to_file(engine: Engine, *, memory: bool = True) -> merges.Merge:
    changelog = engine.changelog
    runs = tuple(run for run in changelog.runs if isinstance(run, MemoryRun) == memory)
    merge = engine.begin_merge(runs, changelog.upper, to_file=True)
    while not merge.done:
        merge.step()
    return merge


def read(engine: Engine) -> list[Any]:
    """A read as a lane does it."""

    async def all_parts() -> list[Any]:
        reader = Reader(NAME, 0, "test", Pace())
        return [len(part) async for part in engine.store.reads.read(engine.changelog, reader, Versions())]

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


# Torn and damaged files


def test_a_log_cut_at_any_byte_of_its_last_entry_is_recovered_without_it(
    engines: Callable[..., Engine], base: Path
) -> None:
    engine = engines()
    engine.commit(rows(0, 2, 1))
    log = only(engine.directory, "log-*")
    before = log.stat().st_size
    engine.commit(rows(1, 1, 2))
    data = log.read_bytes()
    for size in [*range(before, before + 40), *range(before + 40, len(data), 97), len(data) - 1]:
        again = copied(engine, base, f"cut-{size}")
        only(again, "log-*").write_bytes(data[:size])
        recovered = Engine(again, SCHEMA, LATEST)
        try:
            assert recovered.changelog.upper == 1
            assert recovered.snapshot(1) == shown(*rows(0, 2, 1))
            assert recovered.commit(rows(5, 1, 1)) == 2
            assert recovered.snapshot(2) == shown(*rows(0, 2, 1), *rows(5, 1, 1))
        finally:
            recovered.close()
        shutil.rmtree(again)


@pytest.mark.parametrize("where", ["first entry", "last entry", "state", "footer", "run is empty", "no run"])
def test_a_damaged_changelog_is_quarantined_and_says_what_is_damaged(
    where: str, engines: Callable[..., Engine], base: Path
) -> None:
    engine = engines()
    engine.commit(rows(0, 4, 1))
    engine.publish(merge_to_file(engine))
    engine.commit(rows(0, 2, 2))
    engine.commit(rows(0, 2, 3))
    again = copied(engine, base, "damaged")
    log, run, state = only(again, "log-*"), only(again, "run-*"), only(again, "changelog")
    place = {"first entry": (log, 40), "last entry": (log, -40), "state": (state, 40), "footer": (run, -40)}
    if where == "no run":
        run.unlink()
    elif where == "run is empty":
        run.write_bytes(b"")
    else:
        path, at = place[where]
        data = bytearray(path.read_bytes())
        data[at] ^= 4
        path.write_bytes(data)
    recovered = engines("damaged")
    (note,) = recovered.disk.disposal.quarantine
    assert note.dataset == NAME
    assert Path(note.path).is_dir()
    assert Path(note.path).parent.name == "quarantine"
    assert {"first entry": "log-", "last entry": "log-", "state": "changelog"}.get(
        where, "run-"
    ) in note.reason
    assert recovered.changelog.upper == 0, "the name is free for a new one"
    assert recovered.commit(rows(0, 1, 1)) == 1


def test_a_damaged_block_is_said_by_the_read_that_finds_it_and_ends_writes(
    engines: Callable[..., Engine], base: Path
) -> None:
    engine = engines()
    engine.commit(rows(0, 4, 1))
    engine.publish(merge_to_file(engine))
    again = copied(engine, base, "damaged")
    run = only(again, "run-*")
    data = bytearray(run.read_bytes())
    data[100] ^= 1
    run.write_bytes(data)
    recovered = engines("damaged")
    for _ in range(2):
        with pytest.raises(DataQuarantined, match="run-000001") as caught:
            read(recovered)
        assert str(recovered.changelog.directory) in str(caught.value)
    with pytest.raises(DataQuarantined, match="drop it and write it again"):
        recovered.commit(rows(0, 1, 9))
    assert "run-000001" in recovered.changelog.statistics()["damage"]
    assert [note.dataset for note in recovered.disk.disposal.quarantine] == [NAME]
    assert run.exists()


def test_a_truncated_block_is_damage_and_does_not_kill_the_process(engines: Callable[..., Engine]) -> None:
    engine = engines()
    engine.commit(rows(0, 4, 1))
    engine.publish(merge_to_file(engine))
    os.truncate(only(engine.directory, "run-*"), 70)
    with pytest.raises(DataQuarantined, match="ends before byte"):
        read(engine)


# I/O errors prove no damage


@pytest.mark.parametrize("file", ["log-", "run-", "/changelog"])
def test_an_io_error_ends_the_start_and_deletes_nothing(
    file: str, engines: Callable[..., Engine], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    engine.commit(rows(0, 4, 1))
    engine.publish(merge_to_file(engine))
    engine.commit(rows(0, 2, 2))
    again = copied(engine, base, "again")
    before = {path: path.read_bytes() for path in again.glob("changelogs/*/*")}
    disk = Refusing(monkeypatch, file, "pread")
    disk.error = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        engines("again")
    disk.error = None
    assert {path: path.read_bytes() for path in again.glob("changelogs/*/*")} == before
    recovered = engines("again")
    assert recovered.changelog.upper == 2


def test_a_read_that_meets_an_io_error_can_be_repeated(
    engines: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    engine.commit(rows(0, 4, 1))
    engine.publish(merge_to_file(engine))
    disk = Refusing(monkeypatch, "run-", "pread")
    disk.error = errno.EIO
    with pytest.raises(Unavailable, match="read again later"):
        read(engine)
    disk.error = None
    assert read(engine) == [1]
    assert engine.disk.disposal.quarantine == []


# Disks that refuse


@pytest.mark.parametrize("rows_of_a_put", [2, 30])
@pytest.mark.parametrize("function", ["pwrite", "fdatasync"])
def test_a_commit_that_the_disk_refuses_is_not_there_and_works_later(
    function: str,
    rows_of_a_put: int,
    engines: Callable[..., Engine],
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engines()
    engine.commit(rows(0, 2, 1))
    disk = Refusing(monkeypatch, "log-", function)
    for error, raised in ((errno.ENOSPC, OutOfBudget), (errno.EIO, Unavailable)):
        disk.error = error
        with pytest.raises(raised, match="write it again"):
            engine.commit(rows(0, rows_of_a_put, 2), Transaction("writer", 1))
        disk.error = None
        assert engine.changelog.upper == 1
        eventually(lambda: len(list(engine.directory.glob("changelogs/*/run-*"))), 0)  # of the put
        again = Engine(copied(engine, base, f"after-{error}"), SCHEMA, LATEST)
        assert (again.changelog.upper, again.snapshot(1)) == (1, shown(*rows(0, 2, 1)))
        again.close()
    assert engine.commit(rows(0, rows_of_a_put, 2), Transaction("writer", 1)) == 2
    assert engine.snapshot(2) == shown(*rows(0, 2, 1), *rows(0, rows_of_a_put, 2))
    copied(engine, base, "again")
    again = engines("again")
    assert again.snapshot(2) == engine.snapshot(2)


def test_a_log_that_cannot_be_cut_back_takes_appends_when_it_can(
    engines: Callable[..., Engine], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    engine.commit(rows(0, 2, 1))
    disk = Refusing(monkeypatch, "log-", "fdatasync", "truncate")
    disk.error = errno.EIO
    for _ in range(2):
        with pytest.raises(Unavailable):
            engine.commit(rows(0, 30, 2), Transaction("writer", 1))
    # The entry is in the log, and its run must be, too: it may be recovered as a version.
    again = Engine(copied(engine, base, "killed"), SCHEMA, LATEST)
    assert again.disk.disposal.quarantine == []
    assert again.changelog.upper == 2
    assert again.commit(rows(0, 30, 2), Transaction("writer", 1)) == 2
    again.close()
    # A merge may not begin another log meanwhile: the entry would have the version of a later one.
    engine.publish(merge_to_file(engine))
    disk.error = None
    assert engine.commit(rows(7, 1, 3)) == 2
    copied(engine, base, "again")
    again = engines("again")
    assert again.disk.disposal.quarantine == []
    assert again.snapshot(2) == shown(*rows(0, 2, 1), *rows(7, 1, 3))


def test_the_output_of_a_merge_stays_while_the_state_file_may_name_it(
    engines: Callable[..., Engine], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    engine.commit(rows(0, 4, 1))
    refuses = [True]
    real = disk_files.sync_directory

    def sync(path: Path) -> None:
        if refuses[0]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(path)

    monkeypatch.setattr(state_file, "sync_directory", sync)
    merge = merge_to_file(engine)
    with pytest.raises(DiskTrouble):
        engine.publish(merge)
    merge.abandon()
    engine.commit(rows(2, 1, 2))
    copied(engine, base, "again")
    recovered = engines("again")
    assert recovered.disk.disposal.quarantine == []
    assert recovered.snapshot(2) == shown(*rows(0, 4, 1), *rows(2, 1, 2))
    refuses[0] = False
    engine.publish(merge_to_file(engine))
    assert len(numbered(engine.changelog.directory)[1]) == 1, "the first merge's output is deleted"
    assert engine.snapshot(2) == recovered.snapshot(2)


def test_a_hold_that_the_disk_refuses_is_an_error_and_can_be_asked_for_again(
    engines: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    engine.commit(rows(0, 2, 1))
    disk = Refusing(monkeypatch, "log-", "pwrite")
    disk.error = errno.ENOSPC
    request = HoldRequest(NAME, "reader", lease_seconds=60.0)
    with pytest.raises(Unavailable, match="ask again"):
        engine.run(engine.store.hold(engine.catalogue.find(NAME), request, anyone(engine.catalogue)))
    disk.error = None
    assert (
        engine.run(engine.store.hold(engine.catalogue.find(NAME), request, anyone(engine.catalogue)))[
            "version"
        ]
        == 1
    )


def test_holds_alone_do_not_let_the_log_grow_without_end(
    engines: Callable[..., Engine], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    engine.commit(rows(0, 2, 1))
    engine.publish(merge_to_file(engine))
    request = HoldRequest(NAME, "reader", lease_seconds=60.0)
    for _ in range(50):
        engine.run(engine.store.hold(engine.catalogue.find(NAME), request, anyone(engine.catalogue)))
    grown = engine.changelog.log.size_bytes
    engine.run(saving.begin_log(engine.changelog, engine.store.threads))
    assert grown > 1000
    assert engine.changelog.log.size_bytes == 0
    assert numbered(engine.changelog.directory)[0] == {}
    copied(engine, base, "again")
    recovered = engines("again")
    assert [hold["hold"] for hold in recovered.changelog.statistics()["holds"]] == ["reader"]
