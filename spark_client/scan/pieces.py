"""Pieces of a dataset's files that one task can read, with their sizes, as the driver finds them.

A piece is a row group of a Parquet file, a record batch of an IPC file, a whole file of another format, or a fragment
of a dataset that is not made of files. Partitions that ``filter`` excludes are passed over without opening their
files, row groups by the statistics in the footer. Footers are read by ``FOOTER_THREADS`` threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from flight_server.protocol import InvalidRequest
from spark_client.arrow import fits, inner_types, needed

from .filters import statistics_tell
from .holdable import is_view, parquet_schema
from .known_columns import ReadColumns
from .spark_footers import is_legacy

FOOTER_THREADS = 16
VALUE_BYTES = 16
"""The guess of a value's size where no metadata tells."""
DECODED_BYTES = 8
"""The least that a value counts where the driver would hold it: what Parquet says is encoded."""
OPEN_BYTES = 64 << 10
"""What a file costs beside its rows, for the driver."""


@dataclass(frozen=True)
class FileHome:
    """The common part of many files: how they are opened and read.

    Args:
        kind: ``parquet``, ``arrow`` or another format's usual ending.
        dictionaries: the columns of Parquet that are read as dictionaries.
        format: of files that pyarrow's scanner reads, and ``schema`` theirs. None for Parquet and IPC: unpickling one
            loads the scanner, for a quarter of a second in each fresh worker.
    """

    filesystem: Any
    kind: str
    dictionaries: frozenset[str] = frozenset()
    format: Any = None
    schema: pa.Schema | None = None


@dataclass(frozen=True)
class File:
    """A file as it was when the scan was planned.

    Args:
        home: its number among the homes.
        values: its partition's columns and their values.
        units: how many row groups or record batches it has; None in other formats.
        size_bytes: None if nothing told.
    """

    home: int
    path: str
    values: tuple[tuple[str, Any], ...] = ()
    units: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True)
class Fragment:
    """A part of a dataset that is not made of files, and reads itself."""

    fragment: Any

    @property
    def path(self) -> str:
        return str(self.fragment)


@dataclass(frozen=True)
class FilePiece:
    """A part of ``file``: its row group or record batch ``unit``, or all of it.

    Args:
        rows: None if the metadata does not tell.
        size_bytes: only of the wanted columns where the metadata tells.
        group_bytes: of the whole row group, not compressed.
        values: of Parquet's columns with lists or maps, those inside: a row may have any number of them.
    """

    file: File | Fragment
    unit: int
    rows: int | None
    size_bytes: int
    group_bytes: int = 0
    values: int = 0


def pieces_of(
    dataset: Any,
    schema: pa.Schema,
    columns: ReadColumns,
    filter: Any = None,  # noqa: A002 - pyarrow's name
) -> tuple[tuple[FileHome, ...], list[FilePiece]]:
    """The homes, and the pieces in the dataset's order. The filter fits ``schema``, which may have other types than the
    dataset's own: then only footers tell which rows it excludes. Raises InvalidRequest: a file cannot be read, or has
    other columns than ``columns``; the dataset has a filter already.
    """
    from pyarrow import dataset as ds  # noqa: PLC0415 - only a scan needs it

    of_files = isinstance(dataset, ds.FileSystemDataset | ds.UnionDataset)
    prunes = filter is not None and of_files and fits(filter, dataset.schema)
    try:
        # Other libraries' datasets take no filter here.
        fragments = list(dataset.get_fragments(filter) if prunes else dataset.get_fragments())
    except ValueError as error:
        if isinstance(error, pa.ArrowException):
            raise
        raise InvalidRequest(
            "scan: the dataset has a filter or projection of its own; give it without, and filter= and columns= to scan"
        ) from error
    planner = _Planner(schema, columns, filter)
    files = planner.files(fragments)
    with ThreadPoolExecutor(FOOTER_THREADS, "scan") as pool:
        lists = list(pool.map(planner.pieces, fragments, files))
    return planner.homes, [piece for each in lists for piece in each]


def rows_of(pieces: Sequence[FilePiece]) -> int | None:
    """The rows of all pieces together; None if the metadata of one does not tell."""
    rows = [piece.rows for piece in pieces if piece.rows is not None]
    return sum(rows) if len(rows) == len(pieces) else None


