"""Target: the start of a server over a data directory in which a value of the records, or a part of a file, is another.

A change never ends the start: what it belonged to is in the quarantine, is served, or is not there. What is served is
then read, and each read gives rows or a documented error.

Each row of the records has a checksum, which no change of bytes gets past. So a value that is replaced gets the row's
right one.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from structlog.testing import capture_logs

from flight_server.concurrency import Background, Waits
from flight_server.datasets import Catalogue, Dataset
from flight_server.kinds.changelog import ChangelogKind
from flight_server.kinds.changelog.runs import Damaged
from flight_server.kinds.seals import seal
from flight_server.memory import Budget
from flight_server.protocol import FlightShuffleError, Kind, Transaction, WriteMode
from flight_server.records import DATABASE_NAME, OtherFormat
from flight_server.records.tables import (
    CHANGELOG,
    DATASET,
    FILE,
    FOLD,
    HOLD,
    INDEX,
    OF_CHANGELOGS,
    PARTITION,
    QUARANTINE,
    RANGE,
    RUN,
    TRANSACTION,
    VERSION,
    RecordTable,
    checksum,
)
from flight_server.storage import Disk
from flight_server.storage.folder import SEGMENTS_NAME
from flight_server.storage.opened_records import RECORDS_NAME
from flight_server.tiering import delete_garbage, recover
from flight_server.tiering.loading import Loading
from tests.support.changelog_store import Engine, snapshot_of
from tests.support.run_rows import LATEST, SCHEMA
from tests.support.sealing import durable_node, staged

from .target import Call, Target

TABLES = (
    DATASET,
    FILE,
    PARTITION,
    INDEX,
    TRANSACTION,
    CHANGELOG,
    VERSION,
    RUN,
    RANGE,
    HOLD,
    QUARANTINE,
    FOLD,
)
_VALUE, _DATABASE, _FILE = b"v", b"d", b"f"
_ROWS = [(("k1", 1, [1]), 1), (("k2", 2, None), 1)]
_PLACE = struct.Struct("<BI")
"""Of a change of a file: its number among those of its kind, and the offset, both modulo how many there are."""


@cache
def _template() -> dict[str, bytes]:
    """The files of a data directory with a dataset and a changelog, by path."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        asyncio.run(_seal_one(directory))
        engine = Engine(directory, SCHEMA, LATEST)
        try:
            engine.commit(_ROWS, Transaction("job", 4))
            engine.commit(_ROWS[:1])
            engine.fold(1)
            engine.commit(_ROWS)
        finally:
            engine.close()
        with closing(sqlite3.connect(directory / RECORDS_NAME / DATABASE_NAME)) as connection, connection:
            (row,) = connection.execute("SELECT dataset FROM changelog").fetchone()
            HOLD.put(connection, [(row, "h", 2, 4e9, 1.5, "a job", None)])
            FOLD.put(connection, [(row, 2, 1, -(1 << 63), (1 << 63) - 1)])
            _sum_up(connection)
            QUARANTINE.put(connection, [("gone", "0" * 16, "damaged", "then", '["a file"]', 0)])
        return {
            str(path.relative_to(directory)): path.read_bytes()
            for path in directory.rglob("*")
            if path.is_file()
        }


async def _seal_one(directory: Path) -> None:
    async with durable_node(directory) as node:
        dataset, request = staged(node, WriteMode.NEW)
        await seal(node.durability, dataset, replace(request, transaction=Transaction("job", 1)))


def _change(directory: Path, data: bytes) -> None:
    kind, data = data[:1], data[1:]
    if kind == _VALUE:
        _change_value(directory, data)
        return
    folder = directory / (SEGMENTS_NAME if kind == _FILE else RECORDS_NAME)
    paths = sorted(path for path in folder.iterdir() if path.stat().st_size)
    number, place = _PLACE.unpack(data[: _PLACE.size].ljust(_PLACE.size, b"\0"))
    path = paths[number % len(paths)]
    content = bytearray(path.read_bytes())
    place %= len(content)
    part = data[_PLACE.size :]
    content[place : place + len(part)] = part
    path.write_bytes(content)


