"""RunFile: a run on disk, which is written once and then read through a memory mapping.

Format
    The header (``storage.file_header``), and blocks one after the other, each at a multiple of 64: an encapsulated IPC
    record batch of up to ``BLOCK_ROWS`` rows and about ``BLOCK_BYTES``, but of one row at least, with the changelog's
    columns and _hash (uint64), _version, _diff (int64).

    The records name the blocks (:class:`Block`). A block's CRC is compared when a process first reads it; another one
    raises ``Damaged`` then, and at each later read.

Versions
    A producer's large put writes its rows to files before it commits. Their version column is zero, and the records say
    which version all rows of the file have (``version``).

Deleting
    A file is deleted, in a thread of its own, once there is no reference to its :class:`RunFile`, unless a row of the
    records names it (``keep``). So a write or a fold that is given up leaves nothing, and views go on reading a file
    that a fold has replaced.

Mapping
    A file is mapped when it is first read, without keeping a descriptor, and stays mapped while its :class:`RunFile` or
    updates of it are held. A block is read with pread(2) for the first time, because an I/O error or the end of a
    mapped file would kill the process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from flight_server.memory import MemoryPool, Reservation
from flight_server.protocol.checksums import crc32c
from flight_server.records import DiskTrouble, trouble_with
from flight_server.storage import FileHeader, Folder, open_regular

from .layout import Layout
from .run import Block, Counts, Damaged, Run, of_block, to_block
from .updates import Updates

BLOCK_ROWS = 32 << 10
BLOCK_BYTES = 4 << 20
DECODED_BLOCKS = 8
"""So many stay decoded: a base has no more, mostly."""
RECOUNT_SECONDS = 100e-9
"""A row is counted again after this time, so that counting takes a small part of it."""

_ALIGNMENT = 64


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


class RunFile(Run):
    """A file: a new one of :meth:`make`, which is read once it is finished, or one of the records.

    Args:
        fd: of a new one.
        of_kept: the share that it may take of the disk pool's kept bytes (``memory.pool``).
    """

    keep = False  # see "Deleting"
    version: int | None = None

    def __init__(
        self, folder: RunFolder, layout: Layout, path: Path, *, fd: int = -1, of_kept: float = 0.0
    ) -> None:
        super().__init__(layout, [])
        self.path = path
        self._fd = fd
        self._of_kept = of_kept
        self._room = folder.disk.empty()
        self._delete = folder.delete
        self._data: pa.Buffer | None = None
        self._checked: set[int] = set()
        self._counted: tuple[float, Counts] | None = None
        # The last ones, with their numbers; they refer to the mapping alone. Threads replace the whole tuple.
        self._decoded: tuple[tuple[int, Updates], ...] = ()

    @classmethod
    def make(cls, folder: RunFolder, layout: Layout, *, of_kept: float = 0.0) -> RunFile:
        """A new file. Raises DiskTrouble, as :meth:`add` and :meth:`finish`: the disk or its limit leaves no room, or
        the disk refuses; the file is not whole.
        """
        with _on_disk(folder.path):
            path, fd = folder.folder.make("run")
        file = cls(folder, layout, path, fd=fd, of_kept=of_kept)
        file._write(folder.header.encode())
        return file

    @classmethod
    def opened(
        cls,
        folder: RunFolder,
        layout: Layout,
        name: str,
        version: int | None,
        blocks: Iterable[Iterable[int]],
    ) -> RunFile:
        """The file of a row of the records, which is kept. Raises FileNotFoundError, OSError; Damaged: it is shorter
        than its blocks, or these are not valid.
        """
        file = cls(folder, layout, folder.path / name)
        file.keep = True
        file.version = version
        try:
            file._sum_up([Block(*map(int, block)) for block in blocks])
            np.array([(block.low, block.high) for block in file.blocks], np.uint64)
        except (TypeError, ValueError, OverflowError) as error:
            raise Damaged(f"the blocks of {name} are not valid: {error}") from error
        fd = open_regular(file.path)
        try:
            file.size_bytes = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if any(block.offset + block.size_bytes > file.size_bytes for block in file.blocks):
            raise Damaged(f"{name} has {file.size_bytes} bytes, and its blocks have more")
        file._room.grow(file.size_bytes)
        return file

    def add(self, updates: Updates) -> None:
        """Append updates that follow all before. Blocks."""
        added = []
        for part in updates.cut(BLOCK_ROWS, BLOCK_BYTES):
            data = to_block(part)
            self._write(bytes(-self.size_bytes % _ALIGNMENT))
            added.append(Block.of(part, self.size_bytes, data.size, crc32c(data)))
            self._write(memoryview(data))
        self.blocks = [*self.blocks, *added]
        self.rows += len(updates)

    def finish(self) -> RunFile:
        """Write all to the medium; the file's name is there once its folder is synced. Blocks."""
        with _on_disk(self.path):
            os.fsync(self._fd)
            self._close()
        self._sum_up(self.blocks)
        return self

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self._close()
        if not self.keep:
            self._delete(self.path, self._room)

    def _write(self, data: bytes | memoryview) -> None:
        if not self._room.try_grow(len(data), of_kept=self._of_kept):
            raise DiskTrouble(
                f"the disk limit leaves no room for {len(data)} bytes of {self.path}", full=True
            )
        with _on_disk(self.path):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        self.size_bytes += len(data)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def is_decoded(self) -> bool:
        """Whether all blocks are, so that reading them takes no call of the system."""
        return len({number for number, _ in self._decoded}) == len(self.blocks)

    def commit(self, version: int) -> None:
        """Give all rows this version; see "Versions"."""
        self.version = version
        self._sum_up([block._replace(first_version=version, last_version=version) for block in self.blocks])
        self._decoded = ()

    def counts(self, question: Counts) -> Counts:
        """While only ``upto`` changes, a large file gives an earlier answer for some time (``recount_at``)."""
        upto = min(max(question.upto, self.first_version - 1), self.last_version)
        now = time.monotonic()
        if self._counted is not None:
            recount_at, counts = self._counted
            ranges = ((each.lows, each.sinces) for each in (question, counts))
            if (counts.upto == upto or now < recount_at) and all(map(np.array_equal, *ranges)):
                counts.recount_at = None if counts.upto == upto else recount_at
                return counts
        counts = super().counts(replace(question, upto=upto))
        self._counted = now + self.rows * RECOUNT_SECONDS, counts
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
                raise Damaged(f"block {number} of {self.name} has another checksum than the records say")
            self._checked.add(number)
        data = self._mapped().slice(entry.offset, entry.size_bytes)
        block = of_block(self.layout, data, self.version)
        self._decoded = (*self._decoded[1 - DECODED_BLOCKS :], (number, block))
        return block

    def _read(self, entry: Block) -> bytes:
        fd = open_regular(self.path)
        try:
            data = b""
            while len(data) < entry.size_bytes:
                more = os.pread(fd, entry.size_bytes - len(data), entry.offset + len(data))
                if not more:
                    raise Damaged(f"{self.name} ends before byte {entry.offset + entry.size_bytes}")
                data = data + more if data else more
            return data
        finally:
            os.close(fd)


@contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise trouble_with(path, error) from error
