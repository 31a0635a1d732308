"""Recovery: restores durable datasets when a server starts.

Guarantee: after :func:`recover` the catalogue has the datasets that were sealed, durable, not dropped, and whose
manifest, segments and dictionaries are whole: each with its generation, its frames on disk, its partitions sealed.
It runs before the server listens, under the directory's lock, so it may block.

``manifest`` has the reader's algorithm. Everything in ``datasets`` without a readable marker of this data directory
(see ``ownership``) is left as it is, logged, and listed in ``statistics`` as ``foreign_files``.

Damage
    A dataset whose manifest, segments or dictionaries are proven damaged goes to the quarantine (see there). One
    with a damage note is served on.

    A crash between the seal of a generation and the deletion of older ones leaves several of one name. The newest is
    restored; then the older ones are deleted, or quarantined if they have a damage note. If the newest is damaged, or
    the manifest of any, which may be the newest, none is served: an older one would be wrong data without an error.
    All go to the quarantine, each with the reason.

An I/O error proves no damage: nothing of that dataset is deleted, and the start ends. It also ends at a manifest or
segment that may not be read, another format version, and a memory limit with no room for the metadata.

Dictionaries are checked one at a time and stay on disk like frames. The segments' bytes are counted in the disk pool
even above its limit: then nothing is spilled until something has been dropped.
"""

from __future__ import annotations

import base64
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import structlog

from flight_server.datasets import Catalogue, Dataset, Totals, Transactions
from flight_server.frames import (
    DictionaryMessage,
    DictionaryState,
    Links,
    Record,
    SchemaMessage,
    stored_checksums,
)
from flight_server.memory import DICTIONARY_BYTES
from flight_server.protocol import Kind, OutOfBudget, Retention, encapsulate
from flight_server.records import DiskTrouble, OtherFormat
from flight_server.storage import (
    DAMAGE_NAME,
    DATASETS_NAME,
    DIRECTORY_LOCK,
    MANIFEST_NAME,
    NOTE_NAME,
    DictionaryRecord,
    DurableFiles,
    FrameRecord,
    Manifest,
    Marker,
    NotAFile,
    Quarantined,
    Segment,
    SegmentSlice,
    Torn,
    listed,
    noted_damage,
    put_aside,
    read_regular,
    remove_unused_directory,
    sweep_staging,
    sync_directory,
)

# Deleted in a dataset's directory between the manifest, which goes first, and the marker, which goes last.
_OURS = re.compile(rf"segment-[0-9]{{6,}}|manifest\.new|{re.escape(NOTE_NAME)}|{re.escape(DAMAGE_NAME)}")

_log = structlog.get_logger("flight_server.tiering.recovery")


@dataclass(frozen=True)
class Recovered:
    """Numbers of datasets, of new entries in the quarantine's list and of foreign files; the segments' bytes."""

    datasets: int
    quarantined: int
    foreign: int
    disk_bytes: int


@dataclass
class _Generation:
    """One sealed dataset on disk. ``manifest`` is None if it is not valid; ``damage`` is the reason of a
    damaged one.
    """

    directory: Path
    marker: Marker
    manifest: Manifest | None
    damage: str | None = None

    @property
    def dataset(self) -> str | None:
        return self.marker.dataset if self.manifest is None else self.manifest.dataset

    @property
    def sequence(self) -> int:
        return -1 if self.manifest is None else self.manifest.sequence


def recover(catalogue: Catalogue) -> Recovered:
    """Fill an empty catalogue. Raises OSError: the start must end: an I/O error, an unreadable file, another format, or
    no room for the metadata.
    """
    base, data_dir = catalogue.disk.datasets_dir, catalogue.disk.data_dir
    assert base is not None
    assert data_dir is not None
    base.mkdir(parents=True, exist_ok=True)
    sync_directory(base.parent)
    sweep_staging(data_dir)
    catalogue.disk.disposal.quarantine = listed(data_dir)
    before = len(catalogue.disk.disposal.quarantine)
    found: dict[str | None, list[_Generation]] = defaultdict(list)
    for directory, marker in catalogue.disk.own_directories(base):
        if (generation := _read(directory, marker)) is None:
            _delete(directory)
        else:
            found[generation.dataset].append(generation)
    for generations in found.values():
        _restore_newest(catalogue, sorted(generations, key=lambda each: each.sequence))
    quarantined = len(catalogue.disk.disposal.quarantine) - before
    return Recovered(
        len(catalogue), quarantined, len(catalogue.disk.foreign), catalogue.budget.disk.used_bytes
    )


def _read(directory: Path, marker: Marker) -> _Generation | None:
    try:
        manifest = Manifest.decode(read_regular(directory / MANIFEST_NAME))
    except FileNotFoundError:
        return None
    except OtherFormat as other:
        raise OtherFormat(f"{directory}: {other}") from None
    except (Torn, NotAFile) as damage:
        return _Generation(directory, marker, None, f"its manifest is damaged: {damage}")
    return _Generation(directory, marker, manifest)


