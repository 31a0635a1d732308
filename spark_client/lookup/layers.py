"""A layer: some rows of a changelog and the index of their keys, in one file that many processes map.

Guarantee: :meth:`Layer.find` gives exactly the rows whose keys equal the wanted ones; a collision of hashes costs a
comparison. A file that :meth:`Layer.over` accepts is as :func:`write_layer` wrote it.

Contents
    A *whole* layer (``after`` is None) has all rows at ``version``. Another one has, of each key with a row that
    changed after version ``after``, all rows at ``version``; a key that has none there is *gone*: the layer has one row
    with this key, and nulls. Rows of gone keys come last, from row number ``live`` on. So a key that is in a layer is
    in no layer below it that counts, and layers made from different files fit together.

Format
    An Arrow IPC stream of *chunks*: batches of the keys in their normal form (``join_keys``), without nulls, and the
    values; the index (uint64, from a multiple of 64 bytes on): sorted *entries*, one for each row, of the upper 32 bits
    of the hash of its key (``Keys.of``) and, below them, its number; a footer in JSON; its length and CRC-32C, and
    eight bytes ``FSLAYER4``.

    Valid is a file whose last eight bytes, lengths and checksums agree; the footer has that of all bytes before it.
    A reader begins at the end.

Memory
    The writer holds a chunk, of at most ``CHUNK_ROWS`` rows or about ``CHUNK_BYTES``, twice, and the batches of the
    next one; and for each row 8 bytes, or 20 if the rows do not come in the order of their keys' hashes. A reader
    maps; pages that no probe touches take no RAM of its own.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.protocol import OutOfBudget, PartitionFailed
from flight_server.protocol.checksums import crc32c
from spark_client.arrow import NumberedRows, Picker, WriterFile, view
from spark_client.joining import Keys

CHUNK_ROWS = 1024 * 1024
CHUNK_BYTES = 64 * 1024 * 1024

MAX_ROWS = 1 << 32

_MAGIC = b"FSLAYER4"
_END = struct.Struct("<II8s")
_ALIGNED_BYTES = 64

Positions = NDArray[np.int64]


class LayerSink(Protocol):
    """The file that a layer is written to."""

    def write(self, data: Any, /) -> int: ...


_HASH = np.uint64(MAX_ROWS * (MAX_ROWS - 1))
_NUMBER = np.uint64(MAX_ROWS - 1)


@dataclass(frozen=True)
class Index:
    """The sorted entries of rows, see the module. One array, because it is sorted many times faster than two."""

    entries: NDArray[np.uint64]

    @classmethod
    def of(cls, hashes: NDArray[np.uint64], first: int = 0) -> Index:
        """The index of rows with these hashes, numbered from ``first`` on."""
        entries = np.arange(first, first + len(hashes), dtype=np.uint64)
        entries |= hashes & _HASH
        return cls(_sort(entries))

    @classmethod
    def joined(cls, parts: Sequence[Index]) -> Index:
        entries = np.concatenate([np.empty(0, np.uint64), *(part.entries for part in parts)])
        # Timsort finds the sorted runs, and only merges them.
        return cls(_sort(entries, "stable"))

    @classmethod
    def in_order(cls, parts: Sequence[Index]) -> Sequence[Index]:
        """One index of several, which have entries, in parts that follow each other; the given parts, if they follow
        each other already.
        """
        follow = all(before.entries[-1] < after.entries[0] for before, after in itertools.pairwise(parts))
        return parts if follow else (cls.joined(parts),)

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """The upper bits of each entry, the others zero."""
        return self.entries & _HASH

    @property
    def numbers(self) -> Positions:
        return (self.entries & _NUMBER).astype(np.int64)

    def filtered(self, kept: NDArray[np.bool_], first: int) -> Index:
        """Of the rows whose flags are set, numbered anew from ``first`` on."""
        chosen = Index(self.entries[kept[self.numbers]])
        return Index(chosen.hashes | (np.cumsum(kept) - 1 + first)[chosen.numbers].astype(np.uint64))

    def find(self, hashes: NDArray[np.uint64]) -> tuple[Positions, Positions, Positions]:
        """Of sorted hashes, as :attr:`hashes`, those that there are: their places in ``hashes``, the first entry of
        each, and how many it has.
        """
        low = np.searchsorted(self.entries, hashes)
        last = len(self.entries) - 1
        hits = np.flatnonzero(self.entries[np.minimum(low, last)] & _HASH == hashes)
        low, hashes = low[hits], hashes[hits]
        counts = np.ones(len(hits), np.int64)
        # Most hashes have one entry, and need no second search.
        more = np.flatnonzero((self.entries[np.minimum(low + 1, last)] & _HASH == hashes) & (low < last))
        counts[more] = np.searchsorted(self.entries, hashes[more] | _NUMBER, side="right") - low[more]
        return hits, low, counts


def _sort(entries: NDArray[np.uint64], kind: Literal["stable"] | None = None) -> NDArray[np.uint64]:
    """The entries, sorted in place. Those of a snapshot by the changelog's own key are so already."""
    if (entries[1:] < entries[:-1]).any():
        entries.sort(kind=kind)
    return entries


