"""A local file for the batches that do not fit a merge's memory budget.

Guarantee: ``read(park(batches))`` equals ``batches``, dictionaries included. The disk is free again after the process
has ended in any way.

Format
    A scratch is a sequence of *segments*: files without a name, of about ``segment_bytes``. A segment is a sequence
    of *extents*, written one after the other and never changed. An extent is one complete Arrow IPC stream (schema,
    dictionaries, record batches, end marker). It is valid when its :class:`Parked` exists, which is made after the
    last byte was written. It has no checksum, because it does not outlive this process.
    Of rows with the same dictionaries the stream may also be in several extents (:class:`SharedHead`): a *head* with
    the schema and the dictionaries, and one with a record batch for each of those that follow it.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

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


class _Extents:
    """A file for Arrow's reader that has the bytes of extents one after the other, each read when it is needed."""

    closed = False

    def __init__(self, extents: Iterable[Parked]) -> None:
        self._extents = iter(extents)
        self._left = pa.py_buffer(b"")
        self.count = 0

    def read(self, size_bytes: int) -> pa.Buffer:
        if size_bytes and not self._left.size and (parked := next(self._extents, None)) is not None:
            self._left = _bytes_of(parked)
            self.count += 1
        size_bytes = min(size_bytes, self._left.size)
        part, self._left = self._left.slice(0, size_bytes), self._left.slice(size_bytes)
        return part

    def close(self) -> None:
        """For Arrow's reader."""


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
        return self._append(gather.take(), len(batches))

    def _append(self, pieces: list[memoryview], batches: int) -> Parked:
        """Write one extent. The same errors as ``park``."""
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
        return Parked(segment, offset, size_bytes, batches)

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

    def read_after(self, head: Parked, rows: Iterable[Parked]) -> Iterator[pa.RecordBatch]:
        """The batches that were parked with this head (:class:`SharedHead`), one by one; they share its dictionaries.
        Each has memory of its own. Raises CorruptFrame.
        """
        extents = _Extents(chain([head], rows))
        count = 0
        try:
            with pa.ipc.open_stream(pa.PythonFile(extents, mode="r")) as reader:
                reader.read_next_batch()  # the head's own, which has no rows
                for batch in reader:
                    count += 1
                    yield batch
        except (OSError, pa.ArrowInvalid, StopIteration) as error:
            raise CorruptFrame(
                f"a batch cannot be read back from the scratch file in {self.directory}: {error}"
            ) from error
        if count + 1 != extents.count:
            # As in read.
            raise CorruptFrame(
                f"{count} of {extents.count - 1} batches came back from the scratch file in {self.directory}"
            )

    def read_each(self, places: Iterable[tuple[Parked, Parked]]) -> Iterator[pa.RecordBatch]:
        """The batches of these heads and rows; a head is read once for those that follow it. As :meth:`read_after`."""
        for head, group in groupby(places, key=itemgetter(0)):
            yield from self.read_after(head, (rows for _, rows in group))

    def close(self) -> None:
        """Refuse new batches. Parked batches stay readable; twice is fine."""
        with self._lock:
            self._closed = True
            self._current = None


class SharedHead:
    """Parks batches of one schema, whose dictionaries are written once for all that have the same, one after the other.
    It keeps the dictionaries of the last batch in RAM.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._gather = KeptBuffers()
        self._writer: Any = None
        self._head: Parked | None = None

    def park(self, rows: pa.RecordBatch) -> tuple[Parked, Parked]:
        """The extents of the head, which may be that of earlier batches, and of the rows. Raises as Scratch.park."""
        self._gather.take()  # of a write that failed
        head, written = self._head, None if self._head is None else self._written(rows)
        if head is None or written is None:
            self._head = None
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._gather, mode="w"), rows.schema)
            self._writer.write_batch(rows.slice(0, 0))
            head = self._head = self._scratch._append(self._gather.take(), 1)
            written = self._written(rows)
            assert written is not None
        return head, self._scratch._append(written, 1)

    def _written(self, rows: pa.RecordBatch) -> list[memoryview] | None:
        """Arrow's bytes; None if other dictionaries are before them."""
        before = self._writer.stats.num_dictionary_batches
        self._writer.write_batch(rows)
        pieces = self._gather.take()
        return pieces if self._writer.stats.num_dictionary_batches == before else None


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
