"""Recovery: restores durable datasets when a server starts.

Guarantee: after :func:`recover` the catalogue has the datasets that were sealed, durable, not dropped, and whose rows,
files and dictionaries are whole: each with its generation, its frames on disk, its partitions sealed. Their records are
loaded when they are read first (``loading``). It runs before the server listens, under the directory's lock, so it may
block.

Damage
    A dataset whose rows, files or dictionaries are proven damaged goes to the quarantine (see ``records.quarantine``).
    One with an entry that says ``served`` is served on.

An I/O error proves no damage: nothing of that dataset is deleted, and the start ends. It also ends at a file that may
not be read, another format version, and a memory limit with no room for the metadata.

Dictionaries are checked one at a time and stay on disk like frames. The segments' bytes are counted in the disk pool
even above its limit: then nothing is spilled until something has been dropped.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import structlog

from flight_server.datasets import Catalogue, Dataset, OnDisk, Totals, Transactions
from flight_server.frames import (
    NO_DICTIONARIES,
    DictionaryMessage,
    DictionaryState,
    Links,
    SchemaMessage,
    stored_checksums,
)
from flight_server.memory import DICTIONARY_BYTES
from flight_server.protocol import Kind, OutOfBudget, Retention, encapsulate
from flight_server.records import (
    DatasetRecord,
    DictionaryRecord,
    DiskTrouble,
    Quarantined,
    datasets,
    delete,
    delete_left,
    files_of,
    named_files,
    put_quarantined,
)
from flight_server.storage import NotAFile, Segment, SegmentSlice

_log = structlog.get_logger("flight_server.tiering.recovery")


class _Damage(Exception):
    """The dataset's rows or files are not as they were written."""


@dataclass(frozen=True)
class Recovered:
    """Numbers of datasets and of those that were put into the quarantine now; the segments' bytes."""

    datasets: int
    quarantined: int
    disk_bytes: int


def recover(catalogue: Catalogue) -> Recovered:
    """Fill an empty catalogue. Raises OSError: the start must end: an I/O error, an unreadable file, another format, or
    no room for the metadata; records.DamagedDatabase.
    """
    if catalogue.disk.records is None:
        return Recovered(0, 0, 0)
    try:
        return catalogue.records.read(lambda connection: _recover(catalogue, connection))
    except DiskTrouble as trouble:
        raise OSError(str(trouble)) from trouble


def _recover(catalogue: Catalogue, connection: sqlite3.Connection) -> Recovered:
    damaged: list[tuple[int, Quarantined]] = []
    for row, record in datasets(connection):
        if isinstance(record, Quarantined):
            damaged.append((row, record))
            continue
        try:
            _restore(catalogue, row, record)
        except (_Damage, NotAFile) as damage:
            damaged.append((row, Quarantined.now(record.name, record.generation, str(damage))))
        except OutOfBudget as full:
            raise OSError(f"dataset {record.name!r} cannot be recovered: {full.message}") from None
    set_aside(catalogue, connection, damaged)
    return Recovered(len(catalogue), len(damaged), catalogue.budget.disk.used_bytes)


def delete_garbage(catalogue: Catalogue) -> None:
    """Delete files that neither a row nor the quarantine names, before new ones are made. Raises OSError."""
    disk = catalogue.disk
    if disk.records is not None and disk.folder is not None:
        kept = {name for entry in disk.quarantine.entries for name in entry.files}
        disk.foreign = disk.folder.sweep(kept | disk.records.read(named_files), disk.delete)


def set_aside(
    catalogue: Catalogue, connection: sqlite3.Connection, damaged: list[tuple[int, Quarantined]]
) -> None:
    """Let the damaged datasets have entries in the quarantine in place of their rows; delete rows without a name."""
    folder = catalogue.disk.folder
    assert folder is not None
    # A damaged row may have been that of a file.
    unnamed = folder.unnamed(named_files(connection, {row for row, _ in damaged})) if damaged else {}
    entries = []
    for row, entry in damaged:
        files = (*files_of(connection, row), *unnamed.get(entry.key, ()))
        entries.append(replace(entry, files=tuple(dict.fromkeys(files))))

    def change(connection: sqlite3.Connection) -> None:
        for row, _ in damaged:
            delete(connection, row)
        put_quarantined(connection, entries)
        delete_left(connection)

    catalogue.records.submit(change).result()
    catalogue.disk.quarantine.listed(*entries)


