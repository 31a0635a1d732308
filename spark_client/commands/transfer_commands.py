"""``get`` and ``put``: rows between a server and files, batch by batch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from flight_server.protocol import AlreadyExists
from spark_client.arrow import ArrowValue, python_values
from spark_client.connection import Compression

from .connected import Link, connected
from .printing import print_json, print_line, print_table, size
from .table_files import FORMATS, format_of, rows_into, rows_of

PEOPLE_ROWS = 20
"""How many rows a person is shown who does not say how many."""

AnyFormat = Annotated[
    str | None,
    typer.Option("--format", "-f", help=f"one of {', '.join(FORMATS)}; default: that of the file's suffix"),
]


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
    form: AnyFormat = None,
    partitions: Annotated[
        str | None, typer.Option("--partitions", "-p", help="only these, such as 0,3", metavar="LIST")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="at most so many rows")] = None,
    ordered: Annotated[bool, typer.Option("--ordered", help="partition by partition")] = False,
) -> None:
    """Read a dataset into a file, or to standard output: a table of the first rows for a person, an Arrow IPC stream
    (--format csv: CSV) for a pipe, a JSON object for each row with --json.
    """
    indexes = None if partitions is None else _indexes(partitions)
    to_people = output is None and form is None and not link.as_json and sys.stdout.isatty()
    chosen, transfer = format_of(output, form), _Transfer()
    if to_people and limit is None:
        limit = PEOPLE_ROWS
    with link.client() as client, client.get(name, ordered=ordered, partitions=indexes) as reader:
        batches = transfer.counted(_first_rows(reader, limit))
        if to_people:
            shown = pa.Table.from_batches(batches, reader.schema)
            print_table(shown.column_names, _rows(shown))
        elif output is None and link.as_json:
            for batch in batches:
                for row in _rows(batch):
                    named = dict(zip(reader.schema.names, row, strict=True))
                    sys.stdout.write(f"{json.dumps(named, default=str)}\n")
        else:
            with rows_into(output, chosen, reader.schema) as write:
                for batch in batches:
                    write(batch)
    if output is not None:
        transfer.print(link, name, output)


def _put(
    link: Link,
    file: Annotated[Path, typer.Argument(help="Arrow, Parquet or CSV")],
    name: Annotated[str, typer.Argument(help="the dataset")],
    *,
    form: AnyFormat = None,
    compression: Annotated[
        str | None, typer.Option("--compression", help="lz4, zstd or auto; default: none")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a dataset of that name")] = False,
) -> None:
    """Write a file as a dataset. Readers get the rows while they are written. Columns of CSV have the types of its
    first megabyte.
    """
    mode, codec, transfer = "overwrite" if overwrite else "create", _compression(compression), _Transfer()
    with link.client() as client, rows_of(file, format_of(file, form)) as rows:
        reader = pa.RecordBatchReader.from_batches(rows.schema, transfer.counted(rows))
        try:
            client.put(name, reader, mode=mode, compression=codec)
        except AlreadyExists as error:
            raise AlreadyExists(
                f"dataset {name!r} exists: choose another name, drop it, or say --overwrite", **error.detail
            ) from None
    transfer.print(link, name, file)


def _compression(text: str | None) -> Compression:
    if text not in ("lz4", "zstd", "auto", None):
        raise typer.BadParameter(f"compression is lz4, zstd or auto, not {text!r}")
    return text  # type: ignore[return-value] # one of them


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


def _indexes(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--partitions are numbers with commas between, not {text!r}") from None


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
    return zip(*map(_values, batch.columns), strict=True)


def _values(column: Any) -> list[Any]:
    return [ArrowValue(each) if isinstance(each, pa.Scalar) else each for each in python_values(column)]
