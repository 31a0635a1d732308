"""FrameTable: the frames of one partition or one attempt, in order.

Guarantee: every unreleased frame is found by its number. A frame in RAM is an object; one that has left RAM is a
record (see ``records``), and an object only while something refers to it.

Who holds what
    The table holds the frames in RAM, and by their records the segments of those on disk. A frame refers to its table
    weakly, so a table's last reference releases its contents.

Objects on demand
    ``item`` makes an object of a record, or returns the one that a reader holds, so that readers share bytes read back
    (:meth:`Message.share`).

Releasing
    More than ``FEW`` frames are released in steps, ``later``: their bytes are counted until then.

Victims
    Frames leave RAM in ranges, so their numbers are kept as ``NumberRanges``: a search skips those that have left.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from flight_server.concurrency import FEW, emptied, later
from flight_server.storage import SegmentSlice

from .message import Frame
from .number_ranges import NumberRanges
from .records import Record, Records


@dataclass(slots=True, eq=False, weakref_slot=True)
class FrameTable(Records):
    """The frames of one partition or attempt; the ``items`` of a partition's queue."""

    resident_bytes: int = field(default=0, init=False)  # of the frames in RAM
    # Made when first needed: many tables have none.
    _ranges: NumberRanges | None = field(default=None, init=False)
    _resident: dict[int, Frame] | None = field(default=None, init=False)
    _loaned: dict[int, weakref.ref[Frame]] | None = field(default=None, init=False)

    @property
    def resident_frames(self) -> int:
        return 0 if self._resident is None else len(self._resident)

    def append(self, frame: Frame, size_bytes: int) -> None:
        """Add the next frame. Raises as :meth:`add`."""
        index = self.add(size_bytes, frame.rows, frame.crc32c, frame.metadata_crc32c, frame.dictionaries)
        frame.home = weakref.ref(self)
        frame.index = index
        if frame.payload is not None:
            if self._resident is None or self._ranges is None:
                self._resident, self._ranges = {}, NumberRanges()
            self._resident[index] = frame
            self._ranges.add(index, index + 1)
            self.resident_bytes += size_bytes
        else:
            self._lend(index, frame)
        if frame.slice is not None:
            self.placed(index, frame.slice)

    def item(self, index: int) -> Frame:
        if self._resident is not None:
            frame = self._resident.get(index)
            if frame is not None:
                return frame
        return self._borrowed(index) or self._lend(index, self._made(index))

    def run(self, start: int, stop: int, size_bytes: int) -> list[Frame]:
        """As :meth:`Items.run`; it ends before a frame that is not in RAM."""
        resident, run = self._resident, list[Frame]()
        if resident is not None:
            for index in range(start, stop):
                frame = resident.get(index)
                if frame is None:
                    break
                size_bytes -= frame.size_bytes
                if size_bytes < 0 and run:
                    break
                run.append(frame)
        return run or [self.item(start)]

    def __del__(self) -> None:
        # Its frames would be released in one step. After an error in __init__ there are none.
        resident = getattr(self, "_resident", None)
        if resident is not None and len(resident) > FEW:
            later(emptied(resident))

    def release(self, stop: int) -> None:
        if stop == self._length and self._resident is not None and len(self._resident) > FEW:
            later(emptied(self._resident))
            self._resident = self._ranges = None
            self.resident_bytes = 0
        if self._resident is not None and self._ranges is not None:
            released = {index: self._resident.pop(index) for index in self._ranges.upwards(self.first, stop)}
            self.resident_bytes -= sum(frame.size_bytes for frame in released.values())
            self._ranges.remove(0, stop)
            if len(released) > FEW:
                later(emptied(released))
        Records.release(self, stop)

    def adopt(self, other: FrameTable, index: int) -> Record:
        """Take another table's frame, which that table releases next. Never refused; see :meth:`make_room`."""
        record = other.record(index)
        self.make_room()
        frame = other._resident.get(index) if other._resident is not None else None
        frame = frame or other._borrowed(index)
        if frame is not None:
            self.append(frame, frame.size_bytes)
        else:
            self.add_placed(record)
        return record

    def in_ram(self, start: int, stop: int, *, backwards: bool = False) -> Iterator[Frame]:
        """The frames in RAM from ``start`` to before ``stop``. None may enter or leave RAM during the iteration."""
        if self._resident is None or self._ranges is None:
            return iter(())
        numbers = self._ranges.downwards if backwards else self._ranges.upwards
        return map(self._resident.__getitem__, numbers(start, stop))

    # Calls by the frames

    def placed(self, index: int, slice_: SegmentSlice) -> None:
        """Its bytes are there on disk, too."""
        if index >= self.first:
            self.place(index, slice_.segment, slice_.offset)

    def left(self, index: int, frame: Frame) -> None:
        if self._resident is not None and self._ranges is not None and index in self._resident:
            del self._resident[index]
            self._ranges.remove(index, index + 1)
            self.resident_bytes -= frame.size_bytes
            if not self._resident:
                self._resident = self._ranges = None
            self._lend(index, frame)

    def _lend(self, index: int, frame: Frame) -> Frame:
        """Refer weakly to the object of a frame that is not in RAM."""
        loaned = {} if self._loaned is None else self._loaned
        loaned[index] = weakref.ref(frame, partial(_given_back, weakref.ref(self), index))
        self._loaned = loaned
        return frame

    def _borrowed(self, index: int) -> Frame | None:
        loan = self._loaned.get(index) if self._loaned is not None else None
        return loan() if loan is not None else None

    def _returned(self, index: int, loan: weakref.ref[Frame]) -> None:
        # Runs in the thread that dropped the last reference. A loan made in the same moment may be lost: then the frame
        # is made twice, and its bytes read back are not shared.
        loaned = self._loaned
        if loaned is not None and loaned.get(index) is loan:
            del loaned[index]
            if not loaned:
                self._loaned = None

    def _made(self, index: int) -> Frame:
        offset, size_bytes, rows, crc32c, metadata_crc32c, segment, dictionaries = self.record(index)
        assert segment is not None, "a frame that is neither in RAM nor on disk"
        frame = Frame(
            rows=rows,
            size_bytes=size_bytes,
            crc32c=crc32c,
            metadata_crc32c=metadata_crc32c,
            payload=None,
            dictionaries=dictionaries,
            slice=SegmentSlice(segment, offset, size_bytes),
        )
        frame.home = weakref.ref(self)
        frame.index = index
        return frame


def _given_back(home: weakref.ref[FrameTable], index: int, loan: weakref.ref[Frame]) -> None:
    table = home()
    if table is not None:
        table._returned(index, loan)
