"""``get`` and ``put``: rows between a server and files, batch by batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from flight_server.protocol import AlreadyExists
from spark_client import ShuffleClient
from spark_client.arrow import ArrowValue, python_values
from spark_client.connection import Compression

from .connected import Link, connected
from .printing import Transfer, print_json, print_line, print_table, size, transfer_bar
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
    chosen = format_of(output, form, "arrows")
    if to_people and limit is None:
        limit = PEOPLE_ROWS
    with link.client() as client:
        reader = client.get(name, ordered=ordered, partitions=indexes)
        with transfer_bar(name, _expected(client, name, limit, indexes)) as transfer:
            batches = transfer.passed(_first_rows(reader, limit))
            if to_people:
                shown = pa.Table.from_batches(batches, reader.schema)
            elif output is None and link.as_json:
                for batch in batches:
                    _print_rows(batch)
            else:
                with rows_into(output, chosen, reader.schema) as write:
                    for batch in batches:
                        write(batch)
        reader.close()
    if to_people:
        print_table(shown.column_names, zip(*map(_values, shown.columns), strict=True))
    elif output is not None:
        _done(link, name, output, transfer)


def _expected(
    client: ShuffleClient, name: str, limit: int | None, partitions: list[int] | None
) -> int | None:
    """How many rows a person who watches the bar may expect; None if that is not known."""
    if limit is not None or partitions is not None or not sys.stderr.isatty():
        return limit
    return next((each.rows for each in client.datasets(name) if each.name == name and each.rows >= 0), None)


def _put(
    link: Link,
    file: Annotated[
        Path, typer.Argument(help="Arrow, Parquet or CSV; - for standard input", allow_dash=True)
    ],
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
    path = None if str(file) == "-" else file
    mode, codec = "overwrite" if overwrite else "create", _compression(compression)
    with (
        link.client() as client,
        rows_of(path, format_of(path, form, "arrows")) as rows,
        transfer_bar(name, rows.count) as transfer,
    ):
        reader = pa.RecordBatchReader.from_batches(rows.schema, transfer.passed(rows.batches))
        try:
            client.put(name, reader, mode=mode, compression=codec)
        except AlreadyExists as error:
            raise AlreadyExists(
                f"dataset {name!r} exists: choose another name, drop it, or say --overwrite", **error.detail
            ) from None
    _done(link, name, path, transfer)


def _compression(text: str | None) -> Compression:
    if text not in ("lz4", "zstd", "auto", None):
        raise typer.BadParameter(f"compression is lz4, zstd or auto, not {text!r}")
    return text  # type: ignore[return-value] # one of them


def _done(link: Link, name: str, file: Path | None, transfer: Transfer) -> None:
    if link.as_json:
        print_json(
            {
                "name": name,
                "file": None if file is None else str(file),
                "rows": transfer.rows,
                "size_bytes": transfer.size_bytes,
                "seconds": round(transfer.seconds, 3),
            }
        )
    else:
        print_line(f"{transfer.rows:,} rows, {size(transfer.size_bytes)} in {transfer.seconds:.1f} s")


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


def _print_rows(batch: Any) -> None:
    for row in zip(*map(_values, batch.columns), strict=True):
        sys.stdout.write(f"{json.dumps(dict(zip(batch.schema.names, row, strict=True)), default=str)}\n")


def _values(column: Any) -> list[Any]:
    """Python's values; Arrow's text of those that Python does not have, such as dates after 9999."""
    return [ArrowValue(each) if isinstance(each, pa.Scalar) else each for each in python_values(column)]
