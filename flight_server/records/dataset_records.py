"""The sealed durable datasets, as rows: each with its files, its partitions, and the index of each partition's frames.

A row is written once, by the transaction that acknowledges the seal, and deleted by the one that acknowledges the
drop. An overwrite is one transaction of both. The rows of files, partitions, indices and transactions go with their
dataset's.

Left
    Readers finish a dataset that was overwritten, or whose retention has ended, and may still need the indices of its
    partitions. So its row can lose only the name (:func:`leave_name`) until the last of them has ended; the next start
    deletes it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

from flight_server.protocol import FlightShuffleError, Kind, Retention, check_dataset_name

from .quarantine import Quarantined
from .tables import DATASET, FILE, INDEX, PARTITION, DamagedRow, RecordTable, checksum
from .transaction_records import Entry, put_transactions, transactions_of

PART_BYTES = 1 << 20
"""A longer index is several rows: SQLite keeps a copy of the last long value."""
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
    """Where a dictionary message is; ``file``: an index; ``sequence``: its number among its producer's messages."""

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
        files, partitions, transactions: how many rows there are of each: one that is not found is damage.
    """

    partition_count: int
    producers: int | None
    retention: Any
    lease_seconds: float | None
    accepted: dict[str, str] | None
    sealed_at: float
    dictionaries: list[DictionaryRecord]
    states: list[list[tuple[int, list[int]]]]
    files: int
    partitions: int
    transactions: int

    @classmethod
    def parse(cls, value: Any) -> Facts:
        """Raises ValueError or TypeError."""
        facts = cls(**value)
        dictionaries = [DictionaryRecord(*map(int, each)) for each in facts.dictionaries]
        states = [
            [(int(number), list(map(int, messages))) for number, messages in state] for state in facts.states
        ]
        return replace(facts, dictionaries=dictionaries, states=states)


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

    def check(self) -> None:
        """Raise ValueError or TypeError if a row is missing, or a number, a range or a name is not valid."""
        facts = self.facts
        try:
            check_dataset_name(self.name)
            Kind(self.kind)
            Retention.parse(facts.retention)
        except FlightShuffleError as error:
            raise ValueError(error.message) from None
        for what, holds in (
            ("a file", len(self.files) == facts.files and all(each.size_bytes >= 0 for each in self.files)),
            ("a partition", len(self.partitions) == facts.partitions),
            ("a transaction", len(self.transactions) + len(self.forgotten) == facts.transactions),
            ("a partition's number", all(map(self._is_partition, self.partitions))),
            ("a dictionary's place", all(map(self._is_within, facts.dictionaries))),
            ("a dictionary state", all(map(self._is_state, facts.states))),
        ):
            if not holds:
                raise ValueError(f"{what} of dataset {self.name!r} is missing or not valid")

    def _is_partition(self, partition: PartitionRecord) -> bool:
        known = 0 <= partition.number < self.facts.partition_count
        return known and min(partition) >= 0 and partition.first <= partition.frames

    def _is_within(self, place: DictionaryRecord) -> bool:
        known = 0 <= place.file < len(self.files) and min(place) >= 0
        return known and place.offset + place.size_bytes <= self.files[place.file].size_bytes

    def _is_state(self, state: list[tuple[int, list[int]]]) -> bool:
        return all(
            0 <= message < len(self.facts.dictionaries) for _, messages in state for message in messages
        )


def insert(
    connection: sqlite3.Connection,
    record: DatasetRecord,
    indices: Iterable[bytes],
) -> int:
    """Insert a dataset in place of the one of its name; the row's id. ``indices``: of the partitions in order."""
    facts = asdict(record.facts)
    row = insert_row(connection, record.name, record.generation, record.kind, facts, schema=record.schema)
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
    return row


def insert_row(
    connection: sqlite3.Connection,
    name: str,
    generation: str,
    kind: str,
    facts: Mapping[str, Any],
    *,
    schema: bytes | None,
) -> int:
    """Insert a dataset's own row, of any kind, in the place of the one of its name; its id, which no row had before:
    a deletion that was late would take another one else.
    """
    connection.execute("DELETE FROM dataset WHERE name = ?", (name,))
    (row,) = connection.execute(
        "SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'dataset'"
    ).fetchone()
    text = json.dumps(facts, separators=(",", ":"))
    DATASET.put(connection, [(row, name, generation, kind, text, schema)])
    return int(row)


def delete(connection: sqlite3.Connection, row: int) -> None:
    """Delete a dataset's rows, of any kind. Twice is fine."""
    connection.execute("DELETE FROM dataset WHERE id = ?", (row,))


def leave_name(connection: sqlite3.Connection, row: int) -> None:
    """Take the name from a row; see "Left". Twice is fine."""
    for _, _, *rest in DATASET.rows(connection, "id = ?", (row,)):
        name = f"{_LEFT}{row}"
        connection.execute(
            "UPDATE dataset SET name = ?, crc32c = ? WHERE id = ?", (name, checksum((row, name, *rest)), row)
        )


def delete_left(connection: sqlite3.Connection) -> None:
    """Delete all rows without a name."""
    connection.execute("DELETE FROM dataset WHERE substr(name, 1, ?) = ?", (len(_LEFT), _LEFT))


def named_files(connection: sqlite3.Connection, but: Collection[int] = ()) -> set[str]:
    """The names of all files that the rows of datasets and changelogs name, ``but`` those of some."""
    rows = connection.execute("SELECT dataset, name FROM file UNION ALL SELECT dataset, name FROM run")
    return {name for dataset, name in rows if dataset not in but}


def index(connection: sqlite3.Connection, row: int, partition: int) -> bytes | None:
    """The index of a partition; None if the dataset's row was deleted. Raises DamagedRow; ValueError: it is missing."""
    parts = INDEX.rows(connection, "dataset = ? AND partition = ? ORDER BY part", (row, partition))
    data = [part for *_, part in parts]
    if not data and next(DATASET.rows(connection, "id = ?", (row,)), None) is not None:
        raise ValueError("it is missing")
    return b"".join(data) if data else None


def datasets(connection: sqlite3.Connection) -> Iterator[tuple[int, DatasetRecord | Quarantined]]:
    """All datasets that have a name and are no changelogs, each with its id; what is wrong with a damaged one, whose
    name and generation may be, too.
    """
    for values in DATASET.scan(connection, "kind <> ? ORDER BY id", (Kind.CHANGELOG.value,)):
        damaged = values if isinstance(values, DamagedRow) else None
        columns: Sequence[Any] = values.values if isinstance(values, DamagedRow) else values
        row, name, generation, kind, text, schema = columns
        if str(name).startswith(_LEFT):
            continue
        try:
            if damaged is not None:
                raise damaged
            facts = Facts.parse(json.loads(text))
            record = DatasetRecord(
                name,
                generation,
                kind,
                facts,
                schema,
                [FileRecord(*rest) for _, _, *rest in _whole(connection, FILE, row)],
                [PartitionRecord(*rest) for _, *rest in _whole(connection, PARTITION, row)],
                *(transactions_of(connection, row) if facts.transactions else ({}, [])),
            )
            record.check()
        except (DamagedRow, ValueError, TypeError, RecursionError) as error:
            yield row, Quarantined.now(str(name), str(generation), str(error))
        else:
            yield row, record


def _whole(connection: sqlite3.Connection, table: RecordTable, dataset: int) -> list[tuple[Any, ...]]:
    """The rows of a dataset that are not damaged."""
    rows = table.scan(connection, "dataset = ? ORDER BY number", (dataset,))
    return [row for row in rows if not isinstance(row, DamagedRow)]