def driver_bytes(homes: Sequence[FileHome], pieces: Sequence[FilePiece], columns: int) -> int | None:
    """About the bytes of so many columns of the pieces in memory, with ``OPEN_BYTES`` for each file; None if not all
    are local files, which the driver has read as a task would, or one is of IPC, which gives a record batch whole,
    however large it is when it is decompressed.
    """
    if any(home.filesystem.type_name != "local" for home in homes):
        return None
    if not all(isinstance(piece.file, File) for piece in pieces):
        return None
    if any(home.format is None and home.kind != "parquet" for home in homes):
        return None
    decoded = [DECODED_BYTES * (columns * (piece.rows or 0) + piece.values) for piece in pieces]
    values = sum(max(piece.size_bytes, each) for piece, each in zip(pieces, decoded, strict=True))
    return values + OPEN_BYTES * len({id(piece.file) for piece in pieces})


def path_of(piece: FilePiece) -> tuple[str, int]:
    """Where the piece is: two that are equal are of one file that was given twice."""
    return piece.file.path, piece.unit


def share_of(dataset: Any, names: Collection[str], of_names: Collection[str]) -> float:
    """About which part of the bytes of the columns ``of_names`` the columns ``names`` among them are: of Parquet by the
    first row group of the first file, which the plan has read, else by their number.
    """
    from pyarrow import dataset as ds  # noqa: PLC0415 - as above

    first = next(iter(dataset.get_fragments()), None)
    if isinstance(first, ds.ParquetFileFragment) and first.metadata.num_row_groups:
        group = first.metadata.row_group(0)
        whole = _share(group, of_names)
        return _share(group, names) / whole if whole else 1.0
    return len(names) / max(1, len(of_names))