def _change_value(directory: Path, data: bytes) -> None:
    """Of the first row of a table; the new value has the column's type, or is NULL."""
    number, column, new = data[:1], data[1:2], data[2:]
    table = TABLES[(number or b"\0")[0] % len(TABLES)]
    place = (column or b"\0")[0] % len(table.columns)
    with closing(sqlite3.connect(directory / RECORDS_NAME / DATABASE_NAME)) as connection, connection:
        rows = [list(row) for row in table.rows(connection)]
        if not rows:
            return
        before = list(rows[0])
        kind = connection.execute("SELECT type FROM pragma_table_info(?)", [table.name]).fetchall()[place][0]
        rows[0][place] = _value(kind or "TEXT", new)
        with suppress(sqlite3.IntegrityError):  # the database itself refuses it
            changed = ", ".join(f"{name} = ?" for name in (*table.columns, "crc32c"))
            where = " AND ".join(f"{name} IS ?" for name in table.columns)
            connection.execute(
                f"UPDATE {table.name} SET {changed} WHERE {where}",  # names of ours
                [*rows[0], checksum(rows[0]), *before],
            )
        if table in OF_CHANGELOGS:
            _sum_up(connection)


def _sum_up(connection: sqlite3.Connection) -> None:
    """Let the changelog's row have the sum of its other rows' checksums."""
    for dataset, *values, _ in list(CHANGELOG.rows(connection)):
        total = sum(table.total(connection, "dataset = ?", (dataset,)) for table in OF_CHANGELOGS)
        CHANGELOG.put(connection, [(dataset, *values, total)])


def _value(kind: str, data: bytes) -> object:
    """Of a column that is declared so."""
    if not data:
        return None
    match kind:
        case "INTEGER":
            return int.from_bytes(data[:8], "little", signed=True)
        case "REAL":
            return struct.unpack("<d", data[:8].ljust(8, b"\0"))[0]
        case "BLOB":
            return data
    return data.decode(errors="replace")


def _start_and_read(directory: Path) -> None:
    budget = Budget(256 << 20, None)
    with closing(asyncio.new_event_loop()) as loop:
        disk = Disk(budget.disk, directory)
        with (
            closing(Catalogue(budget, disk)) as catalogue,
            closing(loop.run_until_complete(_store(catalogue))) as store,
        ):
            recover(catalogue)
            store.recover()
            delete_garbage(catalogue)
            for dataset in list(catalogue):
                with suppress(FlightShuffleError, Damaged):
                    if dataset.kind is Kind.CHANGELOG:
                        changelog = store.of(dataset)
                        list(snapshot_of(changelog.view(), changelog.upper))
                    else:
                        loop.run_until_complete(_read(dataset, Loading(disk, budget.metadata)))


async def _read(dataset: Dataset, loading: Loading) -> None:
    for partition in dataset.partitions():
        await loading.load(dataset, partition)
        for frame in partition.frames():
            frame.read_back()


async def _store(catalogue: Catalogue) -> ChangelogKind:
    return ChangelogKind(
        catalogue,
        Background(lambda *_, **__: None),
        Waits(),
        deadline_seconds=1.0,
        max_lag_seconds=3600.0,
        max_message_bytes=1 << 20,
    )


@contextmanager
def _opened() -> Iterator[Call]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)

        def call(data: bytes) -> None:
            shutil.rmtree(directory)
            for path, content in _template().items():
                (directory / path).parent.mkdir(parents=True, exist_ok=True)
                (directory / path).write_bytes(content)
            _change(directory, data)
            with capture_logs():
                _start_and_read(directory)

        yield call


def _samples() -> list[bytes]:
    """The value of each column as it is, and changes of nothing in files."""
    samples = [b"-"]
    for number, table in enumerate(TABLES):
        for place, value in enumerate(_first_row(table)):
            samples.append(_VALUE + bytes((number, place)) + _as_bytes(value))
    places = [_PLACE.pack(number, 100 * number) + b"\0" for number in range(3)]
    return [*samples, *(kind + place for kind in (_DATABASE, _FILE) for place in places)]


@cache
def _first_row(table: RecordTable) -> tuple[object, ...]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, DATABASE_NAME)
        path.write_bytes(_template()[f"{RECORDS_NAME}/{DATABASE_NAME}"])
        with closing(sqlite3.connect(path)) as connection:
            return next(table.rows(connection))


def _as_bytes(value: object) -> bytes:
    match value:
        case int():
            return value.to_bytes(8, "little", signed=True)
        case float():
            return struct.pack("<d", value)
        case bytes():
            return value
        case str():
            return value.encode()
    return b""


TARGETS = [Target("data_dirs", _opened, _samples, (OtherFormat,))]
