"""Manifest: the file that makes segments a durable dataset.

Guarantee: :meth:`Manifest.decode` returns exactly what :meth:`Manifest.encode` was given, or raises; both accept the
same manifests. A dataset is on disk if and only if its manifest and the segments that it names are there and valid.

Format
    ``manifest`` is in the directory of the dataset's segments. Numbers are unsigned and little-endian. ::

        8 bytes   magic, "FLSHMAN4"
        u32       length of the header
        header    UTF-8 JSON: the fields of :class:`Manifest` but the frames
        frames    40 bytes each, the partitions' one after the other in the header's order:
                      u32  segment, as an index into the header's "segments"
                      u64  offset of the message in the segment
                      u64  its length
                      u64  rows
                      u32  CRC-32C of its IPC message, see ``checksums``
                      u32  CRC-32C of its app_metadata
                      u32  dictionary state, as an index into the header's "states"
        footer    u64 length of all of the above, u32 its CRC-32C, 8 bytes magic

    A *state* maps dictionary ids to indices into "dictionaries": the messages that a reader needs before the frame,
    in this order.

Validity
    The file has the footer's length plus 20 bytes; both magics and the CRC are right; the header has these keys only;
    segments have names of the form ``segment-000001``; each index and range lies within what it refers to. Each segment
    has at least the length that "segments" says; bytes behind that are not part of the dataset. The frames' checksums
    are verified at each read: a later flipped bit costs one partition, not the server's start.

Algorithm of a reader
    1. Read ``manifest``. If it is missing, the dataset was never sealed, or was forgotten: delete the server's files
       in the directory. If it is not valid, it is damaged: it was whole when it got its name.
    2. Of several manifests of one dataset take the one with the highest ``sequence``: it replaced the others.
    3. Open the segments; if one is missing or too short, the dataset is damaged (see ``tiering.recovery``).
    4. Delete every segment that the manifest does not name.

A manifest is never changed. Its magic is its version: a file with another one is refused and left as it is.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from flight_server.protocol import (
    FlightShuffleError,
    Kind,
    Retention,
    check_attempt,
    check_dataset_name,
)
from flight_server.records import OtherFormat

MAGIC = b"FLSHMAN4"
_LENGTH = struct.Struct("<I")
_FRAME = struct.Struct("<IQQQIII")
_FRAMES = np.dtype(
    [
        ("segment", "<u4"),
        ("offset", "<u8"),
        ("size_bytes", "<u8"),
        ("rows", "<u8"),
        ("crc32c", "<u4"),
        ("metadata_crc32c", "<u4"),
        ("state", "<u4"),
    ]
)
_FOOTER = struct.Struct("<QI8s")
_SEGMENT_NAME = re.compile(r"segment-[0-9]{6,}")
_GENERATION = re.compile(r"[0-9a-zA-Z]{1,64}")


TransactionEntry = tuple[int, ...]
"""A transaction id as manifests, and the state files of datasets with versions, store it. Integers: when it was used
last, in seconds since the epoch; the number below which some that were committed may have been forgotten; and the
remembered numbers, ascending, each with the version that it made. The version of a plain dataset is 1, or 0 if the
write was in a generation that was overwritten.
"""


class Torn(Exception):
    """It is not a valid manifest."""


def parse_transaction(value: object) -> TransactionEntry:
    """An entry as it was stored. Raises ValueError or TypeError if it is none."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no transaction")
    entry = tuple(map(int, value))
    numbers = entry[2::2]
    if len(entry) < 4 or len(entry) % 2 or sorted({*numbers}) != [*numbers] or min(entry[1:]) < 0:
        raise ValueError(f"{value!r} is no transaction")
    return entry


class FrameRecord(NamedTuple):
    """The place and the facts of a frame, in the format's order."""

    segment: int
    offset: int
    size_bytes: int
    rows: int
    crc32c: int
    metadata_crc32c: int
    state: int


