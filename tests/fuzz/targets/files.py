"""Targets: what a server reads from its disk, and a client from shared storage.

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

from flight_server.kinds.changelog.runs import Damaged, RunFile
from flight_server.memory import MemoryPool
from flight_server.protocol import ObjectIndex, Piece, StoredPartition, dump_json
from flight_server.protocol.checksums import crc32c
from flight_server.storage import FileHeader, NotAFile, read_header
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


def sealed_run(data: bytes) -> bytes:
    """``data`` is the header and the blocks, a line's end, and the footer."""
    if not _is_content(data):
        return data[1:]
    blocks, _, footer = data[1:].rpartition(b"\n")
    return blocks + footer + struct.pack("<QI8s", len(footer), crc32c(footer), b"FLSHRUN1")


def sealed_header(data: bytes) -> bytes:
    """``data`` is the JSON."""
    text = data[1:]
    return struct.pack("<8sII", b"FLSHDAT1", len(text), crc32c(text)) + text if _is_content(data) else text


def read_run(directory: Path, data: bytes) -> None:
    """A run whose footer is taken is read through all its ways."""
    path = directory / f"{'0' * 16}-{'1' * 16}.run"
    path.write_bytes(sealed_run(data))
    version = 3 if data[:1] > b"\1" else None
    run = RunFile.found(run_folder(directory, MemoryPool(None)), path.name, latest(), version)
    hashes = run.changed(-1, 1 << 40)
    run.rows_upto(2)
    assert len(run.between(0, (1 << 64) - 1)) == run.rows
    run.of_hashes(np.unique(hashes))
    run.rows_below(1 << 63)


def read_file_header(directory: Path, data: bytes) -> None:
    """The header of a file that no row of the records names."""
    path = directory / "file"
    path.write_bytes(sealed_header(data))
    header = read_header(path)
    if header is not None:
        path.write_bytes(header.encode())
        assert read_header(path) == header


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
def _run_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as directory:
        rows = [((f"k{number}", number, [1, 2]), number % 3 + 1, 1) for number in range(20)]
        folder = run_folder(Path(directory), MemoryPool(None))
        run = RunFile.of(folder, [updates_of(latest(), rows)])
        data = run.path.read_bytes()
    (length,) = struct.unpack_from("<Q", data, len(data) - 20)
    content = data[: -20 - length] + b"\n" + data[-20 - length : -20]
    return [b"\0" + content, b"\2" + content, b"\1" + data]


def _headers() -> list[bytes]:
    data = FileHeader("0a" * 8, "d", GENERATION, "changelog", durable=True).encode()
    return [b"\0" + data[16:], b"\1" + data]


def _indexes() -> list[bytes]:
    partition = StoredPartition(3, 10, 2, 5, 100, (Piece(150, 6), Piece(200, 7)))
    text = ObjectIndex("d", GENERATION, "s", Piece(100, 1), {3: partition}).encode(crc32c)
    return [b"\0" + dump_json(json.loads(text)["index"]), b"\1" + text]


TARGETS = [
    Target("runs", _in_directory(read_run), _run_files, (Damaged, NotAFile), most_bytes=8192),
    Target("headers", _in_directory(read_file_header), _headers, ()),
    Target("indexes", _in_directory(read_index), _indexes, (ValueError,)),
]
