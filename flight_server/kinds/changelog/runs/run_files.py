"""RunFile: a run on disk, read through a memory mapping; and its writer.

Format
    Numbers are little-endian. ::

        8 bytes   magic, "FLSHRUN1"
        blocks    one after the other, each at a multiple of 64: an encapsulated IPC record batch of up to
                  ``BLOCK_ROWS`` rows and about ``BLOCK_BYTES``, but of one row at least, with the changelog's columns
                  and _hash (uint64), _version, _diff (int64)
        footer    UTF-8 JSON: rows, retractions, tombstones, first_version, last_version, since (see ``MemoryRun``),
                  ages: how many rows have which version (see ``Ages``), and for each block
                  [offset, bytes, rows, least hash, greatest hash, least version, greatest version, CRC-32C, keys]
        tail      u64 length of the footer, u32 its CRC-32C, 8 bytes magic

Validity
    Both magics, the footer's length and CRC are right, and the blocks lie within the file. A block's CRC is compared
    when a process first reads it; another one raises ``Damaged`` then, and at each later read.

Versions
    A producer's large put writes its rows to files before it commits. Their version column is zero, and the log or the
    manifest says which version all rows of the file have (``version``).

Mapping
    A file is mapped when it is first read, without keeping a descriptor, and stays mapped while its :class:`RunFile` or
    updates of it are held. So views go on reading a file that a merge has deleted. Where a process reads a block for
    the first time it uses pread(2), because an I/O error or the end of a mapped file would kill it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import Hashes, unique
from flight_server.memory import Reservation
from flight_server.protocol.checksums import crc32c
from flight_server.records import DiskTrouble, trouble_with
from flight_server.storage import open_regular

from .blocks import Ages, Block, of_block, to_block
from .layout import Layout
from .run import MAX_HASH, Damaged, MemoryRun
from .updates import Updates

BLOCK_ROWS = 32 << 10
BLOCK_BYTES = 4 << 20
MAGIC: Final = b"FLSHRUN1"

_ALIGNMENT = 64
_TAIL = struct.Struct("<QI8s")


class RunWriter:
    """Writes one file; the updates must come in order.

    Args:
        room: of the disk pool; grows with the file, before each write.
        since: see :class:`~flight_server.kinds.changelog.runs.run.MemoryRun`.
        of_kept: the share that it may take of the disk pool's kept bytes (``memory.pool``).
    """

    def __init__(
        self, path: Path, layout: Layout, room: Reservation, *, since: int = 0, of_kept: float = 0.0
    ) -> None:
        self.path = path
        self._of_kept = of_kept
        self._layout = layout
        self.room = room
        self.since, self.ages = since, Ages()
        self.blocks: list[Block] = []
        self.retractions = self.tombstones = 0
        self._offset = 0
        self._fd = -1
        with _on_disk(path):
            flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL
            self._fd = os.open(path, flags, 0o600)
        self._write(MAGIC)

    def add(self, updates: Updates) -> None:
        """Append updates that follow all before. Blocks. Raises DiskTrouble: the disk or its limit leaves no room."""
        for part in updates.cut(BLOCK_ROWS, BLOCK_BYTES):
            data = to_block(part)
            begun = bool(self.blocks) and self.blocks[-1].high == int(part.hashes[0])
            self._write(bytes(-self._offset % _ALIGNMENT))
            block = Block(
                self._offset,
                data.size,
                len(part),
                int(part.hashes[0]),
                int(part.hashes[-1]),
                int(part.versions.min()),
                int(part.versions.max()),
                crc32c(data),
                part.distinct_hashes - begun,
            )
            self._write(memoryview(data))
            self.blocks.append(block)
            self.retractions += part.retractions
            self.tombstones += part.tombstones
            self.ages.add(part.versions)

    def finish(self) -> None:
        """Write the footer, and all to the medium; the file's name is there once its directory is synced. Blocks.
        Raises DiskTrouble: the file is not whole.
        """
        footer = json.dumps(
            {
                "rows": sum(block.rows for block in self.blocks),
                "retractions": self.retractions,
                "tombstones": self.tombstones,
                "first_version": min((block.first_version for block in self.blocks), default=0),
                "last_version": max((block.last_version for block in self.blocks), default=0),
                "since": self.since,
                "ages": self.ages.to_json(),
                "blocks": [[getattr(block, name) for name in Block.__slots__] for block in self.blocks],
            },
            separators=(",", ":"),
        ).encode()
        self._write(footer + _TAIL.pack(len(footer), crc32c(footer), MAGIC))
        with _on_disk(self.path):
            os.fsync(self._fd)
        self.close()

    def close(self) -> None:
        """Close the descriptor. Twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def abandon(self) -> None:
        """Close and delete the file. Twice is fine."""
        self.close()
        self.path.unlink(missing_ok=True)
        self.room.free()

    def _write(self, data: bytes | memoryview) -> None:
        if not self.room.try_grow(len(data), of_kept=self._of_kept):
            raise DiskTrouble(
                f"the disk limit leaves no room for {len(data)} bytes of {self.path}", full=True
            )
        with _on_disk(self.path):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        self._offset += len(data)


