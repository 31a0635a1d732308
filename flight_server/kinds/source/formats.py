"""Parquet and Arrow IPC: a file's schema, and its rows batch by batch.

Guarantee: :meth:`Format.batches` gives every row of the file, in order, or raises; the same file gives the same
batches. Everything here blocks and uses one thread.

Memory
    A reader holds one batch and its encoded bytes: of Parquet about ``TARGET_BYTES`` and the pages under it
    (``pyarrow.dataset``'s scanner decodes a whole row group: one of 320 MB took 400 MiB, here 15), of IPC a whole
    batch as it was written. It asks for room first.

    Of a Parquet file the footer has the rows and values of each row group, by which rows are cut to batches: a file of
    639 bytes can hold a row of a gigabyte. Values are short or long: where a column has a dictionary its longest value
    counts (:class:`_Texts`), so that a batch takes at most ``MOST_BYTES`` or one row. Lists are short
    or long, too, and no count says where: those of a row group that decode to more than ``MOST_FOLD`` times their bytes
    in the file are taken for one batch. No account counts pages that decompress to more than a batch, what a footer
    says falsely, and texts in lists of which one row has many more than the average.

    Of an IPC file the size of a batch is known before Arrow reads it. Of a compressed one it is the sum of the sizes
    before its compressed buffers, which Arrow allocates: a file of 38 KiB can hold a batch of a gigabyte. Of another
    one it is that of its body. A file's dictionaries are read with its first batch.

Headers
    A Parquet footer and an IPC footer are parsed in one piece, into ten times their size and, for columns
    with short names, much more, which no account counts. So at most ``background.SLOTS`` pulls, and one more ``create``
    than that, have a file open at a time. A footer of more than ``MAX_HEADER_BYTES``, and an IPC one that
    ``frames.schema_size`` refuses, is refused before it is parsed. The Arrow schema in a Parquet footer is parsed
    unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flight_server.frames import TARGET_BYTES, check_footer
from flight_server.protocol import BadFrame, ipc_framing

MAX_BATCH_ROWS = 65_536
MOST_BYTES, MOST_FOLD = 16 << 20, 100
"""Of a Parquet file; see *Memory*."""
_LISTS = pa.ListArray | pa.LargeListArray | pa.ListViewArray | pa.LargeListViewArray | pa.FixedSizeListArray
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""Of physical types in Arrow; of bytes that of an offset."""
MAX_HEADER_BYTES = 16 << 20
_IPC_MAGIC = b"ARROW1"
_PARQUET_MAGIC = b"PAR1"


Hold = Callable[[int], None]
"""Called with the bytes of the next batch, whose size the file's writer chose, before it is read; raises if there is no
room for it."""


