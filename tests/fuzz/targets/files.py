"""Targets: the files that a server reads from its disk, and a client from shared storage.

The formats have checksums, which no change of bytes gets past. So where the first byte of an input is even the rest is
the content, which gets a right envelope; where it is odd the rest is the whole file.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from flight_server.frames import NO_DICTIONARIES, unpacked
from flight_server.kinds.changelog.runs import Block, Counts, Damaged, RunFile
from flight_server.memory import MemoryPool
from flight_server.protocol import ObjectIndex, Piece, StoredPartition, dump_json
from flight_server.protocol.checksums import crc32c
from flight_server.storage import DataDir, DataDirUnusable, FileHeader, NotAFile
from flight_server.storage.data_dir import MARKER_NAME
from flight_server.storage.file_header import MAGIC, read_header
from tests.support.frames import on_disk
from tests.support.run_rows import latest, run_folder, updates_of

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


def read_run(directory: Path, data: bytes) -> None:
    """A run, of whose blocks the records have the checksums, is read through all its ways."""
    content = data[1:]
    (directory / "found.run").write_bytes(content)
    version = 3 if data[:1] > b"\1" else None
    blocks = _run_file()[1]
    if _is_content(data):
        parts = (content[block.offset : block.offset + block.size_bytes] for block in blocks)
        blocks = [block._replace(crc32c=crc32c(part)) for block, part in zip(blocks, parts, strict=True)]
    run = RunFile.opened(run_folder(directory, MemoryPool(None)), latest(), "found.run", version, blocks)
    hashes = run.changed(-1, 1 << 40)
    run.ends()
    run.counts(Counts(np.array([0, 1 << 63], np.uint64), np.array([0, 2]), 2))
    run.between(0, (1 << 64) - 1)
    list(run.hits(np.unique(hashes)).parts())
    run.below(1 << 63)


def read_file_header(directory: Path, data: bytes) -> None:
    """The first bytes of a file in the folder: a header, or none."""
    text = data[1:]
    sealed = struct.pack("<8sII", MAGIC, len(text), crc32c(text)) + text
    (directory / "file").write_bytes(sealed if _is_content(data) else text)
    header = read_header(directory / "file")
    if header is not None:
        (directory / "file").write_bytes(header.encode())
        assert read_header(directory / "file") == header


def read_marker(directory: Path, data: bytes) -> None:
    """A directory's marker."""
    (directory / MARKER_NAME).write_bytes(data)
    DataDir.claim(directory).close()


def read_packed(_: Path, data: bytes) -> None:
    """The index of a partition's frames, of which every record is then looked at."""
    length, total_bytes = struct.unpack("<HI", data[:6].ljust(6, b"\0"))
    files = [(on_disk(b"").segment, 1 << 20), (on_disk(b"").segment, 100)]
    room = MemoryPool(None).reserve(0)
    table = unpacked(
        data[6:], length, total_bytes, room=room, files=files, states=[NO_DICTIONARIES, NO_DICTIONARIES]
    )
    for index in range(table.first, len(table)):
        table.record(index)


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


@cache
def _run_file() -> tuple[bytes, list[Block]]:
    """A run's bytes and blocks."""
    with tempfile.TemporaryDirectory() as directory:
        rows = [((f"k{number}", number, [1, 2]), number % 3 + 1, 1) for number in range(20)]
        run = RunFile.make(run_folder(Path(directory), MemoryPool(None)), latest())
        run.add(updates_of(latest(), rows))
        return run.finish().path.read_bytes(), list(run.blocks)


def _run_files() -> list[bytes]:
    return [first + _run_file()[0] for first in (b"\0", b"\2", b"\1")]


def _headers() -> list[bytes]:
    data = FileHeader("0a" * 8, "d", GENERATION, "stream", durable=True).encode()
    return [b"\0" + data[16:], b"\1" + data, b"\1" + data + bytes(100)]


def _markers() -> list[bytes]:
    marker = {"format": 2, "kind": "data", "owner": "0a" * 8, "created": "now"}
    return [dump_json(marker), dump_json({**marker, "kind": "temporary"}), dump_json({**marker, "format": 1})]


def _packed() -> list[bytes]:
    """Two records in two files, after one that was released, and one with many rows; see ``frames.records``."""
    records = [(0, 50, 10, 1, 2, 0), (10, 20, 5, 3, 4, 1)]
    data = b"".join(struct.pack("<QIIIII", *record) for record in records)
    one_state = struct.pack("<QQQ", 2, 1, 0) + data + struct.pack("<QQ", 0, 1)
    many_rows = struct.pack("<QQQ", 2, 0, 1) + data + struct.pack("<QQ", 1, 1 << 33)
    return [
        struct.pack("<HI", 2, 70) + one_state,
        struct.pack("<HI", 3, 100) + many_rows,
        struct.pack("<HI", 0, 0) + struct.pack("<QQQ", 0, 0, 0),
    ]


def _indexes() -> list[bytes]:
    partition = StoredPartition(3, 10, 2, 5, 100, (Piece(150, 6), Piece(200, 7)))
    text = ObjectIndex("d", GENERATION, "s", Piece(100, 1), {3: partition}).encode(crc32c)
    return [b"\0" + dump_json(json.loads(text)["index"]), b"\1" + text]


TARGETS = [
    Target("runs", _in_directory(read_run), _run_files, (Damaged, NotAFile), most_bytes=8192),
    Target("headers", _in_directory(read_file_header), _headers, ()),
    Target("markers", _in_directory(read_marker), _markers, (DataDirUnusable,)),
    Target("packed", _in_directory(read_packed), _packed, (ValueError,)),
    Target("indexes", _in_directory(read_index), _indexes, (ValueError,)),
]