class _Planner:
    def __init__(self, schema: pa.Schema, columns: ReadColumns, filter: Any) -> None:  # noqa: A002 - as above
        self._schema = schema
        self._columns = columns
        self._names = frozenset(columns.declared.schema.names)
        self._filter = filter if filter is not None and statistics_tell(filter, schema) else None
        self._filtered = () if self._filter is None else needed(self._filter, schema)
        self._fitting: tuple[tuple[str, ...], pa.Schema] | None = None
        self.homes: tuple[FileHome, ...] = ()

    def files(self, fragments: Sequence[Any]) -> list[File | Fragment]:
        """The file of each fragment, and the homes. Sizes that no footer tells are asked for in one call for each file
        system: a store is then asked in parallel.
        """
        from pyarrow import dataset as ds  # noqa: PLC0415 - as above

        files: list[File | Fragment] = []
        known: list[tuple[Any, Any]] = []
        unsized: dict[int, list[str]] = {}
        for fragment in fragments:
            if not isinstance(fragment, ds.FileFragment):
                files.append(Fragment(fragment))
                continue
            home = self._home(fragment.filesystem, fragment.format, known)
            if not isinstance(fragment, ds.ParquetFileFragment):
                unsized.setdefault(home, []).append(fragment.path)
            keys = ds.get_partition_keys(fragment.partition_expression)
            values = tuple((name, value) for name, value in keys.items() if name in self._names)
            files.append(File(home, fragment.path, values))
        sizes = {
            (home, info.path): info.size
            for home, paths in unsized.items()
            for info in known[home][0].get_file_info(paths)
        }
        return [
            replace(each, size_bytes=sizes.get((each.home, each.path))) if isinstance(each, File) else each
            for each in files
        ]

    def _home(self, filesystem: Any, form: Any, known: list[tuple[Any, Any]]) -> int:
        from pyarrow import dataset as ds  # noqa: PLC0415 - as above

        for number, (other, other_form) in enumerate(known):
            if type(other_form) is type(form) and other_form.equals(form) and other.equals(filesystem):
                return number
        known.append((filesystem, form))
        home = FileHome(filesystem, form.default_extname)
        if isinstance(form, ds.ParquetFileFormat):
            home = replace(home, dictionaries=frozenset(form.read_options.dictionary_columns))
        elif not isinstance(form, ds.IpcFileFormat):
            home = replace(home, format=form, schema=self._schema)
        self.homes += (home,)
        return len(self.homes) - 1

    def pieces(self, fragment: Any, file: File | Fragment) -> list[FilePiece]:
        """The pieces of one fragment. Raises as :func:`pieces_of`."""
        from pyarrow import dataset as ds  # noqa: PLC0415 - as above

        try:
            if isinstance(file, Fragment):
                rows = fragment.count_rows()
                return [FilePiece(file, 0, rows, rows * VALUE_BYTES * len(self._columns.declared.schema))]
            if isinstance(fragment, ds.ParquetFileFragment):
                return list(self._row_groups(file, fragment))
            if isinstance(fragment.format, ds.IpcFileFormat):
                return list(self._record_batches(file, fragment))
        except (pa.ArrowException, OSError) as error:
            first_line = str(error).partition("\n")[0]
            raise InvalidRequest(f"scan: {file.path} cannot be read: {first_line}", file=file.path) from error
        return [FilePiece(file, 0, None, file.size_bytes or 0)]

    def _row_groups(self, file: File, fragment: Any) -> Iterator[FilePiece]:
        if not self._columns.lenient:
            # Of its own: the dataset's would keep the footers of all files.
            fragment = fragment.format.make_fragment(
                fragment.path, fragment.filesystem, fragment.partition_expression
            )
        fragment.ensure_complete_metadata()
        metadata = fragment.metadata
        schema = parquet_schema(fragment.physical_schema, metadata)
        self._check(file, schema)
        file = replace(file, units=metadata.num_row_groups)
        parts: Iterable[Any] = [fragment]
        if (
            self._filter is not None
            and not is_legacy(metadata)
            and not self._of_views(fragment.physical_schema)
        ):
            with suppress(pa.ArrowNotImplementedError):
                # Of a file with another type than the scan's, as with times of another zone: rows are cast first.
                parts = fragment.split_by_row_group(self._filter, self._schema)
        share: float | None = None
        kinds = (kind for field in schema if field.name in self._names for kind in inner_types(field.type))
        has_lists = any(pa.types.is_nested(kind) and not pa.types.is_struct(kind) for kind in kinds)
        for part in parts:
            for group in part.row_groups:
                if share is None:
                    share = _share(metadata.row_group(group.id), self._names)
                whole_bytes = group.total_byte_size
                values = _values(metadata.row_group(group.id), self._names) if has_lists else 0
                yield FilePiece(file, group.id, group.num_rows, int(whole_bytes * share), whole_bytes, values)

    def _of_views(self, physical: pa.Schema) -> bool:
        """Whether the filter would be compared with statistics that are views, which Arrow refuses."""
        return any(is_view(physical.field(name).type) for name in self._filtered if name in physical.names)

    def _check(self, file: File, schema: pa.Schema) -> None:
        names = tuple(name for name, _ in file.values)
        if (known := self._fitting) is not None and known[0] == names and known[1].equals(schema):
            return  # as most files are alike, and a check takes as long as a footer
        self._columns.check(file.path, schema, names)
        self._fitting = names, schema

    def _record_batches(self, file: File, fragment: Any) -> Iterator[FilePiece]:
        with fragment.filesystem.open_input_file(fragment.path) as source:
            reader = pa.ipc.open_file(source)
            self._check(file, reader.schema)
            count = reader.num_record_batches
        file = replace(file, units=count)
        for unit in range(count):
            yield FilePiece(file, unit, None, (file.size_bytes or 0) // count)


def _share(group: Any, names: Collection[str]) -> float:
    """Which part of a row group's bytes the named columns are."""
    columns = [group.column(index) for index in range(group.num_columns)]
    total = sum(each.total_uncompressed_size for each in columns)
    read = sum(
        each.total_uncompressed_size for each in columns if each.path_in_schema.partition(".")[0] in names
    )
    return read / total if total else 1.0


def _values(group: Any, names: Collection[str]) -> int:
    """How many values the named columns have at their leaves."""
    columns = [group.column(index) for index in range(group.num_columns)]
    return sum(each.num_values for each in columns if each.path_in_schema.partition(".")[0] in names)
