"""``get`` and ``put``: rows between a server and files, batch by batch.

The suffix of a file's name says its format: Arrow's IPC file and stream, Parquet, CSV.

Guarantee: a file is written beside its name and gets it when all rows are in it: an error, or Ctrl-C, leaves what was
there before.

Memory: one batch of an IPC file; of CSV about 40 blocks of ``READ_BYTES``, which Arrow reads ahead; of Parquet the
pages of the columns that one batch comes from, and in a written one a row group of ``GROUP_BYTES``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from flight_server.protocol import AlreadyExists, FlightShuffleError
from spark_client.arrow import printable_values

from .connected import Link, connected
from .printing import print_json, print_line, print_table, size

FORMATS = ("arrow", "arrows", "parquet", "csv")
PEOPLE_ROWS = 20
"""How many rows a person is shown who does not say how many."""
GROUP_BYTES = 32 << 20
READ_BYTES = 1 << 20


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("get")(connected(_get))
    app.command("put")(connected(_put))


def _get(
    link: Link,
    name: Annotated[str, typer.Argument(help="the dataset")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="a file: .arrow, .arrows, .parquet or .csv")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="at most so many rows")] = None,
) -> None:
    """Read a dataset into a file, or to standard output: a table of the first rows for a person, an Arrow IPC stream
    for a pipe, a JSON object for each row with --json.
    """
    form, transfer = "arrows" if output is None else format_of(output), _Transfer()
    to_people = output is None and not link.as_json and sys.stdout.isatty()
    if to_people and limit is None:
        limit = PEOPLE_ROWS
    with link.client() as client, client.get(name) as reader:
        batches = transfer.counted(_first_rows(reader, limit))
        if to_people:
            shown = pa.Table.from_batches(batches, reader.schema)
            print_table(shown.column_names, _rows(shown))
        elif output is None and link.as_json:
            for batch in batches:
                for row in _rows(batch):
                    print_json(dict(zip(reader.schema.names, row, strict=True)))
        else:
            with rows_into(output, form, reader.schema) as write:
                for batch in batches:
                    write(batch)
    if output is not None:
        transfer.print(link, name, output)


def _put(
    link: Link,
    file: Annotated[Path, typer.Argument(help="Arrow, Parquet or CSV")],
    name: Annotated[str, typer.Argument(help="the dataset")],
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a dataset of that name")] = False,
) -> None:
    """Write a file as a dataset. Readers get the rows while they are written. Columns of CSV have the types of its
    first megabyte.
    """
    transfer = _Transfer()
    with link.client() as client, rows_of(file, format_of(file)) as rows:
        reader = pa.RecordBatchReader.from_batches(rows.schema, transfer.counted(rows))
        try:
            client.put(name, reader, mode="overwrite" if overwrite else "create")
        except AlreadyExists as error:
            raise FlightShuffleError(
                f"dataset {name!r} exists: choose another name, drop it, or say --overwrite", **error.detail
            ) from None
    transfer.print(link, name, file)


class _Transfer:
    """What has travelled, in decoded bytes, since it was made."""

    def __init__(self) -> None:
        self._rows = self._size_bytes = 0
        self._began = time.monotonic()

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            self._rows += batch.num_rows
            self._size_bytes += batch.nbytes
            yield batch

    def print(self, link: Link, name: str, file: Path) -> None:
        seconds = time.monotonic() - self._began
        if link.as_json:
            facts = {"rows": self._rows, "size_bytes": self._size_bytes, "seconds": round(seconds, 3)}
            print_json({"name": name, "file": str(file), **facts})
        else:
            print_line(f"{self._rows:,} rows, {size(self._size_bytes)} in {seconds:.1f} s")


def _first_rows(reader: pa.RecordBatchReader, limit: int | None) -> Iterator[Any]:
    """The first rows of a reader, which is not read further."""
    left = limit
    while left != 0:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        yield batch


def _rows(batch: Any) -> Iterator[tuple[Any, ...]]:
    """With Python's values; with Arrow's text of those that Python does not have, such as dates after 9999."""
    return zip(*map(printable_values, batch.columns), strict=True)


def format_of(path: Path) -> str:
    """The format of a file. Raises BadParameter: its suffix says none."""
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise typer.BadParameter(f"{path}: its name says no format, as .{', .'.join(FORMATS)} do")
    return form


@contextmanager
def rows_of(path: Path, form: str) -> Iterator[pa.RecordBatchReader]:
    """The rows of a file. Raises OSError, ArrowInvalid: it cannot be read, or is no such file."""
    with _named(f"{path} cannot be read as {form}"), pa.OSFile(str(path)) as source:
        if form == "csv":
            from pyarrow import csv  # noqa: PLC0415 - loads a library

            yield csv.open_csv(source, csv.ReadOptions(block_size=READ_BYTES))
        elif form == "parquet":
            from pyarrow import parquet  # noqa: PLC0415 - as above

            file = parquet.ParquetFile(source, buffer_size=READ_BYTES, pre_buffer=False)
            yield pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
        elif form == "arrow":
            ipc = pa.ipc.open_file(source)
            batches = (ipc.get_batch(each) for each in range(ipc.num_record_batches))
            yield pa.RecordBatchReader.from_batches(ipc.schema, batches)
        else:
            yield pa.ipc.open_stream(source)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Arrow's errors do not name the file."""
    try:
        yield
    except pa.ArrowException as error:
        raise pa.ArrowInvalid(f"{what}: {error}") from error


@contextmanager
def rows_into(path: Path | None, form: str, schema: pa.Schema) -> Iterator[Callable[[Any], object]]:
    """A function that writes a batch to a file; None for standard output. Raises OSError, ArrowInvalid: it cannot be
    written, or the format has no such type.
    """
    if path is None or (
        path.exists() and not path.is_file()
    ):  # a pipe or a device is written, and not replaced
        sys.stdout.flush()
        # Of a copy of the descriptor: Arrow closes what it is given.
        stream = os.fdopen(os.dup(sys.stdout.fileno()), "wb") if path is None else path.open("wb")
        with pa.PythonFile(stream, mode="w") as sink, _writing(sink, form, schema) as write:
            yield write
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with pa.OSFile(str(part), mode="w") as sink, _writing(sink, form, schema) as write:
            yield write
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _writing(sink: Any, form: str, schema: pa.Schema) -> Iterator[Callable[[Any], object]]:
    with ExitStack() as opened:
        if form == "csv":
            from pyarrow import csv  # noqa: PLC0415 - loads a library

            with _named("CSV takes no such column, as .arrow and .parquet do"):
                writer = opened.enter_context(csv.CSVWriter(sink, schema))
            yield writer.write_batch
        elif form == "parquet":
            from pyarrow import parquet  # noqa: PLC0415 - as above

            groups = _RowGroups(opened.enter_context(parquet.ParquetWriter(sink, schema)))
            yield groups.add
            groups.write()
        else:
            opens = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
            yield opened.enter_context(opens(sink, schema)).write_batch


class _RowGroups:
    """Gathers batches for row groups: one for each would make a large file of small pages."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._batches: list[Any] = []

    def add(self, batch: Any) -> None:
        self._batches.append(batch)
        if sum(each.nbytes for each in self._batches) >= GROUP_BYTES:
            self.write()

    def write(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches))
            self._batches.clear()
