"""RunFile: a run on disk, read through a memory mapping; and its writer.

Format
    Numbers are little-endian. ::

        header    see ``storage.file_header``
        blocks    one after the other, each at a multiple of 64: an encapsulated IPC record batch of up to
                  ``BLOCK_ROWS`` rows and about ``BLOCK_BYTES``, but of one row at least, with the changelog's columns
                  and _hash (uint64), _version, _diff (int64)
        footer    UTF-8 JSON: rows, retractions, tombstones, and for each block
                  [offset, bytes, rows, least hash, greatest hash, least version, greatest version, CRC-32C]
        tail      u64 length of the footer, u32 its CRC-32C, 8 bytes magic, "FLSHRUN1"

Validity
    The magic, the footer's length and CRC are right, and the blocks lie within the file. A block's CRC is compared
    when a process first reads it; another one raises ``Damaged`` then, and at each later read.

Versions
    A producer's large put writes its rows to files before it commits. Their version column is zero, and the records say
    which version all rows of the file have (``version``).

Deleting
    A file is deleted, in a thread of its own, once there is no reference to its writer or :class:`RunFile`, unless a
    row of the records names it (``keep``). So a write or a fold that is given up leaves nothing, and views go on
    reading a file that a fold has replaced.

Mapping
    A file is mapped when it is first read, without keeping a descriptor, and stays mapped while its :class:`RunFile` or
    updates of it are held. A block is read with pread(2) for the first time, because an I/O error or the end of a
    mapped file would kill the process.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from flight_server.memory import MemoryPool, Reservation
from flight_server.protocol.checksums import crc32c
from flight_server.records import DiskTrouble, trouble_with
from flight_server.storage import FileHeader, Folder, open_regular

from .layout import Layout
from .run import Block, Counts, Damaged, Question, Run, of_block, to_block
from .updates import Updates

BLOCK_ROWS = 32 << 10
BLOCK_BYTES = 4 << 20
DECODED_BLOCKS = 8
"""So many stay decoded: a base has no more, mostly."""
RECOUNT_SECONDS = 100e-9
"""A row is counted again after this time, so that counting takes a small part of it."""
MAGIC: Final = b"FLSHRUN1"

_ALIGNMENT = 64
_TAIL = struct.Struct("<QI8s")


@dataclass(frozen=True)
class RunFolder:
    """Where the files of one changelog are made, with this header, and deleted, later and in another thread. ``disk``
    counts them.
    """

    folder: Folder
    header: FileHeader
    disk: MemoryPool
    delete: Callable[[Path, Reservation], None]

    @property
    def path(self) -> Path:
        return self.folder.path


class _File:
    """See "Deleting"."""

    def __init__(self, path: Path, folder: RunFolder) -> None:
        self.path = path
        self.keep = False
        self.room = folder.disk.empty()
        self._delete = folder.delete

    def __del__(self) -> None:
        if not self.keep:
            self._delete(self.path, self.room)


class RunWriter:
    """Writes one file. ``of_kept``: the share that it may take of the disk pool's kept bytes (``memory.pool``).

    Raises DiskTrouble: the disk or its limit leaves no room, or the disk refuses; the file is not whole.
    """

    def __init__(self, folder: RunFolder, layout: Layout, *, of_kept: float = 0.0) -> None:
        self._of_kept = of_kept
        self._layout = layout
        self.blocks: list[Block] = []
        self.rows = self.retractions = self.tombstones = 0
        self.size_bytes = 0
        self._fd = -1
        with _on_disk(folder.path):
            path, self._fd = folder.folder.make("run")
            self._file = _File(path, folder)
        self._write(folder.header.encode())

    def add(self, updates: Updates) -> None:
        """Append updates that follow all before. Blocks."""
        for part in updates.cut(BLOCK_ROWS, BLOCK_BYTES):
            data = to_block(part)
            self._write(bytes(-self.size_bytes % _ALIGNMENT))
            block = Block(
                self.size_bytes,
                data.size,
                len(part),
                int(part.hashes[0]),
                int(part.hashes[-1]),
                int(part.versions.min()),
                int(part.versions.max()),
                crc32c(data),
            )
            self._write(memoryview(data))
            self.blocks.append(block)
            self.rows += len(part)
            self.retractions += part.retractions
            self.tombstones += part.tombstones

    def finish(self) -> RunFile:
        """Write the footer, and all to the medium; the file's name is there once its folder is synced. Blocks."""
        footer = json.dumps(
            {
                "rows": self.rows,
                "retractions": self.retractions,
                "tombstones": self.tombstones,
                "blocks": self.blocks,
            },
            separators=(",", ":"),
        ).encode()
        self._write(footer + _TAIL.pack(len(footer), crc32c(footer), MAGIC))
        with _on_disk(self._file.path):
            os.fsync(self._fd)
            self.close()
            return RunFile(self._file, self._layout)

    def close(self) -> None:
        """Close the descriptor. Twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def _write(self, data: bytes | memoryview) -> None:
        path = self._file.path
        if not self._file.room.try_grow(len(data), of_kept=self._of_kept):
            raise DiskTrouble(f"the disk limit leaves no room for {len(data)} bytes of {path}", full=True)
        with _on_disk(path):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        self.size_bytes += len(data)


class RunFile(Run):
    """A finished file.

    Args:
        version: of all rows, see "Versions".

    Raises:
        Damaged: the file is not valid.
        FileNotFoundError, OSError: it cannot be read.
    """

    def __init__(self, file: _File, layout: Layout, version: int | None = None) -> None:
        self.path = path = file.path
        self.version: int | None = None
        self._file = file
        footer, size_bytes = _read_footer(path)
        try:
            facts = json.loads(footer)
            blocks = [Block(*map(int, block)) for block in facts["blocks"]]
            np.array([(block.low, block.high) for block in blocks], np.uint64)
            rows, retractions, tombstones = (
                int(facts[name]) for name in ("rows", "retractions", "tombstones")
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise Damaged(f"the footer of {path.name} is not valid: {error}") from error
        super().__init__(layout, blocks, size_bytes, retractions, tombstones)
        if rows != self.rows or any(block.offset + block.size_bytes > size_bytes for block in blocks):
            raise Damaged(f"the blocks of {path.name} do not lie within it")
        self.first_version = min((block.first_version for block in blocks), default=0)
        self.last_version = max((block.last_version for block in blocks), default=0)
        self._data: pa.Buffer | None = None
        self._checked: set[int] = set()
        self._counted: tuple[Question, int, float, Counts] | None = None
        # The last ones, with their numbers; they refer to the mapping alone. Threads replace the whole tuple.
        self._decoded: tuple[tuple[int, Updates], ...] = ()
        if version is not None:
            self.commit(version)
        if file.room.size_bytes < self.size_bytes:
            file.room.grow(self.size_bytes - file.room.size_bytes)

    @classmethod
    def of(cls, folder: RunFolder, parts: Sequence[Updates], *, of_kept: float = 0.0) -> RunFile:
        """A new file of these sorted parts, one at least. Blocks. Raises as :class:`RunWriter`."""
        layout = parts[0].layout
        writer = RunWriter(folder, layout, of_kept=of_kept)
        writer.add(Updates.joined(layout, parts))
        return writer.finish()

    @classmethod
    def opened(cls, folder: RunFolder, name: str, layout: Layout, version: int | None) -> RunFile:
        """The file of a row of the records, which is kept."""
        file = _File(folder.path / name, folder)
        file.keep = True
        return cls(file, layout, version)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def keep(self) -> bool:
        return self._file.keep

    @keep.setter
    def keep(self, keep: bool) -> None:
        self._file.keep = keep

    @property
    def is_decoded(self) -> bool:
        """Whether all blocks are, so that reading them takes no call of the system."""
        return len({number for number, _ in self._decoded}) == len(self.blocks)

    def commit(self, version: int) -> None:
        """Give all rows this version; see "Versions"."""
        self.version = self.first_version = self.last_version = version
        self.blocks = [block._replace(first_version=version, last_version=version) for block in self.blocks]
        self._decoded = ()

    def counts(self, question: Question) -> Counts:
        """While only ``upto`` changes, a large file gives an earlier answer for some time (``recount_at``)."""
        upto = min(max(question.upto, self.first_version - 1), self.last_version)
        known, now = self._counted, time.monotonic()
        if known is not None and (known[1] == upto or now < known[2]):
            ranges = ((each.lows, each.sinces, each.olds) for each in (question, known[0]))
            if all(map(np.array_equal, *ranges)):
                known[3].recount_at = None if known[1] == upto else known[2]
                return known[3]
        counts = super().counts(replace(question, upto=upto))
        self._counted = question, upto, now + self.rows * RECOUNT_SECONDS, counts
        return counts

    def _mapped(self) -> pa.Buffer:
        data = self._data
        if data is None:
            with pa.memory_map(str(self.path)) as file:
                data = self._data = file.read_buffer()
        return data

    def block(self, number: int) -> Updates:
        for known, updates in self._decoded:
            if known == number:
                return updates
        entry = self.blocks[number]
        if number not in self._checked:
            if crc32c(self._read(entry)) != entry.crc32c:
                raise Damaged(f"block {number} of {self.path.name} has another checksum than its footer says")
            self._checked.add(number)
        data = self._mapped().slice(entry.offset, entry.size_bytes)
        block = of_block(self.layout, data, self.version)
        self._decoded = (*self._decoded[1 - DECODED_BLOCKS :], (number, block))
        return block

    def _read(self, entry: Block) -> Any:
        fd = open_regular(self.path)
        try:
            return read_at(fd, self.path, entry.offset, entry.size_bytes)
        finally:
            os.close(fd)


def read_at(fd: int, path: Path, offset: int, size_bytes: int) -> bytes:
    """So many bytes of an open file. Raises Damaged if it is shorter; OSError."""
    data = os.pread(fd, size_bytes, offset)
    while len(data) < size_bytes:
        more = os.pread(fd, size_bytes - len(data), offset + len(data))
        if not more:
            raise Damaged(f"{path.name} ends before byte {offset + size_bytes}")
        data += more
    return data


def _read_footer(path: Path) -> tuple[bytes, int]:
    """A run file's footer, and the file's size. Raises Damaged, NotAFile, OSError."""
    fd = open_regular(path)
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes < _TAIL.size:
            raise Damaged(f"{path.name} has {size_bytes} bytes, which are too few")
        length, checksum, magic = _TAIL.unpack(read_at(fd, path, size_bytes - _TAIL.size, _TAIL.size))
        start = size_bytes - _TAIL.size - length
        if magic != MAGIC or start < 0:
            raise Damaged(f"{path.name} does not end as a run does")
        footer = read_at(fd, path, start, length)
    finally:
        os.close(fd)
    if crc32c(footer) != checksum:
        raise Damaged(f"the footer of {path.name} has another checksum")
    return footer, size_bytes


@contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise trouble_with(path, error) from error