class RunFile:
    """A finished file. Its methods are those of :class:`~flight_server.kinds.changelog.runs.run.MemoryRun`.

    Args:
        room: of the disk pool, of the file's size.
        version: of all rows, see "Versions".

    Raises:
        Damaged: the file is not valid.
        FileNotFoundError, OSError: it cannot be read.
    """

    def __init__(self, path: Path, layout: Layout, room: Reservation, version: int | None = None) -> None:
        self.path = path
        self.version = version
        self._layout = layout
        self._room = room
        footer = _read_footer(path)
        try:
            self.rows = int(footer["rows"])
            self.retractions = int(footer["retractions"])
            self.tombstones = int(footer["tombstones"])
            self.first_version = int(footer["first_version"]) if version is None else version
            self.last_version = int(footer["last_version"]) if version is None else version
            self.blocks = [Block(*map(int, block)) for block in footer["blocks"]]
            self.since = int(footer["since"])
            self._ages = Ages(footer["ages"])
            self._lows = np.array([block.low for block in self.blocks], np.uint64)
            self._highs = np.array([block.high for block in self.blocks], np.uint64)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Damaged(f"the footer of {path.name} is not valid: {error}") from error
        self.size_bytes = int(footer["size_bytes"])
        if sum(block.rows for block in self.blocks) != self.rows or any(
            block.offset + block.size_bytes > self.size_bytes for block in self.blocks
        ):
            raise Damaged(f"the blocks of {path.name} do not lie within it")
        self.keys = sum(block.keys for block in self.blocks)
        self._rows_before = np.concatenate([[0], np.cumsum([block.rows for block in self.blocks])]).astype(
            np.int64
        )
        self._data: pa.Buffer | None = None
        self._checked: set[int] = set()
        self._decoded: tuple[int, Updates] | None = None  # the last one; it refers to the mapping alone
        if room.size_bytes < self.size_bytes:
            room.grow(self.size_bytes - room.size_bytes)

    @classmethod
    def of(cls, path: Path, parts: Sequence[Updates], room: Reservation, *, of_kept: float = 0.0) -> RunFile:
        """A file of these updates; there is none after an error. Blocks. Raises as :class:`RunWriter`.

        Args:
            parts: one at least, each sorted.
        """
        layout = parts[0].layout
        writer = RunWriter(path, layout, room, of_kept=of_kept)
        try:
            writer.add(Updates.joined(layout, parts))
            writer.finish()
            return cls(path, layout, room)
        except BaseException:
            writer.abandon()
            raise

    def commit(self, version: int) -> None:
        """Give all rows this version; see "Versions"."""
        self.version = self.first_version = self.last_version = version
        self._decoded = None

    def rows_upto(self, version: int) -> int:
        if version >= self.last_version:
            return self.rows
        return self._ages.upto(version) if version >= self.first_version else 0

    def delete(self) -> None:
        """Delete the file; views that have it read on. Blocks. Twice is fine."""
        with suppress(FileNotFoundError):
            self._mapped()
            self.path.unlink()

    def keep_readable(self) -> None:
        """Let views read on after the file is deleted. Blocks. Raises OSError."""
        self._mapped()

    def _mapped(self) -> pa.Buffer:
        data = self._data
        if data is None:
            try:
                with pa.memory_map(str(self.path)) as file:
                    data = self._data = file.read_buffer()
            except FileNotFoundError:
                data = self._data  # another thread has mapped and deleted it meanwhile
                if data is None:
                    raise
        return data

    def rows_below(self, hash_: int) -> int:
        number = int(np.searchsorted(self._highs, np.uint64(hash_), "left"))
        if number == len(self.blocks):
            return self.rows
        before = int(self._rows_before[number])
        if int(self._lows[number]) >= hash_:
            return before
        return before + int(np.searchsorted(self._block(number).hashes, np.uint64(hash_), "left"))

    def between(self, low: int, high: int) -> Updates:
        return Updates.in_order(self._layout, self.parts_between(low, high))

    def parts_between(self, low: int, high: int) -> list[Updates]:
        return [self._block(number).between(low, high) for number in self._blocks_between(low, high)]

    def bytes_between(self, low: int, high: int) -> int:
        found = 0
        for number in self._blocks_between(low, high):
            entry = self.blocks[number]
            inside = low <= entry.low and entry.high <= high
            rows = entry.rows if inside else len(self._block(number).between(low, high))
            found += entry.size_bytes * rows // entry.rows
        return found

    def _blocks_between(self, low: int, high: int) -> range:
        start = int(np.searchsorted(self._highs, np.uint64(low), "left"))
        return range(start, int(np.searchsorted(self._lows, np.uint64(high), "right")))

    def of_hashes(self, hashes: Hashes, last: int | None = None) -> Updates:
        parts = [self._block(number).of_hashes(wanted, last) for number, wanted in self._with(hashes)]
        return Updates.in_order(self._layout, parts)

    def retractions_of(self, hashes: Hashes) -> Updates:
        blocks = self._with(hashes) if self.retractions else ()
        parts = [self._block(number).retractions_of(wanted) for number, wanted in blocks]
        return Updates.in_order(self._layout, parts)

    def having(self, hashes: Hashes) -> Hashes:
        return unique(*(self._block(number).having(wanted) for number, wanted in self._with(hashes)))

    def bytes_of(self, hashes: Hashes) -> NDArray[np.float64]:
        found = np.zeros(len(hashes))
        for number, wanted in self._with(hashes):
            entry = self.blocks[number]
            counts = self._block(number).counts_of(wanted)
            found[np.searchsorted(hashes, wanted)] += counts * (entry.size_bytes / entry.rows)
        return found

    def _with(self, hashes: Hashes) -> Iterator[tuple[int, Hashes]]:
        """The numbers of the blocks that may have some of these hashes, and which."""
        if not len(hashes) or not self.blocks:
            return
        # A hash may lie in several blocks: in all from the first whose greatest hash is not below it.
        first = np.searchsorted(self._highs, hashes, "left")
        last = np.searchsorted(self._lows, hashes, "right")
        touched = np.zeros(len(self.blocks) + 1, np.int64)
        np.add.at(touched, first, 1)
        np.add.at(touched, np.maximum(first, last), -1)
        for number in np.flatnonzero(np.cumsum(touched[:-1])).tolist():
            yield number, hashes[(first <= number) & (last > number)]

    def changed(self, after: int, upto: int, low: int = 0, high: int = MAX_HASH) -> Hashes:
        found = [np.zeros(0, np.uint64)]
        for number in self._blocks_between(low, high):
            entry = self.blocks[number]
            first, last = (
                (entry.first_version, entry.last_version)
                if self.version is None
                else (self.version, self.version)
            )
            if last <= after or first > upto:
                continue
            block = self._block(number).between(low, high)
            found.append(block.hashes[(block.versions > after) & (block.versions <= upto)])
        return np.concatenate(found)

    def _block(self, number: int) -> Updates:
        if (decoded := self._decoded) is not None and decoded[0] == number:
            return decoded[1]
        entry = self.blocks[number]
        if number not in self._checked:
            if crc32c(self._read(entry)) != entry.crc32c:
                raise Damaged(f"block {number} of {self.path.name} has another checksum than its footer says")
            self._checked.add(number)
        data = self._mapped().slice(entry.offset, entry.size_bytes)
        found = of_block(self._layout, data, self.version)
        self._decoded = (number, found)
        return found

    def _read(self, entry: Block) -> Any:
        try:
            fd = open_regular(self.path)
        except FileNotFoundError:
            return self._mapped().slice(entry.offset, entry.size_bytes)
        try:
            return read_at(fd, self.path, entry.offset, entry.size_bytes)
        finally:
            os.close(fd)