def write_layer(
    sink: LayerSink,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    keys: int,
    after: int | None,
    version: int,
    live: int | None = None,
    index: Index | None = None,
) -> None:
    """Write a layer of these batches, whose first ``keys`` columns are the keys.

    Args:
        live: the number of the first row of a gone key; None if there is none.
        index: of all rows, if it is known.

    Raises:
        OutOfBudget: there are more than ``MAX_ROWS``.
    """
    out = _Summed(sink)
    parts, starts, rows = list[Index](), list[int](), 0

    def add(held: list[pa.RecordBatch], first: int) -> None:
        chunk = pa.concat_batches(held)
        held.clear()
        if index is None:
            parts.append(Index.of(Keys.of(chunk.columns[:keys]).hashes, first))
        writer.write_batch(chunk)

    # A chunk is written by a thread, while the next one is received.
    with (
        pa.ipc.new_stream(pa.PythonFile(out, mode="w"), schema) as writer,
        ThreadPoolExecutor(1, "lookups: writes a layer") as threads,
    ):
        written: Future[None] | None = None
        for held in _chunks(batches, schema):
            first, rows = rows, rows + sum(batch.num_rows for batch in held)
            if rows > MAX_ROWS:
                raise OutOfBudget(f"a lookup takes at most {MAX_ROWS:,} rows of a changelog, and it has more")
            starts.append(first)
            if written is not None:
                written.result()
            written = threads.submit(add, held, first)
        if written is not None:
            written.result()
    out.write(bytes(-out.size_bytes % _ALIGNED_BYTES))
    entries_at = out.size_bytes
    for part in Index.in_order(parts) if index is None else (index,):
        out.write(part.entries)
    footer = {
        "after": after,
        "version": version,
        "rows": rows,
        "live": rows if live is None else live,
        "keys": keys,
        "starts": starts,
        "entries_at": entries_at,
        "crc32c": out.checksum,
    }
    text = json.dumps(footer).encode()
    sink.write(text)
    sink.write(_END.pack(len(text), crc32c(text), _MAGIC))


