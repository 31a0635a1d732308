"""Reads pieces of files in a task: the columns that are wanted, cast to Spark's types, filtered, in bounded memory.

Guarantee: the batches have exactly the declared schema, and are all that the plan said: another size, another number
of row groups, record batches or rows is an error, which says that the file has changed. Every error names the file.

Memory
    A Parquet row group is decoded batch by batch. Beside a batch its wanted columns' compressed bytes are held, or, of
    a group above ``WHOLE_BYTES``, ``BUFFER_BYTES`` of each column. A batch has ``batch_rows`` rows or about
    ``BATCH_BYTES``, if fewer. An IPC file is read one record batch at a time. Files of a Dataset in other formats are
    read by pyarrow's scanner, which looks ``READAHEAD`` batches ahead. What a filter keeps is gathered up to the same
    sizes.

Texts of Parquet
    Columns of short texts are read as dictionaries, as they are stored (``stored_texts``): the filter looks at these
    (``filters``), and only the kept rows become texts. A batch's texts are decoded in parts of about
    ``DECODED_BYTES_OF_TEXTS``, however long they are and however few of them there are.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from flight_server.protocol import InvalidRequest, NotFound, PartitionFailed, SourceUnavailable
from spark_client.arrow import Declared, gathered

from .filters import KeptRows
from .holdable import is_text, parquet_schema
from .known_columns import ReadColumns
from .pieces import DECODED_BYTES, File, FileHome, FilePiece, Fragment
from .spark_footers import check_dates, is_legacy
from .stored_texts import batches_of, bounded_rows, coded_columns, cut, inner_texts

BATCH_ROWS = 128 * 1024
BATCH_BYTES = 8 << 20
WHOLE_BYTES = {"local": 16 << 20}
WHOLE_BYTES_ELSEWHERE = 256 << 20
"""A store gives a whole group in one or a few requests, and a buffer's bytes in one each."""
BUFFER_BYTES = 1 << 20
READAHEAD = 2
DECODED_BYTES_OF_TEXTS = 4 * BATCH_BYTES
"""A batch's texts that are stored as dictionaries are decoded in parts of about this size."""


