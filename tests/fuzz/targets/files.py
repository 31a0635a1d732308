"""Targets: what a server reads from its disk, and a client from shared storage.

The formats have checksums, which no change of bytes gets past. So where the first byte of an input is even the rest is
the content, which gets a right envelope; where it is odd the rest is the whole file.
"""

from __future__ import annotations

import base64
import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from flight_server.kinds.changelog.journal import StateRecord, commits_of
from flight_server.kinds.changelog.runs import (
    Damaged,
    LogEntry,
    LogFile,
    RunFile,
    read_log,
    read_state,
    write_state,
)
from flight_server.memory import MemoryPool
from flight_server.protocol import ObjectIndex, Piece, StoredPartition, dump_json
from flight_server.protocol.checksums import crc32c
from flight_server.records import OtherFormat
from flight_server.storage import (
    NOTE_NAME,
    DictionaryRecord,
    FrameRecord,
    Manifest,
    NotAFile,
    PackedFrames,
    PartitionRecord,
    Torn,
    listed,
)
from flight_server.storage.ownership import read_marker
from tests.support.run_rows import latest, updates_of

from .target import Call, Target

GENERATION = "0123456789abcdef"


def _in_directory(use: Callable[[Path, bytes], object]) -> Callable[[], Any]:
    @contextmanager
    def opened() -> Iterator[Call]:
        with tempfile.TemporaryDirectory() as directory:
            yield lambda data: use(Path(directory), data)

    return opened


def _is_content(data: bytes) -> bool:
    return data[:1] < b"\1" or data[0] % 2 == 0


def sealed_manifest(data: bytes) -> bytes:
    """``data`` is the header, a line's end, and the frames."""
    if not _is_content(data):
        return data[1:]
    header, _, frames = data[1:].partition(b"\n")
    body = b"FLSHMAN4" + struct.pack("<I", len(header)) + header + frames
    return body + struct.pack("<QI8s", len(body), google_crc32c.value(body), b"FLSHMAN4")


def sealed_run(data: bytes) -> bytes:
    """``data`` is the blocks, a line's end, and the footer."""
    if not _is_content(data):
        return data[1:]
    blocks, _, footer = data[1:].rpartition(b"\n")
    return b"FLSHRUN1" + blocks + footer + struct.pack("<QI8s", len(footer), crc32c(footer), b"FLSHRUN1")


def sealed_log(data: bytes) -> bytes:
    """``data`` is one header, a line's end, and the body."""
    if not _is_content(data):
        return data[1:]
    header, _, body = data[1:].partition(b"\n")
    return (
        struct.pack("<4sIQI", b"CLE1", len(header), len(body), crc32c(body, crc32c(header))) + header + body
    )


def sealed_state(data: bytes) -> bytes:
    """``data`` is the JSON."""
    text = data[1:]
    return struct.pack("<8sII", b"FLSHCLG1", len(text), crc32c(text)) + text if _is_content(data) else text


def read_manifest(_: Path, data: bytes) -> None:
    """A manifest that is taken is written as the same."""
    manifest = Manifest.decode(sealed_manifest(data))
    assert Manifest.decode(manifest.encode()) == manifest
    for record, at in manifest.frames_by_partition():
        assert len(list(manifest.frames.part(at, record.listed))) == record.listed


def read_run(directory: Path, data: bytes) -> None:
    """A run whose footer is taken is read through all its ways."""
    path = directory / "run-000001"
    path.write_bytes(sealed_run(data))
    version = 3 if data[:1] > b"\1" else None
    run = RunFile(path, latest(), MemoryPool(None).reserve(0), version)
    hashes = run.changed(-1, 1 << 40)
    run.rows_upto(2)
    assert len(run.between(0, (1 << 64) - 1)) == run.rows
    run.of_hashes(np.unique(hashes))
    run.rows_below(1 << 63)


def read_changelog_log(directory: Path, data: bytes) -> None:
    """The entries of a log are those of commits or holds."""
    path = directory / "log-000001"
    path.write_bytes(content := sealed_log(data))
    entries, size_bytes, torn = read_log(path)
    assert torn is (size_bytes < len(content))
    for entry in entries:
        commits_of(entry)


def read_changelog_state(directory: Path, data: bytes) -> None:
    """A state file's fields have their types."""
    (directory / "changelog").write_bytes(sealed_state(data))
    state = StateRecord.parse(read_state(directory))
    json.dumps(state.to_json())


def read_notes(directory: Path, data: bytes) -> None:
    """A directory's marker, and the quarantine's note."""
    (directory / "flight-server.json").write_bytes(data)
    room = directory / "quarantine" / "d"
    room.mkdir(parents=True, exist_ok=True)
    (room / NOTE_NAME).write_bytes(data)
    listed(directory)
    read_marker(directory)


