"""Records: all that is known of the frames of one partition or attempt without their bytes, in 28 bytes each.

Guarantee: ``record`` returns what was appended and placed, until it is released.

Who holds what
    This object holds blocks of ``BLOCK_FRAMES`` records, and once each the segments on disk (by ``Segment.number``)
    and the dictionary states, until the last record that refers to them is released. Records are counted in
    ``metadata`` in advance, up to ``COUNTED_AT_ONCE`` at a time, and released a block at a time.

Packed
    The unreleased records of a table as one value (:func:`pack`), in which files and states are indices into lists::

        u64 x 3   numbers of records, of runs of one state, of frames with many rows
        28 bytes  for each record: u64 offset, u32 size, u32 rows, u32 CRC-32C of its IPC message, u32 that of its
                  app_metadata, u32 file
        u64 x 2   for each run: its first record, the state
        u64 x 2   for each frame with 2**32 - 1 rows or more: the record, the rows

    Numbers are little-endian; records are numbered from 0. Neither side makes an object for each record.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from flight_server.memory import RECORD_BYTES, Metadata, Reservation
from flight_server.storage import Segment

from .message import NO_DICTIONARIES, DictionaryState

BLOCK_FRAMES = 512
COUNTED_AT_ONCE = 64

_RECORD = struct.Struct("<QIIIII")  # offset, size, rows, both checksums, number of the segment
_pack = _RECORD.pack
_OFFSET, _SEGMENT = struct.Struct("=Q"), struct.Struct("=I")
_SEGMENT_AT = _RECORD.size - _SEGMENT.size
_SIZE_WORD, _WORDS = 2, _RECORD.size // 4
_IN_NO_SEGMENT = 0
_MANY = (1 << 32) - 1  # rows: the number is in _many_rows
_RECORDS = np.dtype(
    [
        ("offset", "<u8"),
        ("size_bytes", "<u4"),
        ("rows", "<u4"),
        ("crc32c", "<u4"),
        ("metadata_crc32c", "<u4"),
        ("file", "<u4"),
    ]
)
_HEAD = struct.Struct("<QQQ")
_PAIR = np.dtype([("record", "<u8"), ("value", "<u8")])


class Record(NamedTuple):
    """A frame without its bytes; ``segment`` is None while they are only in RAM."""

    offset: int
    size_bytes: int
    rows: int
    crc32c: int
    metadata_crc32c: int
    segment: Segment | None
    dictionaries: DictionaryState


@dataclass(slots=True)
class _Held:
    segment: Segment
    records: int = 0


@dataclass(slots=True, eq=False)
class Records:
    """The records of one partition or attempt, numbered from 0."""

    _metadata: Metadata
    _dataset: str
    _partition: int | None = None
    _reservation: Reservation | None = field(default=None, init=False)
    _base: int = field(default=0, init=False)  # the number of the first record of the first block
    # The records from the base to before this number are reserved.
    _counted: int = field(default=0, init=False)
    first: int = field(default=0, init=False)
    _length: int = field(default=0, init=False)
    total_bytes: int = field(default=0, init=False)
    _blocks: list[bytearray] = field(default_factory=list, init=False)
    _block_stop: int = field(default=0, init=False)  # the first record that the last block has no place for
    _state: DictionaryState = field(default=NO_DICTIONARIES, init=False)  # of the last record
    # Made when first needed: many tables have none.
    _starts: list[int] | None = field(default=None, init=False)  # the bytes before each block
    _held: dict[int, _Held] | None = field(default=None, init=False)
    # Each from a number on.
    _states: list[tuple[int, DictionaryState]] | None = field(default=None, init=False)
    _many_rows: dict[int, int] | None = field(default=None, init=False)

    def rename(self, partition: int) -> None:
        """It is that partition's now, in errors."""
        self._partition = partition

    def __len__(self) -> int:
        """How many were appended, the released ones included."""
        return self._length

    def add(
        self, size_bytes: int, rows: int, crc32c: int, metadata_crc32c: int, dictionaries: DictionaryState
    ) -> int:
        """Append a record without a place; its number. Raises OutOfBudget, and changes nothing, if there is no room."""
        index = self._length
        if index == self._counted:
            self._count_more()
        if index == self._block_stop:
            self._begin_block()
        if rows >= _MANY:
            self._many_rows = {**(self._many_rows or {}), index: rows}
            rows = _MANY
        self._blocks[-1] += _pack(0, size_bytes, rows, crc32c, metadata_crc32c, _IN_NO_SEGMENT)
        if dictionaries is not self._state:
            self._state = dictionaries
            self._states = self._states or []
            self._states.append((index, dictionaries))
        self._length = index + 1
        self.total_bytes += size_bytes
        return index

    def add_placed(self, record: Record) -> None:
        """Append a record with its place. Raises as :meth:`add`."""
        offset, size_bytes, rows, crc32c, metadata_crc32c, segment, dictionaries = record
        index = self.add(size_bytes, rows, crc32c, metadata_crc32c, dictionaries)
        if segment is not None:
            self.place(index, segment, offset)

    def make_room(self) -> None:
        """Count the next record even if it does not fit: another table counts it, too, and then releases it."""
        if self._length == self._counted:
            self._reservation = self._reservation or self._metadata.pool.empty()
            self._reservation.grow(RECORD_BYTES)
            self._counted += 1

    def place(self, index: int, segment: Segment, offset: int) -> None:
        """The bytes of an unreleased frame are there now."""
        block, at = self._find(index)
        self._unhold(_SEGMENT.unpack_from(block, at + _SEGMENT_AT)[0])
        if self._held is None:
            self._held = {}
        held = self._held.get(segment.number)
        if held is None:
            held = self._held[segment.number] = _Held(segment)
        held.records += 1
        _OFFSET.pack_into(block, at, offset)
        _SEGMENT.pack_into(block, at + _SEGMENT_AT, segment.number)

    def record(self, index: int) -> Record:
        block, at = self._find(index)
        offset, size_bytes, rows, crc32c, metadata_crc32c, number = _RECORD.unpack_from(block, at)
        if rows == _MANY and self._many_rows is not None:
            rows = self._many_rows[index]
        held = None if self._held is None else self._held.get(number)
        state = self._state
        if self._states is not None:
            place = bisect_right(self._states, index, key=itemgetter(0)) - 1
            state = self._states[place][1] if place >= 0 else NO_DICTIONARIES
        segment = None if held is None else held.segment
        return Record(offset, size_bytes, rows, crc32c, metadata_crc32c, segment, state)

    def records(self) -> Iterator[Record]:
        return map(self.record, range(self.first, self._length))

    def states(self) -> list[DictionaryState]:
        """Those of unreleased frames, in order; some may occur twice."""
        return [state for _, state in self._states or ()]

    def segments(self) -> list[Segment]:
        return [held.segment for held in (self._held or {}).values()]

    def bytes_before(self, index: int) -> int:
        """The bytes of all frames before an unreleased one."""
        block, place = divmod(index - self._base, BLOCK_FRAMES)
        with memoryview(self._blocks[block]) as data:
            sizes = data[: place * _RECORD.size].cast("I")[_SIZE_WORD::_WORDS]
            return sum(sizes, self._starts[block] if self._starts is not None else 0)

    def sizes(self) -> list[int]:
        """The bytes of each unreleased frame, in order."""
        sizes: list[int] = []
        for block in self._blocks:
            with memoryview(block) as data:
                sizes += data.cast("I")[_SIZE_WORD::_WORDS]
        return sizes[self.first - self._base :]

    def release(self, stop: int) -> None:
        if stop == self._length:
            self._release_all()
            return
        if self._held is not None:
            for index in range(self.first, stop):
                block, at = self._find(index)
                self._unhold(_SEGMENT.unpack_from(block, at + _SEGMENT_AT)[0])
        self.first = stop
        blocks = (stop - self._base) // BLOCK_FRAMES
        if blocks and self._starts is not None and self._reservation is not None:
            del self._blocks[:blocks], self._starts[:blocks]
            self._base += blocks * BLOCK_FRAMES
            self._reservation.shrink(blocks * BLOCK_FRAMES * RECORD_BYTES)
        while self._states is not None and len(self._states) > 1 and self._states[1][0] <= stop:
            del self._states[0]

    def fill(self, loaded: Records) -> None:
        """Take the records of a table that :func:`unpacked` has made, which is not used any more."""
        for name in Records.__slots__:
            if name not in _OWN:
                setattr(self, name, getattr(loaded, name))

    def copied(self) -> Records:
        """A copy that later changes do not reach. It is not counted: keep it for a moment."""
        copy = Records(Metadata(), self._dataset, self._partition)
        copy._base, copy.first, copy._length = self._base, self.first, self._length
        copy._blocks = list(map(bytearray, self._blocks))
        copy._held = dict(self._held or {})
        copy._state, copy._states = self._state, self._states and list(self._states)
        copy._many_rows = self._many_rows
        return copy

    def _runs(self) -> Iterator[tuple[int, DictionaryState]]:
        """Where runs of unreleased records of one state begin, counted from the first one."""
        if self._length > self.first:
            states = self._states or []
            if not states or states[0][0] > self.first:
                yield 0, NO_DICTIONARIES
            for begin, state in states:
                yield max(0, begin - self.first), state

    def _find(self, index: int) -> tuple[bytearray, int]:
        """The block of a record, and where it begins there."""
        block, place = divmod(index - self._base, BLOCK_FRAMES)
        return self._blocks[block], place * _RECORD.size

    def _begin_block(self) -> None:
        self._blocks.append(bytearray())
        self._block_stop += BLOCK_FRAMES
        if len(self._blocks) > 1 or self.total_bytes:
            if self._starts is None:
                self._starts = [0] * (len(self._blocks) - 1)
            self._starts.append(self.total_bytes)

    def _count_more(self) -> None:
        more = min(COUNTED_AT_ONCE, 1 + (self._length - self._base) // 4)
        if self._reservation is None:
            self._reservation = self._metadata.pool.empty()
        self._metadata.grow(
            self._reservation,
            more * RECORD_BYTES,
            "another frame's record",
            dataset=self._dataset,
            partition=self._partition,
        )
        self._counted += more

    def _unhold(self, number: int) -> None:
        if number != _IN_NO_SEGMENT and self._held is not None:
            held = self._held[number]
            held.records -= 1
            if held.records == 0:
                del self._held[number]

    def _release_all(self) -> None:
        self._base = self._counted = self._block_stop = self.first = self._length
        self._state = NO_DICTIONARIES
        self._reservation = None
        self._blocks = []
        self._starts = self._held = self._states = self._many_rows = None


_OWN = frozenset({"_metadata", "_dataset", "_partition"})


class Packed(NamedTuple):
    """Tables as bytes, each with the bytes of its frames. ``files``: each with the end of its last frame."""

    tables: list[bytes]
    frame_bytes: list[int]
    files: dict[Segment, int]
    states: list[DictionaryState]


def pack(tables: Sequence[Records]) -> Packed:
    """The unreleased records of the tables, which are all in segments. It takes long if there are many: call it in a
    thread, with tables that do not change.
    """
    segments = {number: held.segment for table in tables for number, held in (table._held or {}).items()}
    numbers = sorted(segments)
    data = bytearray()
    for table in tables:
        for block in table._blocks:
            skipped = table.first - table._base if block is table._blocks[0] else 0
            data += block if not skipped else block[skipped * _RECORD.size :]
    records = np.frombuffer(data, _RECORDS)
    files = np.searchsorted(np.array(numbers, np.uint32), records["file"])
    ends = np.zeros(len(numbers), np.uint64)
    if len(records):
        assert records["file"].min() > _IN_NO_SEGMENT, "a frame that was not written"
        by_file = np.argsort(files, kind="stable")
        begins = np.searchsorted(files[by_file], np.arange(len(numbers)))
        ends = np.maximum.reduceat((records["offset"] + records["size_bytes"])[by_file], begins)
        records["file"] = files
    before_bytes = np.concatenate([[0], np.cumsum(records["size_bytes"], dtype=np.uint64)])
    states: dict[DictionaryState, int] = {}
    packed: list[bytes] = []
    frame_bytes: list[int] = []
    at = 0
    for table in tables:
        count = len(table) - table.first
        runs = [(begin, states.setdefault(state, len(states))) for begin, state in table._runs()]
        many = [
            (index - table.first, rows)
            for index, rows in (table._many_rows or {}).items()
            if index >= table.first
        ]
        packed.append(
            b"".join(
                (
                    _HEAD.pack(count, len(runs), len(many)),
                    data[at * _RECORD.size : (at + count) * _RECORD.size],
                    np.array(runs + many, _PAIR).tobytes(),
                )
            )
        )
        frame_bytes.append(int(before_bytes[at + count] - before_bytes[at]))
        at += count
    ends_by_segment = {segments[number]: int(end) for number, end in zip(numbers, ends, strict=True)}
    return Packed(packed, frame_bytes, ends_by_segment, list(states))


def unpacked(
    data: bytes,
    length: int,
    total_bytes: int,
    *,
    room: Reservation,
    files: Sequence[tuple[Segment, int]],
    states: Sequence[DictionaryState],
) -> Records:
    """The table of records that :func:`pack` made, which are the last ones of ``length``, of ``total_bytes``. It takes
    long if there are many.

    Args:
        room: of all records.
        files: the segments by their index, each with how many of its bytes belong to the dataset.

    Raises:
        ValueError: the numbers do not fit together; or a frame does not lie in a file.
    """
    count, run_count, many_count = _HEAD.unpack_from(data.ljust(_HEAD.size, b"\0"))
    end = _HEAD.size + count * _RECORD.size
    if len(data) != end + (run_count + many_count) * _PAIR.itemsize:
        raise ValueError("its length is not that of its records")
    body = bytearray(data[_HEAD.size : end])
    records = np.frombuffer(body, _RECORDS)
    pairs = np.frombuffer(data, _PAIR, offset=end)
    runs, many = pairs[:run_count], pairs[run_count:]
    if count and records["file"].max() >= len(files):
        raise ValueError("a frame is in no file of the dataset")
    limits = np.array([size_bytes for _, size_bytes in files] or [0], np.uint64)[records["file"]]
    sizes = records["size_bytes"].astype(np.uint64)
    # A sum of offset and size could be above 64 bits.
    if not ((sizes <= limits) & (records["offset"] <= limits - np.minimum(sizes, limits))).all():
        raise ValueError("a frame is not within its file")
    begins = runs["record"]
    if run_count and not ((np.diff(begins) > 0).all() and runs["value"].max() < len(states)):
        raise ValueError("a frame has no state of the dataset")
    if many_count and many["record"].max() >= count:
        raise ValueError("a frame with many rows is not one of the partition")
    numbers, counts = np.unique(records["file"], return_counts=True)
    records["file"] = np.array([segment.number for segment, _ in files] or [0], np.uint32)[records["file"]]
    first, first_bytes = length - count, total_bytes - int(sizes.sum())
    table = Records(Metadata(), "")
    table._base = table.first = first
    table._length = table._counted = length
    table.total_bytes = total_bytes
    table._reservation = room
    block_bytes = BLOCK_FRAMES * _RECORD.size
    table._blocks = [body[start : start + block_bytes] for start in range(0, len(body), block_bytes)]
    table._block_stop = first + len(table._blocks) * BLOCK_FRAMES
    ends = np.cumsum(sizes)[BLOCK_FRAMES - 1 :: BLOCK_FRAMES].tolist()
    table._starts = [first_bytes, *(first_bytes + end for end in ends)][: len(table._blocks)]
    table._held = {}
    for number, records_of_file in zip(numbers.tolist(), counts.tolist(), strict=True):
        held = table._held[files[number][0].number] = _Held(files[number][0])
        held.records = records_of_file
    table._states = [(first + begin, states[state]) for begin, state in runs.tolist()] or None
    if table._states is not None:
        table._state = table._states[-1][1]
    table._many_rows = {first + index: rows for index, rows in many.tolist()} or None
    return table