Run = MemoryRun | RunFile


def read_at(fd: int, path: Path, offset: int, size_bytes: int) -> bytes:
    """So many bytes of an open file. Raises Damaged if it is shorter; OSError."""
    data = os.pread(fd, size_bytes, offset)
    while len(data) < size_bytes:
        more = os.pread(fd, size_bytes - len(data), offset + len(data))
        if not more:
            raise Damaged(f"{path.name} ends before byte {offset + size_bytes}")
        data += more
    return data


def _read_footer(path: Path) -> dict[str, Any]:
    """A run file's footer, with the file's ``size_bytes``. Raises Damaged, NotAFile, OSError."""
    fd = open_regular(path)
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes < len(MAGIC) + _TAIL.size:
            raise Damaged(f"{path.name} has {size_bytes} bytes, which are too few")
        length, checksum, magic = _TAIL.unpack(read_at(fd, path, size_bytes - _TAIL.size, _TAIL.size))
        start = size_bytes - _TAIL.size - length
        if magic != MAGIC or start < len(MAGIC) or read_at(fd, path, 0, len(MAGIC)) != MAGIC:
            raise Damaged(f"{path.name} does not begin or end as a run does")
        footer = read_at(fd, path, start, length)
    finally:
        os.close(fd)
    if crc32c(footer) != checksum:
        raise Damaged(f"the footer of {path.name} has another checksum")
    try:
        found = json.loads(footer)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the footer of {path.name} is not JSON") from error
    if not isinstance(found, dict):
        raise Damaged(f"the footer of {path.name} is not an object")
    return {**found, "size_bytes": size_bytes}


@contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise trouble_with(path, error) from error
