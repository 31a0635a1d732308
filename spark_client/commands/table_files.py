"""Tables in files, batch by batch: Arrow's IPC file and stream, Parquet, CSV.

Guarantee: a file is written beside its name and gets it when all rows are in it: an error, or Ctrl-C, leaves what was
there before. What is no regular file (``/dev/stdout``, a FIFO) is written directly.

Memory: one batch of an IPC file; of CSV about 40 blocks of ``READ_BYTES``, which Arrow reads ahead; of Parquet the
pages of the columns that one batch comes from, and in a written one a row group of ``GROUP_BYTES``.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import pyarrow as pa
import typer

from .standard_input import standard_input

Format = Literal["arrow", "arrows", "parquet", "csv"]
FORMATS: tuple[str, ...] = get_args(Format)
GROUP_BYTES = 32 << 20
_SUFFIXES: dict[str, Format] = {
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".arrows": "arrows",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
}
_OTHER_FORMAT = f"another format is named by --format: {', '.join(FORMATS)}"
_MAGIC = b"ARROW1"
READ_BYTES = 1 << 20


def format_of(path: Path | None, given: str | None, default: Format | None = None) -> Format:
    """The format that is named, else that of the file's suffix. Raises BadParameter: neither says it."""
    found = given or (default if path is None else _SUFFIXES.get(path.suffix.lower()))
    if found not in FORMATS:
        what = f"no format {given!r}" if given else f"{path}: its name says no format"
        raise typer.BadParameter(f"{what}: say --format {', '.join(FORMATS)}")
    return cast("Format", found)


@dataclass(frozen=True)
class FileRows:
    """A table that is read; ``count`` is None where its format does not say it."""

    schema: pa.Schema
    batches: Iterator[Any]
    count: int | None = None


@contextmanager
def rows_of(path: Path | None, form: Format) -> Iterator[FileRows]:
    """The rows of a file; None for standard input. Raises OSError, ArrowInvalid: it cannot be read, or is no such file.
    BadParameter: a format that needs a file.
    """
    with ExitStack() as opened:
        opened.enter_context(_named(f"{path or 'standard input'} cannot be read as {form}", _OTHER_FORMAT))
        if path is None:
            if form == "parquet":
                raise typer.BadParameter("Parquet is read from its end: give a file, not standard input")
            raw = opened.enter_context(standard_input())
            file = raw if form == "csv" else io.BufferedReader(raw)
            source = opened.enter_context(pa.PythonFile(file, mode="r"))
        else:
            source = opened.enter_context(pa.OSFile(str(path)))
        if form == "csv":
            from pyarrow import csv  # noqa: PLC0415 - loads a library

            reader = csv.open_csv(source, csv.ReadOptions(block_size=READ_BYTES))
            if path is None:
                opened.callback(raw.end, reader)
            yield FileRows(reader.schema, raw.read_ahead(reader) if path is None else iter(reader))
        elif form == "parquet":
            from pyarrow import parquet  # noqa: PLC0415 - as above

            file = parquet.ParquetFile(source, buffer_size=READ_BYTES, pre_buffer=False)
            yield FileRows(file.schema_arrow, file.iter_batches(), file.metadata.num_rows)
        elif path is not None and _is_ipc_file(path):
            ipc = pa.ipc.open_file(source)
            yield FileRows(ipc.schema, (ipc.get_batch(each) for each in range(ipc.num_record_batches)))
        else:
            stream = pa.ipc.open_stream(source)
            yield FileRows(stream.schema, iter(stream))


@contextmanager
def _named(what: str, remedy: str) -> Iterator[None]:
    """Arrow's errors name neither the file nor what to do."""
    try:
        yield
    except pa.ArrowException as error:
        raise pa.ArrowInvalid(f"{what}: {error}; {remedy}") from error


def _standard_output() -> Any:
    """Of a copy of the descriptor: Arrow closes what it is given."""
    sys.stdout.flush()
    return pa.PythonFile(os.fdopen(os.dup(sys.stdout.fileno()), "wb"), mode="w")


def _is_ipc_file(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


@contextmanager
def rows_into(path: Path | None, form: Format, schema: pa.Schema) -> Iterator[Callable[[Any], None]]:
    """A function that writes a batch to a file; None for standard output. Raises OSError, ArrowInvalid: it cannot be
    written, or the format has no such type. BadParameter: a format that needs a file.
    """
    if path is None and form not in ("arrows", "csv"):
        raise typer.BadParameter(f"standard output takes arrows or csv, not {form}: give a file by -o")
    direct = path is None or (path.exists() and not path.is_file())
    waiting = path if path is None or direct else path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with ExitStack() as opened:
            sink = (
                opened.enter_context(_standard_output())
                if waiting is None
                else opened.enter_context(pa.OSFile(str(waiting), mode="w"))
            )
            yield opened.enter_context(_writing(sink, form, schema))
    except BaseException:
        if waiting is not None and not direct:
            waiting.unlink(missing_ok=True)
        raise
    if waiting is not None and path is not None and not direct:
        waiting.replace(path)


@contextmanager
def _writing(sink: Any, form: Format, schema: pa.Schema) -> Iterator[Callable[[Any], None]]:
    if form == "parquet":
        with _groups(sink, schema) as write:
            yield write
        return
    if form == "csv":
        from pyarrow import csv  # noqa: PLC0415 - loads a library

        with _named("CSV takes no such column", "write arrows, arrow or parquet"):
            writer = csv.CSVWriter(sink, schema)
    else:
        writer = (pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream)(sink, schema)
    with writer:
        yield writer.write_batch


@contextmanager
def _groups(sink: Any, schema: pa.Schema) -> Iterator[Callable[[Any], None]]:
    """Gathers batches for row groups: one for each would make a large file of small pages."""
    from pyarrow import parquet  # noqa: PLC0415 - loads a library

    gathered: list[Any] = []
    with parquet.ParquetWriter(sink, schema) as writer:

        def flush() -> None:
            if gathered:
                writer.write_table(pa.Table.from_batches(gathered, schema))
                gathered.clear()

        def write(batch: Any) -> None:
            gathered.append(batch)
            if sum(each.nbytes for each in gathered) >= GROUP_BYTES:
                flush()

        yield write
        flush()
