"""Recovery: durable datasets come back when a server starts.

Guarantee: :func:`recover` leaves the store with exactly the datasets that were sealed and durable and
not dropped, each with its generation, its frames on disk and its partitions sealed; and the data
directory with exactly their files. It runs before the server listens, under the directory's lock, so
it may block.

The reader's algorithm is in ``manifest``. What is torn is dropped, and the log says so. What cannot be
*read* is no proof that it is torn: an I/O error or a missing permission ends the start with that error
and nothing is deleted, so that the data is there when the disk is well again. So does a memory limit
that has no room for the dictionaries, which every reader needs in RAM, or for what is kept of datasets and
frames (``metadata``).

Disk space of the segments is counted in the disk pool as it was before, also when that is more than
the limit now: then nothing more is spilled until something has been dropped.
"""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import structlog

from .dataset import Dataset
from .decoder import SchemaMessage
from .durable_files import MANIFEST_NAME, DurableFiles, sync_directory
from .errors import OutOfBudget
from .frames import DictionaryMessage, DictionaryState, Payload, stored_checksums
from .manifest import FrameRecord, Manifest, Torn
from .partition import Totals
from .protocol import Kind, Retention
from .records import Record
from .spill import Segment
from .store import Store
from .wire import encapsulate

_log = structlog.get_logger("flight_server.recovery")


@dataclass(frozen=True)
class Recovered:
    """What :func:`recover` has found."""

    datasets: int
    dropped: int
    disk_bytes: int


def recover(store: Store) -> Recovered:
    """Fill an empty store. See the module's text.

    Raises:
        OSError: the directory cannot be read, or the memory limit is too small for what is there.
    """
    base = store.datasets_dir
    assert base is not None
    base.mkdir(parents=True, exist_ok=True)
    sync_directory(base.parent)
    dropped = 0
    found: dict[str, tuple[Manifest, Path]] = {}
    for directory in sorted(base.iterdir()):
        try:
            manifest = _read(directory)
        except Torn as torn:
            dropped += 1
            _log.warning("dataset_torn", directory=directory.name, reason=str(torn))
            _delete(directory)
            continue
        other = found.get(manifest.dataset)
        if other is not None and other[0].sequence > manifest.sequence:
            _delete(directory)
            continue
        if other is not None:
            _delete(other[1])
        found[manifest.dataset] = manifest, directory
    for manifest, directory in found.values():
        try:
            _restore(store, manifest, directory)
        except Torn as torn:
            dropped += 1
            _log.error("dataset_lost", dataset=manifest.dataset, reason=str(torn))
            _delete(directory)
        except OutOfBudget as full:
            raise OSError(f"dataset {manifest.dataset!r} cannot be recovered: {full.message}") from None
    return Recovered(len(store), dropped, store.budget.disk.used_bytes)


def _read(directory: Path) -> Manifest:
    try:
        data = (directory / MANIFEST_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise Torn("it was never sealed") from None
    return Manifest.decode(data)


def _delete(path: Path) -> None:
    """Manifest first: what is half deleted must not look like a dataset."""
    if path.is_dir() and not path.is_symlink():
        (path / MANIFEST_NAME).unlink(missing_ok=True)
        sync_directory(path)
        shutil.rmtree(path)
    else:
        path.unlink()


def _restore(store: Store, manifest: Manifest, directory: Path) -> None:
    schema = _schema(manifest)
    segments = list(_segments(store, manifest, directory))
    keep = {MANIFEST_NAME, *(name for name, _ in manifest.segments)}
    for path in directory.iterdir():
        if path.name not in keep:
            path.unlink()
    states = _states(store, manifest, segments)
    retention = Retention.parse(manifest.retention)
    dataset = Dataset(
        manifest.dataset,
        kind=Kind(manifest.kind),
        partitions=manifest.partition_count,
        schema=schema,
        producers=manifest.producers,
        retention=retention,
        lease_seconds=manifest.lease_seconds,
        files=DurableFiles.recovered(directory, segments),
        metadata=store.budget.metadata,
        generation=manifest.generation,
        clock=store.clock,
    )
    dataset.restore(
        (
            (
                record.partition,
                _records(manifest.frames.part(at, record.listed), segments, states),
                record.first,
                record.size_bytes
                - sum(frame.size_bytes for frame in manifest.frames.part(at, record.listed)),
                Totals(record.rows, record.frames, record.size_bytes, record.crc32c),
            )
            for record, at in manifest.frames_by_partition()
        ),
        accepted=_accepted(manifest),
        # A clock that was set back must not make the data younger than it is.
        sealed_for_seconds=max(0.0, time.time() - manifest.sealed_at),
    )
    store.restore(dataset, manifest.sequence)
    _log.info("dataset_recovered", dataset=dataset.name, generation=dataset.generation, rows=dataset.rows)


def _schema(manifest: Manifest) -> SchemaMessage | None:
    if manifest.schema is None:
        return None
    try:
        header = base64.b64decode(manifest.schema, validate=True)
        return SchemaMessage(pa.ipc.read_schema(pa.py_buffer(encapsulate(header))), header)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Torn(f"its schema is not one: {error}") from error


def _accepted(manifest: Manifest) -> dict[int, str] | None:
    if manifest.accepted is None:
        return None
    return {int(producer): attempt for producer, attempt in manifest.accepted.items()}


def _segments(store: Store, manifest: Manifest, directory: Path) -> Iterator[Segment]:
    for number, (name, size_bytes) in enumerate(manifest.segments, 1):
        try:
            segment = Segment(
                directory / name, store.budget.disk, number=number, existing=True, dispose=store.dispose
            )
        except FileNotFoundError:
            raise Torn(f"{name} is missing") from None
        # Whatever comes next, the files are not this object's to unlink.
        segment.keep = True
        if segment.size_bytes < size_bytes:
            raise Torn(f"{name} has {segment.size_bytes} of {size_bytes} bytes")
        yield segment


def _records(
    listed: Iterable[FrameRecord], segments: list[Segment], states: list[DictionaryState]
) -> Iterator[Record]:
    return (
        Record(
            offset=frame.offset,
            size_bytes=frame.size_bytes,
            rows=frame.rows,
            crc32c=frame.crc32c,
            metadata_crc32c=frame.metadata_crc32c,
            segment=segments[frame.segment],
            dictionaries=states[frame.state],
        )
        for frame in listed
    )


def _states(store: Store, manifest: Manifest, segments: list[Segment]) -> list[DictionaryState]:
    account = store.budget.frames
    messages = []
    for record in manifest.dictionaries:
        room = account.try_reserve(record.size_bytes)
        if room is None:
            raise OSError(
                f"the dictionaries of dataset {manifest.dataset!r} do not fit into RAM "
                f"({account.used_bytes} of {account.limit_bytes} bytes are in use already): raise --memory-limit"
            )
        data = segments[record.segment].read(record.offset, record.size_bytes)
        if stored_checksums(data)[0] != record.crc32c:
            raise Torn(f"a dictionary of {record.size_bytes} bytes has another checksum")
        messages.append(DictionaryMessage(Payload(data, room), record.sequence, record.crc32c))
    return [
        DictionaryState({number: tuple(messages[each] for each in listed) for number, listed in state})
        for state in manifest.states
    ]