def _restore(catalogue: Catalogue, row: int, record: DatasetRecord) -> None:
    facts = record.facts
    schema = None if record.schema is None else _schema(record.schema)
    files = list(_files(catalogue, record))
    on_disk = OnDisk(catalogue.records)
    on_disk.recovered = True
    noted = (each.key for each in catalogue.disk.quarantine.entries)
    on_disk.damaged = (record.name, record.generation) in noted
    on_disk.commit(row, [segment for segment, _ in files])
    on_disk.files = files
    on_disk.states = _states(catalogue, record, [segment for segment, _ in files])
    dataset = Dataset(
        record.name,
        kind=Kind(record.kind),
        partitions=facts.partition_count,
        schema=None if schema is None else catalogue.schemas.recovered(schema),
        producers=facts.producers,
        retention=Retention.parse(facts.retention),
        lease_seconds=facts.lease_seconds,
        on_disk=on_disk,
        metadata=catalogue.budget.metadata,
        generation=record.generation,
        clock=catalogue.clock,
    )
    dataset.transactions = Transactions(
        record.name, catalogue.budget.metadata, record.transactions, record.forgotten
    )
    dataset.restore(
        (
            (
                partition.number,
                partition.first,
                partition.first_bytes,
                Totals(partition.rows, partition.frames, partition.size_bytes, partition.crc32c),
            )
            for partition in record.partitions
        ),
        accepted=None if facts.accepted is None else {int(key): of for key, of in facts.accepted.items()},
        # A clock that was set back must not give a negative age.
        sealed_for_seconds=max(0.0, time.time() - facts.sealed_at),
    )
    catalogue.restore(dataset)
    _log.info("dataset_recovered", dataset=dataset.name, generation=dataset.generation, rows=dataset.rows)


def _schema(header: bytes) -> SchemaMessage:
    try:
        pa.ipc.read_schema(pa.py_buffer(encapsulate(header)))  # raises if it is not one
        return SchemaMessage(header)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _Damage(f"its schema is not one: {error}") from error


def _files(catalogue: Catalogue, record: DatasetRecord) -> Iterator[tuple[Segment, int]]:
    folder, disk = catalogue.disk.folder, catalogue.disk
    assert folder is not None
    for name, size_bytes in record.files:
        try:
            segment = Segment.existing(folder.path / name, catalogue.budget.disk, disk.disposal.dispose)
        except (FileNotFoundError, ValueError):  # a name that can be no file's
            raise _Damage(f"{name!r} is missing") from None
        if segment.size_bytes < size_bytes:
            raise _Damage(f"{name} has {segment.size_bytes} of {size_bytes} bytes")
        yield segment, size_bytes


def _states(catalogue: Catalogue, record: DatasetRecord, segments: list[Segment]) -> list[DictionaryState]:
    messages = [
        _dictionary(catalogue, record.name, each, segments[each.file]) for each in record.facts.dictionaries
    ]
    links: Links = {}
    return [
        DictionaryState({number: tuple(messages[each] for each in listed) for number, listed in state}, links)
        if state
        else NO_DICTIONARIES
        for state in record.facts.states
    ]


def _dictionary(
    catalogue: Catalogue, dataset: str, record: DictionaryRecord, segment: Segment
) -> DictionaryMessage:
    place = SegmentSlice(segment, record.offset, record.size_bytes)
    room = catalogue.budget.metadata.reserve(DICTIONARY_BYTES, "a dictionary", dataset=dataset)
    for anew in (False, True):
        try:
            data = place.read(anew=anew)
        except DiskTrouble as trouble:
            raise OSError(str(trouble)) from trouble
        checksum, metadata_checksum = stored_checksums(data)
        if checksum == record.crc32c:
            # The records have no checksum of a dictionary's app_metadata, which no reader takes.
            return DictionaryMessage(
                size_bytes=record.size_bytes,
                crc32c=checksum,
                metadata_crc32c=metadata_checksum,
                payload=None,
                slice=place,
                sequence=record.sequence,
                room=room,
            )
    raise _Damage(f"a dictionary of {place.size_bytes} bytes has another checksum")
