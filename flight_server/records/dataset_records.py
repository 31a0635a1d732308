"""The sealed durable datasets, as rows: each with its files, its partitions, and the index of each partition's frames.

A row is written once, by the transaction that acknowledges the seal, and deleted by the one that acknowledges the drop.
An overwrite is one transaction of both. The rows of files, partitions, indices and transactions go with their dataset's.

Left
    Readers finish a dataset that was overwritten, or whose retention has ended, and may still need the indices of its
    partitions. So its row can lose only the name (:func:`leave_name`) until the last of them has ended; the next start
    deletes it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from .tables import DATASET, FILE, INDEX, PARTITION, DamagedRow, checksum
from .transaction_records import Entry, put_transactions, transactions_of

PART_BYTES = 64 << 20
"""A longer index is several rows: SQLite takes no value of 1 GB."""
_LEFT: Final = "/left/"
"""Begins the names of rows without a name: no dataset's begins with a slash."""


class FileRecord(NamedTuple):
    """A file of frames, and how many of its bytes belong to the dataset."""

    name: str
    size_bytes: int


class PartitionRecord(NamedTuple):
    """The totals of a sealed partition, whose frames before ``first`` were released before the seal."""

    number: int
    first: int
    first_bytes: int
    frames: int
    rows: int
    size_bytes: int
    crc32c: int


class DictionaryRecord(NamedTuple):
    """Where a dictionary message is; ``file`` is an index into the dataset's files, ``sequence`` its number among its
    producer's messages.
    """

    file: int
    offset: int
    size_bytes: int
    crc32c: int
    sequence: int


@dataclass(frozen=True)
class Facts:
    """What a dataset's row says of it in JSON.

    Args:
        accepted: a shuffle's accepted attempts: after a restart a seal with the same ones is still fine.
        sealed_at: seconds since the epoch.
        states: each maps dictionary ids to indices into ``dictionaries``: the messages that a reader needs before a
            frame, in this order.
    """

    partition_count: int
    producers: int | None
    retention: Any
    lease_seconds: float | None
    accepted: dict[str, str] | None
    sealed_at: float
    dictionaries: list[DictionaryRecord]
    states: list[list[tuple[int, list[int]]]]


@dataclass(frozen=True)
class DatasetRecord:
    """All of a dataset but its indices. ``schema``: the header of the schema message; None if it never had one."""

    name: str
    generation: str
    kind: str
    facts: Facts
    schema: bytes | None
    files: list[FileRecord]
    partitions: list[PartitionRecord]
    transactions: dict[str, Entry] = field(default_factory=dict)
    forgotten: list[int] = field(default_factory=list)


def insert(
    connection: sqlite3.Connection,
    record: DatasetRecord,
    indices: Iterable[bytes],
    left: Collection[int] = (),
) -> int:
    """Insert a dataset in the place of the one of its name; the row's id.

    Args:
        indices: of the partitions, in their order.
        left: ids that lose only the name; see "Left".
    """
    for (before,) in connection.execute("SELECT id FROM dataset WHERE name = ?", (record.name,)).fetchall():
        (leave_name if before in left else delete)(connection, before)
    (row,) = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM dataset").fetchone()
    facts = json.dumps(asdict(record.facts), separators=(",", ":"))
    DATASET.put(connection, [(row, record.name, record.generation, record.kind, facts, record.schema)])
    FILE.put(connection, ((row, number, *file) for number, file in enumerate(record.files)))
    PARTITION.put(connection, ((row, *partition) for partition in record.partitions))
    INDEX.put(
        connection,
        (
            (row, partition.number, part, index[start : start + PART_BYTES])
            for partition, index in zip(record.partitions, indices, strict=True)
            for part, start in enumerate(range(0, len(index), PART_BYTES))
        ),
    )
    put_transactions(connection, row, record.transactions, record.forgotten)
    return int(row)


def delete(connection: sqlite3.Connection, row: int) -> None:
    """Delete a dataset's rows. Twice is fine."""
    connection.execute("DELETE FROM dataset WHERE id = ?", (row,))


def leave_name(connection: sqlite3.Connection, row: int) -> None:
    """Take the name from a row; see "Left". Twice is fine."""
    for id_, _, *rest in DATASET.rows(connection, "id = ?", (row,)):
        values = (id_, f"{_LEFT}{row}", *rest)
        connection.execute(
            "UPDATE dataset SET name = ?, crc32c = ? WHERE id = ?", (values[1], checksum(values), row)
        )


def delete_left(connection: sqlite3.Connection) -> None:
    """Delete all rows without a name."""
    connection.execute("DELETE FROM dataset WHERE substr(name, 1, ?) = ?", (len(_LEFT), _LEFT))
