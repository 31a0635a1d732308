"""Run: sorted updates of a span of versions, in blocks that follow each other; never changed. A run in memory is one
block; those of a ``RunFile`` (``run_files``) are read from disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import Hashes, array_over, unique
from flight_server.memory import Reservation

from .hits import BlockHits, Hits
from .layout import Layout
from .updates import DELETE, Numbers, Updates

MAX_HASH = (1 << 64) - 1


class Damaged(Exception):
    """Bytes on disk differ from the written ones."""


Flags = NDArray[np.bool_]


@dataclass
class Counts:
    """How many rows there are of which kind in each range of hashes, which begins at a low.

    Args:
        sinces: a row is ``alive`` if it is newer than that of its range,
        upto: and ``old`` if it is not newer than this version beside that.
        ends_keys: which updates may end their keys, beside tombstones; None if none do.

    ``retracting``: how many old rows are retractions; ``ending``: the hashes, sorted and unique, of old rows that end
    keys; ``recount_at``: it is an earlier answer, and there is another one then (``time.monotonic``).
    """

    lows: Hashes
    sinces: Numbers
    upto: int
    ends_keys: Callable[[Updates], Flags] | None = None

    def __post_init__(self) -> None:
        self.alive, self.old, self.retracting = (np.zeros(len(self.lows), np.int64) for _ in range(3))
        self.ending: Hashes = np.zeros(0, np.uint64)
        self.recount_at: float | None = None

    def add(self, updates: Updates) -> None:
        """Count these, too."""
        starts = np.searchsorted(updates.hashes, self.lows, "left")
        rows = np.diff(starts, append=len(updates))
        versions, diffs = updates.versions, updates.diffs
        alive = versions > np.repeat(self.sinces, rows)
        old = alive & (versions <= self.upto)
        self._sum(self.alive, alive, starts, rows)
        self._sum(self.old, old, starts, rows)
        if updates.retractions:
            self._sum(self.retracting, old & (diffs < 0) & (diffs != DELETE), starts, rows)
        ending = diffs == DELETE
        if self.ends_keys is not None:
            ending |= self.ends_keys(updates)
        ending &= old
        if ending.any():
            self.ending = unique(self.ending, updates.hashes[ending])

    @staticmethod
    def _sum(into: Numbers, flags: Flags, starts: Numbers, rows: Numbers) -> None:
        below = np.concatenate([[0], np.cumsum(flags)])
        into += below[starts + rows] - below[starts]


def to_block(updates: Updates) -> pa.Buffer:
    """The encapsulated message of these updates."""
    extra = map(array_over, (updates.hashes, updates.versions, updates.diffs))
    batch = pa.RecordBatch.from_arrays([*updates.rows.columns, *extra], schema=updates.layout.block_schema)
    return batch.serialize()


def of_block(layout: Layout, data: Any, version: int | None = None) -> Updates:
    """The updates of a message, which they refer to. Raises Damaged if it is none."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), layout.block_schema)
        rows = pa.RecordBatch.from_arrays(batch.columns[:-3], schema=layout.schema)  # checks the columns
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise Damaged(f"a block of {len(data)} bytes is not a record batch: {error}") from error
    hashes, versions, diffs = (batch.column(-3 + place).to_numpy() for place in range(3))
    if version is not None:
        versions = np.broadcast_to(np.int64(version), len(diffs))
    return Updates(layout, rows, hashes, versions, diffs)


class Block(NamedTuple):
    """A block, as the records name those of a file: where it is, what it has, and its checksum. ``low``, ``high``: its
    least and its greatest hash; ``retractions``, ``tombstones``: as of :class:`Updates`.
    """

    offset: int
    size_bytes: int
    rows: int
    low: int
    high: int
    first_version: int
    last_version: int
    retractions: int
    tombstones: int
    crc32c: int

    @classmethod
    def of(cls, updates: Updates, offset: int, size_bytes: int, crc32c: int) -> Block:
        """A block of these updates, which are some."""
        hashes, versions = updates.hashes, updates.versions
        ends = int(hashes[0]), int(hashes[-1]), int(versions.min()), int(versions.max())
        removed = updates.retractions, updates.tombstones
        return cls(offset, size_bytes, len(updates), *ends, *removed, crc32c)


