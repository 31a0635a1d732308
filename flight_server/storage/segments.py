"""Segments: append-only files that frames are moved to, and the disk budget that counts them.

Format
    A segment is a header (``file_header``), and FlightData messages one after the other. Their places are in RAM for
    spilled frames (``frames.records``), in the records for durable datasets. The next start deletes a segment that no
    row of the records names.

Who holds what
    A :class:`Segment` is one file with one descriptor and one disk reservation. Slices, the records of frames and a
    durable dataset hold it. With the last reference the file is closed and unlinked (one that a row names stays), and
    its bytes return to the disk pool. No two datasets share a segment; one that was appended to has those of the
    appended writes. Each stays open, so that its bytes can be read when its directory vanishes or its file system is
    mounted elsewhere.

Errors
    An append is all or nothing. On ENOSPC, EIO, a vanished directory or a read-only mount it raises DiskTrouble; the
    segment is cut back and takes no further appends, and the frames stay in RAM. A failed read raises it, too; the next
    try may succeed. After a failed fsync some pages may not be on the medium, and the next fsync would succeed without
    writing them. So the segment is ``suspect`` for ever, and ``durability`` copies its frames to another one.

Concurrency
    ``append`` and ``read`` block. A :class:`SegmentWriter` writes one append at a time; reads and finalizers may come
    from any thread at any time. Unlinking can take milliseconds, so a finalizer gives the file to ``dispose`` (see
    ``disposal``).
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from flight_server.memory import MemoryPool, Reservation
from flight_server.records import DiskTrouble, trouble_with

from .disk_files import open_regular
from .file_header import FileHeader
from .folder import Folder

_IOV_MAX = 1024
_numbers = itertools.count(1)


Dispose = Callable[[int, "Path | None", Reservation], None]
"""Closes a file, and unlinks it unless the path is None; later and in another thread."""


@dataclass(slots=True, eq=False)
class SegmentSlice:
    """One message's place on disk."""

    segment: Segment
    offset: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.segment.path.name} at {self.offset}"

    def read(self, *, anew: bool = False) -> bytes:
        """The message's bytes, fewer if the file ends before; ``Message.read_back`` verifies them. With ``anew`` they
        come from the medium, where the kernel allows it, and not from the page cache. Raises DiskTrouble.
        """
        try:
            if anew:
                self.segment.uncache(self.offset, self.size_bytes)
            return self.segment.read(self.offset, self.size_bytes)
        except OSError as error:
            raise trouble_with(self.segment.path, error) from error


class Segment:
    """One open file, whose bytes ``reservation`` counts. ``number`` is above 0 and its own among all segments of the
    process: frames move between datasets, and the table that they come to has segments of several writers.
    """

    def __init__(
        self, path: Path, fd: int, size_bytes: int, reservation: Reservation, dispose: Dispose
    ) -> None:
        self.path = path
        self.number = next(_numbers)
        self._fd = fd
        self._reservation = reservation
        self._dispose = dispose
        self.size_bytes = size_bytes
        self.keep = False  # a row of the records names the file: close it, and leave it where it is
        self.suspect = False
        self.synced_bytes = 0  # so many are on the medium, says fsync

    @classmethod
    def made(cls, folder: Folder, header: bytes, disk: MemoryPool, dispose: Dispose) -> Self:
        """A new file with this header. Raises DiskTrouble."""
        try:
            path, fd = folder.make("frames")
        except OSError as error:
            raise trouble_with(folder.path, error) from error
        segment = cls(path, fd, 0, disk.empty(), dispose)
        segment.append([header], len(header))
        return segment

    @classmethod
    def existing(cls, path: Path, disk: MemoryPool, dispose: Dispose) -> Self:
        """A file that a row of the records names. Raises NotAFile, OSError."""
        fd = open_regular(path)
        reservation = disk.empty()
        segment = cls(path, fd, os.fstat(fd).st_size, reservation, dispose)
        segment.keep = True
        segment.synced_bytes = segment.size_bytes
        reservation.grow(segment.size_bytes)
        return segment

    def append(self, messages: Sequence[bytes], size_bytes: int) -> int:
        """Write the messages at the end; the offset of the first."""
        if not self._reservation.try_grow(size_bytes):
            raise DiskTrouble(f"the disk limit leaves no room for {size_bytes} bytes", full=True)
        start = self.size_bytes
        try:
            _write_all(self._fd, messages, start)
        except OSError as error:
            self._reservation.shrink(size_bytes)
            # If this fails, too, slices still find the earlier messages.
            with suppress(OSError):
                os.ftruncate(self._fd, start)
            raise trouble_with(self.path, error) from error
        self.size_bytes = start + size_bytes
        return start

    def in_place(self) -> bool:
        """Whether its name still leads to it. Blocks."""
        try:
            named, held = self.path.stat(), os.fstat(self._fd)
        except OSError:
            return False
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)

    def read(self, offset: int, size_bytes: int) -> bytes:
        return os.pread(self._fd, size_bytes, offset)

    def uncache(self, offset: int, size_bytes: int) -> None:
        """Drop these bytes from the page cache, if they are on the medium."""
        os.posix_fadvise(self._fd, offset, size_bytes, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        """Write all appends to the medium; see "Errors". Blocks."""
        size_bytes = self.size_bytes
        if size_bytes > self.synced_bytes:
            try:
                os.fsync(self._fd)
            except OSError as error:
                self.suspect = True
                raise trouble_with(self.path, error) from error
            self.synced_bytes = size_bytes

    def __del__(self) -> None:
        self._dispose(self._fd, None if self.keep else self.path, self._reservation)


def _write_all(fd: int, messages: Sequence[bytes], offset: int) -> None:
    for first in range(0, len(messages), _IOV_MAX):
        views = [memoryview(message) for message in messages[first : first + _IOV_MAX]]
        while views:
            written = os.pwritev(fd, views, offset)
            if written == 0:
                raise OSError(errno.EIO, "the disk took nothing")
            offset += written
            while views and written >= len(views[0]):
                written -= len(views[0])
                del views[0]
            if written:
                views[0] = views[0][written:]


@dataclass(slots=True, eq=False)
class SegmentWriter:
    """Appends messages to segments of a dataset; begins a new one when one has ``segment_bytes``, so that disk space is
    released a segment at a time. The first is made for the first append: a dataset that never spills touches no disk.
    """

    _folder: Folder
    _header: FileHeader
    _disk: MemoryPool
    _segment_bytes: int
    _dispose: Dispose
    # Weak: it is not kept for later appends.
    _open: weakref.ref[Segment] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def append(self, messages: Sequence[bytes]) -> list[SegmentSlice]:
        """Write the messages; a slice for each, in their order. Raises DiskTrouble."""
        size_bytes = sum(map(len, messages))
        with self._lock:
            segment = self._open() if self._open is not None else None
            if segment is not None and segment.suspect:
                segment = None
            header = b"" if segment is not None else self._header.encode()
            room_bytes = self._disk.available_bytes
            if room_bytes is not None and len(header) + size_bytes > room_bytes:
                raise DiskTrouble(f"the disk limit leaves no room for {size_bytes} bytes", full=True)
            if segment is None:
                segment = Segment.made(self._folder, header, self._disk, self._dispose)
            self._open = None  # after an error its directory may be gone: the next append opens another
            offset = segment.append(messages, size_bytes)
            slices = []
            for message in messages:
                slices.append(SegmentSlice(segment, offset, len(message)))
                offset += len(message)
            if segment.size_bytes < self._segment_bytes:
                self._open = weakref.ref(segment)
            return slices