class Parquet:
    """Parquet files. ``stream`` is an open ``pyarrow.NativeFile``, at its start."""

    def schema(self, stream: Any) -> pa.Schema:
        """The file's columns."""
        _check_footer(stream, _PARQUET_MAGIC)
        return pq.ParquetFile(stream, pre_buffer=False).schema_arrow

    def batches(self, stream: Any, schema: pa.Schema, hold: Hold) -> Iterator[pa.RecordBatch]:
        """The rows, with those columns of ``schema`` that the file has."""
        _check_footer(stream, _PARQUET_MAGIC)
        file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True)
        column_names = frozenset(schema.names)  # ``names`` is a list that each access makes anew
        columns = [field for field in file.schema_arrow if field.name in column_names]
        names = [field.name for field in columns]
        least_bytes = sum(_least_bytes(each.type) for each in columns)
        texts = _Texts(stream, file.schema, column_names)
        for index in range(file.metadata.num_row_groups):
            group = _RowGroup(file, index, column_names, least_bytes)
            hold(group.list_bytes)
            longest_bytes = texts.longest_bytes(group)
            most = min(TARGET_BYTES // group.row_bytes, MOST_BYTES // max(1, longest_bytes))
            rows = max(1, min(MAX_BATCH_ROWS, most))
            hold(max(group.list_bytes, rows * group.row_bytes, longest_bytes))
            yield from file.iter_batches(rows, row_groups=[index], columns=names, use_threads=False)


class _RowGroup:
    """How much the columns of a row group decode to, by the footer.

    ``row_bytes`` is a row's average; ``list_bytes`` what lists may take in one row, 0 if that is not much;
    ``texts`` has the columns with dictionaries, and how many values each row has on average.
    """

    def __init__(self, file: Any, index: int, names: frozenset[str], least_bytes: int) -> None:
        group = file.metadata.row_group(index)
        self.index, self.rows = index, max(1, group.num_rows)
        self.texts: dict[str, int] = {}
        decoded_bytes = listed_bytes = in_file_bytes = 0
        for number in range(group.num_columns):
            leaf, chunk = file.schema.column(number), group.column(number)
            column = _column_of(chunk.path_in_schema, names)
            if column is None:
                continue
            width = _WIDTHS.get(chunk.physical_type, leaf.length)
            size_bytes = max(chunk.total_uncompressed_size, chunk.num_values * width)
            decoded_bytes += size_bytes
            if leaf.max_repetition_level:
                listed_bytes += size_bytes
                in_file_bytes += chunk.total_compressed_size
            if chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page:
                self.texts[column] = self.texts.get(column, 0) + -(-chunk.num_values // self.rows)
        self.row_bytes: int = max(1, least_bytes, -(-decoded_bytes // self.rows))
        is_folded = listed_bytes > max(MOST_BYTES, MOST_FOLD * in_file_bytes)
        self.list_bytes = listed_bytes if is_folded else 0


class _Texts:
    """The dictionaries of a file's texts, of which no value is copied."""

    def __init__(self, stream: Any, schema: Any, names: frozenset[str]) -> None:
        leaves = map(schema.column, range(len(schema)))
        paths = [
            leaf.path
            for leaf in leaves
            if leaf.physical_type == "BYTE_ARRAY" and _column_of(leaf.path, names) is not None
        ]
        self._file = pq.ParquetFile(
            stream,
            read_dictionary=paths,
            pre_buffer=False,
            buffer_size=1 << 20,
            arrow_extensions_enabled=False,
        )

    def longest_bytes(self, group: _RowGroup) -> int:
        """What a row takes whose texts are all the longest one of their dictionary."""
        if not group.texts:
            return 0
        # With the first row come the whole dictionaries.
        batches = self._file.iter_batches(
            1, row_groups=[group.index], columns=list(group.texts), use_threads=False
        )
        first = next(batches, None)
        if first is None:
            return 0
        return sum(values * _longest_bytes(first.column(name)) for name, values in group.texts.items())


def _column_of(path: str, names: frozenset[str]) -> str | None:
    """Which of these columns, whose names may have dots, a leaf is a part of."""
    parts = path.split(".")
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in names), None)


def _least_bytes(kind: pa.DataType) -> int:
    """What each value takes in Arrow, also a null, for which a Parquet file has no bytes."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _least_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_least_bytes(field.type) for field in kind)
    if isinstance(kind, pa.BaseExtensionType):
        return _least_bytes(kind.storage_type)
    return (
        -(-kind.bit_width // 8) if pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind) else 0
    )


def _longest_bytes(array: pa.Array) -> int:
    """The longest value of the dictionaries in an array."""
    if isinstance(array, pa.DictionaryArray):
        return int(pc.max(pc.binary_length(array.dictionary)).as_py() or 0)
    if isinstance(array, pa.MapArray):
        return max(_longest_bytes(array.keys), _longest_bytes(array.items))
    if isinstance(array, pa.StructArray):
        return max(map(_longest_bytes, array.flatten()), default=0)
    return _longest_bytes(array.values) if isinstance(array, _LISTS) else 0


class Ipc:
    """Arrow IPC files (also called Feather); no streams, whose end cannot be told from one that was cut off."""

    def schema(self, stream: Any) -> pa.Schema:
        return self._open(stream)[0].schema

    def batches(self, stream: Any, schema: pa.Schema, hold: Hold) -> Iterator[pa.RecordBatch]:
        names = self._open(stream)[0].schema.names
        column_names = frozenset(schema.names)
        included = [index for index, name in enumerate(names) if name in column_names]
        reader, footer = self._open(
            stream, pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
        )
        try:
            for number, size_bytes in enumerate(_batch_sizes(stream, footer)):
                hold(size_bytes)
                yield reader.get_batch(number)
        except BadFrame as bad:
            raise pa.ArrowInvalid(bad.message) from None

    def _open(self, stream: Any, options: Any = None) -> tuple[Any, bytes]:
        """Arrow's reader, and the footer."""
        footer_bytes = _check_footer(stream, _IPC_MAGIC)
        if not footer_bytes:
            raise pa.ArrowInvalid(
                "it is no Arrow IPC file: a stream, or cut off; write it with pyarrow.ipc.new_file"
            )
        footer = stream.read_at(footer_bytes, stream.size() - footer_bytes - 4 - len(_IPC_MAGIC))
        try:
            check_footer(footer)
        except BadFrame as bad:
            raise pa.ArrowInvalid(bad.message) from None
        return pa.ipc.open_file(stream, options=options), footer


def _check_footer(stream: Any, magic: bytes) -> int:
    """How many bytes the footer has; 0 if there is none, which the file's reader refuses. Raise if too many."""
    end_bytes = 4 + len(magic)
    size_bytes = stream.size()
    end = stream.read_at(end_bytes, size_bytes - end_bytes) if size_bytes >= end_bytes else b""
    if not end.endswith(magic):
        return 0
    footer_bytes = int.from_bytes(end[:4], "little")
    if footer_bytes > MAX_HEADER_BYTES:
        raise pa.ArrowInvalid(
            f"its header has {footer_bytes} bytes, and at most {MAX_HEADER_BYTES} are read: write it with fewer "
            "columns, larger row groups or less metadata"
        )
    return footer_bytes if footer_bytes + end_bytes <= size_bytes else 0


Format = Parquet | Ipc
FORMATS: dict[str, Format] = {"parquet": Parquet(), "ipc": Ipc()}

_AT_ONCE_BYTES = 4 << 20
"""A body of this size is read in one piece: an object store takes as long for 8 bytes."""


def _batch_sizes(stream: Any, footer: bytes) -> Iterator[int]:
    """The size of each batch of an IPC file, with the file's dictionaries."""
    dictionaries, batches = ipc_framing.footer_blocks(footer)
    kept_bytes = sum(_size(stream, *place) for place in dictionaries)
    for place in batches:
        yield kept_bytes + _size(stream, *place)


def _size(stream: Any, position: int, encapsulated_bytes: int) -> int:
    """Of the message at this position, whose header with its prefix has so many bytes."""
    header = ipc_framing.IpcHeader(ipc_framing.schema_header(stream.read_at(encapsulated_bytes, position)))
    body, body_bytes = position + encapsulated_bytes, header.body_bytes
    whole = stream.read_at(body_bytes, body) if 0 < body_bytes <= _AT_ONCE_BYTES else None

    def read_number(offset: int) -> int:
        piece = stream.read_at(8, body + offset) if whole is None else whole[offset : offset + 8]
        if len(piece) < 8:
            raise ValueError("a buffer outside of the body")
        return int.from_bytes(piece, "little", signed=True)

    return max(body_bytes, header.decompressed_bytes(read_number))