def _restore_newest(catalogue: Catalogue, generations: list[_Generation]) -> None:
    if all(each.damage is None for each in generations):
        newest = generations[-1]
        try:
            _restore(catalogue, newest)
        except (Torn, NotAFile) as torn:
            newest.damage = str(torn)
        except OutOfBudget as full:
            raise OSError(f"dataset {newest.dataset!r} cannot be recovered: {full.message}") from None
        else:
            for older in generations[:-1]:
                damage = noted_damage(older.directory, older.marker)
                if damage is None:
                    _delete(older.directory)
                elif (aside := put_aside(older.directory, damage)).path == damage.path:
                    raise OSError(
                        f"{older.directory} could not be put aside, and would be served after a drop of the newer one"
                    )
                else:
                    catalogue.disk.disposal.quarantine.append(aside)
            return
    damaged = ", ".join(str(each.marker.generation) for each in generations if each.damage is not None)
    # The damaged ones last, and none after one that the disk keeps: else the next start would find whole ones alone.
    kept = False
    for each in sorted(generations, key=lambda each: each.damage is not None):
        reason = each.damage or (
            f"it is whole, but it may be older than a damaged generation ({damaged}): move the directory back to "
            f"{DATASETS_NAME} while the server is stopped to have this one served"
        )
        said = Quarantined.now(each.dataset, each.marker.generation, each.directory, reason)
        said = said if kept else put_aside(each.directory, said)
        kept = said.path == str(each.directory)
        catalogue.disk.disposal.quarantine.append(said)


def _delete(directory: Path) -> None:
    """Delete the server's files, the manifest first: half of them must not look like a dataset."""
    (directory / MANIFEST_NAME).unlink(missing_ok=True)
    sync_directory(directory)
    _delete_files(directory, keep=set())
    with suppress(OSError), DIRECTORY_LOCK:
        remove_unused_directory(directory)


def _delete_files(directory: Path, *, keep: set[str]) -> None:
    for path in directory.iterdir():
        if path.name not in keep and _OURS.fullmatch(path.name):
            with suppress(IsADirectoryError):
                path.unlink()


def _restore(catalogue: Catalogue, found: _Generation) -> None:
    manifest, directory = found.manifest, found.directory
    assert manifest is not None
    schema = _schema(manifest)
    segments = list(_segments(catalogue, manifest, directory))
    states = _states(catalogue, manifest, segments)
    _delete_files(directory, keep={DAMAGE_NAME, *(name for name, _ in manifest.segments)})
    retention = Retention.parse(manifest.retention)
    damage = noted_damage(directory, found.marker)
    if damage is not None:
        catalogue.disk.disposal.quarantine.append(damage)
    dataset = Dataset(
        manifest.dataset,
        kind=Kind(manifest.kind),
        partitions=manifest.partition_count,
        schema=None if schema is None else catalogue.schemas.recovered(schema),
        producers=manifest.producers,
        retention=retention,
        lease_seconds=manifest.lease_seconds,
        files=DurableFiles.recovered(directory, segments, found.marker, damage),
        metadata=catalogue.budget.metadata,
        generation=manifest.generation,
        clock=catalogue.clock,
    )
    dataset.transactions = Transactions(
        manifest.dataset, catalogue.budget.metadata, manifest.transactions, manifest.forgotten
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
        # A clock that was set back must not give a negative age.
        sealed_for_seconds=max(0.0, time.time() - manifest.sealed_at),
    )
    catalogue.restore(dataset, manifest.sequence)
    _log.info("dataset_recovered", dataset=dataset.name, generation=dataset.generation, rows=dataset.rows)


def _schema(manifest: Manifest) -> SchemaMessage | None:
    if manifest.schema is None:
        return None
    try:
        header = base64.b64decode(manifest.schema, validate=True)
        pa.ipc.read_schema(pa.py_buffer(encapsulate(header)))  # raises if it is not one
        return SchemaMessage(header)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Torn(f"its schema is not one: {error}") from error


def _accepted(manifest: Manifest) -> dict[int, str] | None:
    if manifest.accepted is None:
        return None
    return {int(producer): attempt for producer, attempt in manifest.accepted.items()}


def _segments(catalogue: Catalogue, manifest: Manifest, directory: Path) -> Iterator[Segment]:
    for name, size_bytes in manifest.segments:
        try:
            segment = Segment(
                directory / name,
                catalogue.budget.disk,
                existing=True,
                dispose=catalogue.disk.disposal.dispose,
            )
        except FileNotFoundError:
            raise Torn(f"{name} is missing") from None
        # The file stays, even if recovery fails now.
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


def _states(catalogue: Catalogue, manifest: Manifest, segments: list[Segment]) -> list[DictionaryState]:
    messages = [
        _dictionary(catalogue, manifest.dataset, record, segments[record.segment])
        for record in manifest.dictionaries
    ]
    links: Links = {}
    return [
        DictionaryState({number: tuple(messages[each] for each in listed) for number, listed in state}, links)
        for state in manifest.states
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
            # The manifest has no checksum of a dictionary's app_metadata, which no reader takes.
            return DictionaryMessage(
                None, record.sequence, checksum, metadata_crc32c=metadata_checksum, slice_=place, room=room
            )
    raise Torn(f"a dictionary of {place.size_bytes} bytes has another checksum")
