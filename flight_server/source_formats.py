"""Parquet, Arrow IPC and CSV: a file's schema, and its rows batch by batch.

Guarantee: :meth:`Format.batches` gives every row of the file, in order, or raises; and the same file
gives the same batches. Everything here blocks and is done with one thread.

Memory
    A reader holds at any moment one batch and what it was decoded from. For Parquet that is about
    ``TARGET_BYTES`` and the pages under it, however large the row groups are: that is why files are not
    read through ``pyarrow.dataset``'s scanner, which decodes a whole row group (measured with one row
    group of 320 MB: 400 MiB more resident, here 15). For CSV it is a block of ``CSV_BLOCK_BYTES``. A
    batch of an IPC file is held as a whole, as it was written, because it can be read in no smaller parts.

Truncated IPC streams
    A stream that ends between two messages looks whole to Arrow's reader. So the end-of-stream marker
    must be there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from .encoder import TARGET_BYTES
from .errors import InvalidRequest
from .wire import END_OF_STREAM

MAX_BATCH_ROWS = 65_536
CSV_BLOCK_BYTES = 4 << 20
_IPC_MAGIC = b"ARROW1"
_CODECS = {".bz2": "bz2", ".gz": "gzip", ".lz4": "lz4", ".zst": "zstd"}


class Format(Protocol):
    """One format. ``stream`` is an open ``pyarrow.NativeFile``, at its start."""

    def schema(self, stream: Any, path: str, wanted: pa.Schema | None) -> pa.Schema | None:
        """The file's columns; None if it says nothing about them. ``wanted`` has types to prefer."""

    def batches(self, stream: Any, path: str, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows: at least those columns of ``wanted`` that the file has."""


class Parquet:
    """Parquet files."""

    def schema(self, stream: Any, path: str, wanted: pa.Schema | None) -> pa.Schema | None:
        return pq.ParquetFile(stream, pre_buffer=False).schema_arrow

    def batches(self, stream: Any, path: str, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True)
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        row_bytes = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
        rows = max(1, min(MAX_BATCH_ROWS, TARGET_BYTES // max(1, row_bytes)))
        wanted_names = frozenset(wanted.names)  # ``names`` is a list that each access makes anew
        names = [name for name in file.schema_arrow.names if name in wanted_names]
        yield from file.iter_batches(rows, columns=names, use_threads=False)


class Ipc:
    """Arrow IPC files (also called Feather) and streams."""

    def schema(self, stream: Any, path: str, wanted: pa.Schema | None) -> pa.Schema | None:
        return self._open(stream).schema

    def batches(self, stream: Any, path: str, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        names = self._open(stream).schema.names
        stream.seek(0)
        wanted_names = frozenset(wanted.names)
        included = [index for index, name in enumerate(names) if name in wanted_names]
        reader = self._open(stream, pa.ipc.IpcReadOptions(included_fields=included, use_threads=False))
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)
        else:
            yield from reader

    def _open(self, stream: Any, options: Any = None) -> Any:
        if stream.read_at(len(_IPC_MAGIC), 0) == _IPC_MAGIC:
            return pa.ipc.open_file(stream, options=options)
        size_bytes = stream.size()
        end_bytes = len(END_OF_STREAM)
        if size_bytes < end_bytes or stream.read_at(end_bytes, size_bytes - end_bytes) != END_OF_STREAM:
            raise pa.ArrowInvalid(
                "neither an Arrow IPC file nor a complete stream: the end-of-stream marker is missing"
            )
        stream.seek(0)
        return pa.ipc.open_stream(stream, options=options)


class Csv:
    """CSV with a header, in UTF-8; compressed if its name says so (``.gz``, ``.zst``, ``.bz2``, ``.lz4``).

    Types are found in the first block unless they are given.
    """

    def schema(self, stream: Any, path: str, wanted: pa.Schema | None) -> pa.Schema | None:
        if stream.size() == 0:
            return None
        return self._open(stream, path, wanted).schema

    def batches(self, stream: Any, path: str, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        if stream.size() > 0:
            yield from self._open(stream, path, wanted, only=wanted.names)

    def _open(self, stream: Any, path: str, wanted: pa.Schema | None, only: list[str] | None = None) -> Any:
        types = {} if wanted is None else {field.name: field.type for field in wanted}
        codec = next((name for suffix, name in _CODECS.items() if path.endswith(suffix)), None)
        return pa_csv.open_csv(
            pa.CompressedInputStream(stream, codec) if codec else stream,
            read_options=pa_csv.ReadOptions(block_size=CSV_BLOCK_BYTES, use_threads=False),
            convert_options=pa_csv.ConvertOptions(
                column_types=types, include_columns=only, include_missing_columns=True
            ),
        )


FORMATS: dict[str, Format] = {"parquet": Parquet(), "ipc": Ipc(), "csv": Csv()}


def format_named(name: str) -> Format:
    """The format.

    Raises:
        InvalidRequest: there is none of that name.
    """
    found = FORMATS.get(name)
    if found is None:
        raise InvalidRequest(f"source: 'format' is one of {', '.join(FORMATS)}, not {name!r}")
    return found
