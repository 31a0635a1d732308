"""A local file for the batches that do not fit a merge's memory budget.

Guarantee: ``read(park(batches))`` equals ``batches``, dictionaries included. The disk is free again after the process
has ended in any way.

Format
    A scratch is a sequence of *segments*: files without a name, of about ``segment_bytes``. A segment is a sequence
    of *extents*, written one after the other and never changed. An extent is one complete Arrow IPC stream (schema,
    dictionaries, record batches, end marker). It is valid when its :class:`Parked` exists, which is made after the
    last byte was written. It has no checksum, because it does not outlive this process.

Who holds the data
    A ``Parked`` refers to its segment, and a segment's last reference closes its file. So disk space is freed segment
    by segment as the consumer advances, without a release call.

Failure
    A write that fails (full disk, missing directory) truncates its part and raises ``OutOfBudget``; earlier extents
    stay readable, and a later ``park`` may succeed.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from flight_server.protocol import CorruptFrame, OutOfBudget
from spark_client.arrow import KeptBuffers

from .gathered import TaskMemory

SEGMENT_BYTES = 64 << 20
_GATHER = 512
"""Buffers per ``pwritev``; the kernel takes at most 1,024."""


class _Segment:
    """An open file without a name, closed with its last reference."""

    __slots__ = ("_file", "fd", "size_bytes")

    def __init__(self, directory: str) -> None:
        self._file = tempfile.TemporaryFile(prefix="flight-shuffle-", dir=directory, buffering=0)  # noqa: SIM115  # it lives as long as this object
        self.fd = self._file.fileno()
        self.size_bytes = 0

    def __del__(self) -> None:
        # The constructor may have failed before it opened the file.
        if hasattr(self, "_file"):
            self._file.close()


@dataclass(frozen=True, slots=True)
class Parked:
    """The place of one ``park``'s batches, which stay on the disk as long as this object."""

    segment: _Segment
    offset: int
    size_bytes: int
    batches: int


class Scratch:
    """The scratch of one merge.

    Args:
        directory: None for the system's temporary directory (``TMPDIR``). First used when a batch is parked.
        memory: counts the bytes that are written.
        segment_bytes: the size after which a new segment begins. At most this much disk space, plus one batch, is
            held for extents without a reference.
    """

    def __init__(
        self,
        directory: str | None = None,
        *,
        memory: TaskMemory | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.directory = directory if directory is not None else tempfile.gettempdir()
        self._memory = memory
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._current: _Segment | None = None
        self._closed = False
        self.written_bytes = 0

    def park(self, batches: Sequence[pa.RecordBatch]) -> Parked:
        """Write batches of one schema, at least one, and their dictionaries. Threads write one at a time.

        Raises:
            OutOfBudget: the file cannot be written.
            ValueError: the scratch is closed.
        """
        gather = KeptBuffers()
        with pa.ipc.new_stream(pa.PythonFile(gather, mode="w"), batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        pieces = gather.take()
        size_bytes = sum(map(len, pieces))
        with self._lock:
            if self._closed:
                raise ValueError("the scratch is closed")
            try:
                segment = self._current
                if segment is None or segment.size_bytes >= self._segment_bytes:
                    self._current = segment = _Segment(self.directory)
                offset = segment.size_bytes
                _write(segment.fd, pieces, offset)
            except OSError as error:
                # Else half a batch would take disk space until the segment is closed.
                if self._current is not None:
                    os.ftruncate(self._current.fd, self._current.size_bytes)
                raise OutOfBudget(
                    f"the client's memory budget is used up and its scratch file in {self.directory} cannot "
                    f"be written ({error.strerror}): give the client more memory, or a scratch_dir with room",
                    scratch_dir=self.directory,
                ) from error
            segment.size_bytes += size_bytes
            self.written_bytes += size_bytes
            if self._memory is not None:
                self._memory.spilled_bytes += size_bytes
        return Parked(segment, offset, size_bytes, len(batches))

    def read(self, parked: Parked) -> list[pa.RecordBatch]:
        """The batches, in one new buffer. Takes no lock; twice is fine. Raises CorruptFrame: the file's bytes are not
        those that were written.
        """
        try:
            with pa.ipc.open_stream(_bytes_of(parked)) as reader:
                batches = list(reader)
        except (OSError, pa.ArrowInvalid) as error:
            raise CorruptFrame(
                f"a batch cannot be read back from the scratch file in {self.directory}: {error}"
            ) from error
        if len(batches) != parked.batches:
            # Arrow's decoder takes zeros for the end of the stream.
            raise CorruptFrame(
                f"{len(batches)} of {parked.batches} batches came back from the scratch file in {self.directory}"
            )
        return batches

    def close(self) -> None:
        """Refuse new batches. Parked batches stay readable; twice is fine."""
        with self._lock:
            self._closed = True
            self._current = None


def _bytes_of(parked: Parked) -> pa.Buffer:
    """The extent, in a new buffer. Raises OSError."""
    buffer = pa.allocate_buffer(parked.size_bytes)
    view = memoryview(buffer)
    done = 0
    while done < parked.size_bytes:
        count = os.preadv(parked.segment.fd, [view[done:]], parked.offset + done)
        if count == 0:
            raise OSError(0, "the file ends too early")
        done += count
    return buffer


def _write(fd: int, pieces: list[memoryview], offset: int) -> None:
    """Write all pieces at ``offset``; ``pwritev`` may write less without an error."""
    for start in range(0, len(pieces), _GATHER):
        group = pieces[start : start + _GATHER]
        while group:
            count = os.pwritev(fd, group, offset)
            offset += count
            while group and count >= len(group[0]):
                count -= len(group[0])
                group.pop(0)
            if group and count:
                group[0] = group[0][count:]