class Layer:
    """The layer in a file's bytes."""

    def __init__(self, data: pa.Buffer, footer: dict[str, Any]) -> None:
        self.after: int | None = footer["after"]
        self.version: int = footer["version"]
        self.rows: int = footer["rows"]
        self.live: int = footer["live"]
        self.key_count: int = footer["keys"]
        self.size_bytes: int = data.size
        self.index = Index(view(data.slice(footer["entries_at"], 8 * self.rows), np.uint64))
        with pa.ipc.open_stream(pa.BufferReader(data.slice(0, footer["entries_at"]))) as reader:
            self.schema: pa.Schema = reader.schema
            self.chunks = list(reader)
        self._starts: list[int] = footer["starts"]
        self._rows = dict[tuple[int | None, int | None], NumberedRows]()

    @classmethod
    def over(cls, data: pa.Buffer, *, check: bool = True) -> Layer:
        """The layer in these bytes; ``check`` the rows and the index, too, not only the footer. Raises PartitionFailed:
        they differ from the written ones.
        """
        if data.size >= _END.size:
            length, checksum, magic = _END.unpack(data.slice(data.size - _END.size).to_pybytes())
            start = data.size - _END.size - length
            if magic == _MAGIC and start >= 0:
                text = data.slice(start, length).to_pybytes()
                if crc32c(text) == checksum:
                    footer = json.loads(text)
                    if not check or crc32c(memoryview(data)[:start]) == footer["crc32c"]:
                        return cls(data, footer)
        raise PartitionFailed(f"a lookup's file of {data.size} bytes is damaged")

    def find(self, keys: Keys) -> tuple[Positions, Positions]:
        """The pairs of a position in ``keys`` and the number of a row with this key, in no order; rows of gone keys
        (from ``live`` on), too.
        """
        nothing = np.empty(0, np.int64)
        if not self.rows or not len(keys):
            return nothing, nothing
        # Sorted, because neighbours in the index are then read one after the other.
        searched = Index.of(keys.hashes)
        hits, low, counts = self.index.find(searched.hashes)
        positions = np.repeat(searched.numbers[hits], counts)
        before = np.cumsum(counts) - counts
        places = np.arange(len(positions)) + np.repeat(low - before, counts)
        rows = Index(self.index.entries[places]).numbers
        equal = keys.take(positions).same(self.take(rows, slice(0, self.key_count)).columns)
        return positions[equal], rows[equal]

    def take(self, rows: Positions, columns: slice) -> pa.RecordBatch:
        if (known := self._rows.get((columns.start, columns.stop))) is None:
            schema = pa.schema(list(self.schema)[columns])
            if not self.rows or not schema.names:  # a batch without columns has no rows
                return pa.RecordBatch.from_pylist([], schema)
            chosen = [
                pa.RecordBatch.from_arrays(each.columns[columns], schema=schema) for each in self.chunks
            ]
            known = self._rows[columns.start, columns.stop] = NumberedRows(chosen)
        return known.take(rows)

    def each_keys(self) -> Iterator[Keys]:
        """The keys of all rows, chunk by chunk."""
        for chunk in self.chunks:
            yield Keys.of(chunk.columns[: self.key_count])

    def filtered(self, kept: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        for chunk, start in zip(self.chunks, self._starts, strict=True):
            window = kept[start : start + chunk.num_rows]
            if window.all():
                yield chunk
            elif window.any():
                yield Picker(chunk).take(np.flatnonzero(window))


class _Summed(WriterFile):
    """Counts and sums up the bytes that go through."""

    def __init__(self, sink: LayerSink) -> None:
        self._sink = sink
        self.size_bytes = 0
        self.checksum = 0

    def write(self, data: Any) -> int:
        piece = memoryview(data)
        if not piece.nbytes:
            return 0
        piece = piece.cast("B")
        self.checksum = crc32c(piece, self.checksum)
        self.size_bytes += len(piece)
        return self._sink.write(piece)


def _chunks(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[list[pa.RecordBatch]]:
    """The batches of each chunk, for the caller to keep; none is without rows."""
    held, rows, size_bytes = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if held and (rows + batch.num_rows > CHUNK_ROWS or size_bytes + batch.nbytes > CHUNK_BYTES):
            yield held
            held, rows, size_bytes = [], 0, 0
        held.append(batch.cast(schema) if batch.schema != schema else batch)
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
    if held:
        yield held