class Run:
    """Its methods may block, and may be called from any thread. Numbers of bytes are about right."""

    def __init__(self, layout: Layout, blocks: Sequence[Block]) -> None:
        self.layout = layout
        self.size_bytes = sum(block.size_bytes for block in blocks)
        self._sum_up(blocks)

    def _sum_up(self, blocks: Sequence[Block]) -> None:
        # Attributes, because planning and small reads ask every run for them.
        self.blocks = blocks
        self.rows = sum(block.rows for block in blocks)
        self.retractions = sum(block.retractions for block in blocks)
        self.tombstones = sum(block.tombstones for block in blocks)
        self.first_version = min((block.first_version for block in blocks), default=0)
        self.last_version = max((block.last_version for block in blocks), default=0)

    @property
    def only_removes(self) -> bool:
        """Whether each diff is below zero."""
        return self.retractions + self.tombstones == self.rows

    def block(self, number: int) -> Updates:
        """The updates of a block. Raises Damaged, OSError, as all that follow."""
        raise NotImplementedError

    @cached_property
    def _lows(self) -> Hashes:
        return np.array([block.low for block in self.blocks], np.uint64)

    @cached_property
    def _highs(self) -> Hashes:
        return np.array([block.high for block in self.blocks], np.uint64)

    @cached_property
    def _before(self) -> NDArray[np.float64]:
        """Of each block the rows and bytes before it; and all."""
        return np.cumsum([(0.0, 0.0), *((block.rows, block.size_bytes) for block in self.blocks)], axis=0)

    def ends(self) -> tuple[int, int]:
        """The least and the greatest hash; of a run without rows those of one that has every hash."""
        return (self.blocks[0].low, self.blocks[-1].high) if self.blocks else (0, MAX_HASH)

    def counts(self, question: Counts) -> Counts:
        """The answer to an empty one."""
        counts = replace(question)
        for number, block in enumerate(self.blocks):
            ends = np.array([block.low, block.high], np.uint64)
            place, until = (np.searchsorted(question.lows, ends, "right") - 1).tolist()
            sinces = question.sinces[place : max(place, until) + 1]
            if block.last_version <= sinces.min():
                continue
            young = block.first_version > question.upto
            plain = not (block.retractions or block.tombstones or question.ends_keys)
            alike = young or (plain and block.last_version <= question.upto)
            if place == until and block.first_version > sinces[0] and alike:
                counts.alive[place] += block.rows
                counts.old[place] += 0 if young else block.rows
            else:
                counts.add(self.block(number))
        return counts

    def below(self, hash_: int) -> NDArray[np.float64]:
        """How many rows have a smaller hash, and how many bytes these have."""
        number = (
            int(np.searchsorted(self._highs, np.uint64(hash_), "left"))
            if hash_ <= MAX_HASH
            else len(self.blocks)
        )
        before: NDArray[np.float64] = self._before[number]
        if number == len(self.blocks) or int(self._lows[number]) >= hash_:
            return before
        rows = int(np.searchsorted(self.block(number).hashes, np.uint64(hash_), "left"))
        block = self.blocks[number]
        return np.add(before, [rows, block.size_bytes * rows / block.rows])

    def between(self, low: int, high: int) -> Updates:
        """The updates whose hash is from ``low`` to ``high``, both included."""
        return Updates.in_order(self.layout, self.parts_between(low, high))

    def parts_between(self, low: int, high: int) -> list[Updates]:
        """The same in parts that follow each other and share the run's memory or mapping."""
        return [self.block(number).between(low, high) for number in self._blocks_between(low, high)]

    def _blocks_between(self, low: int, high: int) -> range:
        start = int(np.searchsorted(self._highs, np.uint64(low), "left"))
        return range(start, int(np.searchsorted(self._lows, np.uint64(high), "right")))

    def hits(self, hashes: Hashes) -> Hits:
        """Where it has these hashes, which are sorted and unique."""
        if len(self.blocks) == 1:
            spans = [(0, 0, len(hashes))]
        else:
            starts = np.searchsorted(hashes, self._lows, "left")
            stops = np.searchsorted(hashes, self._highs, "right")
            numbers = np.flatnonzero(starts < stops)
            spans = list(
                zip(*(each.tolist() for each in (numbers, starts[numbers], stops[numbers])), strict=True)
            )
        blocks = []
        for number, start, stop in spans:
            updates, block = self.block(number), self.blocks[number]
            ends = updates.ends_of(hashes[start:stop])
            blocks.append(BlockHits(start, updates, *ends, block.size_bytes / block.rows))
        return Hits(len(hashes), blocks)

    def changed(self, after: int, upto: int, low: int = 0, high: int = MAX_HASH) -> Hashes:
        """The hashes, with repetitions, from ``low`` to ``high``, both included, of updates whose version is above
        ``after`` and not above ``upto``.
        """
        parts, everywhere = [], (low, high) == (0, MAX_HASH)
        for number in range(len(self.blocks)) if everywhere else self._blocks_between(low, high):
            block = self.blocks[number]
            if block.last_version > after and block.first_version <= upto:
                updates = self.block(number) if everywhere else self.block(number).between(low, high)
                hashes, versions = updates.hashes, updates.versions
                whole = after < block.first_version and upto >= block.last_version
                parts.append(hashes if whole else hashes[(versions > after) & (versions <= upto)])
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.uint64), *parts])


class MemoryRun(Run):
    """A run in memory. ``room`` counts its bytes."""

    def __init__(self, updates: Updates, room: Reservation) -> None:
        self.updates = updates
        self._room = room
        super().__init__(
            updates.layout, [Block.of(updates, 0, updates.size_bytes, 0)] if len(updates) else []
        )

    def block(self, number: int) -> Updates:
        del number
        return self.updates

    def count(self) -> None:
        """Let its bytes count, if its room is empty; also beyond the limit."""
        self._room.grow(self.size_bytes - self._room.size_bytes)
