"""A layer: some rows of a changelog and the index of their keys, in one file that many processes map.

Guarantee: :meth:`Layer.find` gives exactly the rows whose keys equal the wanted ones; a collision of hashes costs a
comparison. A file that :meth:`Layer.over` accepts is as :func:`write_layer` wrote it.

What a layer has
    A *whole* layer (``after`` is None) has all rows at ``version``. Another one has, of each key with a row that
    changed after version ``after``, all rows at ``version``; a key that has none there is *gone*: the layer has one row
    with this key, and nulls. Rows of gone keys come last, from row number ``live`` on. So a key that is in a layer is
    in no layer below it that counts, and layers made from different files fit together.

Format
    An Arrow IPC stream of *chunks*: batches of the keys in their normal form (``join_keys``), without nulls, and the
    values; the sorted hashes of the keys (uint64, from a multiple of 64 bytes on); the row number of each hash (uint32
    or uint64, as before); a footer in JSON; its length and CRC-32C, and eight bytes ``FSLAYER1``.

    Valid is a file whose last eight bytes, lengths and checksums agree; the footer has that of all bytes before it.
    A reader begins at the end.

Memory
    The writer holds one chunk, of at most ``CHUNK_ROWS`` rows or about ``CHUNK_BYTES``, twice, and 32 bytes for each
    row. A reader maps; pages that no probe touches take no RAM of its own.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.protocol import PartitionFailed
from flight_server.protocol.checksums import crc32c
from spark_client.arrow import Picker, view
from spark_client.joining import Keys
from spark_client.placement import row_hashes

CHUNK_ROWS = 1024 * 1024
CHUNK_BYTES = 128 * 1024 * 1024

_MAGIC = b"FSLAYER1"
_END = struct.Struct("<II8s")
_ALIGNED_BYTES = 64

Positions = NDArray[np.int64]


class Sink(Protocol):
    """Where a layer is written."""

    def write(self, data: Any, /) -> int:
        """Append all of the data."""
        ...


@dataclass(frozen=True)
class Index:
    """The sorted hashes of rows' keys, and the number of the row of each."""

    hashes: NDArray[np.uint64]
    numbers: NDArray[Any]

    @classmethod
    def joined(cls, parts: Sequence[Index]) -> Index:
        """One index of several."""
        hashes = np.concatenate([part.hashes for part in parts])
        # Timsort finds the sorted runs, and only merges them.
        order = np.argsort(hashes, kind="stable")
        return cls(hashes[order], np.concatenate([part.numbers for part in parts])[order])

    def filtered(self, kept: NDArray[np.bool_], first: int) -> Index:
        """Of the rows whose flags are set, numbered anew from ``first`` on."""
        chosen = kept[self.numbers]
        return Index(self.hashes[chosen], (np.cumsum(kept) - 1 + first)[self.numbers[chosen]])