@dataclass(frozen=True)
class FileReading:
    """How a scan's pieces are read; ``batch_rows`` at most in a batch of a format that lets us choose."""

    homes: tuple[FileHome, ...]
    columns: ReadColumns
    filter: KeptRows | None = None
    batch_rows: int = BATCH_ROWS

    def read(self, file: File | Fragment, pieces: Sequence[FilePiece]) -> Iterator[Any]:
        """The rows of pieces of one file.

        Raises:
            InvalidRequest: a column is missing or of another type, or a value does not fit its type.
            NotFound: there is no such file where this task runs.
            PartitionFailed: the file is damaged, or has changed since the plan.
            SourceUnavailable: it cannot be opened or read here.
        """
        rows = 0

        def complete() -> Iterator[Any]:
            nonlocal rows
            values = dict(file.values) if isinstance(file, File) else {}
            for batch in self._batches(file, pieces):
                rows += batch.num_rows
                for part in cut(batch, DECODED_BYTES_OF_TEXTS):
                    yield from self._complete(part, file.path, values)

        try:
            yield from (
                complete()
                if self.filter is None
                else gathered(complete(), self.batch_rows // 2, BATCH_BYTES // 2)
            )
        except FileNotFoundError as error:
            raise NotFound(
                f"{file.path} is not on {socket.gethostname()}: every task must reach the files of a scan, and they "
                "must stay where the plan found them",
                file=file.path,
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise _explain(file.path, error) from error
        planned = [piece.rows for piece in pieces]
        if None not in planned and rows != sum(filter(None, planned)):
            raise _changed_error(file.path, "rows", sum(filter(None, planned)), rows)

    def _batches(self, file: File | Fragment, pieces: Sequence[FilePiece]) -> Iterator[Any]:
        if isinstance(file, Fragment):
            columns = list(self.columns.declared.schema.names)
            return iter(file.fragment.to_batches(columns=columns, batch_size=self.batch_rows))
        home = self.homes[file.home]
        if home.format is not None:
            return self._scanned(home, file)
        if home.kind == "parquet":
            return self._row_groups(home, file, pieces)
        return self._record_batches(home, file, pieces)

    def _row_groups(self, home: FileHome, file: File, pieces: Sequence[FilePiece]) -> Iterator[Any]:
        from pyarrow import parquet as pq  # noqa: PLC0415 - only a task that reads Parquet needs it

        with home.filesystem.open_input_file(file.path) as source:
            buffer_bytes = self._buffer_bytes(home, pieces)
            opened = partial(
                pq.ParquetFile,
                source,
                buffer_size=buffer_bytes,
                pre_buffer=not buffer_bytes,
                # Spark writes INT96, whose years nanoseconds cannot hold.
                coerce_int96_timestamp_unit="us",
            )
            reader = opened(read_dictionary=home.dictionaries)
            metadata = reader.metadata
            if metadata.num_row_groups != file.units:
                raise _changed_error(file.path, "row groups", file.units, metadata.num_row_groups)
            arrow = reader.schema_arrow
            schema = parquet_schema(arrow, metadata)
            names = self._names_in(file, schema)
            retyped = _other_kinds(arrow, schema, names)
            legacy = is_legacy(metadata)
            texts = [name for name in names if is_text(arrow.field(name).type) and name not in retyped]
            groups = [metadata.row_group(piece.unit) for piece in pieces]
            for piece, group in zip(pieces, groups, strict=True):
                planned, actual = (piece.rows, piece.group_bytes), (group.num_rows, group.total_byte_size)
                if planned != actual:
                    raise _changed_error(
                        file.path, f"rows and bytes in row group {piece.unit}", planned, actual
                    )
            coded = home.dictionaries | coded_columns(texts, metadata, groups, BATCH_ROWS)
            if coded != home.dictionaries:
                reader = opened(read_dictionary=coded, metadata=metadata)
            inner = inner_texts(metadata, names)
            for piece in pieces:
                rows = bounded_rows(self._batch_rows(piece), metadata.row_group(piece.unit), inner)
                for batch in batches_of(reader, piece.unit, names, rows):
                    retyped_batch = _retype(batch, retyped)
                    if legacy:
                        check_dates(retyped_batch, file.path)
                    yield retyped_batch

    def _record_batches(self, home: FileHome, file: File, pieces: Sequence[FilePiece]) -> Iterator[Any]:
        with home.filesystem.open_input_file(file.path) as source:
            if file.size_bytes not in (None, source.size()):
                raise _changed_error(file.path, "bytes", file.size_bytes, source.size())
            schema = pa.ipc.open_file(source).schema
            fields = [schema.get_field_index(name) for name in self._names_in(file, schema)]
            source.seek(0)
            options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
            reader = pa.ipc.open_file(source, options=options)
            if reader.num_record_batches != file.units:
                raise _changed_error(file.path, "record batches", file.units, reader.num_record_batches)
            for piece in pieces:
                yield reader.get_batch(piece.unit)

    def _scanned(self, home: FileHome, file: File) -> Iterator[Any]:
        size_bytes = home.filesystem.get_file_info(file.path).size
        if None not in (size_bytes, file.size_bytes) and size_bytes != file.size_bytes:
            raise _changed_error(file.path, "bytes", file.size_bytes, size_bytes)
        values = dict(file.values)
        batches = home.format.make_fragment(file.path, home.filesystem).to_batches(
            schema=home.schema,
            columns=[name for name in self.columns.declared.schema.names if name not in values],
            batch_size=self.batch_rows,
            batch_readahead=READAHEAD,
            use_threads=False,
        )
        return iter(batches)

    def _names_in(self, file: File, schema: pa.Schema) -> list[str]:
        """The columns to read that are in the file, and not of its partition, which counts if both have one."""
        values = dict(file.values)
        self.columns.check(file.path, schema, values)
        stored = set(schema.names) - values.keys()
        return [name for name in self.columns.declared.schema.names if name in stored]

    def _buffer_bytes(self, home: FileHome, pieces: Sequence[FilePiece]) -> int:
        """How many bytes of each column are held at a time; 0 for whole row groups."""
        largest_bytes = max(piece.size_bytes for piece in pieces)
        if largest_bytes <= WHOLE_BYTES.get(home.filesystem.type_name, WHOLE_BYTES_ELSEWHERE):
            return 0
        return max(BUFFER_BYTES // 16, min(BUFFER_BYTES, largest_bytes // len(self.columns.declared.schema)))

    def _batch_rows(self, piece: FilePiece) -> int:
        if not piece.rows or not piece.size_bytes:
            return self.batch_rows
        size_bytes = max(piece.size_bytes, DECODED_BYTES * piece.values)
        return max(1, min(self.batch_rows, BATCH_BYTES * piece.rows // size_bytes))

    def _complete(self, batch: Any, path: str, values: dict[str, Any]) -> Iterator[Any]:
        """The batch with all columns, in Spark's types, and only the rows and columns of the result."""
        declared = self.columns.of(path)
        columns, fields = [], []
        stored = dict(zip(batch.schema.names, batch.columns, strict=True))
        for field in declared.schema:
            if field.name in stored:
                columns.append(stored[field.name])
            else:
                # Of a partition, or missing in a file of a Dataset: null.
                value = pa.scalar(values.get(field.name)).cast(field.type)
                columns.append(pa.repeat(value, batch.num_rows))
            fields.append(pa.field(field.name, columns[-1].type))
        whole = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
        try:
            if self.filter is None:
                rows = declared.cast(whole)
            else:
                # Arrow cuts dictionaries, and not all that is to be cast.
                rows = self.filter.of(_but_dictionaries(declared, whole.schema).cast(whole), declared)
        except InvalidRequest as error:
            # The plan has checked the kinds: so it is a value, of a file with a wider type than the first one's.
            raise InvalidRequest(f"{error}; give schema= with a type that has it", **error.detail) from error
        except (pa.ArrowException, TypeError) as error:
            if self.filter is None:
                raise
            raise InvalidRequest(
                f"scan: filter {self.filter.expression}: {str(error).partition(chr(10))[0]}, for a row of {path}; "
                "write it so that Arrow can evaluate it for every row, or filter in a step after the scan",
                file=path,
            ) from error
        if rows is not None and rows.num_rows:
            yield rows if list(self.columns.names) == rows.schema.names else rows.select(self.columns.names)


def _but_dictionaries(declared: Declared, schema: pa.Schema) -> Declared:
    """The declaration, in which columns that are given as dictionaries stay so."""
    fields = [
        field.with_type(here.type) if pa.types.is_dictionary(here.type) else field
        for field, here in zip(declared.schema, schema, strict=True)
    ]
    return Declared(declared.stage, pa.schema(fields))


def _other_kinds(physical: pa.Schema, schema: pa.Schema, names: Sequence[str]) -> dict[str, pa.DataType]:
    """The columns that are read as another type than Arrow's own."""
    if schema is physical:
        return {}
    kinds = {name: schema.field(name).type for name in names}
    return {name: kind for name, kind in kinds.items() if physical.field(name).type != kind}


def _retype(batch: Any, kinds: dict[str, pa.DataType]) -> Any:
    for name, kind in kinds.items():
        index = batch.schema.get_field_index(name)
        try:
            batch = batch.set_column(index, name, batch.column(index).cast(kind))
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"column {name!r}: {error}") from error
    return batch


def _changed_error(path: str, what: str, planned: object, actual: object) -> PartitionFailed:
    return PartitionFailed(
        f"{path} has changed since the scan was planned: {planned} {what} were planned, {actual} are there; call scan "
        "again",
        file=path,
    )


def _explain(path: str, error: Exception) -> Exception:
    text = str(error).partition("\n")[0]
    # Arrow raises OSError for damaged pages, too; only errors of the system have a number.
    if isinstance(error, OSError) and (error.errno is not None or "AWS Error" in text or "HTTP" in text):
        return SourceUnavailable(
            f"{path} cannot be read on {socket.gethostname()}: {text}; tasks take credentials from their "
            "own environment, unless the address or the file system has some",
            file=path,
        )
    if isinstance(error, pa.ArrowNotImplementedError):
        return InvalidRequest(f"{path}: {text}; give schema= with another type, such as string", file=path)
    return PartitionFailed(f"{path} is damaged, or not as the scan reads it: {text}", file=path)