class DictionaryRecord(NamedTuple):
    """Where a dictionary message is; ``sequence`` is its number among its producer's messages."""

    segment: int
    offset: int
    size_bytes: int
    crc32c: int
    sequence: int


class PartitionRecord(NamedTuple):
    """A sealed partition: its totals, and how many of its frames, from ``first`` on, are listed."""

    partition: int
    first: int
    listed: int
    frames: int
    rows: int
    size_bytes: int
    crc32c: int


class PackedFrames:
    """Frame records as the file has them; an iteration makes one at a time."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | bytearray | memoryview = b"") -> None:
        self.data = bytearray(data)

    @classmethod
    def of(cls, records: Iterable[FrameRecord]) -> PackedFrames:
        packed = cls()
        for record in records:
            packed.append(record)
        return packed

    def append(self, record: FrameRecord) -> None:
        self.data += _FRAME.pack(*record)

    def part(self, start: int, count: int) -> Iterator[FrameRecord]:
        size_bytes = _FRAME.size
        with memoryview(self.data) as data:
            yield from map(
                FrameRecord._make, _FRAME.iter_unpack(data[start * size_bytes : (start + count) * size_bytes])
            )

    def within(self, segments_bytes: list[int], states: int) -> bool:
        """Whether each frame lies within a segment and has a state. Makes no object for each of millions."""
        records = np.frombuffer(self.data, _FRAMES)
        if not len(records):
            return True
        if not segments_bytes or records["segment"].max() >= len(segments_bytes):
            return False
        limits, sizes = np.array(segments_bytes, np.uint64)[records["segment"]], records["size_bytes"]
        # A sum of offset and size could be above 64 bits.
        inside = (sizes <= limits) & (records["offset"] <= limits - np.minimum(sizes, limits))
        return bool(inside.all()) and bool(records["state"].max() < states)

    def __iter__(self) -> Iterator[FrameRecord]:
        return self.part(0, len(self))

    def __len__(self) -> int:
        return len(self.data) // _FRAME.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedFrames) and self.data == other.data

    __hash__ = None  # type: ignore[assignment]  # not hashable, as a list is not: it can be appended to


@dataclass(frozen=True)
class Manifest:
    """The contents of a manifest.

    Args:
        schema: the schema message's IPC header in base64; None if the dataset never had one.
        accepted: a shuffle's accepted attempts: after a restart a seal with the same ones is still fine.
        transactions: the entry of each id (:data:`TransactionEntry`), the one used least recently first.
        forgotten: the ids that are not remembered, as ``datasets.transactions`` encodes them.
        sealed_at: seconds since the epoch.
    """

    dataset: str
    kind: str
    generation: str
    sequence: int
    partition_count: int
    producers: int | None
    retention: Any
    lease_seconds: float | None
    schema: str | None
    accepted: dict[str, str] | None
    transactions: dict[str, TransactionEntry]
    forgotten: str
    sealed_at: float
    segments: list[tuple[str, int]]
    dictionaries: list[DictionaryRecord]
    states: list[list[tuple[int, list[int]]]]
    partitions: list[PartitionRecord]
    frames: PackedFrames

    def encode(self) -> bytes:
        """The file's bytes. Raises Torn if :meth:`decode` would not take them."""
        self._check()
        header = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "frames"}
        text = json.dumps(header, separators=(",", ":")).encode()
        body = b"".join((MAGIC, _LENGTH.pack(len(text)), text, self.frames.data))
        return body + _FOOTER.pack(len(body), google_crc32c.value(body), MAGIC)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Raises Torn if the bytes are not a manifest, OtherFormat if another version wrote them."""
        body = _covered_bytes(data)
        start = len(MAGIC) + _LENGTH.size
        (length,) = _LENGTH.unpack_from(body, len(MAGIC))
        records = body[start + length :]
        try:
            header = json.loads(bytes(body[start : start + length]))
            if set(header) != {field.name for field in fields(cls)} - {"frames"}:
                raise Torn("the header has other keys")
            header["segments"] = [(str(name), int(size)) for name, size in header["segments"]]
            header["dictionaries"] = [DictionaryRecord(*map(int, each)) for each in header["dictionaries"]]
            header["states"] = [
                [(int(number), list(map(int, messages))) for number, messages in state]
                for state in header["states"]
            ]
            header["partitions"] = [PartitionRecord(*map(int, each)) for each in header["partitions"]]
            header["transactions"] = {
                name: parse_transaction(value) for name, value in header["transactions"].items()
            }
            _require("the length of the frames", holds=len(records) % _FRAME.size == 0)
            manifest = cls(**header, frames=PackedFrames(records))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Torn(str(error)) from error
        manifest._check()
        return manifest

    def frames_by_partition(self) -> Iterator[tuple[PartitionRecord, int]]:
        """Each partition, and the index in ``frames`` of its first listed frame."""
        at = 0
        for partition in self.partitions:
            yield partition, at
            at += partition.listed

    def _check(self) -> None:
        """Raise Torn if an index, a range or a name is not valid."""
        try:
            self._check_values()
        except (ValueError, TypeError, AttributeError, OverflowError, FlightShuffleError) as error:
            raise Torn(str(error)) from error

    def _check_values(self) -> None:
        check_dataset_name(self.dataset)
        Kind(self.kind)
        Retention.parse(self.retention)
        for name, entry in self.transactions.items():
            check_attempt(name, "a transaction's id")
            _require("a transaction", holds=parse_transaction(entry) == entry)
        _require("what is forgotten", holds=len(base64.b64decode(self.forgotten, validate=True)) % 8 == 0)
        _require("the generation", holds=bool(_GENERATION.fullmatch(self.generation)))
        _require("a segment's name", holds=all(_SEGMENT_NAME.fullmatch(name) for name, _ in self.segments))
        _require(
            "the number of frames", holds=sum(each.listed for each in self.partitions) == len(self.frames)
        )
        _require(
            "a partition",
            holds=all(
                0 <= each.partition < self.partition_count and each.first + each.listed == each.frames
                for each in self.partitions
            ),
        )
        _require("a dictionary's place", holds=all(self._within(each) for each in self.dictionaries))
        _require(
            "a dictionary state",
            holds=all(
                0 <= message < len(self.dictionaries)
                for state in self.states
                for _, messages in state
                for message in messages
            ),
        )
        _require(
            "a frame's place",
            holds=self.frames.within([size_bytes for _, size_bytes in self.segments], len(self.states)),
        )

    def _within(self, record: FrameRecord | DictionaryRecord) -> bool:
        if not 0 <= record.segment < len(self.segments):
            return False
        return 0 <= record.offset <= record.offset + record.size_bytes <= self.segments[record.segment][1]


def _require(what: str, *, holds: bool) -> None:
    if not holds:
        raise ValueError(f"{what} is not valid")


def _covered_bytes(data: bytes) -> memoryview:
    """The bytes that the footer covers. Raises as :meth:`Manifest.decode`."""
    size_bytes = len(data) - _FOOTER.size
    if size_bytes < len(MAGIC) + _LENGTH.size:
        raise Torn(f"{len(data)} bytes are too few")
    length, checksum, magic = _FOOTER.unpack_from(data, size_bytes)
    body = data[:size_bytes]
    if length != size_bytes or not body.startswith(magic):
        raise Torn(f"a file of {len(data)} bytes does not end where it says")
    if google_crc32c.value(body) != checksum:
        raise Torn("the footer's checksum is another one")
    if magic != MAGIC:
        raise OtherFormat(
            f"its manifest has format {magic.decode('ascii', 'replace')}, and this version reads {MAGIC.decode()}: "
            "start the version that wrote it, or move the directory away; nothing was changed"
        )
    return memoryview(body)