def write_layer(
    sink: Sink,
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
    """
    out = _Summed(sink)
    hashes, starts, rows = list[NDArray[np.uint64]](), list[int](), 0
    with pa.ipc.new_stream(pa.PythonFile(out, mode="w"), schema) as writer:
        for chunk in _chunks(batches, schema):
            if index is None:
                hashes.append(row_hashes(chunk.columns[:keys], chunk.num_rows))
            starts.append(rows)
            rows += chunk.num_rows
            writer.write_batch(chunk)
    if index is None:
        every = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
        hashes.clear()
        order = np.argsort(every)
        index = Index(every[order], order)
    numbers = np.uint32 if rows < 1 << 32 else np.uint64
    out.align()
    hashes_at = out.size_bytes
    out.write(index.hashes)
    out.align()
    rows_at = out.size_bytes
    out.write(index.numbers.astype(numbers))
    footer = {
        "after": after,
        "version": version,
        "rows": rows,
        "live": rows if live is None else live,
        "keys": keys,
        "starts": starts,
        "hashes_at": hashes_at,
        "rows_at": rows_at,
        "row_bytes": np.dtype(numbers).itemsize,
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
        number = np.dtype(f"u{footer['row_bytes']}")
        self.index = Index(
            view(data.slice(footer["hashes_at"], 8 * self.rows), np.uint64),
            view(data.slice(footer["rows_at"], number.itemsize * self.rows), number),
        )
        with pa.ipc.open_stream(pa.BufferReader(data.slice(0, footer["hashes_at"]))) as reader:
            self.schema: pa.Schema = reader.schema
            self.chunks = list(reader)
        self._starts = np.array([*footer["starts"], self.rows], np.int64)

    @classmethod
    def over(cls, data: pa.Buffer, *, check: bool = True) -> Layer:
        """The layer in these bytes; ``check`` the rows and the index, too, not only the footer.

        Raises:
            PartitionFailed: they are not what was written.
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
        order = np.argsort(keys.hashes)
        wanted = keys.hashes[order]
        hashes = self.index.hashes
        low = np.searchsorted(hashes, wanted)
        hits = np.flatnonzero(hashes[np.minimum(low, self.rows - 1)] == wanted)
        low, wanted = low[hits], wanted[hits]
        counts = np.searchsorted(hashes, wanted, side="right") - low
        positions = np.repeat(order[hits], counts)
        before = np.cumsum(counts) - counts
        places = np.arange(len(positions)) + np.repeat(low - before, counts)
        rows = self.index.numbers[places].astype(np.int64)
        equal = keys.take(positions).same(self.take(rows, slice(0, self.key_count)).columns)
        return positions[equal], rows[equal]

    def take(self, rows: Positions, columns: slice) -> pa.RecordBatch:
        """These columns of these rows, in this order."""
        picked, order = [], list[Positions]()
        places = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(places).tolist():
            here = np.flatnonzero(places == number)
            order.append(here)
            picked.append(self._picker(number, columns).take(rows[here] - self._starts[number]))
        if len(picked) == 1:
            return picked[0]
        if not picked:
            return pa.RecordBatch.from_arrays(
                [pa.array([], field.type) for field in self._fields(columns)], schema=self._fields(columns)
            )
        together = pa.concat_batches(picked)
        return Picker(together).take(np.argsort(np.concatenate(order)))

    def each_keys(self) -> Iterator[Keys]:
        """The keys of all rows, chunk by chunk."""
        for chunk in self.chunks:
            yield Keys.of(chunk.columns[: self.key_count])

    def filtered(self, kept: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """The rows whose flags are set, in their order."""
        for chunk, start in zip(self.chunks, self._starts[:-1].tolist(), strict=True):
            window = kept[start : start + chunk.num_rows]
            if window.all():
                yield chunk
            elif window.any():
                yield Picker(chunk).take(np.flatnonzero(window))

    def _fields(self, columns: slice) -> pa.Schema:
        return pa.schema(list(self.schema)[columns])

    @cached_property
    def _pickers(self) -> dict[tuple[int, int | None, int | None], Picker]:
        return {}

    def _picker(self, number: int, columns: slice) -> Picker:
        key = (number, columns.start, columns.stop)
        if key not in self._pickers:
            chosen = self.chunks[number].columns[columns]
            batch = pa.RecordBatch.from_arrays(chosen, schema=self._fields(columns))
            self._pickers[key] = Picker(batch)
        return self._pickers[key]


class _Summed:
    """A file for Arrow's writer that counts and sums up what goes through."""

    closed = False

    def __init__(self, sink: Sink) -> None:
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

    def align(self) -> None:
        self.write(bytes(-self.size_bytes % _ALIGNED_BYTES))

    def flush(self) -> None:
        """Arrow's writer calls this."""

    def close(self) -> None:
        """Arrow's writer calls this."""


def _chunks(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    held, rows, size_bytes = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if held and (rows + batch.num_rows > CHUNK_ROWS or size_bytes + batch.nbytes > CHUNK_BYTES):
            yield pa.concat_batches(held)
            held, rows, size_bytes = [], 0, 0
        held.append(batch.cast(schema) if batch.schema != schema else batch)
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
    if held:
        yield pa.concat_batches(held)
