"""Segments: append-only files that frames are moved to, and the disk budget they are counted in.

Format
    A segment is frames' FlightData messages one after the other, with nothing between. Where each one
    starts and its length are known only to those who hold a :class:`SegmentSlice`: in RAM for spilled
    frames, in the manifest for durable datasets (see ``durability``). A segment without either means
    nothing, so what a crash leaves behind is deleted at the next start.

Who holds what
    A :class:`Segment` is one file with one file descriptor and one disk reservation. Its slices hold
    it; when the last slice goes, the file is closed and unlinked and its bytes return to the disk
    pool. A segment takes appends until it has ``segment_bytes``; so space comes back while a dataset
    lives, a segment at a time, and a dataset's frames do not keep another dataset's file.

Errors
    Writing is all or nothing for its caller: on ENOSPC, EIO, a vanished directory or a read-only mount
    the segment is cut back to where it was (or given up, if not even that works), :class:`DiskTrouble`
    is raised, and the frames stay in RAM as they were. A slice that cannot be read is a
    :class:`~flight_server.errors.CorruptFrame` for its reader; its checksum is the frame's to check.

Concurrency
    ``append`` and ``SegmentSlice.read`` block and are called in threads. One writer at a time per
    :class:`SegmentWriter`; reads and finalizers may come from any thread at any time. Unlinking a file
    can take milliseconds, so a finalizer passes it to ``dispose``, which the store runs in a thread.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from .errors import CorruptFrame
from .memory import MemoryPool

_IOV_MAX = 1024


class DiskTrouble(Exception):
    """The disk did not take the bytes. ``full`` if for lack of room, by its own word or by the limit."""

    def __init__(self, message: str, *, full: bool) -> None:
        super().__init__(message)
        self.full = full


def dispose_now(fd: int, path: Path | None) -> None:
    """Close a segment's file, and unlink it unless ``path`` is None. Blocks."""
    os.close(fd)
    if path is not None:
        # A directory that went read-only or away: the next start deletes what is left.
        with suppress(OSError):
            path.unlink(missing_ok=True)


class SegmentSlice:
    """One frame's place on disk."""

    __slots__ = ("offset", "segment", "size_bytes")

    def __init__(self, segment: Segment, offset: int, size_bytes: int) -> None:
        self.segment = segment
        self.offset = offset
        self.size_bytes = size_bytes

    def read(self) -> bytes:
        """The frame's bytes. Blocks.

        Raises:
            CorruptFrame: they cannot be read.
        """
        try:
            data = self.segment.read(self.offset, self.size_bytes)
        except OSError as error:
            raise CorruptFrame(
                f"{self.segment.path.name} at {self.offset}: {self.size_bytes} bytes cannot be read back: "
                f"{error.strerror or error}; write the dataset again"
            ) from error
        if len(data) != self.size_bytes:
            raise CorruptFrame(
                f"{self.segment.path.name} at {self.offset}: {len(data)} of {self.size_bytes} bytes came "
                "back from disk; write the dataset again"
            )
        return data


class Segment:
    """One file. Made by :class:`SegmentWriter`, or by recovery for a file that is there."""

    def __init__(
        self,
        path: Path,
        disk: MemoryPool,
        *,
        existing: bool = False,
        dispose: Callable[[int, Path | None], None] = dispose_now,
    ) -> None:
        self.path = path
        self._dispose = dispose
        self.size_bytes = 0
        self.keep = False  # a durable dataset's file: close it, but leave it to the dataset to unlink
        self._reservation = disk.empty()
        flags = os.O_RDONLY if existing else os.O_RDWR | os.O_CREAT | os.O_EXCL
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        if existing:
            self.size_bytes = os.fstat(self._fd).st_size
            self._reservation.grow(self.size_bytes)

    def append(self, messages: Sequence[bytes], size_bytes: int) -> int:
        """Write the messages at the end; returns the offset of the first. Blocks.

        Raises:
            DiskTrouble: nothing was written.
        """
        if not self._reservation.try_grow(size_bytes):
            raise DiskTrouble(f"the disk limit leaves no room for {size_bytes} bytes", full=True)
        start = self.size_bytes
        try:
            _write_all(self._fd, messages, start)
        except OSError as error:
            self._reservation.shrink(size_bytes)
            # If not even this works, what was written before is still found by its slices.
            with suppress(OSError):
                os.ftruncate(self._fd, start)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise DiskTrouble(f"{self.path}: {error.strerror or error}", full=full) from error
        self.size_bytes = start + size_bytes
        return start

    def read(self, offset: int, size_bytes: int) -> bytes:
        return os.pread(self._fd, size_bytes, offset)

    def sync(self) -> None:
        """All bytes are on the medium. Blocks.

        Raises:
            OSError: they may not be.
        """
        os.fsync(self._fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            fd, self._fd = self._fd, -1
            self._dispose(fd, None if self.keep else self.path)


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


class SegmentWriter:
    """Appends frames to a directory's segments, a new file when one has ``segment_bytes``.

    Args:
        directory: made when the first frame comes, so that what never spills touches no disk.
    """

    def __init__(
        self,
        directory: Path,
        disk: MemoryPool,
        segment_bytes: int,
        dispose: Callable[[int, Path | None], None] = dispose_now,
    ) -> None:
        self.directory = directory
        self._disk = disk
        self._dispose = dispose
        self._segment_bytes = segment_bytes
        self._segment: Segment | None = None
        self._count = 0
        self._lock = threading.Lock()

    def append(self, messages: Sequence[bytes]) -> list[SegmentSlice]:
        """Write the messages; a slice for each, in their order. Blocks.

        Raises:
            DiskTrouble: none of them was written.
        """
        with self._lock:
            segment = self._segment or self._open()
            self._segment = segment
            try:
                offset = segment.append(messages, sum(map(len, messages)))
            except DiskTrouble:
                self._segment = None  # its directory may be gone: the next try opens another
                raise
            slices = []
            for message in messages:
                slices.append(SegmentSlice(segment, offset, len(message)))
                offset += len(message)
            if segment.size_bytes >= self._segment_bytes:
                self._segment = None
            return slices

    def seal(self) -> None:
        """Further frames go to a new segment; the present one belongs to its slices alone."""
        with self._lock:
            self._segment = None

    def _open(self) -> Segment:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            while True:
                self._count += 1
                try:
                    return Segment(
                        self.directory / f"segment-{self._count:06}", self._disk, dispose=self._dispose
                    )
                except FileExistsError:
                    continue
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise DiskTrouble(f"{self.directory}: {error.strerror or error}", full=full) from error