def read_index(_: Path, data: bytes) -> None:
    """The index of an object in shared storage."""
    content = data[1:]
    if _is_content(data):
        try:
            content = dump_json(
                {"index": json.loads(content), "crc32c": f"{crc32c(dump_json(json.loads(content))):08x}"}
            )
        except (ValueError, RecursionError):
            return
    index = ObjectIndex.parse(content, crc32c)
    assert ObjectIndex.parse(index.encode(crc32c), crc32c) == index


MANIFEST = Manifest(
    dataset="d",
    kind="shuffle",
    generation=GENERATION,
    sequence=3,
    partition_count=4,
    producers=2,
    retention="until_dropped",
    lease_seconds=None,
    schema=None,
    accepted={"0": "7", "1": "9"},
    transactions={"job": (1, 3, 3, 1)},
    forgotten="AAAAAAAAAAA=",
    sealed_at=1.5,
    segments=[("segment-000001", 100), ("segment-000002", 10)],
    dictionaries=[DictionaryRecord(0, 0, 10, 5, 0)],
    states=[[], [(0, [0])]],
    partitions=[PartitionRecord(1, 0, 2, 2, 30, 60, 5), PartitionRecord(3, 1, 1, 2, 7, 12, 6)],
    frames=PackedFrames.of(
        [
            FrameRecord(0, 0, 50, 10, 2**32 - 1, 7, 0),
            FrameRecord(1, 0, 10, 20, 0, 0, 1),
            FrameRecord(0, 50, 50, 7, 1, 0, 0),
        ]
    ),
)
STATE = StateRecord(
    "d",
    GENERATION,
    base64.b64encode(latest().schema.serialize()).decode(),
    {"rule": "latest", "key": ["key"], "order_by": ["time"]},
    1.0,
    None,
    runs=[("run-000001", None), ("run-000002", 3)],
    holds={"h": [3, 4.5, 1.5, "a job"]},
    lapsed={"g": 2},
    transactions={"job": (1, 3, 3, 1)},
)


def content_of(manifest: bytes) -> bytes:
    """As :func:`sealed_manifest` takes it."""
    (length,) = struct.unpack_from("<I", manifest, 8)
    return b"\0" + manifest[12 : 12 + length] + b"\n" + manifest[12 + length : -20]


def _manifests() -> list[bytes]:
    data = MANIFEST.encode()
    return [content_of(data), b"\1" + data]


@cache
def _run_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run"
        rows = [((f"k{number}", number, [1, 2]), number % 3 + 1, 1) for number in range(20)]
        RunFile.of(path, [updates_of(latest(), rows)], MemoryPool(None).reserve(0))
        data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data, len(data) - 20)
    content = data[8 : -20 - length] + b"\n" + data[-20 - length : -20]
    return [b"\0" + content, b"\2" + content, b"\1" + data]


@cache
def _logs() -> list[bytes]:
    headers: list[dict[str, Any]] = [
        {"commits": [[1, 1.5, 3, None], [2, 2.5, 1, ["job", 4]]], "files": ["run-000001"]},
        {"hold": "h", "version": 3, "until": 4.5, "taken": 1.5, "owner": None},
        {"release": ["h"]},
    ]
    entries = [LogEntry(header, b"body") for header in headers]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        LogFile(path, MemoryPool(None).reserve(0)).append(entries)
        data = path.read_bytes()
    return [*(b"\0" + dump_json(header) + b"\nbody" for header in headers), b"\1" + data, b"\1" + data[:-3]]


def _states() -> list[bytes]:
    with tempfile.TemporaryDirectory() as directory:
        write_state(Path(directory), STATE.to_json())
        data = (Path(directory) / "changelog").read_bytes()
    return [b"\0" + data[16:], b"\1" + data]


def _notes() -> list[bytes]:
    return [
        dump_json(
            {
                "format": 1,
                "kind": "dataset",
                "owner": "0a" * 16,
                "created": "now",
                "dataset": "d",
                "generation": GENERATION,
            }
        ),
        dump_json(
            {"dataset": "d", "generation": GENERATION, "path": "/x", "reason": "damaged", "when": "now"}
        ),
        dump_json({"format": 2, "kind": "data", "owner": "0a"}),
    ]


def _indexes() -> list[bytes]:
    partition = StoredPartition(3, 10, 2, 5, 100, (Piece(150, 6), Piece(200, 7)))
    text = ObjectIndex("d", GENERATION, "s", Piece(100, 1), {3: partition}).encode(crc32c)
    return [b"\0" + dump_json(json.loads(text)["index"]), b"\1" + text]


TARGETS = [
    Target("manifests", _in_directory(read_manifest), _manifests, (Torn, OtherFormat)),
    Target("runs", _in_directory(read_run), _run_files, (Damaged, NotAFile), most_bytes=8192),
    Target("logs", _in_directory(read_changelog_log), _logs, (Damaged, NotAFile)),
    Target("states", _in_directory(read_changelog_state), _states, (Damaged, NotAFile, OtherFormat)),
    Target("notes", _in_directory(read_notes), _notes, (OtherFormat, NotAFile)),
    Target("indexes", _in_directory(read_index), _indexes, (ValueError,)),
]
